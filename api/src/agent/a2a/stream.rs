//! Streams of a task: the task, what the assistant says on its way, what it brought, where it stands at the end.
//!
//! Events bear the ids of the run's log. A caller that comes back with `Last-Event-ID` misses nothing and sees nothing twice; one
//! that comes back without it sees the run from its beginning, as far as that is kept. What is said is always whole and not the
//! piece that is new, so seeing it again does no harm.

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
    Code, Part, Refusal, Task, TaskState, artifact_update, reply, status_update, task_event,
};
use towpath_domain::agent::{EventId, Frame, Since};
use towpath_store::a2a_tasks::Detail;
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::{Call, event};
use super::tasks::{allow, find, internal, read, shown};
use crate::agent::app::AgentApp;
use crate::agent::live::{Item, Reader};
use crate::agent::runs::since;
use crate::agent::sse::{self, Due, Feed};

/// What a stream begins with.
pub(super) struct StreamStart {
    pub task: Task,
    /// The task as the first event shows it.
    pub first: Value,
    pub reader: Reader,
}

/// Streams a task that somebody began before.
pub(super) async fn subscribe(
    app: &AgentApp,
    headers: &HeaderMap,
    assistant: &Assistant,
    call: &Call,
) -> Result<Response, Failure> {
    let id = params::task(&call.params, "id")?;
    allow(app, "read", id).await?;
    let row = find(app, assistant.id, id, Detail::ALL).await?;
    let task = row.task()?;
    let since = match since(headers)? {
        Since::Now => Since::Beginning,
        // It missed the end, which is kept for a while.
        since => since,
    };
    if task.state.is_final() && since == Since::Beginning {
        let text = format!("Task {id} is over: read it with GetTask");
        return Err(Refusal::new(Code::UnsupportedOperation, text).into());
    }
    let reader = Reader::of_run(app, row.thread_id, row.run_id, true, since).await?;
    let first = shown(&row, call.dialect, None)?;
    Ok(respond(app, assistant.id, call, StreamStart { task, first, reader }))
}

/// The answer that streams.
pub(super) fn respond(app: &AgentApp, assistant: AssistantId, call: &Call, start: StreamStart) -> Response {
    let StreamStart { task, first, reader } = start;
    let mut state = TaskStream {
        app: app.clone(),
        assistant,
        call: call.clone(),
        task,
        feed: Feed::new(app, reader),
        works: false,
        said: Vec::new(),
        ended: false,
        gathered: VecDeque::new(),
    };
    state.push(&task_event(call.dialect, first), None);
    sse::open(Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    })))
}

struct TaskStream {
    app: AgentApp,
    assistant: AssistantId,
    call: Call,
    task: Task,
    feed: Feed,
    /// It was told that a worker performs the run.
    works: bool,
    /// What the assistant said last.
    said: Vec<Part>,
    ended: bool,
    gathered: VecDeque<Bytes>,
}

impl TaskStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.gathered.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            let item = match self.feed.next().await {
                Due::Item(item) => item,
                Due::Heartbeat(beat) => return Some(beat),
                Due::Drain => return None,
            };
            match item {
                Ok(Some(Item::Frame(text))) => self.take(&text),
                // What was said on the way is lost; what comes of it is not.
                Ok(Some(Item::Cut)) => {}
                Ok(Some(Item::End(..)) | None) => self.end().await,
                Err(error) => self.fail(&internal(error)),
            }
        }
    }

    /// An event of the run.
    fn take(&mut self, text: &str) {
        let Some(frame) = Frame::decode(text) else { return };
        if frame.event == "metadata" {
            // Another attempt says everything anew.
            self.said.clear();
            if !self.works {
                self.works = true;
                self.say(&[], frame.id);
            }
        } else if frame.event.starts_with("messages/partial") || frame.event.starts_with("messages/complete") {
            let messages = serde_json::from_str::<Vec<Value>>(frame.data).unwrap_or_default();
            let said = messages.iter().rev().map(reply).find(|parts| !parts.is_empty());
            if let Some(said) = said.filter(|said| *said != self.said) {
                self.say(&said, frame.id);
                self.said = said;
            }
        }
    }

    fn say(&mut self, parts: &[Part], id: EventId) {
        let now = self.app.clock.now();
        let update = status_update(self.call.dialect, &self.task, Some((parts, now)));
        self.push(&update, Some(id));
    }

    /// The run is over: what it brought, and where the task stands.
    async fn end(&mut self) {
        self.ended = true;
        let row = read(&self.app, self.assistant, self.task.id, Detail::ARTIFACT).await;
        let task = row.and_then(|row| row.task().map_err(internal));
        let task = match task {
            // Another message continues the task already: this stream is of the run before.
            Ok(task) if task.run != self.task.run => return,
            Ok(task) => task,
            Err(refusal) => return self.fail(&refusal),
        };
        if matches!(task.state, TaskState::Submitted | TaskState::Working) {
            let text = "the run is over, and its task does not show it yet: read it with GetTask";
            return self.fail(&Refusal::new(Code::Internal, text));
        }
        if let Some(update) = artifact_update(self.call.dialect, &task) {
            self.push(&update, None);
        }
        self.push(&status_update(self.call.dialect, &task, None), None);
    }

    fn fail(&mut self, refusal: &Refusal) {
        self.ended = true;
        let answer = self.call.envelope(Err(refusal));
        self.gathered.push_back(event(&answer, None));
    }

    fn push(&mut self, result: &Value, id: Option<EventId>) {
        let answer = self.call.envelope(Ok(result.clone()));
        self.gathered.push_back(event(&answer, id));
    }
}
