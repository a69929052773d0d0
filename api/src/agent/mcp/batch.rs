//! Batches: several messages in one body.
//!
//! Messages are handled in order, so a cancellation finds a call of its own batch. The runs of the calls go on side by
//! side, and each answer goes out when its run is over. An error of HTTP, which a request alone would be answered with,
//! becomes an error of its entry: the batch has one status.

use std::convert::Infallible;

use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt as _};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Body as _;
use serde_json::{Value, json};
use tokio::time::Interval;

use super::call::{ResponseForm, sse_event};
use super::failure::Failure;
use super::lifecycle::Lifecycle;
use super::progress::Progress;
use super::rpc::{Call, ErrorCode, InvalidMessage, Message, RpcError};
use super::{AcceptedTypes, error_response, handle_notification, handle_request, session};
use crate::agent::app::AgentApp;
use crate::agent::sse;

/// Size limit of the body of an error.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Answers that are complete and wait for the others, in bytes. More requests are refused.
const MAX_HELD_BYTES: u64 = 16 << 20;

/// Answers the messages of a batch.
pub(super) async fn handle(
    app: &AgentApp,
    headers: &HeaderMap,
    takes: AcceptedTypes,
    entries: Vec<Result<Message, InvalidMessage>>,
) -> Response {
    match session::read_session_id(headers) {
        Ok(_) => {}
        Err(Failure::Http(response)) => return *response,
        Err(Failure::Rpc(error)) => return error_response(StatusCode::BAD_REQUEST, &Value::Null, &error),
    }
    let has_request = entries.iter().any(|entry| matches!(entry, Ok(Message::Request(_))));
    let form = response_form(takes, &entries);
    let mut answers = Vec::new();
    let mut refused = None;
    let mut held = 0;
    for entry in entries {
        match entry {
            Ok(Message::Request(call)) => {
                let answer = if held > MAX_HELD_BYTES {
                    let text = "The answers of the batch are too large: send this request by itself";
                    let error = RpcError::new(ErrorCode::RequestFailed, text);
                    error_response(StatusCode::PAYLOAD_TOO_LARGE, &call.id, &error)
                } else {
                    handle_entry(app, headers, form, &call).await
                };
                let body = entry_body(&call.id, answer, form).await;
                // Calls are streams, which hold nothing yet: their lower bound is 0.
                held += body.size_hint().lower();
                answers.push(body);
            }
            Ok(Message::Notification { method, params }) => {
                let taken = handle_notification(app, headers, Lifecycle::Handshake, &method, &params).await;
                if !taken.status().is_success() {
                    refused.get_or_insert(taken);
                }
            }
            // An answer to a request of ours: this server makes none.
            Ok(Message::Response) => {}
            Err((id, error)) => {
                let answer = error_response(StatusCode::BAD_REQUEST, &id, &error);
                answers.push(entry_body(&id, answer, form).await);
            }
        }
    }
    if answers.is_empty() {
        // Notifications are not answered; their status is that of the body.
        return refused.unwrap_or_else(|| StatusCode::ACCEPTED.into_response());
    }
    let mut response = match form {
        ResponseForm::Json => json_response(app, answers),
        ResponseForm::Events => events_response(answers),
    };
    if !has_request {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    response
}

/// Events if a call is to tell how far it has come.
fn response_form(takes: AcceptedTypes, entries: &[Result<Message, InvalidMessage>]) -> ResponseForm {
    let mut requests = entries.iter().filter_map(|entry| match entry {
        Ok(Message::Request(call)) => Some(call),
        _ => None,
    });
    if takes.events && requests.any(|call| Progress::from_params(&call.params).is_some()) {
        return ResponseForm::Events;
    }
    takes.response_form()
}

async fn handle_entry(app: &AgentApp, headers: &HeaderMap, form: ResponseForm, call: &Call) -> Response {
    if call.method == "initialize" {
        let error = RpcError::new(ErrorCode::InvalidRequest, "initialize: expected outside of a batch");
        return error_response(StatusCode::BAD_REQUEST, &call.id, &error);
    }
    let takes = AcceptedTypes {
        json: form == ResponseForm::Json,
        events: form == ResponseForm::Events,
    };
    // A body of a revision without batches is refused because its header is missing.
    let lifecycle = Lifecycle::of_request(headers, call);
    handle_request(app, headers, lifecycle, takes, call).await
}

/// The body of an answer in the form of the batch.
async fn entry_body(id: &Value, answer: Response, form: ResponseForm) -> Body {
    let status = answer.status();
    if status == StatusCode::OK {
        return answer.into_body();
    }
    let body = to_bytes(answer.into_body(), MAX_ERROR_BYTES).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let error = if body.get("jsonrpc").is_some() {
        body
    } else {
        let detail = body.get("detail").and_then(Value::as_str);
        let text = detail.or(status.canonical_reason()).unwrap_or("Request failed");
        RpcError::new(ErrorCode::RequestFailed, text)
            .with_data(json!({"status": status.as_u16()}))
            .envelope(id)
    };
    match form {
        ResponseForm::Json => Body::from(error.to_string()),
        ResponseForm::Events => Body::from(sse_event(&error.to_string())),
    }
}

/// The answers as they come, as events. Each part of a body is a whole event.
fn events_response(answers: Vec<Body>) -> Response {
    let events = answers.into_iter().map(|body| body.into_data_stream().boxed());
    sse::stream_response(Body::from_stream(stream::select_all(events)))
}

/// A list of answers that is not complete yet. Blanks, which parsers skip, keep the connection open.
struct AnswerList {
    pending: FuturesUnordered<BoxFuture<'static, Bytes>>,
    heartbeat: Interval,
    is_first: bool,
    is_ended: bool,
}

fn json_response(app: &AgentApp, answers: Vec<Body>) -> Response {
    let list = AnswerList {
        pending: answers.into_iter().map(read_answer).collect(),
        heartbeat: sse::heartbeat_ticker(app),
        is_first: true,
        is_ended: false,
    };
    let body = Body::from_stream(stream::unfold(list, |mut list| async move {
        let bytes = list.next().await?;
        Some((Ok::<_, Infallible>(bytes), list))
    }));
    let mut response = body.into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// All of an answer without the blanks before it.
fn read_answer(body: Body) -> BoxFuture<'static, Bytes> {
    Box::pin(async move {
        let answer = to_bytes(body, usize::MAX).await.unwrap_or_default();
        answer.slice(answer.len() - answer.trim_ascii_start().len()..)
    })
}

impl AnswerList {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_ended {
            return None;
        }
        let answer = tokio::select! {
            biased;
            answer = self.pending.next() => answer,
            _ = self.heartbeat.tick() => return Some(Bytes::from_static(b"\n")),
        };
        let Some(answer) = answer else {
            self.is_ended = true;
            return Some(Bytes::from_static(b"]"));
        };
        let opening: &[u8] = if std::mem::take(&mut self.is_first) { b"[" } else { b"," };
        Some([opening, &answer[..]].concat().into())
    }
}
