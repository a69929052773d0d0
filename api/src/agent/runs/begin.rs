//! From a request to a run that is recorded.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use towpath_domain::agent::merge::{EVENT_STREAMING, RESERVED_CONFIGURABLE};
use towpath_domain::agent::{AdmittedRun, Object, RunRequest};
use towpath_domain::{RequestId, RunId, ThreadId};
use towpath_durable::trace;
use towpath_store::assistants::Assistant;
use towpath_store::runs::Run;
use towpath_store::threads::{self, Thread};
use towpath_store::{Tx, lanes};
use towpath_workflows::run_agent::{self, NewRun, StatelessRun, Target};
use tracing::Instrument as _;

use crate::agent::app::{AgentApp, Settings};
use crate::agent::assistants::named_assistant;
use crate::agent::auth::caller;
use crate::agent::errors::AgentError;
use crate::agent::headers::matches_any;
use crate::agent::live::Reader;

use super::cancel::CancelOnDrop;

/// A run that only has to be recorded.
pub(in crate::agent) struct PreparedRun {
    pub id: RunId,
    pub target: Target,
    pub resumable: bool,
    pub cancel_on_disconnect: bool,
    assistant: Arc<Assistant>,
    admitted: AdmittedRun,
    headers: Object,
    user: Option<String>,
    /// What the metadata of its thread must pass.
    visible: Object,
}

impl PreparedRun {
    /// Judges a request and finds its assistant; without a thread it is a stateless one.
    pub async fn prepare(
        app: &AgentApp,
        headers: &HeaderMap,
        request: RunRequest,
        thread: Option<ThreadId>,
    ) -> Result<Self, AgentError> {
        let assistant = named_assistant(app, &request.assistant_id)?;
        let from_context = request.context.as_ref().is_some_and(|context| !context.is_empty());
        let mut admitted = request.admit(thread.is_none())?;
        let webhook = admitted.kwargs.webhook.as_deref();
        if let Some(refused) = webhook.and_then(|address| app.settings.webhooks.check_address(address)) {
            return Err(AgentError::invalid(refused));
        }
        let assistant = app
            .assistants
            .get(assistant)
            .await
            .map_err(|error| AgentError::from(error).or_missing(AgentError::no_thread_or_assistant()))?;
        // A graph draws up its schemas each time it is asked.
        if admitted.kwargs.context.is_some()
            && let Some(graph) = app.graphs.get(&assistant.graph_id)
            && let Some(keys) = graph.context_keys()
        {
            narrow(&mut admitted, &keys, from_context);
        }
        admitted.kwargs.resumable |= app.settings.always_resumable;
        Ok(Self {
            id: RunId::new(),
            target: thread.map_or_else(|| Target::New(ThreadId::new()), Target::Existing),
            resumable: admitted.kwargs.resumable,
            cancel_on_disconnect: admitted.cancel_on_disconnect,
            assistant,
            admitted,
            headers: configurable_from_headers(headers, &app.settings),
            user: caller::identity(),
            visible: caller::visible(),
        })
    }

    /// As the streaming protocol wants it: streamed in every mode that the protocol shows.
    pub fn with_event_streaming(mut self) -> Self {
        let config = &mut self.admitted.kwargs.config;
        let configurable = config.entry("configurable").or_insert_with(|| json!({}));
        if let Value::Object(configurable) = configurable {
            configurable.insert(EVENT_STREAMING.to_owned(), json!(true));
        }
        self
    }

    /// Subscribes to it, so that nothing it streams is missed.
    pub async fn reader(&self, app: &AgentApp) -> Reader {
        Reader::subscribe_new(app, self.target.id(), self.id, self.resumable).await
    }

    /// Records it, in the caller's transaction.
    pub async fn record(mut self, app: &AgentApp, tx: &mut Tx<'_>) -> towpath_store::Result<Run> {
        let assistant = self.assistant.clone();
        let visible = std::mem::take(&mut self.visible);
        run_agent::start_visible(tx, app.tenant, self.into_new(app, &assistant), &visible).await
    }

    /// Records it; a stateless one with others that come at the same moment.
    pub async fn start(mut self, app: &AgentApp) -> Result<Run, AgentError> {
        let assistant = self.assistant.clone();
        let visible = std::mem::take(&mut self.visible);
        let new = match StatelessRun::prepare(app.tenant, self.into_new(app, &assistant), app.clock.now())? {
            Err(new) => new,
            Ok(stateless) => return Ok(app.recorder.record(stateless).await?),
        };
        let recorded = app
            .store
            .write(async |tx| run_agent::start_visible(tx, app.tenant, new, &visible).await);
        Ok(recorded.await?)
    }

    /// Records it on a thread that is there, if `judge` lets the thread pass. It is judged under the lock of the thread's lane:
    /// no run of the thread is recorded, or ends, between that and the record.
    pub async fn start_if<E>(
        self,
        app: &AgentApp,
        thread: ThreadId,
        judge: impl FnOnce(&Thread) -> Result<(), E>,
    ) -> Result<Result<Run, E>, AgentError> {
        let recorded = app
            .store
            .write(async |tx| {
                lanes::lock(tx, run_agent::lane(thread).key(), 1).await?;
                let row = threads::get(tx, app.tenant, thread).await?;
                match judge(&row) {
                    Ok(()) => self.record(app, tx).await.map(Ok),
                    Err(refusal) => Ok(Err(refusal)),
                }
            })
            .await;
        Ok(recorded?)
    }

    /// Records it for somebody who reads it from now on. Whoever wanted it cancelled on leaving may leave before it is
    /// recorded, too: it is recorded all the same then, and cancelled.
    pub async fn start_with_reader(self, app: &AgentApp) -> Result<(Run, Option<CancelOnDrop>), AgentError> {
        if !self.cancel_on_disconnect {
            return Ok((self.start(app).await?, None));
        }
        let app = app.clone();
        let start = async move {
            let run = self.start(&app).await?;
            let guard = CancelOnDrop::new(&app, run.id, true);
            Ok((run, guard))
        };
        // In a task, which goes on when nobody waits for it; what it answers is dropped then. The run belongs to the trace
        // of its request all the same.
        let place = trace::current().unwrap_or_default();
        let started = tokio::spawn(trace::scope(place, start).in_current_span()).await;
        started.map_err(|error| AgentError::internal(&error))?
    }

    fn into_new<'a>(self, app: &AgentApp, assistant: &'a Assistant) -> NewRun<'a> {
        NewRun {
            id: self.id,
            thread: self.target,
            assistant,
            admitted: self.admitted,
            headers: self.headers,
            user: self.user,
            cron: None,
            events_kept: app.settings.event_retention,
            ttl: app.settings.thread_ttl,
        }
    }
}

/// Drops what the graph's context does not know, and where `configurable` mirrors it, there too.
fn narrow(admitted: &mut AdmittedRun, keys: &[String], mirrored: bool) {
    let Some(context) = &mut admitted.kwargs.context else {
        return;
    };
    let unknown: Vec<String> = context.keys().filter(|key| !keys.contains(key)).cloned().collect();
    for key in unknown {
        context.remove(&key);
        let configurable = admitted.kwargs.config.get_mut("configurable");
        if let (true, Some(Value::Object(configurable))) = (mirrored, configurable) {
            configurable.remove(&key);
        }
    }
}

/// Headers that never reach a graph: they open doors.
const KEYS: [&str; 3] = ["x-api-key", "x-tenant-id", "x-service-key"];

/// What a request's headers tell its run, as entries of `configurable`.
fn configurable_from_headers(headers: &HeaderMap, settings: &Settings) -> Object {
    let mut told = Object::new();
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    for name in headers.keys() {
        let any = |patterns: &[String]| matches_any(patterns, name.as_str());
        let usual = name.as_str().starts_with("x-") || matches!(name.as_str(), "user-agent" | "langsmith-trace");
        let wanted = (usual || any(&settings.headers_in))
            && !any(&settings.headers_out)
            && !KEYS.contains(&name.as_str())
            && !RESERVED_CONFIGURABLE.contains(&name.as_str())
            && name != http::header::AUTHORIZATION;
        if let (true, Some(value)) = (wanted, text(name)) {
            told.insert(name.as_str().to_owned(), json!(value));
        }
    }
    if let Some(baggage) = headers.get("baggage").and_then(|value| value.to_str().ok()) {
        told.extend(baggage_entries(baggage));
    }
    let request = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let request = request.map_or_else(|| RequestId::new().to_string(), str::to_owned);
    told.insert("langgraph_request_id".to_owned(), json!(request));
    told.extend(caller::configurable());
    told
}

/// The entries of a `baggage` header that tracing clients send.
fn baggage_entries(baggage: &str) -> Object {
    let mut carried = Object::new();
    for entry in baggage.split(',') {
        let Some((name, value)) = entry.trim().split_once('=') else {
            continue;
        };
        let value = decoded(value);
        let value = match name {
            "langsmith-metadata" => serde_json::from_str(&value).ok(),
            "langsmith-tags" => Some(json!(value.split(',').collect::<Vec<_>>())),
            "langsmith-project" => Some(json!(value)),
            _ => None,
        };
        if let Some(value) = value {
            carried.insert(name.to_owned(), value);
        }
    }
    carried
}

/// Percent-decoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| byte == b'%').and_then(|digits| {
            let digits = str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        if let Some(escaped) = escaped {
            bytes.push(escaped);
            rest = &after[2..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_reach_the_run_except_those_that_open_doors() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-api-key", "secret"),
            ("authorization", "Bearer secret"),
            ("x-user", "ada"),
            ("user-agent", "sdk/1"),
            ("accept", "*/*"),
            ("x-request-id", "r-1"),
            ("langgraph_auth_user_id", "alice"),
            (
                "baggage",
                "langsmith-metadata=%7B%22a%22%3A1%7D,langsmith-tags=x%2Cy,other=1",
            ),
        ] {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        let expected = json!({"x-user": "ada", "user-agent": "sdk/1", "x-request-id": "r-1",
                              "langgraph_request_id": "r-1", "langsmith-metadata": {"a": 1},
                              "langsmith-tags": ["x", "y"]});
        assert_eq!(
            Value::Object(configurable_from_headers(&headers, &Settings::default())),
            expected
        );
        // Not even where the author lets every header through.
        let every = Settings {
            headers_in: vec!["langgraph_*".to_owned()],
            ..Settings::default()
        };
        assert_eq!(Value::Object(configurable_from_headers(&headers, &every)), expected);
    }
}
