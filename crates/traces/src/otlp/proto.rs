//! Requests in protobuf.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use serde_json::{Value, json};

use super::logs::Record;
use super::{Event, Resource, Span, UnreadableItem};

pub fn spans(body: &[u8]) -> Result<Vec<Resource>, prost::DecodeError> {
    let request = ExportTraceServiceRequest::decode(body)?;
    let resources = request.resource_spans.into_iter().map(|resource| Resource {
        attributes: attributes(
            resource
                .resource
                .map(|resource| resource.attributes)
                .unwrap_or_default(),
        ),
        spans: resource
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans)
            .map(|span| {
                Ok(Span {
                    trace_id: span.trace_id,
                    span_id: span.span_id,
                    parent_span_id: span.parent_span_id,
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
                    error: span
                        .status
                        .filter(|status| status.code == StatusCode::Error as i32)
                        .map(|status| status.message),
                })
            })
            .collect(),
    });
    Ok(resources.collect())
}

pub fn records(body: &[u8]) -> Result<Vec<Result<Record, UnreadableItem>>, prost::DecodeError> {
    let request = ExportLogsServiceRequest::decode(body)?;
    let scopes = request
        .resource_logs
        .into_iter()
        .flat_map(|resource| resource.scope_logs);
    let records = scopes.flat_map(|scope| scope.log_records).map(|record| {
        let nanos = match record.time_unix_nano {
            0 => record.observed_time_unix_nano,
            nanos => nanos,
        };
        Ok(Record {
            trace_id: record.trace_id,
            span_id: record.span_id,
            nanos,
            event_name: record.event_name,
            attributes: attributes(record.attributes),
            body: value(record.body),
        })
    });
    Ok(records.collect())
}

fn attributes(pairs: Vec<KeyValue>) -> Vec<(String, Value)> {
    pairs.into_iter().map(|pair| (pair.key, value(pair.value))).collect()
}

fn value(any: Option<AnyValue>) -> Value {
    match any.and_then(|any| any.value) {
        None => Value::Null,
        Some(Any::StringValue(text)) => Value::String(text),
        Some(Any::BoolValue(value)) => Value::Bool(value),
        Some(Any::IntValue(number)) => json!(number),
        Some(Any::DoubleValue(number)) => json!(number),
        Some(Any::ArrayValue(list)) => list.values.into_iter().map(|item| value(Some(item))).collect(),
        Some(Any::KvlistValue(list)) => attributes(list.values)
            .into_iter()
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Some(Any::BytesValue(bytes)) => Value::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        // Indices into a table that traces do not have.
        Some(_) => Value::Null,
    }
}
