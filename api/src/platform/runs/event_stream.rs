//! Pages as server-sent events. Clients of version 2 may ask for a page as a stream of JSON Patches (RFC 6902) that
//! build it. A page is complete when it is sent, so one patch adds all of it.

use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::errors::ApiError;
use crate::extract::Json;

/// An operation of a JSON Patch. The data of an event is a list of them.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = QueryPatch)]
pub struct Patch {
    /// Always `add`.
    op: &'static str,
    /// Always empty: the whole page.
    path: &'static str,
    #[schema(value_type = Object)]
    value: Box<RawValue>,
}

/// Whether a client asks for a stream.
fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = accepted.flat_map(|value| value.split(','));
    ranges.any(|range| {
        let range = range.split(';').next().unwrap_or_default().trim();
        range.eq_ignore_ascii_case("text/event-stream")
    })
}

/// The text of a stream that adds `page`.
fn events(page: &impl Serialize) -> serde_json::Result<String> {
    // JSON as clients sent it may have line breaks, between values only; the data of an event has none.
    let page = serde_json::to_string(page)?.replace(['\n', '\r'], " ");
    let patch = Patch {
        op: "add",
        path: "",
        value: RawValue::from_string(page)?,
    };
    let data = serde_json::to_string(&[patch])?;
    Ok(format!("event: data\ndata: {data}\n\nevent: end\ndata: {{}}\n\n"))
}

/// Answers a page in the format that the client asks for.
pub fn answer<T: Serialize>(headers: &HeaderMap, page: &T) -> Result<Response, ApiError> {
    if !wants_events(headers) {
        return Ok(Json(page).into_response());
    }
    let text = events(page).map_err(|error| ApiError::internal(&error))?;
    let kind = HeaderValue::from_static("text/event-stream");
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_stream_is_sent_to_those_who_ask_for_it() {
        let mut headers = HeaderMap::new();
        assert!(!wants_events(&headers));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        assert!(!wants_events(&headers));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, Text/Event-Stream;q=0.5"),
        );
        assert!(wants_events(&headers));
    }

    #[test]
    fn an_event_is_one_patch_in_one_line() {
        let sent = RawValue::from_string("{\n\"text\": \"a\\nb\"\r\n}".to_owned()).unwrap();
        let text = events(&json!({"items": [sent], "next_cursor": null})).unwrap();
        let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let patch: Value = serde_json::from_str(data).unwrap();
        let page = json!({"items": [{"text": "a\nb"}], "next_cursor": null});
        assert_eq!(patch, json!([{"op": "add", "path": "", "value": page}]));
        assert!(text.ends_with("event: end\ndata: {}\n\n"));
    }
}
