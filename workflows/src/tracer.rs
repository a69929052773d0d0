//! Sends traces of native runs to a platform, like its tracing clients.
//!
//! A run never waits for its trace and never fails because of it. Traces that cannot be sent are dropped, with one
//! warning. The contents of traces are defined in `run_agent`; users' own code traces itself.
//!
//! A run that requests feedback links ([`Tracer::feedback_links`]) waits for them for a short time.

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

/// Maximum number of waiting traces; more are dropped.
const QUEUE_CAPACITY: usize = 1000;
/// Traces per request.
const BATCH_TRACES: usize = 50;
/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a run waits for feedback links.
const LINKS_LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of a response with links.
const LINKS_BYTES: usize = 256 * 1024;

/// Destination of traces.
#[derive(Clone, Debug)]
pub struct Platform {
    pub endpoint: String,
    pub key: Secret,
    /// The workspace, if the key opens several.
    pub workspace: Option<String>,
    /// Project of runs that name none.
    pub project: String,
}

#[derive(Clone, Debug)]
pub struct Tracer {
    project: Arc<str>,
    sender: mpsc::Sender<Message>,
    client: Arc<PlatformClient>,
}

#[derive(Debug)]
struct PlatformClient {
    endpoint: String,
    headers: HeaderMap,
    guard: Guard,
}

#[derive(Debug)]
enum Message {
    Trace(Vec<Value>),
    /// Reports when all earlier traces are sent.
    Flush(oneshot::Sender<()>),
}

impl Tracer {
    /// Starts to send to this platform. `None`, with a warning, if its key cannot be sent.
    #[must_use]
    pub fn start(platform: &Platform, guard: Guard) -> Option<Self> {
        let (sender, waiting) = mpsc::channel(QUEUE_CAPACITY);
        let project = platform.project.as_str().into();
        let caller = Arc::new(PlatformClient::new(platform, guard)?);
        tokio::spawn(send(caller.clone(), waiting));
        Some(Self {
            project,
            sender,
            client: caller,
        })
    }

    #[must_use]
    pub fn project(&self) -> &str {
        &self.project
    }

    /// Queues a trace: its trace runs, the root first, in the format of the platform's ingest.
    pub fn enqueue(&self, trace: Vec<Value>) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if self.sender.try_send(Message::Trace(trace)).is_err() && !TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!("traces are created faster than the platform accepts them; some are dropped");
        }
    }

    /// Links with which anybody can give feedback on a trace, by key. None, with a warning, if the platform does not
    /// issue them.
    pub async fn feedback_links(&self, trace: Uuid, keys: &[String]) -> Option<BTreeMap<String, String>> {
        #[derive(Deserialize)]
        struct Link {
            url: String,
        }
        // Duplicate keys get one link.
        let mut keys: Vec<&String> = keys.iter().collect();
        keys.sort_unstable();
        keys.dedup();
        let wanted = keys.iter().map(|key| json!({"run_id": trace, "feedback_key": key}));
        let wanted = Value::Array(wanted.collect());
        let asked = async {
            let reply = self.client.post("/feedback/tokens", &wanted, LINKS_LIMIT).await?;
            let body = reply.bytes(LINKS_BYTES).await.map_err(|error| error.to_string())?;
            let links: Vec<Link> = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
            if links.len() != keys.len() {
                return Err(format!("{} links for {} keys", links.len(), keys.len()));
            }
            Ok(links)
        };
        match asked.await {
            // In the requested order.
            Ok(links) => Some(
                keys.into_iter()
                    .cloned()
                    .zip(links.into_iter().map(|link| link.url))
                    .collect(),
            ),
            Err(problem) => {
                tracing::warn!(%problem, trace.id = %trace, "a run ends without the feedback links it requested");
                None
            }
        }
    }

    /// Waits until all queued traces are sent, or for `limit`.
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

impl PlatformClient {
    fn new(platform: &Platform, guard: Guard) -> Option<Self> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        let workspace = platform.workspace.as_deref().map(|id| ("x-tenant-id", id));
        for (name, value) in [("x-api-key", platform.key.reveal())].into_iter().chain(workspace) {
            let Ok(mut value) = value.parse::<HeaderValue>() else {
                tracing::warn!("runs are not traced: the platform's {name} is not a valid header value");
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

    /// The response if it is a success, else the error.
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

/// Ends when all senders are dropped.
async fn send(caller: Arc<PlatformClient>, mut waiting: mpsc::Receiver<Message>) {
    let mut messages = Vec::new();
    let mut told = false;
    while waiting.recv_many(&mut messages, BATCH_TRACES).await > 0 {
        let (mut post, mut flushed) = (Vec::new(), Vec::new());
        for message in messages.drain(..) {
            match message {
                Message::Trace(trace) => post.extend(trace),
                Message::Flush(done) => flushed.push(done),
            }
        }
        if post.is_empty() {
            // Dropping the sender tells the waiting callers.
            continue;
        }
        let traces = json!({"post": post, "patch": []});
        match caller.post("/runs/batch", &traces, LIMIT).await {
            Ok(_) => told = false,
            // Logged once, until it works again.
            Err(problem) if !told => {
                told = true;
                tracing::warn!(%problem, "traces of runs cannot be sent");
            }
            Err(_) => {}
        }
    }
}
