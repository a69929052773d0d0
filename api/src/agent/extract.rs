//! Extractors of the agent API. An error is one text that names the field.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use tokio::runtime::{Handle, RuntimeFlavor};
use towpath_domain::{AssistantId, CronId, RunId, ThreadId};
use uuid::Uuid;

use super::answer::without_nul;
use super::app::AgentApp;
use super::errors::AgentError;
use crate::body::{self, BodyError, ReadTimeouts};
use crate::extract::{Object, explain};

/// Timeouts of a body.
const BODY_PATIENCE: ReadTimeouts = ReadTimeouts {
    idle: Duration::from_secs(20),
    total: Duration::from_secs(120),
};

/// Bodies from this size on are parsed outside of the async threads.
const LARGE_BYTES: usize = 1 << 20;

/// Maximum nesting. JSON is read 127 levels deep everywhere, and a request is stored inside of runs, configs and states.
const MOST_LEVELS: usize = 100;

/// A JSON object as body, under any content type: browsers send text/plain to avoid a preflight. A missing body counts as
/// `{}`. Nesting deeper than [`MOST_LEVELS`] is rejected.
#[derive(Clone, Debug)]
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AgentApp> for Body<T> {
    type Rejection = AgentError;

    async fn from_request(request: Request, app: &AgentApp) -> Result<Self, AgentError> {
        let Object(value) = parse_body(read_bytes(request, app).await?)?;
        Ok(Self(value))
    }
}

/// A list of JSON objects as body, otherwise like [`Body`].
#[derive(Clone, Debug)]
pub(crate) struct ListBody<T>(pub Vec<T>);

impl<T: DeserializeOwned> FromRequest<AgentApp> for ListBody<T> {
    type Rejection = AgentError;

    async fn from_request(request: Request, app: &AgentApp) -> Result<Self, AgentError> {
        let read: Vec<Object<T>> = parse_body(read_bytes(request, app).await?)?;
        Ok(Self(read.into_iter().map(|Object(value)| value).collect()))
    }
}

/// The bytes of a body, within the limits of this server.
pub(in crate::agent) async fn read_bytes(request: Request, app: &AgentApp) -> Result<Bytes, AgentError> {
    let read = body::read(request.into_body(), app.settings.body_bytes, BODY_PATIENCE).await;
    read.map_err(|problem| match problem {
        BodyError::TooLarge(limit) => AgentError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("Request body is larger than {limit} bytes"),
        ),
        BodyError::Incomplete => AgentError::bad_request("Request body ended before it was complete"),
        BodyError::TooSlow => AgentError::new(StatusCode::REQUEST_TIMEOUT, "Request body arrived too slowly"),
        BodyError::OutOfMemory(wait) => AgentError::unavailable("Too many large request bodies at once", wait),
    })
}

/// Parses a body. Other tasks of the thread continue elsewhere while a large body is parsed.
pub(in crate::agent) fn parse_body<T: DeserializeOwned>(body: Bytes) -> Result<T, AgentError> {
    let large = body.len() >= LARGE_BYTES;
    // Databases cannot store NUL: it is replaced here, for all handlers.
    let read = move || read_json(&without_nul(body));
    if large && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(read)
    } else {
        read()
    }
}

/// Reads JSON into `T`.
fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, AgentError> {
    let body = if body.iter().all(u8::is_ascii_whitespace) {
        b"{}"
    } else {
        body
    };
    if is_too_deep(body) {
        return Err(AgentError::invalid(format!(
            "Request body is nested deeper than {MOST_LEVELS} levels"
        )));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value: T = serde_path_to_error::deserialize(&mut json).map_err(|problem| {
        let place = dotted(problem.path());
        json_problem(&place, problem.inner())
    })?;
    json.end().map_err(|problem| json_problem("", &problem))?;
    Ok(value)
}

/// Whether brackets outside of strings are nested too deeply. The result for invalid JSON does not matter.
fn is_too_deep(body: &[u8]) -> bool {
    let (mut levels, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => levels += 1,
            b']' | b'}' => levels = levels.saturating_sub(1),
            _ => {}
        }
        if levels > MOST_LEVELS {
            return true;
        }
    }
    false
}

/// Reads `T` from parsed JSON.
pub(crate) fn read_value<T: DeserializeOwned>(value: Value) -> Result<T, AgentError> {
    serde_path_to_error::deserialize(value).map_err(|problem| {
        let place = dotted(problem.path());
        json_problem(&place, problem.inner())
    })
}

fn json_problem(place: &str, problem: &serde_json::Error) -> AgentError {
    let text = problem.to_string();
    if !problem.is_data() {
        return AgentError::invalid(if text.starts_with("recursion limit") {
            "Request body is nested too deeply"
        } else {
            "Invalid JSON in request body"
        });
    }
    let (_, message, missing) = explain(&text);
    AgentError::invalid(placed(place, missing.as_deref(), &message))
}

/// `config.tags: expected a sequence`.
fn placed(place: &str, missing: Option<&str>, message: &str) -> String {
    let parts = [Some(place).filter(|place| !place.is_empty()), missing];
    let place = parts.into_iter().flatten().collect::<Vec<_>>().join(".");
    if place.is_empty() {
        format!("Request body: {message}")
    } else {
        format!("{place}: {message}")
    }
}

fn dotted(trail: &serde_path_to_error::Path) -> String {
    let parts = trail.iter().filter_map(|step| match step {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    parts.collect::<Vec<_>>().join(".")
}

/// A path parameter.
pub(crate) trait PathValue: Sized {
    fn read(text: &str) -> Result<Self, AgentError>;
}

macro_rules! path_ids {
    ($($id:ty => $noun:literal),* $(,)?) => {$(
        impl PathValue for $id {
            fn read(text: &str) -> Result<Self, AgentError> {
                match text.parse::<Uuid>() {
                    Ok(id) => Ok(id.into()),
                    Err(_) => Err(AgentError::invalid(concat!("Invalid ", $noun, " ID: must be a UUID"))),
                }
            }
        }
    )*};
}

path_ids! {
    ThreadId => "thread",
    RunId => "run",
    AssistantId => "assistant",
    CronId => "cron",
    // Checkpoint ids are created by graphs; ours are UUIDs of version 6.
    Uuid => "checkpoint",
}

impl PathValue for String {
    fn read(text: &str) -> Result<Self, AgentError> {
        Ok(text.to_owned())
    }
}

/// Path parameters in order: one, or a tuple.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<T>(pub T);

impl<A: PathValue, S: Send + Sync> FromRequestParts<S> for Path<A> {
    type Rejection = AgentError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AgentError> {
        let all = params(parts, state).await?;
        Ok(Self(nth(&all, 0)?))
    }
}

impl<A: PathValue, B: PathValue, S: Send + Sync> FromRequestParts<S> for Path<(A, B)> {
    type Rejection = AgentError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AgentError> {
        let all = params(parts, state).await?;
        Ok(Self((nth(&all, 0)?, nth(&all, 1)?)))
    }
}

async fn params<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<Vec<String>, AgentError> {
    let all = RawPathParams::from_request_parts(parts, state).await;
    let all = all.map_err(|_| AgentError::not_found())?;
    Ok(all.iter().map(|(_, value)| value.to_owned()).collect())
}

fn nth<A: PathValue>(all: &[String], index: usize) -> Result<A, AgentError> {
    A::read(all.get(index).map_or("", String::as_str))
}

/// A boolean in a query string: Python sends `True`, JavaScript `true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Ok(Self(yes(&text)))
    }
}

/// The pairs of a query string: clients of Python repeat a field, those of JavaScript write a list as JSON.
pub(crate) type Pairs = Vec<(String, String)>;

/// One name, or a JSON list of names.
pub(in crate::agent) fn one_or_list(text: &str) -> Vec<String> {
    match serde_json::from_str::<Vec<String>>(text) {
        Ok(list) => list,
        Err(_) => vec![text.to_owned()],
    }
}

/// A boolean of a query string.
pub(in crate::agent) fn yes(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "true" | "1" | "yes")
}

/// An integer of a query string.
pub(in crate::agent) fn number(field: &str, text: &str) -> Result<i64, AgentError> {
    text.parse()
        .map_err(|_| AgentError::invalid(format!("{field}: expected an integer")))
}

/// The query string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = AgentError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AgentError> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(QueryRejection::FailedToDeserializeQueryString(problem)) => {
                // Its source is `field: what is wrong`, from the path-aware reader inside axum.
                let text = std::error::Error::source(&problem)
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let (field, text) = text.split_once(": ").unwrap_or(("", &text));
                let (_, message, missing) = explain(text);
                Err(AgentError::invalid(placed(field, missing.as_deref(), &message)))
            }
            Err(problem) => Err(AgentError::internal(&problem)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// One thread, and a task on it that never waits: it goes on while the body is read, on another thread.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_a_large_body_is_read() {
        let turns = Arc::new(AtomicU64::new(0));
        let counting = tokio::spawn({
            let turns = turns.clone();
            async move {
                loop {
                    turns.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        });
        let body = Bytes::from(format!("[{}0]", "[0],".repeat(1 << 19)));
        let reading = tokio::spawn(async move {
            let before = turns.load(Ordering::Relaxed);
            let read: Vec<Value> = parse_body(body).unwrap();
            (read.len(), turns.load(Ordering::Relaxed) - before)
        });
        let (length, meanwhile) = reading.await.unwrap();
        counting.abort();
        assert_eq!(length, (1 << 19) + 1);
        assert!(meanwhile > 0);
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct SampleRequest {
        graph_id: String,
        config: Option<Config>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Config {
        tags: Vec<String>,
    }

    #[test]
    fn refusals_name_the_place() {
        let refused = |body: &str| {
            read_json::<SampleRequest>(body.as_bytes())
                .unwrap_err()
                .detail()
                .to_owned()
        };
        assert_eq!(refused(""), "graph_id: field required");
        assert_eq!(refused("{"), "Invalid JSON in request body");
        assert_eq!(refused("{} x"), "graph_id: field required");
        assert_eq!(refused(r#"{"graph_id":"a"} x"#), "Invalid JSON in request body");
        assert_eq!(
            refused(r#"{"graph_id":"a","config":{"tags":[1]}}"#),
            "config.tags.0: expected a string"
        );
        let Err(listed) = read_json::<Object<SampleRequest>>(br#"["agent", null]"#) else {
            panic!("values of an object are no object");
        };
        assert_eq!(listed.detail(), "Request body: expected an object");
        let nested = |levels: usize| {
            let text = format!(r#"{}"\"[[" {}"#, "[".repeat(levels), "]".repeat(levels));
            read_json::<Value>(text.as_bytes())
        };
        nested(MOST_LEVELS).expect("brackets in a text do not count");
        let deep = "Request body is nested deeper than 100 levels";
        assert_eq!(nested(MOST_LEVELS + 1).unwrap_err().detail(), deep);
        let deep_text = "[".repeat(500);
        assert_eq!(read_json::<Value>(deep_text.as_bytes()).unwrap_err().detail(), deep);
    }

    #[test]
    fn ids_say_whose_they_are() {
        assert_eq!(
            ThreadId::read("x").unwrap_err().detail(),
            "Invalid thread ID: must be a UUID"
        );
    }
}
