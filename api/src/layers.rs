//! What surrounds every request of every surface: its id, its span, its metrics, a net for panics.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tower_http::catch_panic::CatchPanicLayer;
use towpath_domain::{RequestId, Traceparent};
use towpath_durable::trace;
use tracing::Instrument as _;
use tracing::field::{Empty, display};

use crate::concurrency::ConcurrencyLimit;
use crate::errors::{ApiError, problem_shape, to_sandbox_error, tracing_shape};
use crate::metric;
use crate::paths::{has_problems, is_sandbox_path, is_tracing};
use crate::request_permits::{self, PermitRefusal};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The layers of routes that always answer: health, metrics.
pub(crate) fn wrap_unlimited(router: Router) -> Router {
    with_observation(with_not_found(router))
}

/// What no route takes is answered too.
pub(crate) fn with_not_found(router: Router) -> Router {
    router
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
}

pub(crate) fn with_observation(router: Router) -> Router {
    router.layer(CatchPanicLayer::custom(panicked)).layer(from_fn(observe))
}

async fn no_such_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no such route")
}

/// axum adds `Allow`.
async fn no_such_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this route does not support this method",
    )
}

pub(crate) fn too_many_requests(full: PermitRefusal) -> Response {
    full.refusal().into_response()
}

/// Refuses when all places are taken, in the shape both surfaces share.
pub(crate) async fn limit_places(
    State(places): State<Arc<ConcurrencyLimit>>,
    request: Request,
    next: Next,
) -> Response {
    request_permits::with_permits(vec![places], request, next)
        .await
        .unwrap_or_else(too_many_requests)
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    report_panic(panic);
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error").into_response()
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
pub(crate) fn report_panic(panic: Box<dyn std::any::Any + Send>) {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(panic.message = text, "a handler panicked");
    metrics::counter!(metric::PANICS).increment(1);
}

/// Gives the request an id and a span, and counts it. The route in both is the matched template, never the path as
/// sent: its values are unbounded, and may be private.
pub(crate) async fn observe(mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = request_id(request.headers());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none", MatchedPath::as_str)
        .to_owned();
    let method = method(request.method());
    let in_tracing_shape = is_tracing(request.uri().path());
    let in_problem_shape = has_problems(request.uri().path());
    let in_sandbox_shape = is_sandbox_path(request.uri().path());
    let given = trace_parent(request.headers());
    let place = given.map_or_else(Traceparent::new, Traceparent::child);
    let span = tracing::info_span!(
        "http.request",
        http.method = method,
        http.route = %route,
        http.status = Empty,
        request.id = id.to_str().unwrap_or_default(),
        tenant.id = Empty,
        trace_id = place.trace_id(),
        span_id = place.span_id(),
        parent_span_id = Empty,
        trace_sampled = place.sampled() && (given.is_some() || !is_polled(&route)),
        otel.kind = "server",
    );
    if let Some(given) = given {
        span.record("parent_span_id", display(given.span_id()));
    }
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let in_flight = metrics::gauge!(metric::IN_FLIGHT);
    in_flight.increment(1.0);
    // A client that goes away drops this future in the middle.
    let _counted = InFlightGuard(in_flight);
    // Jobs recorded meanwhile belong to this trace.
    let mut response = trace::scope(place, next.run(request)).instrument(span.clone()).await;
    if in_tracing_shape {
        response = tracing_shape(response);
    } else if in_problem_shape {
        response = problem_shape(response);
    } else if in_sandbox_shape {
        response = to_sandbox_error(response);
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        // RFC 9110 wants a challenge with every 401.
        let challenge = HeaderValue::from_static("ApiKey");
        response.headers_mut().entry(WWW_AUTHENTICATE).or_insert(challenge);
    }
    secure(response.headers_mut());
    response.headers_mut().insert(REQUEST_ID, id);

    let duration = begun.elapsed();
    let status = response.status().as_u16();
    metrics::counter!(metric::REQUESTS,
        "route" => route.clone(), "method" => method, "status" => class(status))
    .increment(1);
    span.record("http.status", status);
    metrics::histogram!(metric::REQUEST_SECONDS, "route" => route, "method" => method).record(duration);
    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    span.in_scope(|| tracing::debug!(http.status = status, duration_ms, "answered"));
    response
}

/// What every answer says to browsers and caches. A page says more by itself; an answer that says nothing is data of
/// one caller.
fn secure(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (REFERRER_POLICY, "no-referrer"),
        (X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

struct InFlightGuard(metrics::Gauge);

impl Drop for InFlightGuard {
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

/// The W3C `traceparent`, where there is one.
fn trace_parent(headers: &HeaderMap) -> Option<Traceparent> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// What probes, scrapers and open pages ask for again and again: not worth a trace of its own.
fn is_polled(route: &str) -> bool {
    matches!(route, "/livez" | "/readyz" | "/metrics" | "/ok" | "none") || route.starts_with("/ui")
}

/// A label for a status.
const fn class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
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
}
