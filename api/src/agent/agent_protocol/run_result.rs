//! Results of waits: the run, its values, and its messages apart from them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use towpath_domain::agent::RunStatus;
use towpath_store::runs as rows;

use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::runs::Run;

/// The members of a JSON object, each as its text.
type Fields = BTreeMap<String, Box<RawValue>>;

/// The result of a run that was waited for.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(crate) struct RunWaitResponse {
    run: Option<Run>,
    /// The final state without its messages, or `__error__`.
    values: Value,
    /// Of a state that has a list of messages.
    messages: Option<Vec<Map<String, Value>>>,
}

#[derive(Serialize)]
struct RunResult {
    run: Option<Run>,
    values: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<Fields>>,
}

/// The result of a run that left `state`. A run that was deleted with its thread is shown as it was recorded, with the
/// status of its end.
pub(in crate::agent) async fn run_result(
    app: &AgentApp,
    recorded: rows::Run,
    status: Option<RunStatus>,
    state: &[u8],
) -> Bytes {
    let found = app
        .store
        .read(async |tx| rows::get(tx, app.tenant, recorded.id).await)
        .await;
    let run = found.unwrap_or_else(|_| rows::Run {
        status: status.unwrap_or(recorded.status),
        updated_at: app.clock.now(),
        ..recorded
    });
    let (values, messages) = split(state);
    let result = Run::try_from(run).and_then(|run| {
        let result = RunResult {
            run: Some(run.with_agent()),
            values,
            messages,
        };
        serde_json::to_vec(&result).map_err(|error| AgentError::internal(&error))
    });
    match result {
        Ok(result) => result.into(),
        Err(error) => {
            let error = json!({"error": "HTTPException", "message": error.detail()});
            json!({"run": null, "values": {"__error__": error}}).to_string().into()
        }
    }
}

/// The values of a state, and its messages if they are a list of objects.
fn split(state: &[u8]) -> (Option<Box<RawValue>>, Option<Vec<Fields>>) {
    let Ok(mut fields) = serde_json::from_slice::<Fields>(state) else {
        return (serde_json::from_slice(state).ok(), None);
    };
    let messages = fields.get("messages").map(|list| list.get());
    let messages: Option<Vec<Fields>> = messages.and_then(|list| serde_json::from_str(list).ok());
    if messages.is_some() {
        fields.remove("messages");
    }
    let messages = messages.map(|list| list.into_iter().map(with_role).collect());
    (to_raw_value(&fields).ok(), messages)
}

/// Messages of graphs have a type, those of the protocol a role.
fn with_role(mut message: Fields) -> Fields {
    let kind = message.get("type").map(|kind| kind.get());
    let kind: Option<String> = kind.and_then(|kind| serde_json::from_str(kind).ok());
    if let Some(kind) = kind.filter(|_| !message.contains_key("role")) {
        let role = match kind.as_str() {
            "human" => "user",
            "ai" => "assistant",
            other => other,
        };
        if let Ok(role) = to_raw_value(role) {
            message.insert("role".to_owned(), role);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(state: &str) -> (Value, Option<Value>) {
        let (values, messages) = split(state.as_bytes());
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let messages = messages.map(|list| value(&serde_json::to_string(&list).unwrap()));
        (values.map_or(Value::Null, |values| value(values.get())), messages)
    }

    #[test]
    fn messages_are_apart_from_the_values() {
        let state = r#"{"n": 1, "messages": [{"type": "human", "content": "hi"}, {"type": "ai", "content": ""},
                        {"type": "tool", "role": "own"}, {"content": "x"}]}"#;
        let expected = json!([
            {"type": "human", "content": "hi", "role": "user"},
            {"type": "ai", "content": "", "role": "assistant"},
            {"type": "tool", "role": "own"},
            {"content": "x"},
        ]);
        assert_eq!(parts(state), (json!({"n": 1}), Some(expected)));
        let other = json!({"messages": "none", "__interrupt__": []});
        assert_eq!(parts(&other.to_string()), (other, None));
        assert_eq!(parts("[1]"), (json!([1]), None));
    }

    #[test]
    fn values_keep_their_text() {
        let (values, _) = split(br#"{"big": 1e999, "messages": []}"#);
        assert_eq!(values.unwrap().get(), r#"{"big":1e999}"#);
    }
}
