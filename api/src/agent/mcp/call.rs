//! Calling a tool: a run on a thread of its own, whose state is the answer.
//!
//! The answer's head goes out before the run is over, so whatever can be refused is refused before it begins. A client that
//! goes away cancels its call where there is no handshake. Revisions with one have a notification for that, and a connection
//! that breaks is no cancellation to them.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use towpath_domain::agent::{Object, RunRequest};

use super::failure::Failure;
use super::lifecycle::Lifecycle;
use super::progress::Progress;
use super::rpc::{Call, ErrorCode, RpcError};
use super::session::{call_metadata, read_session_id};
use super::{AcceptedTypes, result, tools};
use crate::agent::app::AgentApp;
use crate::agent::extract::read_value;
use crate::agent::runs::PreparedRun;
use crate::agent::sse;
use crate::agent::wait::{RunWait, WaitStep};
use crate::agent::{answer::without_nul, auth};

/// Calls a tool.
pub(super) async fn call(
    app: &AgentApp,
    headers: &HeaderMap,
    lifecycle: Lifecycle,
    takes: AcceptedTypes,
    call: &Call,
) -> Result<Response, Failure> {
    let Some(name) = call.params.get("name").and_then(Value::as_str) else {
        return Err(RpcError::new(ErrorCode::InvalidParams, "name: expected a string").into());
    };
    let arguments = object_param(&call.params, "arguments")?.unwrap_or_default();
    let tool = tools::find(app, name).await?;
    let progress = Progress::from_params(&call.params).filter(|_| takes.events);
    let modes: &[&str] = match progress {
        Some(_) => &["values", "updates", "custom"],
        None => &["values"],
    };
    let (on_disconnect, session) = match lifecycle {
        Lifecycle::Handshake => ("continue", read_session_id(headers)?),
        // Who names a session there is not listened to.
        Lifecycle::Stateless => ("cancel", None),
    };
    let mut own = Object::from_iter([
        ("assistant_id".to_owned(), json!(tool.id)),
        ("stream_mode".to_owned(), json!(modes)),
        ("on_disconnect".to_owned(), json!(on_disconnect)),
    ]);
    if let Some(session) = session {
        own.insert("metadata".to_owned(), Value::Object(call_metadata(session, &call.id)));
    }
    let mut asked = own.clone();
    asked.insert("input".to_owned(), tool.arguments.to_graph_input(arguments));
    if let Some(context) = object_param(&call.params, "context")? {
        asked.insert("context".to_owned(), Value::Object(context));
    }
    let (mut judged, visible) = auth::authorize_operation(app, ("threads", "create_run"), None, asked).await?;
    put_back(&mut judged, own);
    let request: RunRequest = read_value(Value::Object(judged))?;
    let ready = auth::with_visibility(visible, PreparedRun::prepare(app, headers, request, None)).await?;
    let reader = ready.reader(app).await;
    let thread = ready.target.id();
    let (run, guard) = ready.start_with_reader(app).await?;
    let every = app.settings.heartbeat;
    let mut beat = interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let working = CallStream {
        id: call.id.clone(),
        lifecycle,
        run_wait: RunWait::new(app, (thread, run.id), reader, guard),
        heartbeat: beat,
        form: if progress.is_some() {
            ResponseForm::Events
        } else {
            takes.response_form()
        },
        progress,
        is_ended: false,
    };
    Ok(working.respond())
}

/// Puts back what a call relies on: handlers of the graphs' author may replace it with metadata of their own.
fn put_back(judged: &mut Object, own: Object) {
    for (key, value) in own {
        if let Value::Object(members) = &value
            && let Some(Value::Object(there)) = judged.get_mut(&key)
        {
            there.extend(members.clone());
        } else {
            judged.insert(key, value);
        }
    }
}

/// A member of the parameters that is an object, if there is one.
fn object_param(params: &Object, name: &str) -> Result<Option<Object>, RpcError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object.clone())),
        Some(_) => Err(RpcError::new(
            ErrorCode::InvalidParams,
            format!("{name}: expected an object"),
        )),
    }
}

/// How an answer goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseForm {
    /// JSON. Blanks, which parsers skip, keep the connection open.
    Json,
    /// Events, of which the last is the answer.
    Events,
}

/// A call whose run goes on.
struct CallStream {
    id: Value,
    lifecycle: Lifecycle,
    run_wait: RunWait,
    heartbeat: Interval,
    form: ResponseForm,
    progress: Option<Progress>,
    is_ended: bool,
}

impl CallStream {
    fn respond(self) -> Response {
        let form = self.form;
        let body = Body::from_stream(stream::unfold(self, |mut working| async move {
            let bytes = working.next().await?;
            Some((Ok::<_, Infallible>(bytes), working))
        }));
        match form {
            ResponseForm::Events => sse::stream_response(body),
            ResponseForm::Json => {
                let mut response = body.into_response();
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
                response
            }
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.is_ended {
            return None;
        }
        let over = loop {
            let step = tokio::select! {
                biased;
                step = self.run_wait.next_step() => step,
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(match self.form {
                    ResponseForm::Json => b"\n",
                    ResponseForm::Events => b": heartbeat\r\n\r\n",
                })),
            };
            match step {
                Ok(WaitStep::Frame(text)) => {
                    let told = self.progress.as_mut().and_then(|progress| progress.notification(&text));
                    if let Some(told) = told {
                        return Some(sse_event(&told.to_string()));
                    }
                }
                Ok(WaitStep::Finished(end)) => break Ok(end),
                Err(error) => break Err(error),
            }
        };
        self.is_ended = true;
        let status = over.as_ref().ok().and_then(|end| end.as_ref()?.status);
        let state = self.run_wait.final_state(over).await;
        let answer = result::call_response(&self.id, self.lifecycle, status, &state);
        Some(match self.form {
            ResponseForm::Json => without_nul(answer),
            ResponseForm::Events => sse_event(&answer),
        })
    }
}

/// A message as an event. Some clients take further characters of Unicode for ends of lines.
pub(super) fn sse_event(message: &str) -> Bytes {
    const LINE_ENDS: [(char, &str); 3] = [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    let mut text = message.to_owned();
    for (character, escaped) in LINE_ENDS {
        if text.contains(character) {
            text = text.replace(character, escaped);
        }
    }
    sse::event("message", &text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_author_replaces_keeps_the_call() {
        let object = |value: Value| match value {
            Value::Object(object) => object,
            other => panic!("no object: {other}"),
        };
        let own = json!({"assistant_id": "a", "on_disconnect": "cancel", "metadata": {"mcp_request_id": 1}});
        for (metadata, expected) in [
            (json!({"owner": "ann"}), json!({"owner": "ann", "mcp_request_id": 1})),
            (json!({"mcp_request_id": 2}), json!({"mcp_request_id": 1})),
            (json!(null), json!({"mcp_request_id": 1})),
        ] {
            let mut judged = object(json!({"assistant_id": "b", "input": {"log": []}, "metadata": metadata}));
            put_back(&mut judged, object(own.clone()));
            assert_eq!(
                Value::Object(judged),
                json!({"assistant_id": "a", "on_disconnect": "cancel", "input": {"log": []}, "metadata": expected})
            );
        }
    }

    #[test]
    fn no_character_of_an_event_ends_its_line() {
        let event = sse_event(&json!({"a": "x\u{2028}y\u{85}z\n"}).to_string());
        let text = String::from_utf8(event.to_vec()).unwrap();
        assert_eq!(text, "event: message\r\ndata: {\"a\":\"x\\u2028y\\u0085z\\n\"}\r\n\r\n");
    }
}
