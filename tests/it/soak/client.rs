//! Requests to one surface through any of the processes that serve it, and what was wrong with the answers.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;
use towpath_tests::{Answer, Api, until};

/// How long one thing may take while processes die and stand still. Not a bar: seconds are printed.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Findings that are told in full.
const TOLD: usize = 20;
/// Characters of a body in a finding.
const SHOWN: usize = 300;

/// What was wrong so far.
#[derive(Debug, Default)]
pub struct Findings(Mutex<Vec<String>>);

impl Findings {
    pub fn note(&self, what: String) {
        self.0.lock().expect("nobody panicked").push(what);
    }

    /// The first findings and how many there are; `None` if there is none.
    pub fn told(&self) -> Option<String> {
        let found = self.0.lock().expect("nobody panicked");
        let first = found.first()?;
        let others = found.iter().take(TOLD).skip(1);
        let text = others.fold(first.clone(), |text, other| format!("{text}\n{other}"));
        Some(format!("{} findings:\n{text}", found.len()))
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Request {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Request {
    pub fn raw(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::raw(Method::GET, path, Bytes::new())
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self::raw(Method::DELETE, path, Bytes::new())
    }

    pub fn json(method: Method, path: impl Into<String>, body: &Value) -> Self {
        Self::raw(method, path, body.to_string()).header("content-type", "application/json")
    }

    pub fn post(path: impl Into<String>, body: &Value) -> Self {
        Self::json(Method::POST, path, body)
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, path) = (&self.method, &self.path);
        write!(f, "{method} {path} {}", shortened(&String::from_utf8_lossy(&self.body)))
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub struct ClientResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// The text as JSON; null where it is none.
    pub body: Value,
}

impl ClientResponse {
    fn of(answer: &Answer) -> Self {
        Self {
            status: answer.status.as_u16(),
            headers: answer.headers.clone(),
            text: String::from_utf8_lossy(&answer.body).into_owned(),
            body: serde_json::from_slice(&answer.body).unwrap_or_default(),
        }
    }

    /// Whether the client is to come back later.
    const fn is_retryable(&self) -> bool {
        matches!(self.status, 429 | 503 | 507)
    }
}

impl fmt::Display for ClientResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, shortened(&self.text))
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Asks the processes of a surface in turn.
pub struct Client {
    apis: Vec<Api>,
    asked: AtomicUsize,
    findings: Arc<Findings>,
}

impl Client {
    pub fn new(apis: Vec<Api>, findings: &Arc<Findings>) -> Self {
        Self {
            apis,
            asked: AtomicUsize::new(0),
            findings: Arc::clone(findings),
        }
    }

    /// Requests so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// One try. `None` where nothing was answered.
    pub async fn once(&self, request: &Request) -> Option<ClientResponse> {
        let turn = self.asked.fetch_add(1, Ordering::Relaxed);
        let api = &self.apis[turn % self.apis.len()];
        let Request {
            method,
            path,
            headers,
            body,
        } = request;
        let answer = api.exchange(method.clone(), path, headers, body.clone()).await.ok()?;
        let said = ClientResponse::of(&answer);
        if said.status == 500 {
            self.findings.note(format!("{request}: {said}"));
        }
        Some(said)
    }

    /// The answer to a request that may be sent twice, which is repeated until there is one.
    pub async fn repeat(&self, request: &Request) -> ClientResponse {
        until(&format!("an answer to {request}"), PATIENCE, async || {
            self.once(request).await.filter(|said| !said.is_retryable())
        })
        .await
    }

    /// As [`Client::repeat`]. An answer other than `wanted` is a finding, and `None`.
    pub async fn insist(&self, request: &Request, wanted: &[u16]) -> Option<ClientResponse> {
        let said = self.repeat(request).await;
        if wanted.contains(&said.status) {
            return Some(said);
        }
        self.findings.note(format!("{request}: {said}, in place of {wanted:?}"));
        None
    }

    /// What a path shows.
    pub async fn read(&self, path: impl Into<String>) -> ClientResponse {
        self.repeat(&Request::get(path)).await
    }
}
