//! The Agent2Agent protocol, versions 0.3 and 1.0: every assistant is an agent. Contexts are threads, tasks are runs.
//!
//! ```text
//! POST /a2a/{assistant_id}     one JSON-RPC call; answers 200 with a result or an error, or a stream of such answers
//!   SendMessage  ─► Ready::record + a2a_task, one transaction ─► the run's end ─► the task
//!   SendStreamingMessage, SubscribeToTask ─► live::Reader ─► events
//! ```
//! Each method is authorized like the same operation on threads. The method name decides the version of the response.

pub(super) mod card;

mod context;
mod failure;
mod listing;
mod options;
mod params;
mod push;
mod rpc;
mod send;
mod stream;
mod tasks;

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};
use towpath_domain::agent::a2a::{A2aError, ErrorCode};
use towpath_store::assistants::Assistant;

use self::context::RequestContext;
use self::failure::Failure;
use self::options::AgentOptions;
use self::rpc::{Call, InvalidCall, Method};
use super::app::AgentApp;
use super::errors::AgentError;
use super::extract::{Path, read_bytes};
use super::{assistants, sse};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(call))
        .routes(routes!(call_with_slash))
        .merge(card::routes())
}

/// A JSON-RPC 2.0 request.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "described here, read by its own reader")]
pub(super) struct RpcRequest {
    /// `2.0`.
    jsonrpc: String,
    /// A string or a number; repeated in the response. A notification has none.
    id: Option<Value>,
    /// Such as `SendMessage` (version 1.0) or `message/send` (version 0.3).
    method: String,
    /// See the protocol.
    params: Option<Map<String, Value>>,
}

/// A JSON-RPC 2.0 response.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(super) struct RpcAnswer {
    /// `2.0`.
    jsonrpc: String,
    /// Id of the request.
    id: Option<Value>,
    /// Result of the method.
    result: Option<Value>,
    /// Code, message and details.
    error: Option<Map<String, Value>>,
}

/// Call an assistant with the Agent2Agent protocol. Protocol errors have status 200.
#[utoipa::path(post, path = "/a2a/{assistant_id}", tag = "a2a", request_body = RpcRequest,
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph"),
           ("A2A-Version" = Option<String>, Header, description = "0.3 or 1.0"),
           ("Last-Event-ID" = Option<String>, Header,
            description = "For SubscribeToTask: id of the last received event")),
    responses((status = 200, description = "A result or an error; a stream of them for streaming methods",
               content((RpcAnswer = "application/json"), (sse::Event = "text/event-stream"))),
              (status = 204, description = "A call without an id was performed"),
              (status = 404, description = "No such assistant, or the protocol is disabled"), AgentError))]
pub(crate) async fn call(context: RequestContext, Path(name): Path<String>, request: Request) -> Response {
    respond(&context, &name, request).await
}

/// Call an assistant with the Agent2Agent protocol, at the path with a slash at its end, as some clients write it.
#[utoipa::path(post, path = "/a2a/{assistant_id}/", tag = "a2a", request_body = RpcRequest,
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph"),
           ("A2A-Version" = Option<String>, Header, description = "0.3 or 1.0"),
           ("Last-Event-ID" = Option<String>, Header,
            description = "For SubscribeToTask: id of the last received event")),
    responses((status = 200, description = "A result or an error; a stream of them for streaming methods",
               content((RpcAnswer = "application/json"), (sse::Event = "text/event-stream"))),
              (status = 204, description = "A call without an id was performed"),
              (status = 404, description = "No such assistant, or the protocol is disabled"), AgentError))]
pub(crate) async fn call_with_slash(context: RequestContext, Path(name): Path<String>, request: Request) -> Response {
    respond(&context, &name, request).await
}

async fn respond(context: &RequestContext, name: &str, request: Request) -> Response {
    let RequestContext { app, headers, .. } = context;
    if !accepts_response_type(headers) {
        let text = "Accept: expected application/json or text/event-stream";
        return AgentError::bad_request(text).into_response();
    }
    let body = match read_bytes(request, app).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    if !is_json(headers) {
        return InvalidCall::content_type().respond();
    }
    let call = match rpc::parse_call(headers, body) {
        Ok(call) => call,
        Err(refused) => return refused.respond(),
    };
    let answered = match assistant(app, name).await {
        Ok(assistant) => perform(context, &assistant, &call).await,
        Err(failure) => Err(failure),
    };
    match answered {
        Err(Failure::Http(response)) => *response,
        // Its caller is interested in neither a result nor an error.
        _ if call.is_notification => StatusCode::NO_CONTENT.into_response(),
        Ok(response) => response,
        Err(Failure::Rpc(refusal)) => call.error_response(&refusal),
    }
}

async fn perform(context: &RequestContext, assistant: &Assistant, call: &Call) -> Result<Response, Failure> {
    let RequestContext { app, headers, .. } = context;
    AgentOptions::of(assistant).check_version(call.dialect)?;
    match call.method {
        Method::Send => send::send(app, headers, assistant, call).await,
        Method::Stream => send::stream(app, headers, assistant, call).await,
        Method::Subscribe => stream::subscribe(app, headers, assistant, call).await,
        Method::Get => tasks::get(app, assistant, call).await,
        Method::Cancel => tasks::cancel(app, assistant, call).await,
        Method::List => listing::list(app, assistant, call).await,
        Method::SetPushConfig => push::put(app, assistant, call).await,
        Method::GetPushConfig => push::get(app, assistant, call).await,
        Method::ListPushConfigs => push::list(app, assistant, call).await,
        Method::DeletePushConfig => push::delete(app, assistant, call).await,
        Method::Card => Ok(call.success_response(card::agent_card(context, assistant))),
    }
}

async fn assistant(app: &AgentApp, name: &str) -> Result<Arc<Assistant>, Failure> {
    let missing = || A2aError::new(ErrorCode::InvalidParams, format!("Assistant '{name}' not found"));
    let id = assistants::resolve_assistant(app, name).map_err(|_| missing())?;
    match app.assistants.get(id).await {
        Ok(assistant) => Ok(assistant),
        Err(towpath_store::Error::NotFound) => Err(missing().into()),
        Err(error) => Err(AgentError::from(error).into()),
    }
}

/// Whether the caller accepts the content type of the response; without `Accept` it does.
fn accepts_response_type(headers: &HeaderMap) -> bool {
    let mut named = headers.get_all(ACCEPT).iter().peekable();
    named.peek().is_none()
        || named
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|range| range.split(';').next().unwrap_or_default().trim())
            .any(|range| {
                let range = range.to_ascii_lowercase();
                matches!(
                    range.as_str(),
                    "*/*" | "application/*" | "application/json" | "text/*" | "text/event-stream"
                )
            })
}

/// Whether a body is JSON by its content type, or has none.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return true;
    };
    let essence = value.to_str().unwrap_or("?").split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    match essence.strip_prefix("application/") {
        Some(subtype) => subtype == "json" || subtype.ends_with("+json"),
        None => essence.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json() {
        for (content_type, expected) in [
            (None, true),
            (Some(""), true),
            (Some("application/json"), true),
            (Some("Application/JSON; charset=utf-8"), true),
            (Some("application/a2a+json"), true),
            (Some("text/plain"), false),
            (Some("application/x-www-form-urlencoded"), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(content_type) = content_type {
                headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
            }
            assert_eq!(is_json(&headers), expected, "{content_type:?}");
        }
    }

    #[test]
    fn callers_say_what_they_take() {
        for (accept, expected) in [
            (None, true),
            (Some("application/json, text/event-stream"), true),
            (Some("text/event-stream"), true),
            (Some("text/html, */*;q=0.1"), true),
            (Some("text/html"), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(accepts_response_type(&headers), expected, "{accept:?}");
        }
    }
}
