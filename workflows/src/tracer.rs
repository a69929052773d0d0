//! Traces of native runs, sent to a platform as its tracing clients would.
//!
//! Promises: a run never waits for its trace, and never fails because of it. What cannot be sent is dropped, and said
//! once. Leaves to others: what a trace says (`run_agent`), graphs of users' own code, which trace themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use towpath_domain::Secret;
use towpath_outbound::{Call, Guard};

/// Traces that wait to be sent; more are dropped.
const WAITING: usize = 1000;
/// Traces of one request.
const TOGETHER: usize = 50;
/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(10);

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
}

#[derive(Debug)]
enum Message {
    /// A trace.
    Trace(Vec<Value>),
    /// Somebody waits for what was given before to be sent.
    Flush(oneshot::Sender<()>),
}

impl Tracer {
    /// Sends to this platform from now on.
    #[must_use]
    pub fn start(platform: Platform, guard: Guard) -> Self {
        let (sender, waiting) = mpsc::channel(WAITING);
        let project = platform.project.as_str().into();
        tokio::spawn(send(platform, guard, waiting));
        Self { project, sender }
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

/// Ends when nobody can give it anything more.
async fn send(platform: Platform, guard: Guard, mut waiting: mpsc::Receiver<Message>) {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    let workspace = platform.workspace.as_deref().map(|id| ("x-tenant-id", id));
    for (name, value) in [("x-api-key", platform.key.reveal())].into_iter().chain(workspace) {
        let Ok(mut value) = value.parse::<HeaderValue>() else {
            tracing::warn!("runs are not traced: the platform's {name} is no header");
            return;
        };
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let url = format!("{}/runs/batch", platform.endpoint.trim_end_matches('/'));
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
        let call = Call {
            method: Method::POST,
            url: url.clone(),
            headers: headers.clone(),
            body: json!({"post": post, "patch": []}).to_string().into(),
            limit: LIMIT,
        };
        let problem = match guard.call(call).await {
            Ok(reply) if reply.status().is_success() => None,
            Ok(reply) => Some(format!("the platform answered {}", reply.status())),
            Err(error) => Some(error.to_string()),
        };
        match problem {
            None => told = false,
            // Once, until it works again.
            Some(problem) if !told => {
                told = true;
                tracing::warn!(%problem, "traces of runs cannot be sent");
            }
            Some(_) => {}
        }
    }
}
