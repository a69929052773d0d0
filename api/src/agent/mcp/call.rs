//! Calling a tool: a run on a thread of its own, whose state is the answer.
//!
//! The answer's head goes out before the run is over, so whatever can be refused is refused before it begins. A client that
//! goes away cancels its call: there is no stream that it could come back to.

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
use super::rpc::{Call, Code, RpcError};
use super::session::{marks, session};
use super::{Takes, result, tools};
use crate::agent::app::AgentApp;
use crate::agent::extract::read_value;
use crate::agent::runs::Ready;
use crate::agent::sse;
use crate::agent::wait::{Step, Waiting};
use crate::agent::{answer::without_nul, auth};

/// Calls a tool.
pub(super) async fn call(
    app: &AgentApp,
    headers: &HeaderMap,
    lifecycle: Lifecycle,
    takes: Takes,
    call: &Call,
) -> Result<Response, Failure> {
    let Some(name) = call.params.get("name").and_then(Value::as_str) else {
        return Err(RpcError::new(Code::InvalidParams, "name: expected a string").into());
    };
    let arguments = object(&call.params, "arguments")?.unwrap_or_default();
    let tool = tools::find(app, name).await?;
    let progress = Progress::asked(&call.params).filter(|_| takes.events);
    let modes: &[&str] = match progress {
        Some(_) => &["values", "updates", "custom"],
        None => &["values"],
    };
    let mut asked = json!({
        "assistant_id": tool.id,
        "input": tool.arguments.input(arguments),
        "stream_mode": modes,
        "on_disconnect": "cancel",
    });
    if let Some(context) = object(&call.params, "context")? {
        asked["context"] = Value::Object(context);
    }
    if let Some(session) = session(headers)? {
        asked["metadata"] = Value::Object(marks(session, &call.id));
    }
    let (asked, visible) = auth::allow(app, ("threads", "create_run"), None, read_value(asked)?).await?;
    let request: RunRequest = read_value(Value::Object(asked))?;
    let ready = auth::seeing(visible, Ready::of(app, headers, request, None)).await?;
    let reader = ready.reader(app).await;
    let thread = ready.target.id();
    let (run, guard) = ready.start_read(app).await?;
    let every = app.settings.heartbeat;
    let mut beat = interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let working = Working {
        id: call.id.clone(),
        lifecycle,
        waiting: Waiting::new(app, (thread, run.id), reader, guard),
        beat,
        form: if progress.is_some() { Form::Events } else { takes.form() },
        progress,
        ended: false,
    };
    Ok(working.respond())
}

/// A member of the parameters that is an object, if there is one.
fn object(params: &Object, name: &str) -> Result<Option<Object>, RpcError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object.clone())),
        Some(_) => Err(RpcError::new(
            Code::InvalidParams,
            format!("{name}: expected an object"),
        )),
    }
}

/// How an answer goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// JSON. Blanks, which parsers skip, keep the connection open.
    Json,
    /// Events, of which the last is the answer.
    Events,
}

/// A call whose run goes on.
struct Working {
    id: Value,
    lifecycle: Lifecycle,
    waiting: Waiting,
    beat: Interval,
    form: Form,
    progress: Option<Progress>,
    ended: bool,
}

impl Working {
    fn respond(self) -> Response {
        let form = self.form;
        let body = Body::from_stream(stream::unfold(self, |mut working| async move {
            let bytes = working.next().await?;
            Some((Ok::<_, Infallible>(bytes), working))
        }));
        match form {
            Form::Events => sse::open(body),
            Form::Json => {
                let mut response = body.into_response();
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
                response
            }
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let over = loop {
            let step = tokio::select! {
                biased;
                step = self.waiting.step() => step,
                _ = self.beat.tick() => return Some(Bytes::from_static(match self.form {
                    Form::Json => b"\n",
                    Form::Events => b": heartbeat\r\n\r\n",
                })),
            };
            match step {
                Ok(Step::Frame(text)) => {
                    let told = self.progress.as_mut().and_then(|progress| progress.notification(&text));
                    if let Some(told) = told {
                        return Some(event(&told.to_string()));
                    }
                }
                Ok(Step::Over(end)) => break Ok(end),
                Err(error) => break Err(error),
            }
        };
        self.ended = true;
        let status = over.as_ref().ok().and_then(|end| end.as_ref()?.status);
        let state = self.waiting.answer(over).await;
        let answer = result::answer(&self.id, self.lifecycle, status, &state);
        Some(match self.form {
            Form::Json => without_nul(answer),
            Form::Events => event(&answer),
        })
    }
}

/// A message as an event. Some clients take further characters of Unicode for ends of lines.
pub(super) fn event(message: &str) -> Bytes {
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
    fn no_character_of_an_event_ends_its_line() {
        let event = event(&json!({"a": "x\u{2028}y\u{85}z\n"}).to_string());
        let text = String::from_utf8(event.to_vec()).unwrap();
        assert_eq!(text, "event: message\r\ndata: {\"a\":\"x\\u2028y\\u0085z\\n\"}\r\n\r\n");
    }
}
