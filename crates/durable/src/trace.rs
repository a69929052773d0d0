//! Distributed traces from the request that recorded a job to the job's last checkpoint.
//!
//! A request, and every attempt of a job, has a place in a trace ([`Traceparent`]) while it runs. A job recorded
//! meanwhile stores that place in its row (`job.traceparent`), and each of its attempts becomes a span below it. Places
//! are kept separately from the spans of `tracing`, so they do not depend on the log level.

use std::future::Future;

use towpath_domain::Traceparent;
use towpath_store::jobs::ClaimedJob;
use tracing::Span;
use tracing::field::{Empty, display};

tokio::task_local! {
    static CURRENT: Traceparent;
}

/// The trace place of the current task.
#[must_use]
pub fn current() -> Option<Traceparent> {
    CURRENT.try_with(|place| *place).ok()
}

pub fn scope<F: Future>(place: Traceparent, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(place, work)
}

/// The span of one attempt, and its place. The span has the error level, so that every line about the job carries its
/// fields at any log level.
pub(crate) fn attempt(job: &ClaimedJob) -> (Span, Traceparent) {
    let recorded = job
        .traceparent
        .as_deref()
        .and_then(|text| text.parse::<Traceparent>().ok());
    let place = recorded.map_or_else(Traceparent::new, Traceparent::child);
    let span = tracing::error_span!(
        "job",
        job.id = %job.id,
        job.kind = %job.kind,
        job.pool = %job.pool,
        job.attempt = job.attempt,
        trace_id = place.trace_id(),
        span_id = place.span_id(),
        parent_span_id = Empty,
        trace_sampled = place.sampled(),
        otel.kind = "consumer",
    );
    if let Some(recorded) = recorded {
        span.record("parent_span_id", display(recorded.span_id()));
    }
    (span, place)
}
