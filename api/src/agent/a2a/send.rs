//! Messages that begin a task or continue one.

use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value, json};
use towpath_domain::agent::a2a::{Code, Message, Refusal, Task, TaskId, TaskState, task_event};
use towpath_domain::agent::{Object, RunRequest};
use towpath_domain::{Rejection, RunId, ThreadId};
use towpath_store::a2a_push_configs::{self, NewPushConfig};
use towpath_store::a2a_tasks::{self, Standing, Values};
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::rpc::Call;
use super::stream::{self, Begins};
use super::tasks::{allow, end_of, find, internal, read, shown, values_for};
use super::{params, push};
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::extract::read_value;
use crate::agent::live::Reader;
use crate::agent::runs::Ready;

/// A message that was read and judged.
struct Asked<'a> {
    message: Message,
    /// The task that it continues.
    continued: Option<Standing>,
    /// An address to tell of the task.
    push: Option<NewPushConfig>,
    /// At most so many messages of history are answered.
    history: Option<usize>,
    /// The answer does not wait for the run.
    at_once: bool,
    call: &'a Call,
}

/// A task whose run is recorded.
struct Begun {
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
    let asked = Asked::read(app, assistant, call).await?;
    let Begun { task, reader } = asked.begin(app, headers, assistant).await?;
    let (dialect, history) = (call.dialect, asked.history);
    if asked.at_once {
        let said = (history != Some(0)).then(|| vec![asked.message.write(dialect, task.id)]);
        return Ok(call.answer(task_event(dialect, task.write(dialect, said))));
    }
    let (app_of_answer, assistant) = (app.clone(), assistant.id);
    Ok(call.answer_later(app, async move {
        end_of(reader).await?;
        let standing = read(&app_of_answer, assistant, task.id, values_for(history)).await?;
        let task = shown(&standing, dialect, history).map_err(internal)?;
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
    let asked = Asked::read(app, assistant, call).await?;
    let Begun { task, reader } = asked.begin(app, headers, assistant).await?;
    let said = vec![asked.message.write(call.dialect, task.id)];
    let first = task.write(call.dialect, Some(said));
    Ok(stream::respond(app, assistant.id, call, Begins { task, first, reader }))
}

impl<'a> Asked<'a> {
    async fn read(app: &AgentApp, assistant: &Assistant, call: &'a Call) -> Result<Self, Failure> {
        let message = Message::read(call.params.get("message"))?;
        let nothing = Object::new();
        let configuration = params::object(&call.params, "configuration")?.unwrap_or(&nothing);
        // Each version has a name of its own for the same.
        let at_once = params::flag(configuration, "returnImmediately")?.unwrap_or_default()
            || params::flag(configuration, "blocking")? == Some(false);
        let history = params::count(configuration, "historyLength")?;
        let push = push::of_configuration(app, configuration, call.dialect)?;
        let continued = match &message.task {
            None => None,
            Some(text) => Some(continued(app, assistant, &message, text).await?),
        };
        Ok(Self {
            message,
            continued,
            push,
            history,
            at_once,
            call,
        })
    }

    /// Records the run, and with it the task or its next step.
    async fn begin(&self, app: &AgentApp, headers: &HeaderMap, assistant: &Assistant) -> Result<Begun, Failure> {
        let run = RunId::new();
        let thread = match &self.continued {
            Some(standing) => standing.thread_id,
            None => self.message.context.unwrap_or_else(ThreadId::new),
        };
        let id = match &self.continued {
            Some(standing) => standing.task_id(),
            None => TaskId { thread, run },
        };
        let request = self.request(app, assistant, id)?;
        let missing = || Refusal::params(format!("message.contextId: context {thread} not found"));
        let allowed = auth::allow(app, ("threads", "create_run"), Some(thread), request).await;
        let (request, visible) = allowed.map_err(|refusal| Failure::denied(refusal, missing))?;
        let request: RunRequest = read_value(Value::Object(request))?;
        auth::seeing(visible, async {
            let mut ready = Ready::of(app, headers, request, Some(thread)).await?;
            ready.id = run;
            let reader = ready.reader(app).await;
            let recorded = app
                .store
                .write(async |tx| {
                    let recorded = ready.record(app, tx).await?;
                    match &self.continued {
                        None => a2a_tasks::begin(tx, app.tenant, assistant.id, id).await?,
                        Some(before) => a2a_tasks::go_on(tx, app.tenant, before.id, before.run_id, run).await?,
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
            let recorded = recorded.map_err(|error| Failure::of(AgentError::from(error), missing))?;
            let task = Task {
                id,
                run,
                state: TaskState::Submitted,
                at: recorded.updated_at,
                outcome: None,
            };
            Ok::<_, Failure>(Begun { task, reader })
        })
        .await
    }

    /// The run, as a request for one.
    fn request(&self, app: &AgentApp, assistant: &Assistant, id: TaskId) -> Result<Object, Failure> {
        let mut request = json!({
            "assistant_id": assistant.id, "stream_mode": ["values", "messages"], "stream_resumable": true,
            "if_not_exists": "create", "metadata": {"a2a": {"task_id": id.to_string()}},
        });
        if let Some(context) = params::object(&self.call.params, "context")? {
            request["context"] = json!(context);
        }
        let waits = self.continued.as_ref().map(Standing::task).transpose()?;
        if waits.is_some_and(|task| task.state == TaskState::InputRequired) {
            request["command"] = json!({"resume": self.message.resume()?});
        } else {
            if self.message.needs_messages() {
                takes_messages(app, assistant)?;
            }
            request["input"] = Value::Object(self.message.input(id)?);
        }
        match request {
            Value::Object(request) => Ok(request),
            _ => Ok(Object::new()),
        }
    }
}

/// The task that a message names: it must not be over.
async fn continued(app: &AgentApp, assistant: &Assistant, message: &Message, text: &str) -> Result<Standing, Failure> {
    let Some(id) = TaskId::parse(text) else {
        return Err(Refusal::no_task(text.chars().take(100).collect::<String>()).into());
    };
    if message.context.is_some_and(|context| context != id.thread) {
        let text = format!("message.contextId: the task is of context {}", id.thread);
        return Err(Refusal::params(text).into());
    }
    allow(app, "read", id).await?;
    let standing = find(app, assistant.id, id, Values::Left).await?;
    if standing.task()?.state.is_final() {
        let text = format!("Task {id} is over and takes no message. Begin another one in the same context");
        return Err(Refusal::new(Code::UnsupportedOperation, text).into());
    }
    Ok(standing)
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
