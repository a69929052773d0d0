//! Events of a stream, each as the result of an answer.

use serde_json::{Value, json};

use super::Dialect;
use super::part::Part;
use super::task::{Task, TaskState, status};
use crate::Timestamp;

/// The task itself. Version 1.0 names what an event is around it, version 0.3 inside of it.
#[must_use]
pub fn task_event(dialect: Dialect, task: Value) -> Value {
    match dialect {
        Dialect::V03 => task,
        Dialect::V10 => json!({ "task": task }),
    }
}

/// The task stands elsewhere now, or the assistant says something on its way.
#[must_use]
pub fn status_update(dialect: Dialect, task: &Task, said: Option<(&[Part], Timestamp)>) -> Value {
    let status = match said {
        None => task.status(dialect),
        Some((parts, at)) => {
            let message = (!parts.is_empty()).then(|| task.says(dialect, "message", parts));
            status(dialect, TaskState::Working, at, message)
        }
    };
    let update = json!({"taskId": task.id.to_string(), "contextId": task.id.thread.to_string(), "status": status});
    let is_last = said.is_none() && (task.state.is_final() || task.state == TaskState::InputRequired);
    event(dialect, "status-update", "statusUpdate", update, ("final", is_last))
}

/// What the task brought, where it brought something.
#[must_use]
pub fn artifact_update(dialect: Dialect, task: &Task) -> Option<Value> {
    let artifact = task.artifact(dialect)?;
    let mut update = json!({
        "taskId": task.id.to_string(), "contextId": task.id.thread.to_string(), "artifact": artifact,
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

/// `mark` is a field of version 0.3 alone: the end of a stream is the end of its body in version 1.0.
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
