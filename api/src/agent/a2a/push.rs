//! Push notification configs of tasks. Token and credentials are only for the receiver and never returned.

use axum::response::Response;
use serde_json::{Map, Value, json};
use towpath_domain::Secret;
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{A2aError, Dialect, ErrorCode, TaskId};
use towpath_domain::agent::request::check_address;
use towpath_store::a2a_push_configs::{self, NewPushConfig, PushConfig};
use towpath_store::a2a_tasks::{self, TaskDetail};
use towpath_store::assistants::Assistant;

use super::failure::Failure;
use super::params;
use super::rpc::Call;
use super::tasks::{authorize, find};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

pub(super) const TOO_MANY_CONFIGS: &str = "a task has at most 10 push notification configs: delete one first";
/// Maximum length of other texts of a config.
const MAX_TEXT_LENGTH: usize = 4096;

/// Adds a config to a task, or replaces the one with the same id.
pub(super) async fn put(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    check_supported(app)?;
    let id = params::task_param(&call.params, "taskId")?;
    let config = match call.dialect {
        Dialect::V03 => params::object_param(&call.params, "pushNotificationConfig")?
            .ok_or_else(|| A2aError::invalid_params("pushNotificationConfig: field required"))?,
        Dialect::V10 => &call.params,
    };
    let new = with_default_id(&parse_config(app, config, call.dialect)?, id);
    authorize(app, "update", id).await?;
    let written = app
        .store
        .write(async |tx| {
            a2a_tasks::get(tx, app.tenant, assistant.id, id, TaskDetail::STATE).await?;
            if !a2a_push_configs::put(tx, app.tenant, id.run, &new).await? {
                return Ok(None);
            }
            a2a_push_configs::find(tx, app.tenant, id.run, &new.name)
                .await
                .map(Some)
        })
        .await;
    let written =
        written.map_err(|error| Failure::or_not_found(AgentError::from(error), || A2aError::task_not_found(id)))?;
    let config = written.ok_or_else(|| A2aError::new(ErrorCode::UnsupportedOperation, TOO_MANY_CONFIGS))?;
    Ok(call.success_response(config_json(&config, id, call.dialect)))
}

pub(super) async fn get(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    check_supported(app)?;
    let (id, name) = config_ref(call)?;
    authorize(app, "read", id).await?;
    find(app, assistant.id, id, TaskDetail::STATE).await?;
    let name = name.unwrap_or_else(|| id.to_string());
    let found = app
        .store
        .read(async |tx| a2a_push_configs::find(tx, app.tenant, id.run, &name).await)
        .await;
    let missing = || {
        A2aError::new(
            ErrorCode::TaskNotFound,
            format!("Task {id} has no push notification config {name}"),
        )
    };
    let found = found.map_err(|error| Failure::or_not_found(AgentError::from(error), missing))?;
    Ok(call.success_response(config_json(&found, id, call.dialect)))
}

/// All configs of a task; they fit on one page.
pub(super) async fn list(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    check_supported(app)?;
    let (id, _) = config_ref(call)?;
    authorize(app, "read", id).await?;
    find(app, assistant.id, id, TaskDetail::STATE).await?;
    let found = app
        .store
        .read(async |tx| a2a_push_configs::list(tx, app.tenant, id.run).await)
        .await?;
    let configs: Vec<Value> = found.iter().map(|one| config_json(one, id, call.dialect)).collect();
    Ok(call.success_response(match call.dialect {
        Dialect::V03 => json!(configs),
        Dialect::V10 => json!({"configs": configs, "nextPageToken": ""}),
    }))
}

/// Deletes a config. A missing config is not an error.
pub(super) async fn delete(app: &AgentApp, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    check_supported(app)?;
    let (id, name) = config_ref(call)?;
    authorize(app, "update", id).await?;
    find(app, assistant.id, id, TaskDetail::STATE).await?;
    let name = name.unwrap_or_else(|| id.to_string());
    app.store
        .write(async |tx| a2a_push_configs::delete(tx, app.tenant, id.run, &name).await)
        .await?;
    Ok(call.success_response(Value::Null))
}

/// The config in a message; without an id it gets one later.
pub(super) fn from_configuration(
    app: &AgentApp,
    configuration: &Object,
    dialect: Dialect,
) -> Result<Option<NewPushConfig>, A2aError> {
    let key = match dialect {
        Dialect::V03 => "pushNotificationConfig",
        Dialect::V10 => "taskPushNotificationConfig",
    };
    let config = params::object_param(configuration, key)?;
    config.map(|config| parse_config(app, config, dialect)).transpose()
}

/// A config without an id gets the id of its task.
pub(super) fn with_default_id(new: &NewPushConfig, task: TaskId) -> NewPushConfig {
    let mut new = new.clone();
    if new.name.is_empty() {
        new.name = task.to_string();
    }
    new
}

/// Task id and config id.
fn config_ref(call: &Call) -> Result<(TaskId, Option<String>), A2aError> {
    let (task, name) = match call.dialect {
        Dialect::V03 => ("id", "pushNotificationConfigId"),
        Dialect::V10 => ("taskId", "id"),
    };
    Ok((
        params::task_param(&call.params, task)?,
        params::text_param(&call.params, name)?,
    ))
}

/// Refuses everything about configs where the card says that there are no push notifications.
fn check_supported(app: &AgentApp) -> Result<(), A2aError> {
    if app.settings.webhooks.off {
        let text = "Push notifications are not supported: webhooks are disabled";
        return Err(A2aError::new(ErrorCode::PushNotSupported, text));
    }
    Ok(())
}

fn parse_config(app: &AgentApp, config: &Object, dialect: Dialect) -> Result<NewPushConfig, A2aError> {
    check_supported(app)?;
    let url = check_length("url", params::text_param(config, "url")?)?
        .ok_or_else(|| A2aError::invalid_params("url: field required"))?;
    check_address("url", &url).map_err(|rejection| A2aError::invalid_params(format!("url: {}", rejection.message)))?;
    if let Some(refused) = app.settings.webhooks.check_address(&url) {
        return Err(A2aError::invalid_params(format!("url: {refused}")));
    }
    let nothing = Map::new();
    let authentication = params::object_param(config, "authentication")?.unwrap_or(&nothing);
    let scheme = match dialect {
        Dialect::V10 => header_text("authentication.scheme", params::text_param(authentication, "scheme")?)?,
        // The first scheme is used.
        Dialect::V03 => match authentication.get("schemes") {
            None | Some(Value::Null) => None,
            Some(Value::Array(schemes)) => {
                let first = schemes.first().and_then(Value::as_str).map(str::to_owned);
                header_text("authentication.schemes", first)?
            }
            Some(_) => {
                return Err(A2aError::invalid_params(
                    "authentication.schemes: expected a list of strings",
                ));
            }
        },
    };
    Ok(NewPushConfig {
        name: check_length("id", params::text_param(config, "id")?)?.unwrap_or_default(),
        url,
        token: header_text("token", params::text_param(config, "token")?)?.map(Secret::new),
        scheme,
        credentials: header_text(
            "authentication.credentials",
            params::text_param(authentication, "credentials")?,
        )?
        .map(Secret::new),
        dialect,
    })
}

fn check_length(field: &str, text: Option<String>) -> Result<Option<String>, A2aError> {
    if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT_LENGTH) {
        return Err(A2aError::invalid_params(format!(
            "{field}: expected at most {MAX_TEXT_LENGTH} bytes"
        )));
    }
    Ok(text)
}

/// A text that is sent in a header.
fn header_text(field: &str, text: Option<String>) -> Result<Option<String>, A2aError> {
    let text = check_length(field, text)?;
    if text
        .as_ref()
        .is_some_and(|text| http::HeaderValue::from_str(text).is_err())
    {
        return Err(A2aError::invalid_params(format!(
            "{field}: expected a text that fits into a header"
        )));
    }
    Ok(text)
}

/// A config as returned to clients.
fn config_json(config: &PushConfig, task: TaskId, dialect: Dialect) -> Value {
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
