//! Events of a stream, each as the result of an answer.

use serde_json::{Value, json};

use super::Dialect;
use super::part::Part;
use super::task::{Task, TaskState, task_status};
use crate::Timestamp;

/// The event of the task itself. Version 1.0 wraps it in an envelope that names the event, version 0.3 names it inside.
#[must_use]
pub fn task_event(dialect: Dialect, task: Value) -> Value {
    match dialect {
        Dialect::V03 => task,
        Dialect::V10 => json!({ "task": task }),
    }
}

/// The event of a message without a task.
#[must_use]
pub fn message_event(dialect: Dialect, message: Value) -> Value {
    match dialect {
        Dialect::V03 => message,
        Dialect::V10 => json!({ "message": message }),
    }
}

/// A change of state, or a message of the assistant in between.
#[must_use]
pub fn status_update(dialect: Dialect, task: &Task, said: Option<(&[Part], Timestamp)>) -> Value {
    let status = match said {
        None => task.status_json(dialect),
        Some((parts, at)) => {
            let message = (!parts.is_empty()).then(|| task.message_json(dialect, "message", parts));
            task_status(dialect, TaskState::Working, at, message)
        }
    };
    let update = json!({"taskId": task.id.to_string(), "contextId": task.context_id(), "status": status});
    let is_last = said.is_none() && (task.state.is_final() || task.state == TaskState::InputRequired);
    event(dialect, "status-update", "statusUpdate", update, ("final", is_last))
}

/// The output of the task, if it has any.
#[must_use]
pub fn artifact_update(dialect: Dialect, task: &Task) -> Option<Value> {
    let artifact = task.artifact_json(dialect)?;
    let mut update = json!({
        "taskId": task.id.to_string(), "contextId": task.context_id(), "artifact": artifact,
    });
    update["lastChunk"] = json!(true);
    Some(event(
        dialect,
        "artifact-update",
        "artifactUpdate",
        update,
        ("append", false),
    ))
}

/// Only version 0.3 has `mark`: in version 1.0 a stream ends with its body.
fn event(dialect: Dialect, kind: &str, key: &str, mut update: Value, mark: (&str, bool)) -> Value {
    match dialect {
        Dialect::V03 => {
            update["kind"] = json!(kind);
            update[mark.0] = json!(mark.1);
            update
        }
        Dialect::V10 => json!({ key: update }),
    }
}
