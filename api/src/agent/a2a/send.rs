//! Messages that begin a task or continue one.

use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value, json};
use towpath_domain::agent::a2a::{Code, Message, Refusal, Task, TaskId, TaskState, task_event};
use towpath_domain::agent::{Object, RunRequest};
use towpath_domain::{Rejection, RunId, ThreadId};
use towpath_store as store;
use towpath_store::a2a_push_configs::{self, NewPushConfig};
use towpath_store::a2a_tasks::{Detail, TaskRow};
use towpath_store::assistants::Assistant;
use towpath_workflows::a2a;

use super::failure::Failure;
use super::rpc::Call;
use super::stream::{self, StreamStart};
use super::tasks::{allow, detail, end_of, find, internal, read, shown};
use super::{params, push};
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::extract::read_value;
use crate::agent::live::Reader;
use crate::agent::runs::Ready;

/// Fields of a run that the protocol relies on.
const FIXED: [&str; 4] = ["assistant_id", "stream_mode", "stream_resumable", "if_not_exists"];

/// The parameters of a call.
struct SendRequest<'a> {
    message: Message,
    push: Option<NewPushConfig>,
    /// At most so many messages of history are answered.
    history: Option<usize>,
    /// The answer does not wait for the run.
    immediate: bool,
    call: &'a Call,
}

/// A task whose run is recorded.
struct RecordedTask {
    task: Task,
    reader: Reader,
}

/// Sends a message and answers the task, once its run is over.
pub(super) async fn send(
    app: &AgentApp,
    headers: &HeaderMap,
    assistant: &Assistant,
    call: &Call,
) -> Result<Response, Failure> {
    let request = SendRequest::read(app, call)?;
    let RecordedTask { task, reader } = request.record(app, headers, assistant).await?;
    let (dialect, history) = (call.dialect, request.history);
    if request.immediate {
        let said = (history != Some(0)).then(|| vec![request.message.write(dialect, task.id)]);
        return Ok(call.answer(task_event(dialect, task.write(dialect, said))));
    }
    let (app_of_answer, assistant) = (app.clone(), assistant.id);
    Ok(call.answer_later(app, async move {
        end_of(reader).await?;
        let row = read(&app_of_answer, assistant, task.id, detail(history)).await?;
        let task = shown(&row, dialect, history).map_err(internal)?;
        Ok(task_event(dialect, task))
    }))
}

/// Sends a message and streams what becomes of it.
pub(super) async fn stream(
    app: &AgentApp,
    headers: &HeaderMap,
    assistant: &Assistant,
    call: &Call,
) -> Result<Response, Failure> {
    let request = SendRequest::read(app, call)?;
    let RecordedTask { task, reader } = request.record(app, headers, assistant).await?;
    let said = vec![request.message.write(call.dialect, task.id)];
    let first = task.write(call.dialect, Some(said));
    Ok(stream::respond(
        app,
        assistant.id,
        call,
        StreamStart { task, first, reader },
    ))
}

impl<'a> SendRequest<'a> {
    fn read(app: &AgentApp, call: &'a Call) -> Result<Self, Failure> {
        let message = Message::read(call.params.get("message"))?;
        let nothing = Object::new();
        let configuration = params::object(&call.params, "configuration")?.unwrap_or(&nothing);
        // Each version has a name of its own for the same.
        let immediate = params::flag(configuration, "returnImmediately")?.unwrap_or_default()
            || params::flag(configuration, "blocking")? == Some(false);
        Ok(Self {
            message,
            push: push::of_configuration(app, configuration, call.dialect)?,
            history: params::count(configuration, "historyLength")?,
            immediate,
            call,
        })
    }

    /// Records the run, and with it the task or its next step.
    async fn record(
        &self,
        app: &AgentApp,
        headers: &HeaderMap,
        assistant: &Assistant,
    ) -> Result<RecordedTask, Failure> {
        let before = self.continued(app, assistant).await?;
        // A task that goes on meanwhile may want another kind of run: its question is answered, and not added to.
        if let Some(recorded) = self.record_after(app, headers, assistant, before.as_ref()).await? {
            return Ok(recorded);
        }
        let before = self.continued(app, assistant).await?;
        match self.record_after(app, headers, assistant, before.as_ref()).await? {
            Some(recorded) => Ok(recorded),
            None => Err(store::Error::Stale.into()),
        }
    }

    /// Records the run of a task that stands as `before` says. Nothing where it stands elsewhere.
    async fn record_after(
        &self,
        app: &AgentApp,
        headers: &HeaderMap,
        assistant: &Assistant,
        before: Option<&TaskRow>,
    ) -> Result<Option<RecordedTask>, Failure> {
        let run = RunId::new();
        let thread = match before {
            Some(row) => row.thread_id,
            None => self.message.context.unwrap_or_else(ThreadId::new),
        };
        let id = match before {
            Some(row) => row.task_id(),
            None => TaskId { thread, run },
        };
        let own = self.run(app, assistant, id, before)?;
        let missing = || Refusal::params(format!("message.contextId: context {thread} not found"));
        let allowed = auth::allow(app, ("threads", "create_run"), Some(thread), own.clone()).await;
        let (mut judged, visible) = allowed.map_err(|refusal| Failure::denied(refusal, missing))?;
        restore(&mut judged, own);
        let request: RunRequest = read_value(Value::Object(judged))?;
        auth::seeing(visible, async {
            let mut ready = Ready::of(app, headers, request, Some(thread)).await?;
            ready.id = run;
            let reader = ready.reader(app).await;
            let recorded = app
                .store
                .write(async |tx| {
                    if let Some(before) = before {
                        a2a::go_on(tx, app.tenant, before, run).await?;
                    }
                    let recorded = ready.record(app, tx).await?;
                    if before.is_none() {
                        a2a::begin(tx, app.tenant, assistant.id, id).await?;
                    }
                    if let Some(push) = &self.push {
                        let named = push::named(push, id);
                        if !a2a_push_configs::put(tx, app.tenant, id.run, &named).await? {
                            return Err(Rejection::rule("configuration", push::TOO_MANY).into());
                        }
                    }
                    Ok(recorded)
                })
                .await;
            let recorded = match recorded {
                Err(store::Error::Stale) if before.is_some() => return Ok::<_, Failure>(None),
                recorded => recorded.map_err(|error| Failure::of(AgentError::from(error), missing))?,
            };
            let task = Task {
                id,
                run,
                state: TaskState::Submitted,
                at: recorded.updated_at,
                outcome: None,
            };
            Ok::<_, Failure>(Some(RecordedTask { task, reader }))
        })
        .await
    }

    /// The run, as a request for one.
    fn run(
        &self,
        app: &AgentApp,
        assistant: &Assistant,
        id: TaskId,
        before: Option<&TaskRow>,
    ) -> Result<Object, Failure> {
        let mut run = Object::new();
        for (key, value) in [
            ("assistant_id", json!(assistant.id)),
            ("stream_mode", json!(["messages"])),
            ("stream_resumable", json!(true)),
            ("if_not_exists", json!("create")),
            ("metadata", json!({"a2a": {"task_id": id.to_string()}})),
        ] {
            run.insert(key.to_owned(), value);
        }
        if let Some(context) = params::object(&self.call.params, "context")? {
            run.insert("context".to_owned(), json!(context));
        }
        if before.is_some_and(|row| row.state == TaskState::InputRequired) {
            run.insert("command".to_owned(), json!({"resume": self.message.resume()?}));
        } else {
            if self.message.needs_messages() {
                takes_messages(app, assistant)?;
            }
            run.insert("input".to_owned(), Value::Object(self.message.input(id)?));
        }
        Ok(run)
    }

    /// The task that the message names: it must not be over.
    async fn continued(&self, app: &AgentApp, assistant: &Assistant) -> Result<Option<TaskRow>, Failure> {
        let Some(text) = &self.message.task else {
            return Ok(None);
        };
        let Some(id) = TaskId::parse(text) else {
            return Err(Refusal::no_task(text.chars().take(100).collect::<String>()).into());
        };
        if self.message.context.is_some_and(|context| context != id.thread) {
            let text = format!("message.contextId: the task is of context {}", id.thread);
            return Err(Refusal::params(text).into());
        }
        allow(app, "read", id).await?;
        let row = find(app, assistant.id, id, Detail::STATE).await?;
        if row.state.is_final() {
            let text = format!("Task {id} is over and takes no message. Begin another one in the same context");
            return Err(Refusal::new(Code::UnsupportedOperation, text).into());
        }
        Ok(Some(row))
    }
}

/// Puts back what makes a run one of a task: handlers of the graphs' author may replace it with metadata of their own.
fn restore(judged: &mut Object, mut own: Object) {
    for key in FIXED {
        if let Some(value) = own.remove(key) {
            judged.insert(key.to_owned(), value);
        }
    }
    let Some(Value::Object(task)) = own.remove("metadata") else {
        return;
    };
    let metadata = judged.entry("metadata").or_insert_with(|| json!({}));
    match metadata {
        Value::Object(metadata) => metadata.extend(task),
        metadata => *metadata = Value::Object(task),
    }
}

/// Text and files become messages: the graph must have a place for them. Where nobody knows what it takes, it is asked.
fn takes_messages(app: &AgentApp, assistant: &Assistant) -> Result<(), Refusal> {
    let schemas = app.graphs.get(&assistant.graph_id).map(|graph| graph.schemas());
    let schema = schemas.and_then(|schemas| schemas.input_schema.or(schemas.state_schema));
    let Some(properties) = schema.as_ref().and_then(|schema| schema.get("properties")?.as_object()) else {
        return Ok(());
    };
    if properties.contains_key("messages") {
        return Ok(());
    }
    let fields: Vec<&str> = properties.keys().map(String::as_str).collect();
    Err(Refusal::params(format!(
        "message.parts: graph '{}' takes no text and no files, since its input has no field messages. Send a part of data with \
         its fields: {}",
        assistant.graph_id,
        fields.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_author_replaces_keeps_the_task() {
        let object = |value: Value| match value {
            Value::Object(object) => object,
            other => panic!("no object: {other}"),
        };
        let own = json!({"assistant_id": "a", "stream_mode": ["messages"], "stream_resumable": true, "if_not_exists": "create",
                         "metadata": {"a2a": {"task_id": "t"}}, "input": {"log": []}});
        for (judged, metadata) in [
            (
                json!({"metadata": {"owner": "ann"}}),
                json!({"owner": "ann", "a2a": {"task_id": "t"}}),
            ),
            (
                json!({"metadata": {"a2a": {}}, "assistant_id": "b"}),
                json!({"a2a": {"task_id": "t"}}),
            ),
            (json!({"metadata": null}), json!({"a2a": {"task_id": "t"}})),
            (json!({}), json!({"a2a": {"task_id": "t"}})),
        ] {
            let mut judged = object(judged);
            judged.insert("input".to_owned(), json!({"log": ["changed"]}));
            restore(&mut judged, object(own.clone()));
            assert_eq!(
                Value::Object(judged),
                json!({"assistant_id": "a", "stream_mode": ["messages"], "stream_resumable": true,
                       "if_not_exists": "create", "metadata": metadata, "input": {"log": ["changed"]}})
            );
        }
    }
}
