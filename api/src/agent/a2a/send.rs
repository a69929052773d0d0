//! Messages that start or continue a task.

use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value, json};
use towpath_domain::agent::a2a::{A2aError, ErrorCode, Message, Task, TaskId, TaskState, message_event, task_event};
use towpath_domain::agent::{Object, RunRequest};
use towpath_domain::{Rejection, RunId, ThreadId};
use towpath_store as store;
use towpath_store::a2a_push_configs::{self, NewPushConfig};
use towpath_store::a2a_tasks::{TaskDetail, TaskRow};
use towpath_store::assistants::Assistant;
use towpath_workflows::a2a;

use super::failure::Failure;
use super::options::AgentOptions;
use super::rpc::Call;
use super::stream::{self, StreamStart};
use super::tasks::{authorize, detail, find, internal_error, read, task_json, wait_ended};
use super::{params, push};
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::extract::read_value;
use crate::agent::live::Reader;
use crate::agent::runs::PreparedRun;

/// Fields of a run that the protocol sets itself.
const FIXED_FIELDS: [&str; 4] = ["assistant_id", "stream_mode", "stream_resumable", "if_not_exists"];

/// The parameters of a call.
struct SendMessage<'a> {
    message: Message,
    push: Option<NewPushConfig>,
    /// Maximum number of history messages in the response.
    history_length: Option<usize>,
    /// Respond without waiting for the run.
    returns_immediately: bool,
    call: &'a Call,
}

/// A task whose run is recorded.
struct RecordedTask {
    task: Task,
    reader: Reader,
}

/// Sends a message and responds with the task after its run has ended.
pub(super) async fn send(
    app: &AgentApp,
    headers: &HeaderMap,
    assistant: &Assistant,
    call: &Call,
) -> Result<Response, Failure> {
    let request = SendMessage::parse(app, assistant, call)?;
    let RecordedTask { task, reader } = request.record(app, headers, assistant).await?;
    let (dialect, history) = (call.dialect, request.history_length);
    if request.returns_immediately {
        let said = (history != Some(0)).then(|| vec![request.message.to_json(dialect, &task)]);
        return Ok(call.success_response(task_event(dialect, task.to_json(dialect, said))));
    }
    let (app_of_answer, assistant) = (app.clone(), assistant.id);
    let begins_task = request.message.task.is_none();
    Ok(call.deferred_response(app, async move {
        wait_ended(reader).await?;
        let row = read(&app_of_answer, assistant, task.id, detail(history)).await?;
        if begins_task && let Some(message) = row.task().map_err(internal_error)?.direct_message(dialect) {
            return Ok(message_event(dialect, message));
        }
        let task = task_json(&row, dialect, history).map_err(internal_error)?;
        Ok(task_event(dialect, task))
    }))
}

/// Sends a message and streams the task.
pub(super) async fn stream(
    app: &AgentApp,
    headers: &HeaderMap,
    assistant: &Assistant,
    call: &Call,
) -> Result<Response, Failure> {
    let request = SendMessage::parse(app, assistant, call)?;
    let RecordedTask { task, reader } = request.record(app, headers, assistant).await?;
    let said = vec![request.message.to_json(call.dialect, &task)];
    let first = task.to_json(call.dialect, Some(said));
    Ok(stream::respond(
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

impl<'a> SendMessage<'a> {
    fn parse(app: &AgentApp, assistant: &Assistant, call: &'a Call) -> Result<Self, Failure> {
        let message = Message::parse(call.params.get("message"))?;
        AgentOptions::of(assistant).check_media_types(&message.media_types)?;
        let nothing = Object::new();
        let configuration = params::object_param(&call.params, "configuration")?.unwrap_or(&nothing);
        // Each version has its own name for this field.
        let immediate = params::bool_param(configuration, "returnImmediately")?.unwrap_or_default()
            || params::bool_param(configuration, "blocking")? == Some(false);
        Ok(Self {
            message,
            push: push::from_configuration(app, configuration, call.dialect)?,
            history_length: params::count_param(configuration, "historyLength")?,
            returns_immediately: immediate,
            call,
        })
    }

    /// Records the run, and the task or its next step.
    async fn record(
        &self,
        app: &AgentApp,
        headers: &HeaderMap,
        assistant: &Assistant,
    ) -> Result<RecordedTask, Failure> {
        let before = self.continued_task(app, assistant).await?;
        // If the task changed meanwhile, the kind of run may differ: its question is answered instead of adding input.
        if let Some(recorded) = self
            .record_if_unchanged(app, headers, assistant, before.as_ref())
            .await?
        {
            return Ok(recorded);
        }
        let before = self.continued_task(app, assistant).await?;
        match self
            .record_if_unchanged(app, headers, assistant, before.as_ref())
            .await?
        {
            Some(recorded) => Ok(recorded),
            None => Err(store::Error::Stale.into()),
        }
    }

    /// Records the run if the task is unchanged since `before`.
    async fn record_if_unchanged(
        &self,
        app: &AgentApp,
        headers: &HeaderMap,
        assistant: &Assistant,
        before: Option<&TaskRow>,
    ) -> Result<Option<RecordedTask>, Failure> {
        let run = RunId::new();
        let (thread, context) = match before {
            Some(row) => (row.thread_id, row.context.clone()),
            None => self.new_context(app),
        };
        let id = match before {
            Some(row) => row.task_id(),
            None => TaskId { thread, run },
        };
        let own = self.run_request(app, assistant, id, before)?;
        let missing = || A2aError::invalid_params(format!("message.contextId: context {thread} not found"));
        let allowed = auth::authorize_operation(app, ("threads", "create_run"), Some(thread), own.clone()).await;
        let (mut judged, visible) = allowed.map_err(|refusal| Failure::from_auth_refusal(refusal, missing))?;
        restore_fixed_fields(&mut judged, own);
        let request: RunRequest = read_value(Value::Object(judged))?;
        auth::with_visibility(visible, async {
            let mut ready = PreparedRun::prepare(app, headers, request, Some(thread)).await?;
            ready.id = run;
            let reader = ready.reader(app).await;
            let recorded = app
                .store
                .write(async |tx| {
                    if let Some(before) = before {
                        a2a::continue_task(tx, app.tenant, before, run).await?;
                    }
                    let recorded = ready.record(app, tx).await?;
                    if before.is_none() {
                        a2a::begin(tx, app.tenant, assistant.id, id, context.as_deref()).await?;
                    }
                    if let Some(push) = &self.push {
                        let named = push::with_default_id(push, id);
                        if !a2a_push_configs::put(tx, app.tenant, id.run, &named).await? {
                            return Err(Rejection::rule("configuration", push::TOO_MANY_CONFIGS).into());
                        }
                    }
                    Ok(recorded)
                })
                .await;
            let recorded = match recorded {
                Err(store::Error::Stale) if before.is_some() => return Ok::<_, Failure>(None),
                recorded => recorded.map_err(|error| Failure::or_not_found(AgentError::from(error), missing))?,
            };
            let task = Task {
                id,
                context,
                run,
                state: TaskState::Submitted,
                updated_at: recorded.updated_at,
                outcome: None,
            };
            Ok::<_, Failure>(Some(RecordedTask { task, reader }))
        })
        .await
    }

    /// The thread of a new task, and the client's name of the context where it is not the id of the thread.
    fn new_context(&self, app: &AgentApp) -> (ThreadId, Option<String>) {
        let Some(name) = &self.message.context else {
            return (ThreadId::new(), None);
        };
        let thread = context_thread(app, name);
        let name = (*name != thread.to_string()).then(|| name.clone());
        (thread, name)
    }

    fn run_request(
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
        if let Some(context) = params::object_param(&self.call.params, "context")? {
            run.insert("context".to_owned(), json!(context));
        }
        if before.is_some_and(|row| row.state == TaskState::InputRequired) {
            run.insert("command".to_owned(), json!({"resume": self.message.resume_value()?}));
        } else {
            if self.message.needs_messages() {
                check_accepts_messages(app, assistant)?;
            }
            run.insert("input".to_owned(), Value::Object(self.message.input(id)?));
        }
        Ok(run)
    }

    /// The task that the message continues. It must not have ended.
    async fn continued_task(&self, app: &AgentApp, assistant: &Assistant) -> Result<Option<TaskRow>, Failure> {
        let Some(text) = &self.message.task else {
            return Ok(None);
        };
        let Some(id) = TaskId::parse(text) else {
            return Err(A2aError::task_not_found(text.chars().take(100).collect::<String>()).into());
        };
        authorize(app, "read", id).await?;
        let row = find(app, assistant.id, id, TaskDetail::STATE).await?;
        if let Some(name) = &self.message.context
            && row.context.as_ref() != Some(name)
            && context_thread(app, name) != id.thread
        {
            let text = format!(
                "message.contextId: the task is of context {}",
                row.without_outcome().context_id()
            );
            return Err(A2aError::invalid_params(text).into());
        }
        if row.state.is_final() {
            let text = format!("Task {id} has ended and accepts no message. Start a new task in the same context");
            return Err(A2aError::new(ErrorCode::UnsupportedOperation, text).into());
        }
        Ok(Some(row))
    }
}

/// The thread of a context of the caller.
pub(super) fn context_thread(app: &AgentApp, name: &str) -> ThreadId {
    ThreadId::of_context(app.tenant, auth::identity().as_deref(), name)
}

/// Restores the fixed fields, which auth handlers of the graphs' author may have replaced.
fn restore_fixed_fields(judged: &mut Object, mut own: Object) {
    for key in FIXED_FIELDS {
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

/// Text and files become messages, so the graph's input must have messages. Graphs with unknown input are accepted.
fn check_accepts_messages(app: &AgentApp, assistant: &Assistant) -> Result<(), A2aError> {
    let schemas = app.graphs.get(&assistant.graph_id).map(|graph| graph.schemas());
    let schema = schemas.and_then(|schemas| schemas.input_schema.or(schemas.state_schema));
    let Some(properties) = schema.as_ref().and_then(|schema| schema.get("properties")?.as_object()) else {
        return Ok(());
    };
    if properties.contains_key("messages") {
        return Ok(());
    }
    let fields: Vec<&str> = properties.keys().map(String::as_str).collect();
    Err(A2aError::invalid_params(format!(
        "message.parts: graph '{}' accepts no text or files, since its input has no field messages. Send a data part with \
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
            restore_fixed_fields(&mut judged, object(own.clone()));
            assert_eq!(
                Value::Object(judged),
                json!({"assistant_id": "a", "stream_mode": ["messages"], "stream_resumable": true,
                       "if_not_exists": "create", "metadata": metadata, "input": {"log": ["changed"]}})
            );
        }
    }
}
