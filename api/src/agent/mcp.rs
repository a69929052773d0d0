//! The Model Context Protocol: every assistant is a tool, at `/mcp` over streamable HTTP.
//!
//! ```text
//! POST /mcp    one JSON-RPC message, or a batch of them
//!   initialize, server/discover ─► what this server can do
//!   tools/list ─► assistants
//!   tools/call ─► Ready::start_read ─► the run's end ─► its state
//!   notifications/cancelled ─► run_agent::cancel
//! ```
//! What a method does is judged as the same operation on assistants and threads is. Nothing is kept between requests, so they
//! may reach any process. This server sends no requests and no messages that nobody asked for: GET is answered 405.

mod batch;
mod call;
mod failure;
mod lifecycle;
mod progress;
mod result;
mod rpc;
mod schema;
mod session;
mod tools;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{ACCEPT, ALLOW, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use self::call::{ResponseForm, sse_event};
use self::failure::Failure;
use self::lifecycle::Lifecycle;
use self::rpc::{Call, ErrorCode, Message, Payload, RpcError};
use self::session::SESSION_HEADER;
use super::answer::Json;
use super::app::AgentApp;
use super::errors::AgentError;
use super::extract::read_bytes;
use super::sse;
use crate::browser::may_act;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default().routes(routes!(post, delete))
}

/// A message of JSON-RPC 2.0.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "described here, read by its own reader")]
pub(super) struct McpMessage {
    /// `2.0`.
    jsonrpc: McpJsonRpc,
    /// Names a request; the answer repeats it. A notification has none.
    id: McpId,
    /// Such as `tools/call`.
    method: String,
    /// See the protocol.
    params: Map<String, Value>,
}

/// The version of JSON-RPC.
#[derive(Serialize, utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum McpJsonRpc {
    #[serde(rename = "2.0")]
    Two,
}

/// What a request is named.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) enum McpId {
    Text(String),
    Number(i64),
}

/// An answer of JSON-RPC 2.0.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct McpAnswer {
    /// `2.0`.
    jsonrpc: String,
    /// That of the request; null where it could not be read.
    id: Option<Value>,
    /// What the method gives.
    result: Option<Value>,
    /// Code, message and details.
    error: Option<Map<String, Value>>,
}

/// Send a message of the Model Context Protocol. `MCP-Protocol-Version` names the revision, once it is agreed on. Up to 2025-11-25
/// errors about a request are answered with 200; since 2026-07-28 with the status that the protocol names. Revision 2025-03-26 also
/// has batches: a list of messages, answered with a list.
#[utoipa::path(post, path = "/mcp", tag = "mcp", request_body = McpMessage,
    responses((status = 200, description = "A result or an error; with a progress token a stream of notifications and then that",
               content((McpAnswer = "application/json"), (sse::Event = "text/event-stream"))),
              (status = 202, description = "A notification was taken"),
              (status = 404, description = "No such method or session, or no such protocol here"), AgentError))]
pub(crate) async fn post(State(app): State<AgentApp>, headers: HeaderMap, request: Request) -> Response {
    if !is_allowed_origin(&app, &headers) {
        let text = "this page may not call: name its origin in CORS_ALLOW_ORIGINS";
        return AgentError::new(StatusCode::FORBIDDEN, text).into_response();
    }
    let takes = AcceptedTypes::from_headers(&headers);
    if !takes.json && !takes.events {
        let text = "Accept: expected application/json or text/event-stream";
        return AgentError::bad_request(text).into_response();
    }
    let body = match read_bytes(request, &app).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    match rpc::parse_payload(body) {
        Ok(Payload::Single(message)) => handle_message(&app, &headers, takes, message).await,
        Ok(Payload::Batch(entries)) => match lifecycle::check_batch(&headers) {
            Ok(()) => batch::handle(&app, &headers, takes, entries).await,
            Err(error) => error_response(StatusCode::BAD_REQUEST, &Value::Null, &error),
        },
        Err((id, error)) => error_response(StatusCode::BAD_REQUEST, &id, &error),
    }
}

/// End a session. Sessions are kept nowhere and end by themselves.
#[utoipa::path(delete, path = "/mcp", tag = "mcp",
    responses((status = 404, description = "No session is named"),
              (status = 405, description = "Clients end no sessions here"), AgentError))]
pub(crate) async fn delete(headers: HeaderMap) -> Response {
    if !headers.contains_key(&SESSION_HEADER) {
        return AgentError::not_found().into_response();
    }
    let refused = AgentError::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    ([(ALLOW, "POST")], refused).into_response()
}

/// Sends callers of `/mcp/` to `/mcp`: the method and the body stay the same.
pub(super) fn trailing_slash() -> Router<AgentApp> {
    Router::new().route("/mcp/", any(redirect))
}

async fn redirect(State(app): State<AgentApp>, headers: HeaderMap, uri: Uri) -> Response {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let place = format!("{}/mcp{query}", sse::prefix(&app, &headers));
    match HeaderValue::from_str(&place) {
        Ok(place) => (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, place)]).into_response(),
        Err(_) => AgentError::not_found().into_response(),
    }
}

/// Answers a message that came alone.
async fn handle_message(app: &AgentApp, headers: &HeaderMap, takes: AcceptedTypes, message: Message) -> Response {
    let lifecycle = Lifecycle::from_headers(headers);
    match message {
        Message::Request(call) => {
            let lifecycle = Lifecycle::of_request(headers, &call);
            handle_request(app, headers, lifecycle, takes, &call).await
        }
        Message::Notification { method, params } => {
            handle_notification(app, headers, lifecycle, &method, &params).await
        }
        Message::Response if lifecycle == Lifecycle::Handshake => StatusCode::ACCEPTED.into_response(),
        Message::Response => {
            let error = RpcError::new(ErrorCode::InvalidRequest, "Expected a request or a notification");
            error_response(StatusCode::BAD_REQUEST, &Value::Null, &error)
        }
    }
}

/// Answers a request.
async fn handle_request(
    app: &AgentApp,
    headers: &HeaderMap,
    lifecycle: Lifecycle,
    takes: AcceptedTypes,
    call: &Call,
) -> Response {
    match perform(app, headers, lifecycle, takes, call).await {
        Ok(response) => response,
        Err(Failure::Http(response)) => *response,
        Err(Failure::Rpc(error)) => {
            let status = match lifecycle {
                Lifecycle::Handshake => StatusCode::OK,
                Lifecycle::Stateless => error.code.status(),
            };
            match takes.response_form() {
                ResponseForm::Events if status == StatusCode::OK => takes.respond(&error.envelope(&call.id)),
                _ => error_response(status, &call.id, &error),
            }
        }
    }
}

async fn perform(
    app: &AgentApp,
    headers: &HeaderMap,
    lifecycle: Lifecycle,
    takes: AcceptedTypes,
    call: &Call,
) -> Result<Response, Failure> {
    let session = match lifecycle {
        Lifecycle::Handshake => session::read_session_id(headers)?,
        Lifecycle::Stateless => {
            lifecycle::check(headers, call)?;
            None
        }
    };
    let result = match (lifecycle, call.method.as_str()) {
        (_, "tools/call") => return call::call(app, headers, lifecycle, takes, call).await,
        (_, "tools/list") => tools::list(app, &call.params).await?,
        (Lifecycle::Handshake, "ping") => json!({}),
        (Lifecycle::Handshake, "initialize") => {
            let offered = call.params.get("protocolVersion").and_then(Value::as_str);
            json!({
                "protocolVersion": lifecycle::negotiate_version(offered),
                "capabilities": capabilities(),
                "serverInfo": server_info(),
            })
        }
        (Lifecycle::Stateless, "server/discover") => json!({
            "supportedVersions": lifecycle::revisions(),
            "capabilities": capabilities(),
        }),
        (_, method) => {
            let text = format!("Method not found: {method:.100}");
            return Err(RpcError::new(ErrorCode::MethodNotFound, text).into());
        }
    };
    let result = match lifecycle {
        Lifecycle::Handshake => result,
        Lifecycle::Stateless => with_server_info(with_private_cache(result)),
    };
    let mut response = takes.respond(&json!({"jsonrpc": "2.0", "id": call.id, "result": result}));
    if call.method == "initialize" {
        let session = session.unwrap_or_else(Uuid::now_v7).to_string();
        let session = HeaderValue::from_str(&session).expect("a UUID has only characters a header may have");
        response.headers_mut().insert(SESSION_HEADER, session);
    }
    Ok(response)
}

/// Takes a notification.
async fn handle_notification(
    app: &AgentApp,
    headers: &HeaderMap,
    lifecycle: Lifecycle,
    method: &str,
    params: &Map<String, Value>,
) -> Response {
    let taken = match (lifecycle, method) {
        (Lifecycle::Handshake, "notifications/cancelled") => session::cancel(app, headers, params).await,
        // Whoever has begun needs no further word.
        (Lifecycle::Handshake, _) => Ok(()),
        // A client that cancels closes its connection.
        (Lifecycle::Stateless, _) => lifecycle::check_version(headers).map_err(Failure::from),
    };
    match taken {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(Failure::Http(response)) => *response,
        Err(Failure::Rpc(error)) => error_response(error.code.status(), &Value::Null, &error),
    }
}

fn error_response(status: StatusCode, id: &Value, error: &RpcError) -> Response {
    (status, Json(error.envelope(id))).into_response()
}

fn capabilities() -> Value {
    json!({"tools": {"listChanged": false}})
}

fn server_info() -> Value {
    json!({"name": "towpath", "title": "Towpath agent server", "version": env!("CARGO_PKG_VERSION")})
}

/// Marks a result of a revision without a handshake as whole, and says whose it is.
fn with_server_info(mut result: Value) -> Value {
    result["resultType"] = json!("complete");
    result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": server_info()});
    result
}

/// Says that nobody may keep a result: assistants come and go, and callers do not see the same ones.
fn with_private_cache(mut result: Value) -> Value {
    result["ttlMs"] = json!(0);
    result["cacheScope"] = json!("private");
    result
}

/// Whether a page, if it is one that calls, may. A page of elsewhere can lead its own name to this server (DNS rebinding); it has
/// no key, so a server that asks for one is safe from that.
fn is_allowed_origin(app: &AgentApp, headers: &HeaderMap) -> bool {
    let settings = &app.settings;
    let asks = app.keys.is_some() || settings.custom_auth || settings.gateway_key.is_some();
    may_act(&Method::POST, headers, |origin| {
        settings.cors.allows_origin(origin).or(asks.then_some(true))
    })
}

/// What a caller takes. One that says nothing, and one that takes everything, gets JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AcceptedTypes {
    json: bool,
    events: bool,
}

impl AcceptedTypes {
    fn from_headers(headers: &HeaderMap) -> Self {
        let mut named = headers.get_all(ACCEPT).iter().peekable();
        if named.peek().is_none() {
            return Self {
                json: true,
                events: false,
            };
        }
        let mut takes = Self {
            json: false,
            events: false,
        };
        let ranges = named
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        for range in ranges {
            let range = range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            takes.json |= matches!(range.as_str(), "*/*" | "application/*" | "application/json");
            takes.events |= matches!(range.as_str(), "*/*" | "text/*" | "text/event-stream");
        }
        takes
    }

    const fn response_form(self) -> ResponseForm {
        if self.json {
            ResponseForm::Json
        } else {
            ResponseForm::Events
        }
    }

    /// An answer at once.
    fn respond(self, answer: &Value) -> Response {
        match self.response_form() {
            ResponseForm::Json => Json(answer).into_response(),
            ResponseForm::Events => sse::stream_response(Body::from(sse_event(&answer.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_say_what_they_take() {
        for (accept, json, events) in [
            (None, true, false),
            (Some("application/json, text/event-stream"), true, true),
            (Some("text/event-stream;q=0.5"), false, true),
            (Some("*/*"), true, true),
            (Some("text/html"), false, false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(
                AcceptedTypes::from_headers(&headers),
                AcceptedTypes { json, events },
                "{accept:?}"
            );
        }
    }
}
