//! What operators and their machines ask of every role: is it alive, is it ready, how is it doing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::{BoxFuture, join_all};
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use towpath_domain::Secret;
use towpath_store::access::KeyHash;

use crate::errors::ApiError;
use crate::extract::Json;
use crate::metric;

/// Response to a request for metrics without the key.
pub(crate) const KEY_REQUIRED: &str = "metrics require a key: send metrics.key as a bearer token";
/// A dependency that does not respond within this time is unavailable.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Readiness is cached for this long, so that probes cannot overload a dependency.
const READINESS_TTL: Duration = Duration::from_secs(1);

/// Health and metrics of a process; clones share them.
#[derive(Clone)]
pub struct Ops {
    health: Arc<Health>,
    metrics: PrometheusHandle,
    gauges: Arc<dyn Fn() + Send + Sync>,
    /// Key for details of health; without one they are public.
    key: Option<KeyHash>,
}

impl Ops {
    #[must_use]
    pub fn new(health: Health, metrics: PrometheusHandle) -> Self {
        Self {
            health: Arc::new(health),
            metrics,
            gauges: Arc::new(|| {}),
            key: None,
        }
    }

    /// Calls `gauges` before metrics are rendered, for values that must be measured on demand.
    #[must_use]
    pub fn with_gauges(mut self, gauges: impl Fn() + Send + Sync + 'static) -> Self {
        self.gauges = Arc::new(gauges);
        self
    }

    /// Requires this key for metrics and names of dependencies.
    #[must_use]
    pub fn with_key(mut self, key: Option<&Secret>) -> Self {
        self.key = key.map(|key| KeyHash::of(key.reveal().as_bytes()));
        self
    }

    /// Whether a request may see metrics and dependencies. Scrapers send the key as a bearer token, people in the usual
    /// header.
    pub(crate) fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return true };
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|text| text.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let sent = bearer
            .map(|(_, token)| token.trim().as_bytes())
            .or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes));
        // Of hashes, how long a comparison takes says nothing about the key.
        sent.is_some_and(|sent| KeyHash::of(sent) == *key)
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// All metrics in the Prometheus text format.
    pub(crate) fn rendered(&self) -> String {
        (self.gauges)();
        self.metrics.render()
    }
}

/// Checks a dependency. The error is public, so it has no foreign text: a literal, or one with names of our own.
pub type Probe = Box<dyn Fn() -> BoxFuture<'static, Result<(), Cow<'static, str>>> + Send + Sync>;

/// A dependency of this process.
pub struct Health {
    draining: CancellationToken,
    checks: Vec<Check>,
    last: Mutex<Option<(Instant, Readiness)>>,
}

struct Check {
    name: &'static str,
    criticality: Criticality,
    probe: Probe,
}

/// Effect of a missing dependency.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Criticality {
    /// Not ready.
    Required,
    /// Degraded.
    Optional,
    /// Ready: another process does this part of the work.
    Informational,
}

/// Readiness of a process.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// `ready`; `degraded`: ready, but slower or partly unavailable; `unavailable` and `draining`: send no requests.
    pub status: &'static str,
    /// Dependencies, with `?verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<BTreeMap<&'static str, Dependency>>,
}

/// The state of one dependency.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Dependency {
    /// `ok` or `unavailable`; `standby`: another process does this part of the work.
    pub status: &'static str,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub error: Option<Cow<'static, str>>,
    /// Whether the process cannot work without it.
    pub required: bool,
    /// Response time in milliseconds.
    pub duration_ms: u64,
}

impl Health {
    /// A process that is ready until `draining` is cancelled.
    #[must_use]
    pub fn new(draining: CancellationToken) -> Self {
        Self {
            draining,
            checks: Vec::new(),
            last: Mutex::default(),
        }
    }

    /// Without this dependency the process is not ready (`database`).
    #[must_use]
    pub fn require(mut self, name: &'static str, probe: Probe) -> Self {
        self.checks.push(Check {
            name,
            criticality: Criticality::Required,
            probe,
        });
        self
    }

    /// Without this dependency the process is degraded but ready (`redis`, `objects`, `workers`): taking all replicas out of
    /// service would not help.
    #[must_use]
    pub fn optional(mut self, name: &'static str, probe: Probe) -> Self {
        self.checks.push(Check {
            name,
            criticality: Criticality::Optional,
            probe,
        });
        self
    }

    /// A part of the work that another process may do; it does not affect readiness (`deployments`).
    #[must_use]
    pub fn informational(mut self, name: &'static str, probe: Probe) -> Self {
        self.checks.push(Check {
            name,
            criticality: Criticality::Informational,
            probe,
        });
        self
    }

    /// Records the state of dependencies.
    async fn record(&self) {
        for (name, state) in self.readiness().await.dependencies.unwrap_or_default() {
            let up = if state.status == "unavailable" { 0.0 } else { 1.0 };
            metrics::gauge!(metric::DEPENDENCY_UP, "dependency" => name).set(up);
        }
    }

    /// Checks all dependencies at once, or returns the cached result.
    pub async fn readiness(&self) -> Readiness {
        if self.draining.is_cancelled() {
            return Readiness {
                status: "draining",
                dependencies: None,
            };
        }
        // Held while asking: probes that come meanwhile share the answer.
        let mut last = self.last.lock().await;
        if let Some((asked_at, readiness)) = &*last
            && asked_at.elapsed() < READINESS_TTL
        {
            return readiness.clone();
        }
        let dependencies: BTreeMap<_, _> = join_all(self.checks.iter().map(run_check)).await.into_iter().collect();
        let away = |required| {
            dependencies
                .values()
                .any(|state| state.status == "unavailable" && state.required == required)
        };
        let status = match (away(true), away(false)) {
            (true, _) => "unavailable",
            (false, true) => "degraded",
            (false, false) => "ready",
        };
        let readiness = Readiness {
            status,
            dependencies: Some(dependencies),
        };
        *last = Some((Instant::now(), readiness.clone()));
        readiness
    }
}

async fn run_check(check: &Check) -> (&'static str, Dependency) {
    let begun = Instant::now();
    let answer = tokio::time::timeout(PROBE_TIMEOUT, (check.probe)())
        .await
        .unwrap_or(Err(Cow::Borrowed("no answer in time")));
    let error = answer.err();
    if let (Some(error), false) = (&error, check.criticality == Criticality::Informational) {
        tracing::warn!(
            dependency.name = check.name,
            error = &**error,
            "a dependency is unavailable"
        );
    }
    let status = match (&error, check.criticality) {
        (None, _) => "ok",
        (Some(_), Criticality::Informational) => "standby",
        (Some(_), Criticality::Required | Criticality::Optional) => "unavailable",
    };
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    (
        check.name,
        Dependency {
            status,
            error,
            required: check.criticality == Criticality::Required,
            duration_ms,
        },
    )
}

/// Health and metrics routes, for roles without an API.
pub fn health_router(ops: Ops) -> Router {
    crate::layers::wrap_unlimited(routes(ops))
}

/// Health and metrics routes, outside of the limits of the API.
pub(crate) fn routes(ops: Ops) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/ok", get(ok))
        .route("/metrics", get(metrics))
        .with_state(ops)
}

/// Liveness: the process responds. Checks no dependency, so an unavailable database does not cause restarts.
#[utoipa::path(get, path = "/livez", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Ok)))]
pub(crate) async fn livez() -> Json<Ok> {
    Json(Ok { ok: true })
}

/// Liveness, at the path of the official clients.
#[utoipa::path(get, path = "/ok", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Ok)))]
pub(crate) async fn ok() -> Json<Ok> {
    Json(Ok { ok: true })
}

/// Response of a live process.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Ok {
    ok: bool,
}

/// Readiness: the process can do its work. `?verbose` lists the dependencies.
#[utoipa::path(get, path = "/readyz", tag = "operations", security(()),
    params(("verbose" = Option<String>, Query, allow_reserved, description = "Name each dependency; needs no value")),
    responses((status = 200, description = "Ready, perhaps degraded", body = Readiness),
              (status = 503, description = "Not ready", body = Readiness)))]
pub(crate) async fn readyz(State(ops): State<Ops>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    let mut readiness = ops.health.readiness().await;
    let verbose = query.as_deref().unwrap_or_default().split('&').any(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        name == "verbose" && !matches!(value, "0" | "false")
    });
    if !verbose || !ops.is_authorized(&headers) {
        readiness.dependencies = None;
    }
    let ready = matches!(readiness.status, "ready" | "degraded");
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, [(CACHE_CONTROL, "no-store")], Json(readiness)).into_response()
}

/// Get metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(()),
    responses((status = 200, description = "Metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    if !ops.is_authorized(&headers) {
        return ApiError::unauthorized(KEY_REQUIRED).into_response();
    }
    (ops.gauges)();
    ops.health.record().await;
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        ops.metrics.render(),
    )
        .into_response()
}

/// For the API description only: the routes themselves stand outside of its router.
#[derive(utoipa::OpenApi)]
#[openapi(paths(livez, readyz, ok, metrics))]
pub(crate) struct HealthRoutes;
