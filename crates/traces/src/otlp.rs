//! Spans of OpenTelemetry to trace runs.
//!
//! A request is turned into a batch of posts, which then takes the way of every other body ([`Route::Batch`]). Ids
//! follow from the span alone, so that spans of one trace may come in any order and in any number of requests, and a
//! request that is repeated changes nothing:
//!
//! - the trace is the trace id as a UUID, and the run is the first half of the trace id with the span id behind it;
//! - where the sender says who a span is (`langsmith.span.id`, `langsmith.trace.id`, `langsmith.span.parent_id`,
//!   `langsmith.span.dotted_order`), that counts.
//!
//! A span that cannot be taken is left out and counted; the others are taken.
//!
//! [`Route::Batch`]: crate::accept::Route::Batch

mod json;
mod list;
mod mapping;
mod proto;
mod retrieval;
mod usage;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use prost::Message as _;
use serde_json::{Value, json};
use towpath_domain::trace::check_project_name;
use towpath_domain::{TenantId, Timestamp};

use crate::accept::{self, AcceptedRequest, Refusal, RefusalKind, Route};
use crate::body::Limits;

/// Why a request is not taken at all.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// It is not a protobuf of this kind.
    #[error("the body is not an ExportTraceServiceRequest: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// It is no JSON of this kind.
    #[error("the body is not an ExportTraceServiceRequest: {0}")]
    Json(#[from] serde_json::Error),
    /// The trace runs together are refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Spans that were left out, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectedSpans {
    count: u64,
    /// Of the first ones.
    reasons: Vec<String>,
}

impl RejectedSpans {
    /// Number of reported reasons; a sender that makes one mistake makes it often.
    const TOLD: usize = 5;

    fn add(&mut self, span: &str, why: &impl std::fmt::Display) {
        self.count += 1;
        if self.reasons.len() < Self::TOLD {
            let why: String = why.to_string().chars().take(300).collect();
            self.reasons.push(format!("span {span}: {why}"));
        }
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// For the caller that operates the sender.
    #[must_use]
    pub fn message(&self) -> String {
        let mut message = format!("rejected spans: {}. {}", self.count, self.reasons.join("; "));
        let more = self.count - self.reasons.len() as u64;
        if more > 0 {
            message += &format!("; and {more} more");
        }
        message
    }
}

/// The answer to a request of which this was left out.
#[must_use]
pub fn response(format: Format, rejected: &RejectedSpans) -> Vec<u8> {
    // An empty message says that nothing was left out.
    let partial = (rejected.count > 0).then(|| ExportTracePartialSuccess {
        rejected_spans: i64::try_from(rejected.count).unwrap_or(i64::MAX),
        error_message: rejected.message(),
    });
    match (format, partial) {
        (Format::Protobuf, partial_success) => ExportTraceServiceResponse { partial_success }.encode_to_vec(),
        (Format::Json, None) => b"{}".to_vec(),
        (Format::Json, Some(partial)) => {
            // Protobuf's JSON has 64-bit numbers as text.
            let partial = json!({
                "rejectedSpans": partial.rejected_spans.to_string(),
                "errorMessage": partial.error_message,
            });
            json!({ "partialSuccess": partial }).to_string().into_bytes()
        }
    }
}

/// A request that was decoded.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The caller's workspace.
    pub tenant: TenantId,
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
    spans: Vec<Result<Span, UnreadableSpan>>,
}

/// A span that cannot be read.
#[derive(Clone, Debug)]
struct UnreadableSpan {
    /// Its id as it is there, where one does.
    id: String,
    why: String,
}

/// Posts as JSON, each with the id of its span.
type Posts = Vec<(String, Vec<u8>)>;

/// Converts spans into a batch of posts that may be acknowledged once it is on disk, and returns the rejected ones.
pub fn accept(request: &Request<'_>, limits: &Limits) -> Result<(AcceptedRequest, RejectedSpans), OtlpError> {
    if let Some(project) = request.project {
        check_project_name(project).map_err(|error| Refusal::invalid("the header Langsmith-Project", error))?;
    }
    let (mut posts, mut rejected) = posts(request)?;
    match take(request, &posts, limits) {
        Err(refusal) if is_of_a_run(&refusal) => {
            posts.retain(|(span, post)| {
                let alone = [(String::new(), post.clone())];
                let taken = take(request, &alone, limits);
                if let Err(refusal) = &taken {
                    rejected.add(span, refusal);
                }
                taken.is_ok()
            });
            Ok((take(request, &posts, limits)?, rejected))
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

fn take(request: &Request<'_>, posts: &[(String, Vec<u8>)], limits: &Limits) -> Result<AcceptedRequest, Refusal> {
    let list: Vec<&[u8]> = posts.iter().map(|(_, post)| post.as_slice()).collect();
    let body = [b"{\"post\":[".as_slice(), &list.join(&b','), b"]}"].concat();
    let request = accept::Request {
        tenant: request.tenant,
        route: Route::Batch,
        content_type: "application/json",
        content_encoding: None,
        body: Bytes::from(body),
        received_at: request.received_at,
    };
    accept::accept(request, limits)
}

fn posts(request: &Request<'_>) -> Result<(Posts, RejectedSpans), OtlpError> {
    let resources = match request.format {
        Format::Protobuf => proto::read(request.body)?,
        Format::Json => json::read(request.body)?,
    };
    let (mut posts, mut rejected) = (Posts::new(), RejectedSpans::default());
    for resource in resources {
        for span in resource.spans {
            match span {
                Ok(span) => {
                    let id = shown(&span.span_id);
                    match mapping::run(&span, &resource.attributes, request.project) {
                        Ok(run) => posts.push((id, serde_json::to_vec(&run)?)),
                        Err(why) => rejected.add(&id, &why),
                    }
                }
                Err(unread) => rejected.add(&unread.id, &unread.why),
            }
        }
    }
    Ok((posts, rejected))
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
