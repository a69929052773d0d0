//! One distributed trace from the request that recorded a job to the job's last checkpoint.
//!
//! The request, and every attempt of a job, has a place in a trace ([`Traceparent`]) while it is worked on. A job
//! recorded meanwhile is given that place in its row (`job.traceparent`), and each of its attempts becomes a span
//! below it. Places are carried beside the spans of `tracing`, so that they are there whatever is logged.

use std::future::Future;

use towpath_domain::Traceparent;
use towpath_store::jobs::Claimed;
use tracing::Span;
use tracing::field::{Empty, display};

tokio::task_local! {
    static CURRENT: Traceparent;
}

/// The place of whatever this task works on.
#[must_use]
pub fn current() -> Option<Traceparent> {
    CURRENT.try_with(|place| *place).ok()
}

/// Runs `work` at `place`.
pub fn scope<F: Future>(place: Traceparent, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(place, work)
}

/// The span of one attempt, and its place. At the level of errors, so that every line about the job carries it
/// whatever else is logged.
pub(crate) fn attempt(job: &Claimed) -> (Span, Traceparent) {
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
