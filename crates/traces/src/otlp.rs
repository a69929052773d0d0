//! Spans of OpenTelemetry to trace runs.
//!
//! A request is turned into a batch of posts, which then takes the way of every other body ([`Route::Batch`]). Ids follow
//! from the span alone, so that spans of one trace may come in any order and in any number of requests, and a request
//! that is repeated changes nothing:
//!
//! - the trace is the trace id as a UUID, and the run is the first half of the trace id with the span id behind it;
//! - where the sender says who a span is (`langsmith.span.id`, `langsmith.trace.id`, `langsmith.span.parent_id`,
//!   `langsmith.span.dotted_order`), that counts.
//!
//! [`Route::Batch`]: crate::accept::Route::Batch

mod json;
mod mapping;
mod proto;

use serde_json::Value;

/// Why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// It is no protobuf of this kind.
    #[error("the body is no ExportTraceServiceRequest: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// It is no JSON of this kind.
    #[error("the body is no ExportTraceServiceRequest: {0}")]
    Json(#[from] serde_json::Error),
    /// A span without ids.
    #[error("a span needs a trace id of 16 bytes and a span id of 8")]
    Ids,
}

/// How a request is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/x-protobuf`
    Protobuf,
    /// `application/json`
    Json,
}

/// A span, however it was written.
#[derive(Clone, Debug, Default)]
struct Span {
    trace_id: Vec<u8>,
    span_id: Vec<u8>,
    parent_span_id: Vec<u8>,
    name: String,
    start_nanos: u64,
    end_nanos: u64,
    attributes: Vec<(String, Value)>,
    events: Vec<Event>,
    /// Its status says error, with this message.
    error: Option<String>,
}

/// Something that happened during a span.
#[derive(Clone, Debug, Default)]
struct Event {
    nanos: u64,
    name: String,
    attributes: Vec<(String, Value)>,
}

/// The spans of one resource.
#[derive(Clone, Debug, Default)]
struct Resource {
    attributes: Vec<(String, Value)>,
    spans: Vec<Span>,
}

/// A request as the body of a batch of posts, and how many spans it has. `project` is where spans go that name none.
///
/// # Errors
/// It cannot be read, or a span has no ids.
pub fn to_batch(body: &[u8], format: Format, project: Option<&str>) -> Result<(Vec<u8>, usize), OtlpError> {
    let resources = match format {
        Format::Protobuf => proto::read(body)?,
        Format::Json => json::read(body)?,
    };
    let mut posts = Vec::new();
    for resource in &resources {
        for span in &resource.spans {
            posts.push(mapping::run(span, &resource.attributes, project)?);
        }
    }
    let count = posts.len();
    Ok((serde_json::to_vec(&serde_json::json!({ "post": posts }))?, count))
}

#[cfg(test)]
mod tests;
