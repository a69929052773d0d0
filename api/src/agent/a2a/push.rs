//! Addresses that are told of a task. Token and credentials are for the receiver: they are taken and never shown.

use axum::response::Response;
use serde_json::{Map, Value, json};
use towpath_domain::Secret;
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{Code, Dialect, Refusal, TaskId};
use towpath_domain::agent::request::check_address;
use towpath_store::a2a_push_configs::{self, NewPushConfig, PushConfig};
use towpath_store::a2a_tasks::{self, Detail};
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use super::tasks::{allow, find};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Why another address is refused.
pub(super) const TOO_MANY: &str = "a task has at most 10 push notification configs: delete one first";
/// The longest text of a config that is no address.
const LONGEST: usize = 4096;

/// Gives a task an address, or another one in the place of that of the same id.
pub(super) async fn put(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let id = params::task(&call.params, "taskId")?;
    let config = match call.dialect {
        Dialect::V03 => params::object(&call.params, "pushNotificationConfig")?
            .ok_or_else(|| Refusal::params("pushNotificationConfig: field required"))?,
        Dialect::V10 => &call.params,
    };
    let new = named(&read(app, config, call.dialect)?, id);
    allow(app, "update", id).await?;
    let written = app
        .store
        .write(async |tx| {
            a2a_tasks::get(tx, app.tenant, assistant.id, id, Detail::STATE).await?;
            if !a2a_push_configs::put(tx, app.tenant, id.run, &new).await? {
                return Ok(None);
            }
            a2a_push_configs::find(tx, app.tenant, id.run, &new.name)
                .await
                .map(Some)
        })
        .await;
    let written = written.map_err(|error| Failure::of(AgentError::from(error), || Refusal::no_task(id)))?;
    let config = written.ok_or_else(|| Refusal::new(Code::UnsupportedOperation, TOO_MANY))?;
    Ok(call.answer(shown(&config, id, call.dialect)))
}

pub(super) async fn get(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let (id, name) = place(call)?;
    allow(app, "read", id).await?;
    find(app, assistant.id, id, Detail::STATE).await?;
    let name = name.unwrap_or_else(|| id.to_string());
    let found = app
        .store
        .read(async |tx| a2a_push_configs::find(tx, app.tenant, id.run, &name).await)
        .await;
    let missing = || {
        Refusal::new(
            Code::TaskNotFound,
            format!("Task {id} has no push notification config {name}"),
        )
    };
    let found = found.map_err(|error| Failure::of(AgentError::from(error), missing))?;
    Ok(call.answer(shown(&found, id, call.dialect)))
}

/// All addresses of a task: they fit on one page.
pub(super) async fn list(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let (id, _) = place(call)?;
    allow(app, "read", id).await?;
    find(app, assistant.id, id, Detail::STATE).await?;
    let found = app
        .store
        .read(async |tx| a2a_push_configs::list(tx, app.tenant, id.run).await)
        .await?;
    let configs: Vec<Value> = found.iter().map(|one| shown(one, id, call.dialect)).collect();
    Ok(call.answer(match call.dialect {
        Dialect::V03 => json!(configs),
        Dialect::V10 => json!({"configs": configs, "nextPageToken": ""}),
    }))
}

/// Takes an address back. One that is not there is no error.
pub(super) async fn delete(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let (id, name) = place(call)?;
    allow(app, "update", id).await?;
    find(app, assistant.id, id, Detail::STATE).await?;
    let name = name.unwrap_or_else(|| id.to_string());
    app.store
        .write(async |tx| a2a_push_configs::delete(tx, app.tenant, id.run, &name).await)
        .await?;
    Ok(call.answer(Value::Null))
}

/// The address that comes with a message; its id is made up later, where it has none.
pub(super) fn of_configuration(
    app: &AgentApp,
    configuration: &Object,
    dialect: Dialect,
) -> Result<Option<NewPushConfig>, Refusal> {
    let key = match dialect {
        Dialect::V03 => "pushNotificationConfig",
        Dialect::V10 => "taskPushNotificationConfig",
    };
    let config = params::object(configuration, key)?;
    config.map(|config| read(app, config, dialect)).transpose()
}

/// A config without an id is the task's own: it gets that of the task.
pub(super) fn named(new: &NewPushConfig, task: TaskId) -> NewPushConfig {
    let mut new = new.clone();
    if new.name.is_empty() {
        new.name = task.to_string();
    }
    new
}

/// The task, and the id of a config.
fn place(call: &Call) -> Result<(TaskId, Option<String>), Refusal> {
    let (task, name) = match call.dialect {
        Dialect::V03 => ("id", "pushNotificationConfigId"),
        Dialect::V10 => ("taskId", "id"),
    };
    Ok((params::task(&call.params, task)?, params::text(&call.params, name)?))
}

fn read(app: &AgentApp, config: &Object, dialect: Dialect) -> Result<NewPushConfig, Refusal> {
    if app.settings.webhooks.off {
        let text = "Push notifications are not supported: webhooks are turned off";
        return Err(Refusal::new(Code::PushNotSupported, text));
    }
    let url = bounded("url", params::text(config, "url")?)?.ok_or_else(|| Refusal::params("url: field required"))?;
    check_address("url", &url).map_err(|rejection| Refusal::params(format!("url: {}", rejection.message)))?;
    if let Some(refused) = app.settings.webhooks.refuse(&url) {
        return Err(Refusal::params(format!("url: {refused}")));
    }
    let nothing = Map::new();
    let authentication = params::object(config, "authentication")?.unwrap_or(&nothing);
    let scheme = match dialect {
        Dialect::V10 => header_text("authentication.scheme", params::text(authentication, "scheme")?)?,
        // The first one that the receiver takes.
        Dialect::V03 => match authentication.get("schemes") {
            None | Some(Value::Null) => None,
            Some(Value::Array(schemes)) => {
                let first = schemes.first().and_then(Value::as_str).map(str::to_owned);
                header_text("authentication.schemes", first)?
            }
            Some(_) => return Err(Refusal::params("authentication.schemes: expected a list of strings")),
        },
    };
    Ok(NewPushConfig {
        name: bounded("id", params::text(config, "id")?)?.unwrap_or_default(),
        url,
        token: header_text("token", params::text(config, "token")?)?.map(Secret::new),
        scheme,
        credentials: header_text(
            "authentication.credentials",
            params::text(authentication, "credentials")?,
        )?
        .map(Secret::new),
        dialect,
    })
}

fn bounded(field: &str, text: Option<String>) -> Result<Option<String>, Refusal> {
    if text.as_ref().is_some_and(|text| text.len() > LONGEST) {
        return Err(Refusal::params(format!("{field}: expected at most {LONGEST} bytes")));
    }
    Ok(text)
}

/// A text that is sent in a header.
fn header_text(field: &str, text: Option<String>) -> Result<Option<String>, Refusal> {
    let text = bounded(field, text)?;
    if text
        .as_ref()
        .is_some_and(|text| http::HeaderValue::from_str(text).is_err())
    {
        return Err(Refusal::params(format!(
            "{field}: expected a text that fits into a header"
        )));
    }
    Ok(text)
}

/// A config as it is answered.
fn shown(config: &PushConfig, task: TaskId, dialect: Dialect) -> Value {
    let mut shown = json!({"id": config.name, "url": config.url});
    if let Some(scheme) = &config.scheme {
        shown["authentication"] = match dialect {
            Dialect::V03 => json!({"schemes": [scheme]}),
            Dialect::V10 => json!({"scheme": scheme}),
        };
    }
    match dialect {
        Dialect::V03 => json!({"taskId": task.to_string(), "pushNotificationConfig": shown}),
        Dialect::V10 => {
            shown["taskId"] = json!(task.to_string());
            shown
        }
    }
}
