//! What surrounds every request: its id, its span, its metrics, a net for panics, the limit on how many at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use towpath_domain::RequestId;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::agent::AgentError;
use crate::errors::{ApiError, tracing_shape};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The layers of routes that always answer: health, metrics.
pub(crate) fn plain(router: Router) -> Router {
    router
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(observe))
}

/// The layers of an API that works on at most `requests` at once; `ops` stays outside of that limit.
pub(crate) fn limited(router: Router, ops: Router, requests: usize) -> Router {
    let places = Arc::new(Semaphore::new(requests));
    plain(router.layer(from_fn_with_state(places, limit)).merge(ops))
}

/// As [`limited`], with refusals in the shape of the agent surface.
pub(crate) fn agent(router: Router, ops: Router, requests: usize) -> Router {
    let places = Arc::new(Semaphore::new(requests));
    router
        .layer(from_fn_with_state(places, limit_agent))
        .merge(ops)
        .fallback(async || AgentError::not_found())
        .method_not_allowed_fallback(async || AgentError::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"))
        .layer(CatchPanicLayer::custom(|panic| {
            report_panic(panic);
            AgentError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response()
        }))
        .layer(from_fn(observe))
}

async fn no_such_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no such route")
}

/// axum adds `Allow`.
async fn no_such_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this route does not take this method")
}

/// Refuses rather than queues: a client that is told when to come back can wait without holding memory here.
async fn limit(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    match places.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => ApiError::unavailable("too many requests at once", Duration::from_secs(1)).into_response(),
    }
}

async fn limit_agent(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    match places.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => AgentError::unavailable("Too many requests at once", Duration::from_secs(1)).into_response(),
    }
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    report_panic(panic);
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error").into_response()
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn report_panic(panic: Box<dyn std::any::Any + Send>) {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(panic.message = text, "a handler panicked");
    metrics::counter!("towpath_http_panics_total").increment(1);
}

/// Gives the request an id and a span, and counts it. The route in both is the matched template, never the path as
/// sent: its values are unbounded, and may be private.
async fn observe(mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(request.headers());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none", MatchedPath::as_str)
        .to_owned();
    let method = method(request.method());
    let in_tracing_shape = is_tracing(request.uri().path());
    let span = tracing::info_span!(
        "http.request",
        http.method = method,
        http.route = %route,
        request.id = id.to_str().unwrap_or_default(),
        trace.parent = trace_parent(request.headers()),
        tenant.id = Empty,
    );
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let in_flight = metrics::gauge!("towpath_http_requests_in_flight");
    in_flight.increment(1.0);
    // A client that goes away drops this future in the middle.
    let _counted = Counted(in_flight);
    let mut response = next.run(request).instrument(span.clone()).await;
    if in_tracing_shape {
        response = tracing_shape(response);
    }
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.headers_mut().insert(REQUEST_ID, id);

    let duration = begun.elapsed();
    let status = response.status().as_u16();
    metrics::counter!("towpath_http_requests_total",
        "route" => route.clone(), "method" => method, "status" => status.to_string())
    .increment(1);
    metrics::histogram!("towpath_http_request_seconds", "route" => route, "method" => method).record(duration);
    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    span.in_scope(|| tracing::debug!(http.status = status, duration_ms, "answered"));
    response
}

struct Counted(metrics::Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The caller's id where it is short and plain enough for a log line, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(&REQUEST_ID).filter(|id| {
        (1..=64).contains(&id.len())
            && id
                .as_bytes()
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
    });
    given.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&RequestId::new().to_string()).expect("a UUID has only characters a header may have")
    })
}

/// The W3C `traceparent`, where it looks like one.
fn trace_parent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    (text.len() == 55 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')).then_some(text)
}

fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        // Anything may be sent as a method; a label must be bounded.
        _ => "other",
    }
}

/// Whether the tracing clients call this path, bare or under `/api/v1`.
fn is_tracing(path: &str) -> bool {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "runs" | "sessions" | "feedback" | "info")
}

/// Says what the metrics of this room mean.
pub fn describe_metrics() {
    metrics::describe_counter!(
        "towpath_http_requests_total",
        "HTTP requests answered, by route template"
    );
    metrics::describe_histogram!(
        "towpath_http_request_seconds",
        metrics::Unit::Seconds,
        "From the first byte of the body a handler may read to the head of the answer"
    );
    metrics::describe_gauge!("towpath_http_requests_in_flight", "HTTP requests being worked on");
    metrics::describe_counter!("towpath_http_panics_total", "Handlers that panicked");
    metrics::describe_gauge!("towpath_ingest_memory_bytes", "Memory held by ingest bodies under way");
    metrics::describe_counter!(
        "towpath_ingest_refused_total",
        "Ingest requests refused because memory was short"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_request_ids_are_kept_only_when_plain() {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_static("abc-1"));
        assert_eq!(request_id(&headers), "abc-1");
        headers.insert(REQUEST_ID, HeaderValue::from_static("a b\"}"));
        assert_eq!(request_id(&headers).len(), 36);
    }

    #[test]
    fn tracing_paths() {
        for path in [
            "/runs",
            "/api/v1/runs/multipart",
            "/sessions/x",
            "/api/v1/feedback",
            "/info",
        ] {
            assert!(is_tracing(path), "{path}");
        }
        for path in ["/api/v1/bulk-exports", "/runsx", "/", "/api/v1", "/v2/deployments"] {
            assert!(!is_tracing(path), "{path}");
        }
    }
}
