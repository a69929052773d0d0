//! What a call brings: the state that its run left, as text and as data.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::agent::RunStatus;

use super::lifecycle::Lifecycle;
use super::rpc::{ErrorCode, RpcError};
use super::with_server_info;

/// What stands in a state that is none.
#[derive(Default, Deserialize)]
struct StateMarkers {
    #[serde(rename = "__error__")]
    error: Option<RunError>,
    /// The graph asks something, which nobody can answer: the thread goes with the run.
    #[serde(rename = "__interrupt__")]
    interrupt: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct RunError {
    #[serde(default)]
    error: String,
    #[serde(default)]
    message: String,
}

#[derive(Serialize)]
struct Content<'a> {
    r#type: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallToolResult<'a> {
    content: [Content<'a>; 1],
    /// Only objects: revisions before 2026-07-28 allow nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a RawValue>,
    is_error: bool,
    #[serde(flatten)]
    stamp: Option<Value>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    jsonrpc: &'static str,
    id: &'a Value,
    result: CallToolResult<'a>,
}

/// The answer to the call of this id, whose run ended so and left this.
pub(super) fn call_response(id: &Value, lifecycle: Lifecycle, status: Option<RunStatus>, state: &[u8]) -> String {
    let marks: StateMarkers = serde_json::from_slice(state).unwrap_or_default();
    if status == Some(RunStatus::Interrupted) && marks.error.is_none() && marks.interrupt.is_none() {
        let error = RpcError::new(ErrorCode::Cancelled, "The call was cancelled");
        return error.envelope(id).to_string();
    }
    let failure = marks
        .error
        .map(|error| match (error.error.as_str(), error.message.as_str()) {
            (kind, "") => kind.to_owned(),
            ("", message) => message.to_owned(),
            (kind, message) => format!("{kind}: {message}"),
        });
    let Ok(raw) = serde_json::from_slice::<&RawValue>(state) else {
        let error = RpcError::new(ErrorCode::Internal, "Internal error");
        return error.envelope(id).to_string();
    };
    let envelope = Envelope {
        jsonrpc: "2.0",
        id,
        result: CallToolResult {
            content: [Content {
                r#type: "text",
                text: failure.as_deref().unwrap_or_else(|| raw.get()),
            }],
            structured_content: Some(raw).filter(|raw| failure.is_none() && raw.get().starts_with('{')),
            is_error: failure.is_some(),
            stamp: (lifecycle == Lifecycle::Stateless).then(|| with_server_info(json!({}))),
        },
    };
    serde_json::to_string(&envelope).expect("texts and JSON are always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: RunStatus, state: &str) -> Value {
        let text = call_response(&json!(7), Lifecycle::Handshake, Some(status), state.as_bytes());
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_state_is_told_twice() {
        let answer = read(RunStatus::Success, r#"{"log":["a"]}"#);
        assert_eq!(
            answer,
            json!({"jsonrpc": "2.0", "id": 7, "result": {
                "content": [{"type": "text", "text": r#"{"log":["a"]}"#}],
                "structuredContent": {"log": ["a"]},
                "isError": false,
            }})
        );
        let list = read(RunStatus::Success, "[1]");
        assert_eq!(list["result"]["content"][0]["text"], "[1]");
        assert!(list["result"].get("structuredContent").is_none());
    }

    #[test]
    fn what_went_wrong_is_a_result_and_what_was_cancelled_none() {
        let failed = read(
            RunStatus::Error,
            r#"{"__error__":{"error":"ValueError","message":"it broke"}}"#,
        );
        assert_eq!(
            failed["result"],
            json!({"content": [{"type": "text", "text": "ValueError: it broke"}], "isError": true})
        );
        let cancelled = read(RunStatus::Interrupted, r#"{"log":[]}"#);
        assert_eq!(cancelled["error"]["code"], -32800);
        let asks = read(RunStatus::Interrupted, r#"{"__interrupt__":[{"value":"go on?"}]}"#);
        assert_eq!(asks["result"]["isError"], false);
    }

    #[test]
    fn revisions_without_a_handshake_say_that_it_is_whole() {
        let text = call_response(&json!(7), Lifecycle::Stateless, Some(RunStatus::Success), b"{}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["result"]["resultType"], "complete");
        assert_eq!(
            answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"],
            "towpath"
        );
    }
}
