//! OTLP in JSON: hexadecimal ids, 64-bit numbers as text or numbers, lower camel case names.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::json::{check, replace_lone_surrogates};

use super::logs::Record;
use super::{Event, Resource, Span, UnreadableItem};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TraceRequest {
    #[serde(deserialize_with = "or_nothing")]
    resource_spans: Vec<ObjectOnly<ResourceSpans>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResourceSpans {
    #[serde(deserialize_with = "or_nothing")]
    resource: ObjectOnly<Attributes>,
    #[serde(deserialize_with = "or_nothing")]
    scope_spans: Vec<ObjectOnly<ScopeSpans>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Attributes {
    #[serde(deserialize_with = "or_nothing")]
    attributes: Vec<ObjectOnly<KeyValue>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ScopeSpans {
    /// Parsed separately, so that an invalid span does not affect the others.
    #[serde(deserialize_with = "or_nothing")]
    spans: Vec<Box<RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JsonSpan {
    #[serde(deserialize_with = "or_nothing")]
    trace_id: String,
    #[serde(deserialize_with = "or_nothing")]
    span_id: String,
    #[serde(deserialize_with = "or_nothing")]
    parent_span_id: String,
    #[serde(deserialize_with = "or_nothing")]
    name: String,
    #[serde(deserialize_with = "unsigned")]
    start_time_unix_nano: u64,
    #[serde(deserialize_with = "unsigned")]
    end_time_unix_nano: u64,
    #[serde(deserialize_with = "or_nothing")]
    attributes: Vec<KeyValue>,
    #[serde(deserialize_with = "or_nothing")]
    events: Vec<JsonEvent>,
    #[serde(deserialize_with = "or_nothing")]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct LogsRequest {
    #[serde(deserialize_with = "or_nothing")]
    resource_logs: Vec<ObjectOnly<ResourceLogs>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResourceLogs {
    #[serde(deserialize_with = "or_nothing")]
    scope_logs: Vec<ObjectOnly<ScopeLogs>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ScopeLogs {
    /// Parsed separately, so that an invalid record does not affect the others.
    #[serde(deserialize_with = "or_nothing")]
    log_records: Vec<Box<RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JsonRecord {
    #[serde(deserialize_with = "or_nothing")]
    trace_id: String,
    #[serde(deserialize_with = "or_nothing")]
    span_id: String,
    #[serde(deserialize_with = "unsigned")]
    time_unix_nano: u64,
    #[serde(deserialize_with = "unsigned")]
    observed_time_unix_nano: u64,
    #[serde(deserialize_with = "or_nothing")]
    event_name: String,
    #[serde(deserialize_with = "or_nothing")]
    attributes: Vec<KeyValue>,
    body: Value,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct JsonEvent {
    #[serde(deserialize_with = "unsigned")]
    time_unix_nano: u64,
    #[serde(deserialize_with = "or_nothing")]
    name: String,
    #[serde(deserialize_with = "or_nothing")]
    attributes: Vec<KeyValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "or_nothing")]
    message: String,
    code: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct KeyValue {
    #[serde(deserialize_with = "or_nothing")]
    key: String,
    value: Value,
}

pub fn spans(body: &[u8]) -> Result<Vec<Resource>, serde_json::Error> {
    let ObjectOnly(request): ObjectOnly<TraceRequest> = parse(body)?;
    let resources = request.resource_spans.into_iter().map(|ObjectOnly(of)| Resource {
        attributes: attributes(
            of.resource
                .0
                .attributes
                .into_iter()
                .map(|ObjectOnly(pair)| pair)
                .collect(),
        ),
        spans: of
            .scope_spans
            .into_iter()
            .flat_map(|ObjectOnly(scope)| scope.spans)
            .map(|raw| read_item(raw.get(), span))
            .collect(),
    });
    Ok(resources.collect())
}

pub fn records(body: &[u8]) -> Result<Vec<Result<Record, UnreadableItem>>, serde_json::Error> {
    let ObjectOnly(request): ObjectOnly<LogsRequest> = parse(body)?;
    let resources = request.resource_logs.into_iter();
    let scopes = resources.flat_map(|ObjectOnly(resource)| resource.scope_logs);
    let records = scopes.flat_map(|ObjectOnly(scope)| scope.log_records);
    Ok(records.map(|raw| read_item(raw.get(), record)).collect())
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json).or_else(|error| {
        // JSON clients send texts that were cut inside an emoji as lone halves of surrogate pairs.
        let text = check(json).map_err(|_| error)?;
        serde_json::from_str(&replace_lone_surrogates(text))
    })
}

/// A span or log record, whose id is that of the span.
fn read_item<T: DeserializeOwned, U>(text: &str, convert: fn(T) -> U) -> Result<U, UnreadableItem> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SpanIdOnly {
        span_id: String,
    }
    match parse::<T>(text.as_bytes()) {
        // Serde would also accept a list of values for a struct.
        Ok(read) if text.starts_with('{') => Ok(convert(read)),
        Ok(_) => Err(UnreadableItem {
            id: super::shown(&[]),
            why: "expected a JSON object".to_owned(),
        }),
        Err(error) => {
            let named = parse::<SpanIdOnly>(text.as_bytes()).ok();
            let id = named.map(|named| named.span_id.chars().take(32).collect::<String>());
            Err(UnreadableItem {
                id: id.filter(|id| !id.is_empty()).unwrap_or_else(|| super::shown(&[])),
                why: error.to_string(),
            })
        }
    }
}

fn span(span: JsonSpan) -> Span {
    let failed = span.status.code == json!(2) || span.status.code == json!("STATUS_CODE_ERROR");
    Span {
        trace_id: bytes(&span.trace_id),
        span_id: bytes(&span.span_id),
        parent_span_id: bytes(&span.parent_span_id),
        name: span.name,
        start_nanos: span.start_time_unix_nano,
        end_nanos: span.end_time_unix_nano,
        attributes: attributes(span.attributes),
        events: span
            .events
            .into_iter()
            .map(|event| Event {
                nanos: event.time_unix_nano,
                name: event.name,
                attributes: attributes(event.attributes),
            })
            .collect(),
        error: failed.then_some(span.status.message),
    }
}

fn record(record: JsonRecord) -> Record {
    Record {
        trace_id: bytes(&record.trace_id),
        span_id: bytes(&record.span_id),
        nanos: match record.time_unix_nano {
            0 => record.observed_time_unix_nano,
            nanos => nanos,
        },
        event_name: record.event_name,
        attributes: attributes(record.attributes),
        body: value(record.body),
    }
}

/// Empty for invalid hexadecimal: an empty id is refused.
fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let read = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(read).collect::<Option<Vec<u8>>>().unwrap_or_default()
}

fn attributes(pairs: Vec<KeyValue>) -> Vec<(String, Value)> {
    pairs.into_iter().map(|pair| (pair.key, value(pair.value))).collect()
}

fn value(any: Value) -> Value {
    let Value::Object(fields) = any else { return Value::Null };
    let Some((kind, inner)) = fields.into_iter().next() else {
        return Value::Null;
    };
    match kind.as_str() {
        "stringValue" | "boolValue" | "doubleValue" | "bytesValue" => inner,
        "intValue" => match &inner {
            Value::String(text) => text.parse::<i64>().map_or(inner.clone(), |number| json!(number)),
            _ => inner,
        },
        "arrayValue" => match inner.get("values") {
            Some(Value::Array(items)) => items.iter().cloned().map(value).collect(),
            _ => json!([]),
        },
        "kvlistValue" => {
            let pairs = inner.get("values").cloned().unwrap_or_default();
            let pairs: Vec<KeyValue> = serde_json::from_value(pairs).unwrap_or_default();
            attributes(pairs).into_iter().collect::<serde_json::Map<_, _>>().into()
        }
        _ => Value::Null,
    }
}

fn unsigned<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match Value::deserialize(from)? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null => Some(0),
        _ => None,
    }
    .ok_or_else(|| serde::de::Error::custom("expected nanoseconds since 1970"))
}

/// A JSON object in the body. Serde would also accept a list of values for a struct.
#[derive(Default)]
struct ObjectOnly<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ObjectOnly<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = ObjectOnly<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<ObjectOnly<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(ObjectOnly)
            }
        }
        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Protobuf's JSON has `null` for any field that is not set.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
