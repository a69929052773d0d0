//! Responses of the agent API: JSON without NUL, pages with headers, selected fields.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use towpath_domain::Timestamp;

use super::errors::AgentError;

/// A JSON response. It never contains U+0000, which many databases of clients reject.
#[derive(Clone, Debug)]
pub(crate) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], without_nul(body)).into_response(),
            Err(error) => AgentError::internal(&error).into_response(),
        }
    }
}

/// Replaces every escaped U+0000 in a JSON text by U+FFFD.
pub(crate) fn without_nul(json: impl Into<Bytes>) -> Bytes {
    const ESCAPED: &[u8] = b"\\u0000";
    let json = json.into();
    if !json.windows(ESCAPED.len()).any(|window| window == ESCAPED) {
        return json;
    }
    let mut clean = Vec::with_capacity(json.len());
    let mut rest = &json[..];
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        clean.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        // Each escape is read as a whole, so `\\u0000` (a backslash and five letters) is unchanged.
        let length = if rest.starts_with(ESCAPED) {
            clean.extend_from_slice("\u{FFFD}".as_bytes());
            ESCAPED.len()
        } else {
            let length = 2.min(rest.len());
            clean.extend_from_slice(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    clean.extend_from_slice(rest);
    clean.into()
}

/// A time in the format of the agent protocol: microseconds, and `+00:00` instead of `Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub Timestamp);

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.to_utc().format("%Y-%m-%dT%H:%M:%S%.6f+00:00"))
    }
}

/// A page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Maximum number of results.
    pub limit: i64,
    /// Number of results to skip.
    pub offset: i64,
}

impl Page {
    /// Checks both: 1 to 1000 results, by default 10.
    pub fn of(limit: Option<i64>, offset: Option<i64>) -> Result<Self, AgentError> {
        Self::within(limit, offset, 10, 1000)
    }

    /// Like [`Page::of`], with `usual` results by default and `most` at most.
    pub fn within(limit: Option<i64>, offset: Option<i64>, usual: i64, most: i64) -> Result<Self, AgentError> {
        let (limit, offset) = (limit.unwrap_or(usual), offset.unwrap_or(0));
        if !(1..=most).contains(&limit) {
            return Err(AgentError::invalid(format!("limit: expected 1 to {most}")));
        }
        if offset < 0 {
            return Err(AgentError::invalid("offset: expected 0 or more"));
        }
        Ok(Self { limit, offset })
    }

    /// Number of rows to read: one more than requested shows whether more follow.
    pub const fn fetch(self) -> i64 {
        self.limit + 1
    }

    /// Removes the extra row and sets the headers of the next page.
    pub fn cut<T>(self, mut rows: Vec<T>) -> (HeaderMap, Vec<T>) {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let mut headers = HeaderMap::new();
        let next = self.offset.saturating_add(self.limit);
        let total = if more {
            headers.insert(HeaderName::from_static("x-pagination-next"), HeaderValue::from(next));
            // Not the exact total, which would need a count: one more than the rows known so far.
            next + 1
        } else {
            self.offset + i64::try_from(rows.len()).unwrap_or(i64::MAX)
        };
        headers.insert(HeaderName::from_static("x-pagination-total"), HeaderValue::from(total));
        (headers, rows)
    }
}

/// Sort direction: `asc`, or anything else for descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ascending(pub bool);

impl<'de> Deserialize<'de> for Ascending {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        Ok(Self(text.is_some_and(|text| text.eq_ignore_ascii_case("asc"))))
    }
}

/// Fields to return.
#[derive(Clone, Debug, Default)]
pub(crate) struct Select(Option<Vec<String>>);

impl Select {
    /// Checks the names.
    pub fn of(wanted: Option<Vec<String>>, known: &[&str]) -> Result<Self, AgentError> {
        if let Some(unknown) = wanted.iter().flatten().find(|name| !known.contains(&name.as_str())) {
            return Err(AgentError::invalid(format!(
                "select: {unknown:?} is not one of {}",
                known.join(", ")
            )));
        }
        Ok(Self(wanted.filter(|wanted| !wanted.is_empty())))
    }

    /// Whether a field is returned.
    pub fn wants(&self, name: &str) -> bool {
        self.0
            .as_ref()
            .is_none_or(|wanted| wanted.iter().any(|one| one == name))
    }

    /// Reduces an object to the selected fields.
    pub fn apply<T: Serialize>(&self, row: &T) -> Result<Value, AgentError> {
        let value = serde_json::to_value(row).map_err(|error| AgentError::internal(&error))?;
        match (&self.0, value) {
            (Some(_), Value::Object(mut fields)) => {
                fields.retain(|name, _| self.wants(name));
                Ok(Value::Object(fields))
            }
            (_, value) => Ok(value),
        }
    }

    /// Converts rows, and reduces each to the selected fields.
    pub fn apply_all<T, R>(&self, rows: Vec<R>) -> Result<Vec<Value>, AgentError>
    where
        T: TryFrom<R, Error = AgentError> + Serialize,
    {
        rows.into_iter().map(|row| self.apply(&T::try_from(row)?)).collect()
    }
}

/// Stored JSON as returned to clients.
pub(crate) fn raw(json: &str) -> Result<Box<RawValue>, AgentError> {
    RawValue::from_string(json.to_owned()).map_err(|error| AgentError::internal(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_goes_and_its_look_alike_stays() {
        let text = |json: &'static str| String::from_utf8(without_nul(json.as_bytes()).to_vec()).unwrap();
        assert_eq!(text(r#"{"a":"x\u0000y"}"#), "{\"a\":\"x\u{FFFD}y\"}");
        assert_eq!(text(r#"{"a":"\\u0000"}"#), r#"{"a":"\\u0000"}"#);
        assert_eq!(text(r#"["\\\u0000\n"]"#), "[\"\\\\\u{FFFD}\\n\"]");
        assert_eq!(text(r#"["plain"]"#), r#"["plain"]"#);
    }

    #[test]
    fn times_carry_microseconds_and_their_zone() {
        let time = Time(Timestamp::from_micros(1_772_366_400_000_001));
        assert_eq!(
            serde_json::to_string(&time).unwrap(),
            "\"2026-03-01T12:00:00.000001+00:00\""
        );
    }

    #[test]
    fn a_page_says_where_the_next_begins() {
        let page = Page::of(Some(2), None).unwrap();
        let (headers, rows) = page.cut(vec![1, 2, 3]);
        assert_eq!(rows, [1, 2]);
        assert_eq!(headers["x-pagination-next"], "2");
        assert_eq!(headers["x-pagination-total"], "3");
        let last = Page::of(Some(2), Some(6)).unwrap();
        let (headers, _) = last.cut(vec![7]);
        assert!(!headers.contains_key("x-pagination-next"));
        assert_eq!(headers["x-pagination-total"], "7");
        assert!(Page::of(Some(1001), None).is_err());
        assert!(Page::of(None, Some(-1)).is_err());
    }

    #[test]
    fn unknown_fields_cannot_be_selected() {
        assert!(Select::of(Some(vec!["name".into()]), &["name"]).is_ok());
        assert!(Select::of(Some(vec!["nam".into()]), &["name"]).is_err());
    }
}
