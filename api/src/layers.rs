//! What surrounds every request: its id, its span, its metrics, a net for panics, the limit on how many at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Body as _;
use tower_http::catch_panic::CatchPanicLayer;
use towpath_domain::{DiskStatus, RequestId, Traceparent};
use towpath_durable::trace;
use towpath_traces::wal::Wal;
use tracing::Instrument as _;
use tracing::field::{Empty, display};

use crate::agent::AgentError;
use crate::app::App;
use crate::concurrency::ConcurrencyLimit;
use crate::errors::{ApiError, problem_shape, to_sandbox_error, tracing_shape};
use crate::request_permits::{self, PermitRefusal};
use crate::{limits, metric};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Who finds no room on the disk may come back then.
const DISK_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The layers of routes that always answer: health, metrics.
pub(crate) fn wrap_unlimited(router: Router) -> Router {
    with_observation(with_not_found(router))
}

/// What no route takes is answered too.
fn with_not_found(router: Router) -> Router {
    router
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
}

fn with_observation(router: Router) -> Router {
    router.layer(CatchPanicLayer::custom(panicked)).layer(from_fn(observe))
}

/// The layers of an API that works on at most `requests` at once and brings trace data into `wal`; `ops` stays outside of
/// that limit. How often one caller may ask is looked at before.
pub(crate) fn wrap_platform(router: Router, ops: Router, app: App) -> Router {
    let (requests, wal, disk) = (app.settings.max_requests, app.wal.clone(), app.disk.clone());
    let gates = Arc::new(IngressLimits {
        all: Arc::new(ConcurrencyLimit::new(requests)),
        // Whatever comes in as traces, somebody can still look at what is going on.
        ingest: Arc::new(ConcurrencyLimit::new(requests - requests / 4)),
        wal,
        disk,
    });
    let router = router.layer(from_fn_with_state(gates, limit)).merge(ops);
    let router = with_not_found(router);
    let router = if app.limits.are_on() {
        router.layer(from_fn_with_state(app, limits::count_requests))
    } else {
        router
    };
    with_observation(router)
}

struct IngressLimits {
    all: Arc<ConcurrencyLimit>,
    ingest: Arc<ConcurrencyLimit>,
    wal: Wal,
    disk: DiskStatus,
}

/// As [`limited`], with refusals in the shape of the agent surface. What no route takes goes to `rest`.
pub(crate) fn wrap_agent(router: Router, ops: Router, rest: Router, requests: usize) -> Router {
    let places = Arc::new(ConcurrencyLimit::new(requests));
    router
        .layer(from_fn_with_state(places, limit_agent))
        .merge(ops)
        .fallback_service(rest)
        .method_not_allowed_fallback(no_such_agent_method)
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
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this route does not support this method",
    )
}

/// As the clients of agent servers know it; axum adds `Allow`.
pub(crate) async fn no_such_agent_method() -> AgentError {
    AgentError::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

/// Refuses rather than queues: a client that is told when to come back can wait without holding memory here. Stands
/// before keys are looked at and bodies are kept, so refusing costs next to nothing.
async fn limit(State(gates): State<Arc<IngressLimits>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    if gates.disk.is_low() && stores_body(method, path) {
        return insufficient_storage().into_response();
    }
    let through = if is_ingest(method, path) {
        if let Err(wait) = gates.wal.admit(request.body().size_hint().lower()) {
            metrics::counter!(metric::SHED, "reason" => "backlog").increment(1);
            return ApiError::too_many("trace data arrives faster than it is processed", wait).into_response();
        }
        vec![Arc::clone(&gates.ingest), Arc::clone(&gates.all)]
    } else {
        vec![Arc::clone(&gates.all)]
    };
    request_permits::with_permits(through, request, next)
        .await
        .unwrap_or_else(too_many_requests)
}

fn too_many_requests(full: PermitRefusal) -> Response {
    full.refusal().into_response()
}

/// Refuses what would be kept where there is hardly any room.
pub(crate) fn insufficient_storage() -> ApiError {
    metrics::counter!(metric::SHED, "reason" => "disk").increment(1);
    let text = "the disk is nearly full: new data is rejected until space is freed";
    ApiError::insufficient_storage(text, DISK_RETRY_AFTER)
}

/// Whether what is sent there is kept on the disk.
pub(crate) fn stores_body(method: &Method, path: &str) -> bool {
    let bare = path.strip_prefix("/api-host").unwrap_or(path);
    is_ingest(method, path)
        || is_example_write(method, path)
        || is_prompt_write(method, path)
        || is_sandbox_write(method, path)
        || (*method == Method::PUT && bare.starts_with("/v2/uploads/"))
}

/// Whether a request makes a sandbox, or brings or copies files of one.
fn is_sandbox_write(method: &Method, path: &str) -> bool {
    let path = path.strip_prefix("/api").unwrap_or(path);
    let grows =
        |rest: &str| rest == "boxes" || ["/upload", "/snapshot", "/clone"].iter().any(|end| rest.ends_with(end));
    *method == Method::POST && path.strip_prefix("/v2/sandboxes/").is_some_and(grows)
}

/// Whether a request brings examples of datasets.
fn is_example_write(method: &Method, path: &str) -> bool {
    let path = path.strip_prefix("/api").unwrap_or(path);
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let path = path.strip_prefix("/platform").unwrap_or(path);
    let brings = path == "/datasets/upload"
        || path.starts_with("/examples")
        || (path.starts_with("/datasets/") && path.ends_with("/examples"));
    brings && matches!(*method, Method::POST | Method::PATCH)
}

/// Whether a request brings a prompt or a commit of one.
fn is_prompt_write(method: &Method, path: &str) -> bool {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    *method == Method::POST && (path.starts_with("/repos") || path.starts_with("/commits"))
}

/// Whether a request brings trace data.
fn is_ingest(method: &Method, path: &str) -> bool {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    if let Some(token) = path.strip_prefix("/feedback/tokens") {
        // Through a link, which is made like anything else.
        return token.len() > 1 && matches!(*method, Method::POST | Method::GET);
    }
    matches!(*method, Method::POST | Method::PATCH)
        && (path.starts_with("/runs") || path.starts_with("/feedback") || path.starts_with("/otel"))
        && !path.starts_with("/runs/query")
        && path != "/runs/stats"
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

async fn limit_agent(State(places): State<Arc<ConcurrencyLimit>>, request: Request, next: Next) -> Response {
    let held = request_permits::with_permits(vec![places], request, next).await;
    held.unwrap_or_else(|full| AgentError::of(&full.refusal()).into_response())
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
    metrics::counter!(metric::PANICS).increment(1);
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

/// Whether the tracing clients call this path, bare or under `/api/v1`.
pub(crate) fn is_tracing(path: &str) -> bool {
    let path = path.strip_prefix("/api/v1").unwrap_or(path);
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(
        first,
        "runs" | "sessions" | "feedback" | "info" | "settings" | "attachments" | "otel"
    )
}

/// Whether errors of a route are problem details.
pub(crate) fn has_problems(path: &str) -> bool {
    path.starts_with("/api/v2/") && !is_sandbox_path(path)
}

/// Whether the clients of sandboxes call this path.
pub(crate) fn is_sandbox_path(path: &str) -> bool {
    let path = path.strip_prefix("/api").unwrap_or(path);
    path.strip_prefix("/v2/sandboxes")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
