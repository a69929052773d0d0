//! Streams of a task: the task, messages of the assistant, artifacts and the final state.
//!
//! Events have the ids of the run's log. A client that resumes with `Last-Event-ID` gets each event once; without it, the
//! stream starts at the beginning of the stored log. Messages are sent whole, so repeated ones do no harm.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::HeaderMap;
use serde_json::Value;
use towpath_domain::AssistantId;
use towpath_domain::agent::a2a::{
    A2aError, ErrorCode, Part, Task, TaskState, artifact_update, reply_parts, status_update, task_event,
};
use towpath_domain::agent::{EventId, EventStart, Frame};
use towpath_store::a2a_tasks::TaskDetail;
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::{Call, sse_event};
use super::tasks::{authorize, find, internal_error, read, task_json};
use crate::agent::app::AgentApp;
use crate::agent::live::{Reader, StreamItem};
use crate::agent::runs::since;
use crate::agent::sse::{self, HeartbeatReader, ReaderEvent};

/// Beginning of a stream.
pub(super) struct StreamStart {
    pub task: Task,
    /// The task in the first event.
    pub first_event: Value,
    pub reader: Reader,
}

/// Streams an existing task.
pub(super) async fn subscribe(
    app: &AgentApp,
    headers: &HeaderMap,
    assistant: &Assistant,
    call: &Call,
) -> Result<Response, Failure> {
    let id = params::task_param(&call.params, "id")?;
    authorize(app, "read", id).await?;
    let row = find(app, assistant.id, id, TaskDetail::ALL).await?;
    let task = row.task()?;
    let since = match since(headers)? {
        EventStart::Now => EventStart::Beginning,
        // The reader missed the end, which is stored for a while.
        since => since,
    };
    if task.state.is_final() && since == EventStart::Beginning {
        let text = format!("Task {id} has ended: read it with GetTask");
        return Err(A2aError::new(ErrorCode::UnsupportedOperation, text).into());
    }
    let reader = Reader::of_run(app, row.thread_id, row.run_id, true, since).await?;
    let first = task_json(&row, call.dialect, None)?;
    Ok(respond(
        app,
        assistant.id,
        call,
        StreamStart {
            task,
            first_event: first,
            reader,
        },
    ))
}
pub(super) fn respond(app: &AgentApp, assistant: AssistantId, call: &Call, start: StreamStart) -> Response {
    let StreamStart {
        task,
        first_event: first,
        reader,
    } = start;
    let mut state = TaskStream {
        app: app.clone(),
        assistant,
        call: call.clone(),
        task,
        events: HeartbeatReader::new(app, reader),
        is_working: false,
        last_reply: Vec::new(),
        is_ended: false,
        buffered: VecDeque::new(),
    };
    state.push(&task_event(call.dialect, first), None);
    sse::stream_response(Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    })))
}

struct TaskStream {
    app: AgentApp,
    assistant: AssistantId,
    call: Call,
    task: Task,
    events: HeartbeatReader,
    /// Whether the client knows that the run has started.
    is_working: bool,
    /// The last message of the assistant.
    last_reply: Vec<Part>,
    is_ended: bool,
    buffered: VecDeque<Bytes>,
}

impl TaskStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.buffered.pop_front() {
                return Some(bytes);
            }
            if self.is_ended {
                return None;
            }
            let item = match self.events.next().await {
                ReaderEvent::Item(item) => item,
                ReaderEvent::Heartbeat(beat) => return Some(beat),
                ReaderEvent::Drain => return None,
            };
            match item {
                Ok(Some(StreamItem::Frame(text))) => self.accept_event(&text),
                // Lost messages are not repeated; artifacts and the final state are still sent.
                Ok(Some(StreamItem::Cut)) => {}
                Ok(Some(StreamItem::End(..)) | None) => self.push_end().await,
                Err(error) => self.fail(&internal_error(error)),
            }
        }
    }

    fn accept_event(&mut self, text: &str) {
        let Some(frame) = Frame::decode(text) else { return };
        if frame.event == "metadata" {
            // A new attempt sends its messages again.
            self.last_reply.clear();
            if !self.is_working {
                self.is_working = true;
                self.push_reply(&[], frame.id);
            }
        } else if frame.event.starts_with("messages/partial") || frame.event.starts_with("messages/complete") {
            let messages = serde_json::from_str::<Vec<Value>>(frame.data).unwrap_or_default();
            let said = messages.iter().rev().map(reply_parts).find(|parts| !parts.is_empty());
            if let Some(said) = said.filter(|said| *said != self.last_reply) {
                self.push_reply(&said, frame.id);
                self.last_reply = said;
            }
        }
    }

    fn push_reply(&mut self, parts: &[Part], id: EventId) {
        let now = self.app.clock.now();
        let update = status_update(self.call.dialect, &self.task, Some((parts, now)));
        self.push(&update, Some(id));
    }

    /// Sends artifacts and the final state after the run has ended.
    async fn push_end(&mut self) {
        self.is_ended = true;
        let row = read(&self.app, self.assistant, self.task.id, TaskDetail::ARTIFACT).await;
        let task = row.and_then(|row| row.task().map_err(internal_error));
        let task = match task {
            // Another message already continues the task: this stream belongs to the earlier run.
            Ok(task) if task.run != self.task.run => return,
            Ok(task) => task,
            Err(refusal) => return self.fail(&refusal),
        };
        if matches!(task.state, TaskState::Submitted | TaskState::Working) {
            let text = "the run has ended, but its task does not show it yet: read it with GetTask";
            return self.fail(&A2aError::new(ErrorCode::Internal, text));
        }
        if let Some(update) = artifact_update(self.call.dialect, &task) {
            self.push(&update, None);
        }
        self.push(&status_update(self.call.dialect, &task, None), None);
    }

    fn fail(&mut self, refusal: &A2aError) {
        self.is_ended = true;
        let answer = self.call.envelope(Err(refusal));
        self.buffered.push_back(sse_event(&answer, None));
    }

    fn push(&mut self, result: &Value, id: Option<EventId>) {
        let answer = self.call.envelope(Ok(result.clone()));
        self.buffered.push_back(sse_event(&answer, id));
    }
}
