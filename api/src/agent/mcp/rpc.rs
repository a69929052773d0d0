//! Messages of JSON-RPC 2.0, as the Model Context Protocol sends them over HTTP: one object a body, and no batches.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use towpath_domain::agent::Object;

use crate::agent::extract::parse_body;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorCode {
    Parse,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    Internal,
    /// The run that a call waits for was cancelled. The protocol has no code for it, and wants those of others outside of
    /// JSON-RPC's range: clients take -32000 for a closed connection.
    Cancelled,
    HeaderMismatch,
    UnsupportedVersion,
}

impl ErrorCode {
    const fn number(self) -> i64 {
        match self {
            Self::Parse => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::Internal => -32603,
            Self::Cancelled => -32800,
            Self::HeaderMismatch => -32020,
            Self::UnsupportedVersion => -32022,
        }
    }

    /// The status that goes with it in revisions without a handshake.
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Parse
            | Self::InvalidRequest
            | Self::InvalidParams
            | Self::HeaderMismatch
            | Self::UnsupportedVersion => StatusCode::BAD_REQUEST,
            Self::MethodNotFound => StatusCode::NOT_FOUND,
            Self::Internal | Self::Cancelled => StatusCode::OK,
        }
    }
}

/// An error of the protocol.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RpcError {
    pub code: ErrorCode,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn with_data(self, data: Value) -> Self {
        Self {
            data: Some(data),
            ..self
        }
    }

    /// The answer to a request of this id; null where it has none that can be read.
    pub(super) fn envelope(&self, id: &Value) -> Value {
        let mut error = json!({"code": self.code.number(), "message": self.message});
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// A string or a number.
    pub id: Value,
    pub method: String,
    pub params: Object,
}

/// What a body holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    Request(Call),
    Notification {
        method: String,
        params: Object,
    },
    /// An answer to a request of ours: this server makes none.
    Response,
}

/// Reads a body. A refusal comes with the id it is about.
pub(super) fn parse_message(body: Bytes) -> Result<Message, (Value, RpcError)> {
    let refuse = |id: Value, code, text: &str| (id, RpcError::new(code, text));
    if body.iter().all(u8::is_ascii_whitespace) {
        let text = "The body is empty: expected a JSON-RPC message";
        return Err(refuse(Value::Null, ErrorCode::Parse, text));
    }
    let body: Value = parse_body(body).map_err(|error| refuse(Value::Null, ErrorCode::Parse, error.detail()))?;
    let Value::Object(mut message) = body else {
        let text = "Expected one JSON-RPC message as an object; batches are not supported";
        return Err(refuse(Value::Null, ErrorCode::InvalidRequest, text));
    };
    let id = message.remove("id");
    let known = id.clone().filter(is_id).unwrap_or_default();
    let refuse = |text: &str| refuse(known.clone(), ErrorCode::InvalidRequest, text);
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(refuse("jsonrpc: expected \"2.0\""));
    }
    let method = match message.remove("method") {
        None if id.is_some() && (message.contains_key("result") || message.contains_key("error")) => {
            return Ok(Message::Response);
        }
        Some(Value::String(method)) => method,
        _ => return Err(refuse("method: expected a string")),
    };
    let params = match message.remove("params") {
        None => Object::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(refuse("params: expected an object")),
    };
    match id {
        None => Ok(Message::Notification { method, params }),
        Some(id) if is_id(&id) => Ok(Message::Request(Call { id, method, params })),
        Some(_) => Err(refuse("id: expected a string or a number")),
    }
}

/// Whether a value identifies a request. Other than in JSON-RPC, null does not.
pub(super) fn is_id(value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Number(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (i64, Value) {
        let (id, error) = parse_message(Bytes::from(body.to_owned())).expect_err(body);
        (error.code.number(), id)
    }

    #[tokio::test]
    async fn bodies_that_are_no_messages_are_refused_with_their_id() {
        for (body, code, id) in [
            ("", -32700, json!(null)),
            ("{", -32700, json!(null)),
            ("[]", -32600, json!(null)),
            (
                r#"[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]"#,
                -32600,
                json!(null),
            ),
            ("{}", -32600, json!(null)),
            (r#"{"jsonrpc": "1.0", "id": 1, "method": "ping"}"#, -32600, json!(1)),
            (
                r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#,
                -32600,
                json!(null),
            ),
            (
                r#"{"jsonrpc": "2.0", "id": true, "method": "ping"}"#,
                -32600,
                json!(null),
            ),
            (r#"{"jsonrpc": "2.0", "id": "a", "method": 5}"#, -32600, json!("a")),
            (r#"{"jsonrpc": "2.0", "id": "a"}"#, -32600, json!("a")),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}"#,
                -32600,
                json!(1),
            ),
        ] {
            assert_eq!(refused(body), (code, id), "{body}");
        }
    }

    #[tokio::test]
    async fn an_id_makes_a_request() {
        let message = |text: &str| parse_message(Bytes::from(text.to_owned())).unwrap();
        let request = message(r#"{"jsonrpc": "2.0", "id": 0, "method": "ping"}"#);
        assert!(matches!(request, Message::Request(call) if call.id == json!(0) && call.method == "ping"));
        let notification = message(r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#);
        assert!(matches!(notification, Message::Notification { method, .. } if method.ends_with("initialized")));
        for response in [
            r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}"#,
        ] {
            assert_eq!(message(response), Message::Response);
        }
    }
}
