//! JSON-RPC 2.0 requests and responses.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::time::Interval;
use towpath_domain::agent::Object;
use towpath_domain::agent::a2a::{A2aError, Dialect, ErrorCode};

use crate::agent::answer::{Json, without_nul};
use crate::agent::app::AgentApp;
use crate::agent::extract::parse_body;
use crate::agent::sse;

const VERSION_HEADER: &str = "a2a-version";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Send,
    Stream,
    Subscribe,
    Get,
    Cancel,
    List,
    SetPushConfig,
    GetPushConfig,
    ListPushConfigs,
    DeletePushConfig,
    Card,
}

use Dialect::{V03, V10};

const METHODS: [(&str, Method, Dialect); 22] = [
    ("SendMessage", Method::Send, V10),
    ("SendStreamingMessage", Method::Stream, V10),
    ("SubscribeToTask", Method::Subscribe, V10),
    ("GetTask", Method::Get, V10),
    ("CancelTask", Method::Cancel, V10),
    ("ListTasks", Method::List, V10),
    ("CreateTaskPushNotificationConfig", Method::SetPushConfig, V10),
    ("GetTaskPushNotificationConfig", Method::GetPushConfig, V10),
    ("ListTaskPushNotificationConfigs", Method::ListPushConfigs, V10),
    ("DeleteTaskPushNotificationConfig", Method::DeletePushConfig, V10),
    ("GetExtendedAgentCard", Method::Card, V10),
    ("message/send", Method::Send, V03),
    ("message/stream", Method::Stream, V03),
    ("tasks/resubscribe", Method::Subscribe, V03),
    ("tasks/get", Method::Get, V03),
    ("tasks/cancel", Method::Cancel, V03),
    ("tasks/list", Method::List, V03),
    ("tasks/pushNotificationConfig/set", Method::SetPushConfig, V03),
    ("tasks/pushNotificationConfig/get", Method::GetPushConfig, V03),
    ("tasks/pushNotificationConfig/list", Method::ListPushConfigs, V03),
    ("tasks/pushNotificationConfig/delete", Method::DeletePushConfig, V03),
    ("agent/getAuthenticatedExtendedCard", Method::Card, V03),
];

#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Null if the request has none.
    pub id: Value,
    /// The request has no id: JSON-RPC does not answer it.
    pub is_notification: bool,
    pub method: Method,
    /// Version of the response.
    pub dialect: Dialect,
    pub params: Object,
}

/// Why a body is not a valid request.
pub(super) struct InvalidCall {
    id: Value,
    dialect: Dialect,
    error: A2aError,
    /// A request of the right shape without an id: not even its errors are answered.
    is_notification: bool,
}

impl InvalidCall {
    /// A body that is not JSON by its content type.
    pub(super) fn content_type() -> Self {
        let text = "Content-Type: expected application/json";
        Self {
            id: Value::Null,
            dialect: V10,
            error: A2aError::new(ErrorCode::ContentTypeNotSupported, text),
            is_notification: false,
        }
    }

    pub(super) fn respond(&self) -> Response {
        if self.is_notification {
            return StatusCode::NO_CONTENT.into_response();
        }
        Json(rpc_envelope(&self.id, self.dialect, Err(&self.error))).into_response()
    }
}

pub(super) fn parse_call(headers: &HeaderMap, body: Bytes) -> Result<Call, InvalidCall> {
    let refuse = |id: Value, code, message: &str| InvalidCall {
        id,
        dialect: V10,
        error: A2aError::new(code, message),
        is_notification: false,
    };
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(refuse(
            Value::Null,
            ErrorCode::Parse,
            "the body is empty: expected a JSON-RPC request",
        ));
    }
    let body: Value = parse_body(body).map_err(|error| refuse(Value::Null, ErrorCode::Parse, error.detail()))?;
    let Value::Object(mut call) = body else {
        let text = "expected one JSON-RPC request as an object; batches are not supported";
        return Err(refuse(Value::Null, ErrorCode::InvalidRequest, text));
    };
    let is_notification = !call.contains_key("id");
    let id = match call.remove("id") {
        None => Value::Null,
        Some(id @ (Value::Null | Value::String(_))) => id,
        Some(Value::Number(id)) if !id.is_f64() => Value::Number(id),
        Some(_) => {
            let text = "id: expected a string, an integer or null";
            return Err(refuse(Value::Null, ErrorCode::InvalidRequest, text));
        }
    };
    if call.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(refuse(id, ErrorCode::InvalidRequest, "jsonrpc: expected \"2.0\""));
    }
    let Some(name) = call.get("method").and_then(Value::as_str) else {
        return Err(refuse(id, ErrorCode::InvalidRequest, "method: expected a string"));
    };
    let found = METHODS.iter().find(|(known, ..)| *known == name);
    let refuse = |id: Value, code, message: String| InvalidCall {
        id,
        dialect: found.map_or(V10, |(.., dialect)| *dialect),
        error: A2aError::new(code, message),
        is_notification,
    };
    let Some(&(_, method, dialect)) = found else {
        let text = format!("Method not found: {name:.100}");
        return Err(refuse(id, ErrorCode::MethodNotFound, text));
    };
    if let Some(version) = headers.get(VERSION_HEADER)
        && !is_supported_version(version)
    {
        let text = format!("A2A-Version {version:?} is not supported. Supported versions: 0.3, 1.0");
        return Err(refuse(id, ErrorCode::VersionNotSupported, text));
    }
    let params = match call.remove("params") {
        None | Some(Value::Null) => Object::new(),
        Some(Value::Object(params)) => params,
        Some(_) => {
            return Err(refuse(
                id,
                ErrorCode::InvalidParams,
                "params: expected an object".to_owned(),
            ));
        }
    };
    Ok(Call {
        id,
        is_notification,
        method,
        dialect,
        params,
    })
}

/// Whether a version is supported. An empty version counts as 0.3.
fn is_supported_version(version: &HeaderValue) -> bool {
    let version = version.to_str().unwrap_or("?").trim();
    let mut parts = version.split('.');
    version.is_empty()
        || matches!(
            (parts.next(), parts.next().unwrap_or("0")),
            (Some("1"), "0") | (Some("0"), "3")
        )
}

impl Call {
    pub(super) fn envelope(&self, result: Result<Value, &A2aError>) -> Value {
        rpc_envelope(&self.id, self.dialect, result)
    }

    pub(super) fn success_response(&self, result: Value) -> Response {
        Json(self.envelope(Ok(result))).into_response()
    }

    /// An error response. For a streaming method of version 0.3 it is the only event: some of its clients read nothing
    /// else.
    pub(super) fn error_response(&self, refusal: &A2aError) -> Response {
        let answer = self.envelope(Err(refusal));
        match self.method {
            Method::Stream | Method::Subscribe if self.dialect == V03 => {
                sse::stream_response(Body::from(sse_event(&answer, None)))
            }
            _ => Json(answer).into_response(),
        }
    }

    /// A response that is not ready yet: blanks, which parsers skip, keep the connection open.
    pub(super) fn deferred_response(
        &self,
        app: &AgentApp,
        work: impl Future<Output = Result<Value, A2aError>> + Send + 'static,
    ) -> Response {
        let call = Self {
            params: Object::new(),
            ..self.clone()
        };
        let work: BoxFuture<'static, Value> = Box::pin(async move {
            match work.await {
                Ok(result) => call.envelope(Ok(result)),
                Err(refusal) => call.envelope(Err(&refusal)),
            }
        });
        let beat = sse::heartbeat_ticker(app);
        let body = Body::from_stream(stream::unfold(Some((work, beat)), |state| async move {
            let (bytes, state) = next_chunk(state?).await;
            Some((Ok::<_, Infallible>(bytes), state))
        }));
        let mut response = body.into_response();
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

type DeferredResult = (BoxFuture<'static, Value>, Interval);

async fn next_chunk((mut work, mut beat): DeferredResult) -> (Bytes, Option<DeferredResult>) {
    tokio::select! {
        biased;
        answer = &mut work => (without_nul(answer.to_string()), None),
        _ = beat.tick() => (Bytes::from_static(b"\n"), Some((work, beat))),
    }
}

fn rpc_envelope(id: &Value, dialect: Dialect, result: Result<Value, &A2aError>) -> Value {
    match result {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(refusal) => json!({"jsonrpc": "2.0", "id": id, "error": refusal.to_json(dialect)}),
    }
}

/// A response as an event. Further Unicode line separators are escaped: some clients split at them.
pub(super) fn sse_event(answer: &Value, id: Option<towpath_domain::agent::EventId>) -> Bytes {
    let mut text = answer.to_string();
    for (character, escaped) in [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")] {
        if text.contains(character) {
            text = text.replace(character, escaped);
        }
    }
    sse::event("message", &text, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (i64, Value) {
        let refused = parse_call(&HeaderMap::new(), Bytes::from(body.to_owned())).map(drop);
        let refused = refused.err().unwrap_or_else(|| panic!("{body} was read"));
        (refused.error.code.number(), refused.id)
    }

    #[tokio::test]
    async fn bodies_that_are_no_calls_are_refused_with_the_code_of_the_specification() {
        for (body, code, id) in [
            ("", -32700, json!(null)),
            ("{", -32700, json!(null)),
            ("[]", -32600, json!(null)),
            ("5", -32600, json!(null)),
            ("{}", -32600, json!(null)),
            (r#"{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}"#, -32600, json!(1)),
            (
                r#"{"jsonrpc": "2.0", "id": {}, "method": "GetTask"}"#,
                -32600,
                json!(null),
            ),
            (
                r#"{"jsonrpc": "2.0", "id": true, "method": "GetTask"}"#,
                -32600,
                json!(null),
            ),
            (r#"{"jsonrpc": "2.0", "id": "a", "method": 5}"#, -32600, json!("a")),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "tasks/none"}"#,
                -32601,
                json!(1),
            ),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}"#,
                -32602,
                json!(1),
            ),
        ] {
            assert_eq!(refused(body), (code, id), "{body}");
        }
    }

    #[tokio::test]
    async fn a_call_without_an_id_is_not_answered() {
        let status = |body: &str| {
            let refused = parse_call(&HeaderMap::new(), Bytes::from(body.to_owned())).map(drop);
            let refused = refused.err().unwrap_or_else(|| panic!("{body} was read"));
            refused.respond().status().as_u16()
        };
        for (body, expected) in [
            (r#"{"jsonrpc": "2.0", "method": "tasks/none"}"#, 204),
            (r#"{"jsonrpc": "2.0", "method": "GetTask", "params": []}"#, 204),
            (r#"{"jsonrpc": "2.0", "method": 5}"#, 200),
            (r#"{"jsonrpc": "2.0", "id": null, "method": "tasks/none"}"#, 200),
        ] {
            assert_eq!(status(body), expected, "{body}");
        }
        let call = parse_call(&HeaderMap::new(), r#"{"jsonrpc": "2.0", "method": "GetTask"}"#.into());
        assert!(call.is_ok_and(|call| call.is_notification && call.id.is_null()));
    }

    #[tokio::test]
    async fn the_method_decides_the_version() {
        for (name, method, dialect) in METHODS {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": name}).to_string();
            let call = parse_call(&HeaderMap::new(), body.into()).unwrap_or_else(|_| panic!("{name}"));
            assert_eq!((call.method, call.dialect), (method, dialect));
        }
    }

    #[tokio::test]
    async fn other_versions_are_refused() {
        for (version, code) in [
            ("1.0", None),
            ("1", None),
            ("0.3", None),
            ("0.3.0", None),
            ("99.0", Some(-32009)),
            ("0.2", Some(-32009)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(VERSION_HEADER, version.parse().unwrap());
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask"}).to_string();
            let refused = parse_call(&headers, body.into())
                .err()
                .map(|refused| refused.error.code.number());
            assert_eq!(refused, code, "{version}");
        }
    }

    #[test]
    fn no_character_of_an_event_ends_its_line() {
        let event = sse_event(&json!({"a": "x\u{2028}y\u{85}z\n"}), None);
        let text = String::from_utf8(event.to_vec()).unwrap();
        assert_eq!(text, "event: message\r\ndata: {\"a\":\"x\\u2028y\\u0085z\\n\"}\r\n\r\n");
    }
}
