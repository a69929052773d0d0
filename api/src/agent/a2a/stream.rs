//! Streams of a task: the task, messages of the assistant, artifacts and the final state.
//!
//! Events have the ids of the run's log. A client that resumes with `Last-Event-ID` gets each event once; without it,
//! the stream starts at the beginning of the stored log. Messages are sent whole, so repeated ones do no harm. All
//! streams of a task get the same events, so times in them are those of the log.
//!
//! A stream ends when the task ends or asks for input. One of a task that asks already begins with the next run.

mod next_run;

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::HeaderMap;
use serde_json::Value;
use towpath_domain::agent::a2a::{
    A2aError, Dialect, ErrorCode, Part, Task, TaskState, artifact_update, reply_parts, status_update, task_event,
};
use towpath_domain::agent::{EventId, EventStart, Frame};
use towpath_domain::{AssistantId, Timestamp};
use towpath_store::a2a_tasks::TaskDetail;
use towpath_store::assistants::Assistant;

use self::next_run::{NextRun, NextRunEvent};
use super::failure::Failure;
use super::params;
use super::rpc::{Call, sse_event};
use super::tasks::{authorize, find, internal_error, load_task, read, task_json};
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

/// What a stream reads.
enum Source {
    Run(Box<HeartbeatReader>),
    /// The task asks for input.
    NextRun(NextRun),
}

impl Source {
    fn run(app: &AgentApp, reader: Reader) -> Self {
        Self::Run(Box::new(HeartbeatReader::new(app, reader)))
    }
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
    // Clients of version 0.3 wait for the event that is marked as the last one.
    let follows_next_run =
        task.state == TaskState::InputRequired && since == EventStart::Beginning && call.dialect == Dialect::V10;
    let source = if follows_next_run {
        Source::NextRun(NextRun::new(app, row.thread_id).await)
    } else {
        let reader = Reader::of_logged_run(app, row.thread_id, row.run_id, since).await?;
        Source::run(app, reader)
    };
    let first = task_json(&row, call.dialect, None)?;
    Ok(respond_from(app, assistant.id, call, task, first, source))
}

pub(super) fn respond(app: &AgentApp, assistant: AssistantId, call: &Call, start: StreamStart) -> Response {
    let StreamStart {
        task,
        first_event,
        reader,
    } = start;
    let source = Source::run(app, reader);
    respond_from(app, assistant, call, task, first_event, source)
}

fn respond_from(
    app: &AgentApp,
    assistant: AssistantId,
    call: &Call,
    task: Task,
    first: Value,
    source: Source,
) -> Response {
    let mut state = TaskStream {
        app: app.clone(),
        assistant,
        call: call.clone(),
        task,
        source,
        follows_runs: false,
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
    source: Source,
    /// Whether it waited for an answer to a question.
    follows_runs: bool,
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
            let event = match &mut self.source {
                Source::Run(reader) => reader.next().await,
                Source::NextRun(next_run) => match next_run.next().await {
                    NextRunEvent::Check => {
                        self.check_next_run().await;
                        continue;
                    }
                    NextRunEvent::Heartbeat(beat) => return Some(beat),
                    NextRunEvent::Drain => return None,
                },
            };
            let item = match event {
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

    /// Follows the next run of a task that asked for input, if there is one.
    async fn check_next_run(&mut self) {
        let row = match load_task(&self.app, self.assistant, self.task.id, TaskDetail::STATE).await {
            Ok(row) => row,
            // The database is away: a later look may know more.
            Err(error) if error.is_transient() => return,
            Err(towpath_store::Error::NotFound) => return self.fail(&A2aError::task_not_found(self.task.id)),
            Err(error) => return self.fail(&internal_error(error)),
        };
        if row.run_id != self.task.run {
            self.follow_run(row.without_outcome()).await;
        } else if row.state != TaskState::InputRequired {
            // It was canceled.
            self.push_end().await;
        }
    }

    async fn follow_run(&mut self, task: Task) {
        let (thread, run) = (task.id.thread, task.run);
        self.task = task;
        match Reader::of_logged_run(&self.app, thread, run, EventStart::Beginning).await {
            Ok(reader) => {
                self.source = Source::run(&self.app, reader);
                (self.follows_runs, self.is_working, self.is_ended) = (true, false, false);
                self.last_reply.clear();
            }
            Err(error) => self.fail(&internal_error(error)),
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
        let at = Timestamp::from_micros(id.ms.saturating_mul(1000));
        let update = status_update(self.call.dialect, &self.task, Some((parts, at)));
        self.push(&update, Some(id));
    }

    /// Sends artifacts and the final state after the run has ended.
    async fn push_end(&mut self) {
        self.is_ended = true;
        let row = read(&self.app, self.assistant, self.task.id, TaskDetail::ARTIFACT).await;
        let task = row.and_then(|row| row.task().map_err(internal_error));
        let task = match task {
            Ok(task) if task.run != self.task.run => {
                // The stream of a message belongs to its own run; one that waited for an answer goes on.
                if self.follows_runs {
                    self.follow_run(task).await;
                }
                return;
            }
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
