//! Traces of native runs, sent to a platform as its tracing clients would.
//!
//! Promises: a run never waits for its trace, and never fails because of it. What cannot be sent is dropped, and said
//! once. Leaves to others: what a trace says (`run_agent`), graphs of users' own code, which trace themselves.
//!
//! A run that asks for links by which its readers judge it ([`Tracer::feedback_links`]) waits for those a short while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use towpath_domain::Secret;
use towpath_outbound::{Call, Guard, Reply};
use uuid::Uuid;

/// Traces that wait to be sent; more are dropped.
const WAITING: usize = 1000;
/// Traces of one request.
const TOGETHER: usize = 50;
/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a run waits for links.
const LINKS_LIMIT: Duration = Duration::from_secs(5);
/// The most bytes of an answer with links.
const LINKS_BYTES: usize = 256 * 1024;

/// Where traces go.
#[derive(Clone, Debug)]
pub struct Platform {
    /// Its address.
    pub endpoint: String,
    /// A key for it.
    pub key: Secret,
    /// The workspace, where the key opens several.
    pub workspace: Option<String>,
    /// The project of runs that name none.
    pub project: String,
}

/// Sends traces in the background.
#[derive(Clone, Debug)]
pub struct Tracer {
    project: Arc<str>,
    sender: mpsc::Sender<Message>,
    caller: Arc<Caller>,
}

/// Calls a platform.
#[derive(Debug)]
struct Caller {
    endpoint: String,
    headers: HeaderMap,
    guard: Guard,
}

#[derive(Debug)]
enum Message {
    /// A trace.
    Trace(Vec<Value>),
    /// Somebody waits for what was given before to be sent.
    Flush(oneshot::Sender<()>),
}

impl Tracer {
    /// Sends to this platform from now on. `None`, and a warning, where its key cannot be sent.
    #[must_use]
    pub fn start(platform: &Platform, guard: Guard) -> Option<Self> {
        let (sender, waiting) = mpsc::channel(WAITING);
        let project = platform.project.as_str().into();
        let caller = Arc::new(Caller::new(platform, guard)?);
        tokio::spawn(send(caller.clone(), waiting));
        Some(Self {
            project,
            sender,
            caller,
        })
    }

    /// The project of runs that name none.
    #[must_use]
    pub fn project(&self) -> &str {
        &self.project
    }

    /// Takes a trace: its trace runs, the root first, as the platform's ingest reads them.
    pub fn take(&self, trace: Vec<Value>) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if self.sender.try_send(Message::Trace(trace)).is_err() && !TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!("traces are made faster than the platform takes them; some are dropped");
        }
    }

    /// Addresses by which anybody may judge a trace, by the names under which that is done. None, and a warning, where
    /// the platform does not hand them out.
    pub async fn feedback_links(&self, trace: Uuid, keys: &[String]) -> Option<BTreeMap<String, String>> {
        #[derive(Deserialize)]
        struct Link {
            url: String,
        }
        // What is said twice is judged once.
        let mut keys: Vec<&String> = keys.iter().collect();
        keys.sort_unstable();
        keys.dedup();
        let wanted = keys.iter().map(|key| json!({"run_id": trace, "feedback_key": key}));
        let wanted = Value::Array(wanted.collect());
        let asked = async {
            let reply = self.caller.post("/feedback/tokens", &wanted, LINKS_LIMIT).await?;
            let body = reply.bytes(LINKS_BYTES).await.map_err(|error| error.to_string())?;
            let links: Vec<Link> = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
            if links.len() != keys.len() {
                return Err(format!("{} links for {} keys", links.len(), keys.len()));
            }
            Ok(links)
        };
        match asked.await {
            // In the order in which they were asked for.
            Ok(links) => Some(
                keys.into_iter()
                    .cloned()
                    .zip(links.into_iter().map(|link| link.url))
                    .collect(),
            ),
            Err(problem) => {
                tracing::warn!(%problem, trace.id = %trace, "a run ends without the links for feedback that it asked for");
                None
            }
        }
    }

    /// Waits until what was taken is sent, or `limit` is over.
    pub async fn flush(&self, limit: Duration) {
        let flushed = async {
            let (done, sent) = oneshot::channel();
            if self.sender.send(Message::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        if tokio::time::timeout(limit, flushed).await.is_err() {
            tracing::warn!("the last traces of runs were not sent in time");
        }
    }
}

impl Caller {
    fn new(platform: &Platform, guard: Guard) -> Option<Self> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        let workspace = platform.workspace.as_deref().map(|id| ("x-tenant-id", id));
        for (name, value) in [("x-api-key", platform.key.reveal())].into_iter().chain(workspace) {
            let Ok(mut value) = value.parse::<HeaderValue>() else {
                tracing::warn!("runs are not traced: the platform's {name} is no header");
                return None;
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Some(Self {
            endpoint: platform.endpoint.trim_end_matches('/').to_owned(),
            headers,
            guard,
        })
    }

    /// The answer, if it is one of success; else why there is none.
    async fn post(&self, path: &str, body: &Value, limit: Duration) -> Result<Reply, String> {
        let call = Call {
            method: Method::POST,
            url: format!("{}{path}", self.endpoint),
            headers: self.headers.clone(),
            body: body.to_string().into(),
            limit,
        };
        match self.guard.call(call).await {
            Ok(reply) if reply.status().is_success() => Ok(reply),
            Ok(reply) => Err(format!("the platform answered {}", reply.status())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Ends when nobody can give it anything more.
async fn send(caller: Arc<Caller>, mut waiting: mpsc::Receiver<Message>) {
    let mut messages = Vec::new();
    let mut told = false;
    while waiting.recv_many(&mut messages, TOGETHER).await > 0 {
        let (mut post, mut flushed) = (Vec::new(), Vec::new());
        for message in messages.drain(..) {
            match message {
                Message::Trace(trace) => post.extend(trace),
                Message::Flush(done) => flushed.push(done),
            }
        }
        if post.is_empty() {
            // Dropped, which tells those who wait.
            continue;
        }
        let traces = json!({"post": post, "patch": []});
        match caller.post("/runs/batch", &traces, LIMIT).await {
            Ok(_) => told = false,
            // Once, until it works again.
            Err(problem) if !told => {
                told = true;
                tracing::warn!(%problem, "traces of runs cannot be sent");
            }
            Err(_) => {}
        }
    }
}
