//! Reading requests, with refusals that say where.
//!
//! Use these in place of axum's own: a body of another kind is 415, a broken or oversized one 400 or 413, a value of
//! the wrong shape 422 with its place. Refusals never repeat a value the caller sent: it may be a secret in the wrong
//! field.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_path_to_error::{Path as Trail, Segment};
use towpath_domain::json;

use crate::body::{self, BodyError, ReadTimeouts};
use crate::errors::{ApiError, LocSegment};

/// The most bytes a JSON body of an ordinary route may have. (Trace ingest has its own limit.)
pub const JSON_BODY_BYTES: usize = 1024 * 1024;

/// The most bytes a form may have.
const FORM_BYTES: usize = 64 * 1024;

/// How long a JSON body may take.
const BODY_PATIENCE: ReadTimeouts = ReadTimeouts {
    idle: Duration::from_secs(10),
    total: Duration::from_secs(30),
};

/// A JSON body; as an answer, one too. Nesting deeper than 128 is refused.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        expect_json(&request)?;
        let body = read_body(request.into_body(), JSON_BODY_BYTES).await?;
        parse_json(&body).map(Self)
    }
}

/// A form of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Form<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (head, body) = request.into_parts();
        let body = read_body(body, FORM_BYTES).await?;
        let request = Request::from_parts(head, body.into());
        match axum::Form::<T>::from_request(request, state).await {
            Ok(axum::Form(value)) => Ok(Self(value)),
            Err(problem) => Err(ApiError::new(problem.status(), "the form cannot be read")),
        }
    }
}

/// A JSON object whose members are kept as they were sent. It takes whatever trace ingest takes.
#[derive(Clone, Debug)]
pub struct JsonObject(String);

impl JsonObject {
    /// Reads the members; an object that cannot be read has none.
    pub(crate) fn members(&self) -> json::Object<'_> {
        json::Object::parse(&self.0).unwrap_or_default()
    }
}

impl<S: Send + Sync> FromRequest<S> for JsonObject {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        expect_json(&request)?;
        let body = read_body(request.into_body(), JSON_BODY_BYTES).await?;
        match json::check(&body) {
            Ok(text) if json::Object::parse(text).is_ok() => Ok(Self(text.to_owned())),
            // The other reader says where and why.
            _ => Err(parse_json::<serde_json::Map<String, serde_json::Value>>(&body)
                .err()
                .unwrap_or_else(|| ApiError::bad_request("the body is not a JSON object"))),
        }
    }
}

/// A parameter of the path.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let problem = match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => return Ok(Self(value)),
            Err(problem) => problem,
        };
        let PathRejection::FailedToDeserializePathParams(problem) = problem else {
            return Err(ApiError::internal(&problem));
        };
        tracing::debug!(error = %problem, "a path parameter cannot be read");
        let mut loc = vec![LocSegment::from("path")];
        let Ok(all) = RawPathParams::from_request_parts(parts, state).await else {
            return Err(ApiError::invalid_at(loc, "value_error", "expected UTF-8"));
        };
        // axum does not always say which one; the one that is no UUID is at fault.
        let wrong = all.iter().find(|(_, value)| value.parse::<uuid::Uuid>().is_err());
        let name = wrong.or_else(|| all.iter().next()).map(|(name, _)| name.to_owned());
        loc.extend(name.map(LocSegment::Name));
        Err(ApiError::invalid_at(loc, "uuid_parsing", "expected a UUID"))
    }
}

/// The query string.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(QueryRejection::FailedToDeserializeQueryString(problem)) => {
                // Its source is `field: what is wrong`, from the path-aware reader inside axum.
                let text = std::error::Error::source(&problem)
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let (field, text) = text.split_once(": ").unwrap_or(("", &text));
                let mut loc = vec![LocSegment::from("query")];
                let (kind, msg, missing) = explain(text);
                loc.extend((!field.is_empty()).then(|| LocSegment::from(field)));
                loc.extend(missing.map(LocSegment::Name));
                Err(ApiError::invalid_at(loc, kind, msg))
            }
            Err(problem) => Err(ApiError::internal(&problem)),
        }
    }
}

/// The parameters behind the path as they were sent: for those that may be sent more than once.
pub struct Pairs(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let pairs = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        Ok(Self(pairs.into_owned().collect()))
    }
}

impl Pairs {
    /// All values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let same = self.0.iter().filter(move |(known, _)| known == name);
        same.map(|(_, value)| value.as_str())
    }

    /// All values of a name, read.
    pub(crate) fn read<T: std::str::FromStr>(&self, name: &str, expected: &str) -> Result<Vec<T>, ApiError> {
        let read = |value: &str| {
            value.parse().map_err(|_| {
                let loc = vec![LocSegment::from("query"), LocSegment::from(name)];
                ApiError::invalid_at(loc, "value_error", format!("expected {expected}"))
            })
        };
        // Some clients send a list as one value with commas.
        self.all(name).flat_map(|value| value.split(',')).map(read).collect()
    }

    /// The last value of a name, read, and within a range.
    pub(crate) fn number(&self, name: &str, range: std::ops::RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let expected = format!("{} to {}", range.start(), range.end());
        let number = self.read::<i64>(name, &expected)?.pop();
        if number.is_none_or(|number| range.contains(&number)) {
            return Ok(number);
        }
        let loc = vec![LocSegment::from("query"), LocSegment::from(name)];
        Err(ApiError::invalid_at(loc, "value_error", format!("expected {expected}")))
    }

    /// The last value of a name as yes or no: Python sends `True`, JavaScript `true`.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.all(name).last() else {
            return Ok(None);
        };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(Some(true)),
            "false" | "0" | "" => Ok(Some(false)),
            _ => {
                let loc = vec![LocSegment::from("query"), LocSegment::from(name)];
                Err(ApiError::invalid_at(loc, "value_error", "expected true or false"))
            }
        }
    }

    /// Refuses names that are not known: a filter that is ignored shows too much.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(40).collect();
                let loc = vec![LocSegment::from("query"), LocSegment::Name(shown)];
                Err(ApiError::invalid_at(loc, "extra_forbidden", "no such field"))
            }
        }
    }
}

/// # Errors
/// 415 where the body does not say it is JSON.
pub(crate) fn expect_json<B>(request: &http::Request<B>) -> Result<(), ApiError> {
    if is_json(request) {
        return Ok(());
    }
    let text = "send the body as Content-Type: application/json";
    Err(ApiError::unsupported_media_type(text))
}

/// A value that stands as an object in the body. serde also takes an array of a struct's values for the struct, which
/// nobody means to send and the API description does not promise; use it for every struct inside of a body too, by
/// `#[serde(deserialize_with = "object")]` or `"optional_object"`.
pub(crate) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }
        from.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Reads a struct from an object only.
pub(crate) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Object::deserialize(from).map(|Object(value)| value)
}

/// Reads a struct from an object only, or nothing from null. Needs `#[serde(default)]` beside it.
pub(crate) fn optional_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(from)?.map(|Object(value)| value))
}

/// Reads structs from objects only.
pub(crate) fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let read = Vec::<Object<T>>::deserialize(from)?;
    Ok(read.into_iter().map(|Object(value)| value).collect())
}

/// Reads structs from objects only, or nothing from null. Needs `#[serde(default)]` beside it.
pub(crate) fn optional_objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let read = Option::<Vec<Object<T>>>::deserialize(from)?;
    Ok(read.map(|read| read.into_iter().map(|Object(value)| value).collect()))
}

/// Reads a whole number, or nothing from null. What JSON calls an integer may be written as `57.0`. Needs
/// `#[serde(default)]` beside it.
pub(crate) fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    struct Whole;
    impl Visitor<'_> for Whole {
        type Value = i64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
            Ok(number)
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
            i64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<i64, E> {
            // Up to here every whole number has a float of its own.
            if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
                Ok(number as i64)
            } else {
                Err(E::invalid_value(Unexpected::Float(number), &self))
            }
        }
    }
    #[derive(Clone, Copy)]
    struct Number(i64);
    impl<'de> Deserialize<'de> for Number {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_any(Whole).map(Self)
        }
    }
    Ok(Option::<Number>::deserialize(from)?.map(|Number(number)| number))
}

/// As [`whole`], where null is no answer.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    whole(from)?.ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &"a whole number"))
}

/// Whether the body says it is JSON (`application/json` or `…+json`).
pub(crate) fn is_json<B>(request: &http::Request<B>) -> bool {
    let Some(kind) = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Reads a whole body of at most `limit_bytes`.
pub(crate) async fn read_body(body: axum::body::Body, limit_bytes: usize) -> Result<Bytes, ApiError> {
    let read = body::read(body, limit_bytes, BODY_PATIENCE).await;
    read.map_err(|problem| match problem {
        BodyError::TooLarge(limit_bytes) => ApiError::too_large(limit_bytes),
        BodyError::Incomplete => ApiError::bad_request("the body ended before it was complete"),
        BodyError::TooSlow => ApiError::too_slow(),
        BodyError::OutOfMemory(wait) => ApiError::unavailable("too many large bodies at once", wait),
    })
}

/// Reads a JSON object into `T`.
pub(crate) fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    parse_value(body).map(|Object(value)| value)
}

/// Reads JSON into `T`. serde_json itself refuses to go deeper than 128.
pub(crate) fn parse_value<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json)
        .map_err(|problem| json_problem(Some(problem.path()), problem.inner()))?;
    json.end().map_err(|problem| json_problem(None, &problem))?;
    Ok(value)
}

/// The body of a route that the tracing clients call, who say of none that it is JSON.
pub(crate) async fn unsaid_json(request: Request, limit_bytes: usize) -> Result<Bytes, ApiError> {
    if request.headers().contains_key(CONTENT_TYPE) {
        expect_json(&request)?;
    }
    read_body(request.into_body(), limit_bytes).await
}

/// One value, or a list of them; as an answer, too.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or a list of objects")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(OneOrMany::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut many = Vec::new();
                while let Some(Object(item)) = items.next_element()? {
                    many.push(item);
                }
                Ok(OneOrMany::Many(many))
            }
        }
        from.deserialize_any(Either(PhantomData))
    }
}

fn json_problem(trail: Option<&Trail>, problem: &serde_json::Error) -> ApiError {
    let text = problem.to_string();
    let mut loc = vec![LocSegment::from("body")];
    if !problem.is_data() {
        let too_deep = text.starts_with("recursion limit");
        let msg = if too_deep {
            "nested too deeply".to_owned()
        } else {
            format!(
                "the body is not valid JSON (line {}, column {})",
                problem.line(),
                problem.column()
            )
        };
        return ApiError::invalid_at(loc, if too_deep { "recursion_limit" } else { "json_invalid" }, msg);
    }
    loc.extend(trail.into_iter().flat_map(Trail::iter).filter_map(|step| match step {
        Segment::Seq { index } => Some(LocSegment::Index(*index)),
        Segment::Map { key } => Some(LocSegment::Name(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    }));
    let (kind, msg, missing) = explain(&text);
    loc.extend(missing.map(LocSegment::Name));
    ApiError::invalid_at(loc, kind, msg)
}

/// Turns serde's sentence into a type, a message without the caller's value, and the field's name where the sentence
/// has it and the trail has not.
pub(crate) fn explain(text: &str) -> (&'static str, String, Option<String>) {
    // serde_json adds where in the text it was; the place in the document says it better.
    let text = text.rfind(" at line ").map_or(text, |end| &text[..end]);
    let named = |text: &str| text.split('`').nth(1).map(str::to_owned);
    let expected = text.rsplit_once("expected ").map(|(_, expected)| expected);
    if text.starts_with("missing field") {
        return ("missing", "field required".to_owned(), named(text));
    }
    if text.starts_with("unknown field") {
        return ("extra_forbidden", "no such field".to_owned(), None);
    }
    if text.starts_with("duplicate field") {
        return ("duplicate", "the field was sent twice".to_owned(), named(text));
    }
    match expected {
        Some(expected) if text.starts_with("unknown variant") => ("enum", format!("expected {expected}"), None),
        Some(expected) if text.starts_with("invalid type") => ("type_error", format!("expected {expected}"), None),
        Some(expected) if text.starts_with("invalid ") => ("value_error", format!("expected {expected}"), None),
        _ if text.starts_with("UUID parsing failed") => ("uuid_parsing", "expected a UUID".to_owned(), None),
        _ => ("value_error", text.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(rename = "name")]
        _name: String,
        #[serde(default, deserialize_with = "optional_object", rename = "inner")]
        _inner: Option<Nested>,
    }

    #[derive(Debug, Deserialize)]
    struct Nested {
        #[serde(rename = "n")]
        _n: u8,
    }

    fn refused(body: &str) -> serde_json::Value {
        let error = parse_json::<Outer>(body.as_bytes()).unwrap_err();
        assert_eq!(error.status(), 422);
        error.detail()["detail"][0].clone()
    }

    /// The clock runs ahead as soon as everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_form_that_does_not_come_is_not_waited_for() {
        let request = |body: axum::body::Body| {
            Request::post("/")
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(body)
                .unwrap()
        };
        let half = futures::stream::once(async { Ok::<_, axum::BoxError>(Bytes::from_static(b"key=")) });
        let silent = futures::StreamExt::chain(half, futures::stream::pending());
        let silent = request(axum::body::Body::from_stream(silent));
        let Form(read) = Form::<Vec<(String, String)>>::from_request(request("key=a".into()), &())
            .await
            .unwrap();
        assert_eq!(read, [("key".to_owned(), "a".to_owned())]);
        let slow = Form::<Vec<(String, String)>>::from_request(silent, &()).await;
        assert_eq!(slow.unwrap_err().status(), 408);
        let large = request("k".repeat(FORM_BYTES + 1).into());
        let large = Form::<Vec<(String, String)>>::from_request(large, &()).await;
        assert_eq!(large.unwrap_err().status(), 413);
    }

    #[test]
    fn a_struct_is_an_object() {
        parse_json::<Outer>(br#"{"name": "a", "inner": {"n": 1}}"#).unwrap();
        parse_json::<Outer>(br#"{"name": "a", "inner": null}"#).unwrap();
        parse_json::<Outer>(br#"{"name": "a"}"#).unwrap();
        let whole = refused(r#"["a", null]"#);
        assert_eq!(
            whole,
            json!({"loc": ["body"], "type": "type_error", "msg": "expected an object"})
        );
        let inside = refused(r#"{"name": "a", "inner": [1]}"#);
        assert_eq!(
            inside,
            json!({"loc": ["body", "inner"], "type": "type_error", "msg": "expected an object"})
        );
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        #[derive(Deserialize)]
        struct IntegerField {
            #[serde(default, deserialize_with = "whole")]
            n: Option<i64>,
        }
        let read = |body: &str| {
            parse_json::<IntegerField>(body.as_bytes())
                .map(|counted| counted.n)
                .ok()
        };
        assert_eq!(read(r#"{"n": 57}"#), Some(Some(57)));
        assert_eq!(read(r#"{"n": 57.0}"#), Some(Some(57)));
        assert_eq!(read(r#"{"n": -1}"#), Some(Some(-1)));
        assert_eq!(read(r#"{"n": null}"#), Some(None));
        assert_eq!(read("{}"), Some(None));
        for wrong in [
            r#"{"n": 57.5}"#,
            r#"{"n": "57"}"#,
            r#"{"n": true}"#,
            r#"{"n": 1e300}"#,
            r#"{"n": [1]}"#,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn refusals_say_where() {
        let deep = refused(r#"{"name": "a", "inner": {"n": 300}}"#);
        assert_eq!(deep["loc"], json!(["body", "inner", "n"]));
        let missing = refused("{}");
        assert_eq!(
            missing,
            json!({"loc": ["body", "name"], "type": "missing", "msg": "field required"})
        );
        let unknown = refused(r#"{"name": "a", "more": 1}"#);
        assert_eq!(
            (&unknown["loc"], &unknown["type"]),
            (&json!(["body", "more"]), &json!("extra_forbidden"))
        );
    }
}
