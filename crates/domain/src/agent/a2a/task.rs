//! Tasks: the work that a message started.

use std::fmt;

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Dialect;
use super::message::{Role, message_json};
use super::outcome::{MessageRole, Outcome, message_role};
use super::part::Part;
use crate::agent::RunStatus;
use crate::{RunId, ThreadId, Timestamp};

/// The id of a task: its thread and its first run. Later runs of the task do not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    /// The thread, which is the task's context.
    pub thread: ThreadId,
    pub run: RunId,
}

impl TaskId {
    /// Reads `<thread>:<run>`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (thread, run) = text.split_once(':')?;
        Some(Self {
            thread: thread.parse().ok()?,
            run: run.parse().ok()?,
        })
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.thread, self.run)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "kebab-case")]
#[sqlx(type_name = "text", rename_all = "kebab-case")]
pub enum TaskState {
    /// The run waits for a worker.
    Submitted,
    /// A worker performs the run. Never stored: it follows from the job of the run.
    Working,
    Completed,
    /// It failed or timed out.
    Failed,
    /// A user cancelled it.
    Canceled,
    InputRequired,
    /// Not a state of tasks here, but clients may filter by it.
    Rejected,
    /// Not a state of tasks here, but clients may filter by it.
    AuthRequired,
}

const STATES: [(TaskState, &str, &str); 8] = [
    (TaskState::Submitted, "submitted", "TASK_STATE_SUBMITTED"),
    (TaskState::Working, "working", "TASK_STATE_WORKING"),
    (TaskState::Completed, "completed", "TASK_STATE_COMPLETED"),
    (TaskState::Failed, "failed", "TASK_STATE_FAILED"),
    (TaskState::Canceled, "canceled", "TASK_STATE_CANCELED"),
    (TaskState::InputRequired, "input-required", "TASK_STATE_INPUT_REQUIRED"),
    (TaskState::Rejected, "rejected", "TASK_STATE_REJECTED"),
    (TaskState::AuthRequired, "auth-required", "TASK_STATE_AUTH_REQUIRED"),
];

impl TaskState {
    /// The state that follows from the last run; `waits` if that run ended with an interrupt.
    #[must_use]
    pub const fn from_run(run: RunStatus, waits: bool) -> Self {
        match run {
            RunStatus::Pending => Self::Submitted,
            RunStatus::Running => Self::Working,
            RunStatus::Success if waits => Self::InputRequired,
            RunStatus::Success => Self::Completed,
            RunStatus::Error | RunStatus::Timeout => Self::Failed,
            RunStatus::Interrupted => Self::Canceled,
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let found = STATES.iter().find(|(_, old, new)| [old, new].contains(&&text));
        found.map(|(state, ..)| *state)
    }

    #[must_use]
    pub fn as_str(self, dialect: Dialect) -> &'static str {
        let found = STATES.iter().find(|(state, ..)| *state == self);
        found.map_or("", |(_, old, new)| match dialect {
            Dialect::V03 => *old,
            Dialect::V10 => *new,
        })
    }

    /// The state that is stored: `Working` is stored as `Submitted`.
    #[must_use]
    pub const fn as_stored(self) -> Self {
        match self {
            Self::Working => Self::Submitted,
            state => state,
        }
    }

    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled | Self::Rejected)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub id: TaskId,
    /// The client's name of the context, where it is not the id of the thread.
    pub context: Option<String>,
    /// Its last run.
    pub run: RunId,
    pub state: TaskState,
    pub updated_at: Timestamp,
    /// The outcome of the last run.
    pub outcome: Option<Outcome>,
}

impl Task {
    /// The context as its client names it.
    #[must_use]
    pub fn context_id(&self) -> String {
        let name = self.context.clone();
        name.unwrap_or_else(|| self.id.thread.to_string())
    }

    /// The task with its history, see [`history`].
    #[must_use]
    pub fn to_json(&self, dialect: Dialect, history: Option<Vec<Value>>) -> Value {
        let mut task = self.to_bare_json(dialect);
        if let Some(artifact) = self.artifact_json(dialect) {
            task["artifacts"] = json!([artifact]);
        }
        if let Some(history) = history {
            task["history"] = Value::Array(history);
        }
        task
    }

    /// The task without its artifact.
    #[must_use]
    pub fn to_bare_json(&self, dialect: Dialect) -> Value {
        let mut task = json!({
            "id": self.id.to_string(), "contextId": self.context_id(), "status": self.status_json(dialect),
        });
        if dialect == Dialect::V03 {
            task["kind"] = json!("task");
        }
        task
    }

    /// The response of a task that needs none: it names the context and no task.
    #[must_use]
    pub fn direct_message(&self, dialect: Dialect) -> Option<Value> {
        let Some(Outcome::Message(parts)) = &self.outcome else {
            return None;
        };
        let mut message = self.message_json(dialect, "message", parts);
        message.as_object_mut()?.remove("taskId");
        Some(message)
    }

    /// Its `status`.
    #[must_use]
    pub fn status_json(&self, dialect: Dialect) -> Value {
        let said = match (&self.outcome, self.state) {
            (Some(outcome), TaskState::InputRequired | TaskState::Failed) => outcome.message_parts(),
            _ => Vec::new(),
        };
        let message = (!said.is_empty()).then(|| self.message_json(dialect, "status", &said));
        task_status(dialect, self.state, self.updated_at, message)
    }

    /// The artifact. Its id is that of the run, so that repeated events carry the same id.
    #[must_use]
    pub fn artifact_json(&self, dialect: Dialect) -> Option<Value> {
        if !matches!(self.state, TaskState::Completed | TaskState::InputRequired) {
            return None;
        }
        let (name, description, parts) = self.outcome.as_ref()?.artifact()?;
        let parts: Vec<Value> = parts.iter().map(|part| part.to_json(dialect)).collect();
        Some(json!({"artifactId": self.run, "name": name, "description": description, "parts": parts}))
    }

    /// A message of the assistant; `what` is part of its id.
    #[must_use]
    pub fn message_json(&self, dialect: Dialect, what: &str, parts: &[Part]) -> Value {
        message_json(dialect, &format!("{}-{what}", self.run), Role::Agent, parts, self)
    }
}

pub(super) fn task_status(dialect: Dialect, state: TaskState, at: Timestamp, message: Option<Value>) -> Value {
    let at = at.to_utc().to_rfc3339_opts(SecondsFormat::Millis, true);
    let mut status = json!({"state": state.as_str(dialect), "timestamp": at});
    if let Some(message) = message {
        status["message"] = message;
    }
    status
}

/// The last `most` messages of a thread's state that belong to a task, oldest first. A message that began or continued
/// a task carries the task's id, and the messages after it belong to the same task. If no message carries an id, all
/// belong to the last task; `latest` tells whether it is this one.
#[must_use]
pub fn history(dialect: Dialect, values: &Value, task: &Task, latest: bool, most: Option<usize>) -> Vec<Value> {
    let messages = values.get("messages").and_then(Value::as_array);
    let messages = messages.map(Vec::as_slice).unwrap_or_default();
    let id = task.id.to_string();
    let stamped = messages.iter().any(|message| stamp(message).is_some());
    let mut own = !stamped && latest;
    let mut written_out = Vec::new();
    for (nth, message) in messages.iter().enumerate() {
        if let Some(stamp) = stamp(message) {
            own = stamp == id;
        }
        let role = match message_role(message) {
            MessageRole::User => Role::User,
            MessageRole::Agent => Role::Agent,
            MessageRole::Other => continue,
        };
        let parts = Part::from_content(message.get("content").unwrap_or(&Value::Null));
        if !own || parts.is_empty() {
            continue;
        }
        let given = message.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
        let named = given.map_or_else(|| format!("{}-{nth}", task.id.run), str::to_owned);
        written_out.push(message_json(dialect, &named, role, &parts, task));
    }
    if let Some(most) = most {
        let surplus = written_out.len().saturating_sub(most);
        written_out.drain(..surplus);
    }
    written_out
}

fn stamp(message: &Value) -> Option<&str> {
    message.pointer("/additional_kwargs/a2a/task_id")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        let id = TaskId {
            thread: ThreadId::new(),
            run: RunId::new(),
        };
        Task {
            id,
            context: None,
            run: id.run,
            state: TaskState::Completed,
            updated_at: Timestamp::from_micros(1_772_366_400_001_000),
            outcome: Some(Outcome::Answer(vec![Part::Text { text: "hi".to_owned() }])),
        }
    }

    #[test]
    fn an_id_names_thread_and_run() {
        let id = task().id;
        assert_eq!(TaskId::parse(&id.to_string()), Some(id));
        for text in ["", "x", ":", "a:b"] {
            assert_eq!(TaskId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_task_is_written_in_either_version() {
        let task = task();
        let old = task.to_json(Dialect::V03, None);
        assert_eq!(old["kind"], "task");
        assert_eq!(
            old["status"],
            json!({"state": "completed", "timestamp": "2026-03-01T12:00:00.001Z"})
        );
        assert_eq!(old["artifacts"][0]["parts"], json!([{"kind": "text", "text": "hi"}]));
        let new = task.to_json(Dialect::V10, Some(Vec::new()));
        assert_eq!(new["status"]["state"], "TASK_STATE_COMPLETED");
        assert_eq!(new["artifacts"][0]["parts"], json!([{"text": "hi"}]));
        assert!(new.get("kind").is_none() && new["history"] == json!([]));
    }

    #[test]
    fn a_context_has_the_name_that_its_client_gave() {
        let mut task = task();
        assert_eq!(task.context_id(), task.id.thread.to_string());
        task.context = Some("a conversation".to_owned());
        let shown = task.to_json(Dialect::V10, None);
        assert_eq!(shown["contextId"], "a conversation");
        let message = task.message_json(Dialect::V10, "status", &[Part::Text { text: "hi".to_owned() }]);
        assert_eq!(message["contextId"], "a conversation");
    }

    #[test]
    fn a_direct_message_names_no_task() {
        let mut task = task();
        assert_eq!(task.direct_message(Dialect::V10), None);
        task.outcome = Some(Outcome::Message(vec![Part::Text { text: "hi".to_owned() }]));
        let message = task.direct_message(Dialect::V10).unwrap();
        assert_eq!(
            message,
            json!({"messageId": format!("{}-message", task.run), "role": "ROLE_AGENT", "parts": [{"text": "hi"}],
                   "contextId": task.id.thread.to_string()})
        );
        assert_eq!(task.direct_message(Dialect::V03).unwrap()["kind"], "message");
    }

    #[test]
    fn states_are_read_in_both_versions() {
        for (state, old, new) in STATES {
            assert_eq!(TaskState::parse(old), Some(state));
            assert_eq!(TaskState::parse(new), Some(state));
        }
        assert_eq!(TaskState::parse("TASK_STATE_UNSPECIFIED"), None);
    }

    #[test]
    fn the_history_of_a_task_is_its_own_part_of_the_thread() {
        let task = task();
        let values = json!({"messages": [
            {"type": "human", "content": "old", "id": "1", "additional_kwargs": {"a2a": {"task_id": "other"}}},
            {"type": "ai", "content": "reply", "id": "2"},
            {"type": "human", "content": "q", "id": "3", "additional_kwargs": {"a2a": {"task_id": task.id.to_string()}}},
            {"type": "tool", "content": "inside", "id": "4"},
            {"type": "ai", "content": "a", "id": "5"},
        ]});
        let ids = |history: Vec<Value>| -> Vec<String> {
            let ids = history
                .iter()
                .map(|message| message["messageId"].as_str().unwrap().to_owned());
            ids.collect()
        };
        assert_eq!(ids(history(Dialect::V10, &values, &task, false, None)), ["3", "5"]);
        assert_eq!(ids(history(Dialect::V03, &values, &task, true, Some(1))), ["5"]);
        let bare = json!({"messages": [{"role": "user", "content": "q", "id": "7"}]});
        assert_eq!(ids(history(Dialect::V10, &bare, &task, true, None)), ["7"]);
        assert_eq!(history(Dialect::V10, &bare, &task, false, None), Vec::<Value>::new());
    }
}
