//! What surrounds the requests of the platform: limits on how many at once and how often, and room for what they bring.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use towpath_domain::DiskStatus;
use towpath_traces::wal::Wal;

use crate::app::App;
use crate::concurrency::ConcurrencyLimit;
use crate::errors::ApiError;
use crate::layers::{too_many_requests, with_not_found, with_observation};
use crate::paths::{is_ingest, stores_body};
use crate::{metric, request_permits};

/// Who finds no room on the disk may come back then.
const DISK_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The layers of an API that works on at most `requests` at once and brings trace data into `wal`; `ops` stays outside of
/// that limit. How often one caller may ask is looked at before.
pub(crate) fn wrap(router: Router, ops: Router, app: App) -> Router {
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
        router.layer(from_fn_with_state(app, count_requests))
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

/// The layer around every route of the platform, and around what has none.
async fn count_requests(State(app): State<App>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match app.limits.count_request(app.authenticator(), &parts).await {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refusal) => refusal.into_response(),
    }
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

/// Refuses what would be kept where there is hardly any room.
pub(crate) fn insufficient_storage() -> ApiError {
    metrics::counter!(metric::SHED, "reason" => "disk").increment(1);
    let text = "the disk is nearly full: new data is rejected until space is freed";
    ApiError::insufficient_storage(text, DISK_RETRY_AFTER)
}
