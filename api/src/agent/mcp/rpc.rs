//! Messages of JSON-RPC 2.0, as the Model Context Protocol sends them over HTTP: one object a body, or a batch of them.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use towpath_domain::agent::Object;

use crate::agent::extract::parse_body;

/// Messages in a batch. Each may start a run.
const MAX_BATCH_SIZE: usize = 50;

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
    /// A request of a batch that would have another HTTP status than 200 if it came alone.
    RequestFailed,
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
            Self::RequestFailed => -32803,
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
            Self::Internal | Self::Cancelled | Self::RequestFailed => StatusCode::OK,
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
    /// A string or an integer.
    pub id: Value,
    pub method: String,
    pub params: Object,
}

/// A message of JSON-RPC 2.0.
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

/// What is wrong with a message, and its id; null where it has none that can be read.
pub(super) type InvalidMessage = (Value, RpcError);

/// What a body holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Payload {
    Single(Message),
    /// One or more messages. An invalid one does not invalidate the others.
    Batch(Vec<Result<Message, InvalidMessage>>),
}

/// Reads a body.
pub(super) fn parse_payload(body: Bytes) -> Result<Payload, InvalidMessage> {
    let refuse = |code, text: &str| (Value::Null, RpcError::new(code, text));
    if body.iter().all(u8::is_ascii_whitespace) {
        let text = "The body is empty: expected a JSON-RPC message";
        return Err(refuse(ErrorCode::Parse, text));
    }
    let body: Value = parse_body(body).map_err(|error| refuse(ErrorCode::Parse, error.detail()))?;
    match body {
        Value::Array(entries) if entries.is_empty() => Err(refuse(
            ErrorCode::InvalidRequest,
            "The batch is empty: expected a message",
        )),
        Value::Array(entries) if entries.len() > MAX_BATCH_SIZE => {
            let text = format!("The batch is too large: expected at most {MAX_BATCH_SIZE} messages");
            Err(refuse(ErrorCode::InvalidRequest, &text))
        }
        Value::Array(entries) => Ok(Payload::Batch(entries.into_iter().map(parse_message).collect())),
        message => parse_message(message).map(Payload::Single),
    }
}

fn parse_message(message: Value) -> Result<Message, InvalidMessage> {
    let Value::Object(mut message) = message else {
        let error = RpcError::new(ErrorCode::InvalidRequest, "Expected a JSON-RPC message as an object");
        return Err((Value::Null, error));
    };
    let id = message.remove("id");
    let known = id.clone().filter(is_id).unwrap_or_default();
    let refuse = |code, text: &str| (known.clone(), RpcError::new(code, text));
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(refuse(ErrorCode::InvalidRequest, "jsonrpc: expected \"2.0\""));
    }
    let method = match message.remove("method") {
        // An error about a message that could not be read has no id.
        None if message.contains_key("error") || (id.is_some() && message.contains_key("result")) => {
            return Ok(Message::Response);
        }
        Some(Value::String(method)) => method,
        _ => return Err(refuse(ErrorCode::InvalidRequest, "method: expected a string")),
    };
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        return Err(refuse(ErrorCode::InvalidRequest, "id: expected a string or an integer"));
    }
    let params = match message.remove("params") {
        None => Object::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(refuse(ErrorCode::InvalidParams, "params: expected an object")),
    };
    Ok(match id {
        None => Message::Notification { method, params },
        Some(id) => Message::Request(Call { id, method, params }),
    })
}

/// Whether a value identifies a request. Other than in JSON-RPC, null and fractions do not.
pub(super) fn is_id(value: &Value) -> bool {
    match value {
        Value::String(_) => true,
        // Integers that are too large for 64 bits are read as floats.
        Value::Number(number) => number.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (i64, Value) {
        let (id, error) = parse_payload(Bytes::from(body.to_owned())).expect_err(body);
        (error.code.number(), id)
    }

    #[tokio::test]
    async fn bodies_that_are_no_messages_are_refused_with_their_id() {
        for (body, code, id) in [
            ("", -32700, json!(null)),
            ("{", -32700, json!(null)),
            ("[", -32700, json!(null)),
            ("[]", -32600, json!(null)),
            ("5", -32600, json!(null)),
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
            (
                r#"{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}"#,
                -32600,
                json!(null),
            ),
            (r#"{"jsonrpc": "2.0", "id": "a", "method": 5}"#, -32600, json!("a")),
            (r#"{"jsonrpc": "2.0", "id": "a"}"#, -32600, json!("a")),
            (r#"{"jsonrpc": "2.0", "result": {}}"#, -32600, json!(null)),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}"#,
                -32602,
                json!(1),
            ),
            (
                r#"{"jsonrpc": "2.0", "method": "notifications/initialized", "params": 5}"#,
                -32602,
                json!(null),
            ),
        ] {
            assert_eq!(refused(body), (code, id), "{body}");
        }
    }

    #[tokio::test]
    async fn an_id_makes_a_request() {
        let message = |text: &str| match parse_payload(Bytes::from(text.to_owned())).unwrap() {
            Payload::Single(message) => message,
            Payload::Batch(_) => panic!("{text} was read as a batch"),
        };
        let request = message(r#"{"jsonrpc": "2.0", "id": 0, "method": "ping"}"#);
        assert!(matches!(request, Message::Request(call) if call.id == json!(0) && call.method == "ping"));
        let large = message(r#"{"jsonrpc": "2.0", "id": 36893488147419103232, "method": "ping"}"#);
        assert!(matches!(large, Message::Request(_)));
        let notification = message(r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#);
        assert!(matches!(notification, Message::Notification { method, .. } if method.ends_with("initialized")));
        for response in [
            r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}"#,
            r#"{"jsonrpc": "2.0", "error": {"code": 1, "message": "x"}}"#,
        ] {
            assert_eq!(message(response), Message::Response);
        }
    }

    #[tokio::test]
    async fn an_invalid_message_leaves_the_others_of_its_batch() {
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        let body =
            json!([ping, 5, {"jsonrpc": "2.0", "id": 2}, {"jsonrpc": "2.0", "method": "notifications/initialized"}]);
        let Ok(Payload::Batch(entries)) = parse_payload(body.to_string().into()) else {
            panic!("a batch was refused");
        };
        assert!(matches!(&entries[0], Ok(Message::Request(call)) if call.id == json!(1)));
        let codes = entries[1..3].iter().map(|entry| {
            let (id, error) = entry.as_ref().unwrap_err();
            (id.clone(), error.code)
        });
        assert_eq!(
            codes.collect::<Vec<_>>(),
            [
                (Value::Null, ErrorCode::InvalidRequest),
                (json!(2), ErrorCode::InvalidRequest)
            ]
        );
        assert!(matches!(entries[3], Ok(Message::Notification { .. })));
        let largest = json!(vec![ping.clone(); MAX_BATCH_SIZE]).to_string();
        assert!(parse_payload(largest.into()).is_ok());
        let too_large = json!(vec![ping; MAX_BATCH_SIZE + 1]).to_string();
        assert_eq!(refused(&too_large), (-32600, Value::Null));
    }
}
