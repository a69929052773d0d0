//! Answers that wait for a run: blanks while it goes on, then the result.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::agent::{Frame, RunStatus};
use towpath_domain::{RunId, ThreadId};
use towpath_store::{self as store, runs, threads};

use super::agent_protocol::run_result;
use super::answer::without_nul;
use super::app::AgentApp;
use super::errors::AgentError;
use super::live::{Reader, StreamItem, cut};
use super::runs::cancel::CancelOnDrop;

/// What an answer that waits says at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFormat {
    /// The state alone, or `__error__`.
    State,
    /// The run and its state, as in the Agent Protocol.
    RunResult,
}

/// The answer that waits. Its head goes out at once, so its status is 200 whatever the run comes to.
pub(crate) fn respond(
    app: &AgentApp,
    run: (ThreadId, RunId),
    reader: Reader,
    headers: HeaderMap,
    guard: Option<CancelOnDrop>,
) -> Response {
    respond_as(None, RunWait::new(app, run, reader, guard), headers)
}

/// As [`respond`], with the run and its state.
pub(crate) fn respond_with_run(
    app: &AgentApp,
    run: runs::Run,
    reader: Reader,
    headers: HeaderMap,
    guard: Option<CancelOnDrop>,
) -> Response {
    let run_wait = RunWait::new(app, (run.thread_id, run.id), reader, guard);
    respond_as(Some(Box::new(run)), run_wait, headers)
}

fn respond_as(recorded: Option<Box<runs::Run>>, run_wait: RunWait, headers: HeaderMap) -> Response {
    let app = &run_wait.app;
    let every = app.settings.heartbeat;
    let mut beat = interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let state = WaitResponse {
        run_wait,
        recorded,
        heartbeat: beat,
        is_ended: false,
    };
    let body = Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    }));
    let mut response = body.into_response();
    response.headers_mut().extend(headers);
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

struct WaitResponse {
    run_wait: RunWait,
    /// The run as it was before the wait, if the answer shows it.
    recorded: Option<Box<runs::Run>>,
    heartbeat: Interval,
    is_ended: bool,
}

impl WaitResponse {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_ended {
            return None;
        }
        let over = loop {
            let step = tokio::select! {
                biased;
                step = self.run_wait.next_step() => step,
                // Parsers skip it.
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(b"\n")),
            };
            match step {
                Ok(WaitStep::Frame(_)) => {}
                Ok(WaitStep::Finished(end)) => break Ok(end),
                Err(error) => break Err(error),
            }
        };
        self.is_ended = true;
        let status = over.as_ref().ok().and_then(|end| end.as_ref()?.status);
        let state = self.run_wait.final_state(over).await;
        Some(match self.recorded.take() {
            None => state,
            Some(recorded) => run_result(&self.run_wait.app, *recorded, status, &state).await,
        })
    }
}

/// A run that is waited for, and what its stream said.
pub(crate) struct RunWait {
    app: AgentApp,
    thread: ThreadId,
    run: RunId,
    reader: Reader,
    guard: Option<CancelOnDrop>,
    result: StreamResult,
}

/// What a run that is waited for comes to.
pub(crate) enum WaitStep {
    /// It streamed this.
    Frame(Arc<str>),
    /// It is over; nothing is known of its end where its thread went first.
    Finished(Option<RunEnd>),
}

/// What the stream said.
#[derive(Default)]
struct StreamResult {
    values: Option<String>,
    error: Option<String>,
    /// Where the run may be judged.
    feedback: Option<String>,
    /// Frames were lost after the state, perhaps a later one among them.
    truncated: bool,
}

impl RunWait {
    pub(crate) fn new(
        app: &AgentApp,
        (thread, run): (ThreadId, RunId),
        reader: Reader,
        guard: Option<CancelOnDrop>,
    ) -> Self {
        Self {
            app: app.clone(),
            thread,
            run,
            reader,
            guard,
            result: StreamResult::default(),
        }
    }

    /// The next step. One that was not waited for to its end is not lost.
    pub(crate) async fn next_step(&mut self) -> Result<WaitStep, AgentError> {
        loop {
            match self.reader.next().await? {
                Some(StreamItem::Frame(text)) => {
                    self.result.record(&text);
                    return Ok(WaitStep::Frame(text));
                }
                Some(StreamItem::Cut) => self.result.truncated = true,
                Some(StreamItem::End(_, end, _)) => return Ok(WaitStep::Finished(Some(end))),
                None => return Ok(WaitStep::Finished(None)),
            }
        }
    }

    /// The state that a run left which is over, or `__error__`.
    pub(crate) async fn final_state(&mut self, over: Result<Option<RunEnd>, AgentError>) -> Bytes {
        let result = match over {
            Ok(Some(end)) => self.result(end).await,
            Ok(None) => Ok(Bytes::from_static(b"{}")),
            Err(error) => Err(error),
        };
        if let Some(guard) = &mut self.guard {
            guard.disarm();
        }
        result.unwrap_or_else(|error| {
            let error = json!({"__error__": {"error": "HTTPException", "message": error.detail()}});
            error.to_string().into()
        })
    }

    async fn result(&mut self, end: RunEnd) -> Result<Bytes, AgentError> {
        if let Some(error) = self.result.error.take() {
            return Ok(failed(&error));
        }
        if let Some(error) = end.error {
            return Ok(failed(&error.to_string()));
        }
        let Some(values) = self.values(end.status, end.values).await? else {
            return Ok(failed(&cut(
                "The run is over, and its last state was lost on its way here",
            )));
        };
        Ok(without_nul(match self.result.feedback.take() {
            Some(feedback) => with_feedback(values, &feedback),
            None => values,
        }))
    }

    /// The state a run left that ended so; nothing when it was lost on its way here and is kept nowhere.
    async fn values(&mut self, status: Option<RunStatus>, told: Option<Value>) -> Result<Option<String>, AgentError> {
        let mut seen = self.result.values.take();
        if !self.result.truncated
            && status == Some(RunStatus::Success)
            && let Some(values) = seen.take()
        {
            return Ok(Some(values));
        }
        if let Some(values) = told {
            return Ok(Some(values.to_string()));
        }
        if let Some(stored) = stored(&self.app, self.thread, self.run).await? {
            return Ok(Some(stored.to_string()));
        }
        // Its thread went with it. What a run streamed until somebody stopped it is all there is.
        let lost = self.result.truncated && status != Some(RunStatus::Interrupted);
        Ok((!lost).then(|| seen.unwrap_or_else(|| "{}".to_owned())))
    }
}

impl StreamResult {
    fn record(&mut self, text: &str) {
        let Some(frame) = Frame::decode(text) else { return };
        match frame.event {
            "values" => {
                self.values = Some(frame.data.to_owned());
                self.truncated = false;
            }
            "error" => self.error = Some(frame.data.to_owned()),
            "feedback" => self.feedback = Some(frame.data.to_owned()),
            // A new attempt: what an earlier one said does not count.
            "metadata" => *self = Self::default(),
            _ => {}
        }
    }
}

/// The state, and beside it where the run may be judged. A state that is no object has no room for that.
fn with_feedback(values: String, feedback: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(&values) {
        Ok(mut state) => {
            state.insert(
                "__feedback__".to_owned(),
                serde_json::from_str(feedback).unwrap_or_default(),
            );
            Value::Object(state).to_string()
        }
        Err(_) => values,
    }
}

fn failed(error: &str) -> Bytes {
    without_nul(format!("{{\"__error__\":{error}}}"))
}

/// What a run that is over left, as its thread's row says: its error, else the state with the interrupts that wait.
/// `None` when the thread is gone.
async fn stored(app: &AgentApp, thread: ThreadId, run: RunId) -> Result<Option<Value>, AgentError> {
    let read = app
        .store
        .read(async |tx| {
            let thread = threads::get(tx, app.tenant, thread).await?;
            let status = match runs::get(tx, app.tenant, run).await {
                Err(store::Error::NotFound) => None,
                run => Some(run?.status),
            };
            Ok((thread, status))
        })
        .await;
    let (thread, status) = match read {
        Err(store::Error::NotFound) => return Ok(None),
        read => read?,
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    if matches!(status, Some(RunStatus::Error | RunStatus::Timeout))
        && let Some(error) = &thread.error
    {
        return Ok(Some(json!({"__error__": parse(error)})));
    }
    let mut values = match thread.current_values.as_deref().map(parse) {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(values) => values,
    };
    let waiting: Vec<Value> = match parse(&thread.interrupts) {
        Value::Object(tasks) => tasks
            .into_iter()
            .filter_map(|(_, interrupts)| match interrupts {
                Value::Array(interrupts) => Some(interrupts),
                _ => None,
            })
            .flatten()
            .map(as_streamed)
            .collect(),
        _ => Vec::new(),
    };
    if let (Value::Object(values), false) = (&mut values, waiting.is_empty()) {
        values.insert("__interrupt__".to_owned(), Value::Array(waiting));
    }
    Ok(Some(values))
}

/// An interrupt as the events of a run have it. Threads leave out a schema that is null.
fn as_streamed(mut interrupt: Value) -> Value {
    if let Some(fields) = interrupt.as_object_mut() {
        fields.entry("response_schema").or_insert(Value::Null);
    }
    interrupt
}
