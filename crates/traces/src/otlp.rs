//! Spans and log records of OpenTelemetry to trace runs and feedback.
//!
//! A request is turned into a body of the tracing clients, which then takes the way of every other one: a batch
//! ([`Route::Batch`]), or parts ([`Route::Multipart`]) if there is feedback among it. Ids follow from the span alone, so
//! that spans of one trace may come in any order and in any number of requests, and a request that is repeated changes
//! nothing:
//!
//! - the trace is the trace id as a UUID, and the run is the first half of the trace id with the span id behind it;
//! - where the sender says who a span is (`langsmith.span.id`, `langsmith.trace.id`, `langsmith.span.parent_id`,
//!   `langsmith.span.dotted_order`), that counts.
//!
//! A span is the post of its run. Messages in log records are a patch of it, and results of evaluations, in events of a
//! span or in log records, are feedback. A span or log record that cannot be taken is left out and counted; the others
//! are taken.
//!
//! [`Route::Batch`]: crate::accept::Route::Batch
//! [`Route::Multipart`]: crate::accept::Route::Multipart

mod evaluation;
mod json;
mod list;
mod logs;
mod mapping;
mod proto;
mod retrieval;
mod usage;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use prost::Message as _;
use serde_json::{Value, json};
use towpath_domain::trace::check_project_name;
use towpath_domain::{TenantId, Timestamp};
use uuid::Uuid;

use crate::accept::{self, AcceptedRequest, Refusal, RefusalKind, Route};
use crate::body::Limits;

/// What the items of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Log records.
    Logs,
}

impl Signal {
    const fn item(self) -> &'static str {
        match self {
            Self::Traces => "span",
            Self::Logs => "log record",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Traces => "ExportTraceServiceRequest",
            Self::Logs => "ExportLogsServiceRequest",
        }
    }

    fn protobuf_error(self, error: prost::DecodeError) -> OtlpError {
        OtlpError::Protobuf {
            message: self.message(),
            error,
        }
    }

    fn json_error(self, error: serde_json::Error) -> OtlpError {
        OtlpError::Json {
            message: self.message(),
            error,
        }
    }
}

/// Why a request is not taken at all.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// It is not a protobuf of this kind.
    #[error("the body is not an {message}: {error}")]
    Protobuf {
        message: &'static str,
        error: prost::DecodeError,
    },
    /// It is no JSON of this kind.
    #[error("the body is not an {message}: {error}")]
    Json {
        message: &'static str,
        error: serde_json::Error,
    },
    /// The trace runs together are refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Spans or log records that were left out, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectedItems {
    count: u64,
    /// Of the first ones.
    reasons: Vec<String>,
}

impl RejectedItems {
    /// Number of reported reasons; a sender that makes one mistake makes it often.
    const TOLD: usize = 5;

    fn add(&mut self, signal: Signal, id: &str, why: &impl std::fmt::Display) {
        self.add_several(signal, id, 1, why);
    }

    fn add_several(&mut self, signal: Signal, id: &str, count: u64, why: &impl std::fmt::Display) {
        self.count += count;
        if self.reasons.len() < Self::TOLD {
            let why: String = why.to_string().chars().take(300).collect();
            self.reasons.push(format!("{} {id}: {why}", signal.item()));
        }
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// For the caller that operates the sender.
    #[must_use]
    pub fn message(&self, signal: Signal) -> String {
        let reasons = self.reasons.join("; ");
        let mut message = format!("rejected {}s: {}. {reasons}", signal.item(), self.count);
        let more = self.count.saturating_sub(self.reasons.len() as u64);
        if more > 0 {
            message += &format!("; and {more} more");
        }
        message
    }
}

/// The answer to a request of which this was left out.
#[must_use]
pub fn response(signal: Signal, format: Format, rejected: &RejectedItems) -> Vec<u8> {
    // An empty message says that nothing was left out.
    let partial = (rejected.count > 0).then(|| {
        let count = i64::try_from(rejected.count).unwrap_or(i64::MAX);
        (count, rejected.message(signal))
    });
    match (format, signal) {
        (Format::Protobuf, Signal::Traces) => {
            let partial_success = partial.map(|(rejected_spans, error_message)| ExportTracePartialSuccess {
                rejected_spans,
                error_message,
            });
            ExportTraceServiceResponse { partial_success }.encode_to_vec()
        }
        (Format::Protobuf, Signal::Logs) => {
            let partial_success = partial.map(|(rejected_log_records, error_message)| ExportLogsPartialSuccess {
                rejected_log_records,
                error_message,
            });
            ExportLogsServiceResponse { partial_success }.encode_to_vec()
        }
        (Format::Json, _) => {
            let Some((count, message)) = partial else {
                return b"{}".to_vec();
            };
            let name = match signal {
                Signal::Traces => "rejectedSpans",
                Signal::Logs => "rejectedLogRecords",
            };
            // Protobuf's JSON has 64-bit numbers as text.
            let partial = json!({ name: count.to_string(), "errorMessage": message });
            json!({ "partialSuccess": partial }).to_string().into_bytes()
        }
    }
}

/// A request that was decoded.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The caller's workspace.
    pub tenant: TenantId,
    pub signal: Signal,
    /// How the body is written.
    pub format: Format,
    pub body: &'a [u8],
    /// Where spans go that name no project.
    pub project: Option<&'a str>,
    /// Now.
    pub received_at: Timestamp,
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
    spans: Vec<Result<Span, UnreadableItem>>,
}

/// A span or log record that cannot be read.
#[derive(Clone, Debug)]
struct UnreadableItem {
    /// The id of the span as it is there, where one is.
    id: String,
    why: String,
}

/// What a span, or the log records of a span, say. Accepted or rejected as a whole.
struct Item {
    /// The id of the span, as senders show it.
    source: String,
    /// Spans or log records of the request that it is made from.
    count: u64,
    parts: Vec<Part>,
}

/// An operation on a trace run, or feedback.
struct Part {
    kind: PartKind,
    /// Of the run, or of the feedback.
    id: Uuid,
    json: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PartKind {
    Post,
    Patch,
    Feedback,
}

impl PartKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Patch => "patch",
            Self::Feedback => "feedback",
        }
    }
}

/// Converts a request into a body that may be acknowledged once it is on disk, and returns the rejected items.
pub fn accept(request: &Request<'_>, limits: &Limits) -> Result<(AcceptedRequest, RejectedItems), OtlpError> {
    if let Some(project) = request.project {
        check_project_name(project).map_err(|error| Refusal::invalid("the header Langsmith-Project", error))?;
    }
    let (mut items, mut rejected) = match request.signal {
        Signal::Traces => span_items(request)?,
        Signal::Logs => logs::items(request)?,
    };
    match take(request, &items, limits) {
        Err(refusal) if is_of_a_run(&refusal) => {
            items.retain(|item| {
                let taken = take(request, std::slice::from_ref(item), limits);
                if let Err(refusal) = &taken {
                    rejected.add_several(request.signal, &item.source, item.count, refusal);
                }
                taken.is_ok()
            });
            Ok((take(request, &items, limits)?, rejected))
        }
        taken => Ok((taken?, rejected)),
    }
}

/// Whether another batch without that run may be taken.
const fn is_of_a_run(refusal: &Refusal) -> bool {
    match refusal {
        // Said of all runs together.
        Refusal::TooManyDays { .. } => false,
        Refusal::FieldTooLarge { .. } => true,
        _ => matches!(refusal.kind(), RefusalKind::Invalid | RefusalKind::Rule),
    }
}

fn take(request: &Request<'_>, items: &[Item], limits: &Limits) -> Result<AcceptedRequest, Refusal> {
    let parts: Vec<&Part> = items.iter().flat_map(|item| &item.parts).collect();
    // Only the multipart route takes runs and feedback together.
    let (route, content_type, body) = if parts.iter().any(|part| part.kind == PartKind::Feedback) {
        (
            Route::Multipart,
            "multipart/form-data; boundary=otlp",
            multipart_body(&parts),
        )
    } else {
        (Route::Batch, "application/json", batch_body(&parts))
    };
    let request = accept::Request {
        tenant: request.tenant,
        route,
        content_type,
        content_encoding: None,
        body: Bytes::from(body),
        received_at: request.received_at,
    };
    accept::accept(request, limits)
}

fn batch_body(parts: &[&Part]) -> Vec<u8> {
    let list = |kind: PartKind| {
        let parts = parts.iter().filter(|part| part.kind == kind);
        let list: Vec<&[u8]> = parts.map(|part| part.json.as_slice()).collect();
        list.join(&b',')
    };
    let (posts, patches) = (list(PartKind::Post), list(PartKind::Patch));
    [
        b"{\"post\":[".as_slice(),
        posts.as_slice(),
        b"],\"patch\":[",
        patches.as_slice(),
        b"]}",
    ]
    .concat()
}

/// JSON of one line has no line break, so it does not contain the delimiter.
fn multipart_body(parts: &[&Part]) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        let head = format!(
            "--otlp\r\nContent-Disposition: form-data; name=\"{}.{}\"\r\nContent-Type: application/json\r\n\r\n",
            part.kind.as_str(),
            part.id
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&part.json);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--otlp--\r\n");
    body
}

fn span_items(request: &Request<'_>) -> Result<(Vec<Item>, RejectedItems), OtlpError> {
    let signal = request.signal;
    let resources = match request.format {
        Format::Protobuf => proto::spans(request.body).map_err(|error| signal.protobuf_error(error))?,
        Format::Json => json::spans(request.body).map_err(|error| signal.json_error(error))?,
    };
    let (mut items, mut rejected) = (Vec::new(), RejectedItems::default());
    for resource in resources {
        for span in resource.spans {
            match span {
                Ok(span) => {
                    let source = shown(&span.span_id);
                    match span_parts(&span, &resource.attributes, request.project) {
                        Ok(parts) => items.push(Item {
                            source,
                            count: 1,
                            parts,
                        }),
                        Err(why) => rejected.add(signal, &source, &why),
                    }
                }
                Err(unreadable) => rejected.add(signal, &unreadable.id, &unreadable.why),
            }
        }
    }
    Ok((items, rejected))
}

/// The run of a span, and the feedback of its evaluations. An evaluation that cannot be feedback is still among the
/// events of the run.
fn span_parts(span: &Span, resource: &mapping::Attributes, project: Option<&str>) -> Result<Vec<Part>, &'static str> {
    let ids = mapping::ids(&span.attributes, &span.trace_id, &span.span_id)?;
    let run = mapping::run(span, &ids, resource, project);
    let evaluations = span.events.iter().filter(|event| event.name == evaluation::EVENT);
    let feedback = evaluations.filter_map(|event| evaluation::feedback(&ids, event).ok());
    let post = Part {
        kind: PartKind::Post,
        id: ids.run,
        json: run.to_string().into_bytes(),
    };
    Ok(std::iter::once(post).chain(feedback).collect())
}

/// An id as senders show it.
fn shown(id: &[u8]) -> String {
    if id.is_empty() {
        return "without an id".to_owned();
    }
    id.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
