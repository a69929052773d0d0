//! What operators and their machines ask of every role: is it alive, is it ready, how is it doing.

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

/// What whoever asks for metrics without the key is told.
pub(crate) const WANTS_KEY: &str = "metrics are behind a key here: send that of metrics.key as a bearer token";
/// A dependency that does not answer within this is away.
const PATIENCE: Duration = Duration::from_secs(2);
/// A readiness answer is given again for this long, so that probes cannot load a dependency.
const FRESH: Duration = Duration::from_secs(1);

/// Health and metrics of a process; clones share them.
#[derive(Clone)]
pub struct Ops {
    health: Arc<Health>,
    metrics: PrometheusHandle,
    gauges: Arc<dyn Fn() + Send + Sync>,
    /// Opens what is more than a word about health; everybody may look where there is none.
    key: Option<KeyHash>,
}

impl Ops {
    /// Joins the two.
    #[must_use]
    pub fn new(health: Health, metrics: PrometheusHandle) -> Self {
        Self {
            health: Arc::new(health),
            metrics,
            gauges: Arc::new(|| {}),
            key: None,
        }
    }

    /// Calls `gauges` before metrics are given out, to set what is only known by looking.
    #[must_use]
    pub fn looking(mut self, gauges: impl Fn() + Send + Sync + 'static) -> Self {
        self.gauges = Arc::new(gauges);
        self
    }

    /// Asks for this key before it gives out metrics or names dependencies.
    #[must_use]
    pub fn behind(mut self, key: Option<&Secret>) -> Self {
        self.key = key.map(|key| KeyHash::of(key.reveal().as_bytes()));
        self
    }

    /// Whether whoever sent these may see metrics and dependencies. A scraper sends the key as a bearer token, people
    /// where they send others.
    pub(crate) fn opens(&self, headers: &HeaderMap) -> bool {
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

    /// Everything measured, in Prometheus' text format.
    pub(crate) fn rendered(&self) -> String {
        (self.gauges)();
        self.metrics.render()
    }
}

/// Asks a dependency whether it works; the error says why not, in words that anybody may read: a literal, so that no
/// foreign text slips through.
pub type Probe = Box<dyn Fn() -> BoxFuture<'static, Result<(), &'static str>> + Send + Sync>;

/// What this process needs to do its work.
pub struct Health {
    draining: CancellationToken,
    checks: Vec<Check>,
    last: Mutex<Option<(Instant, Readiness)>>,
}

struct Check {
    name: &'static str,
    need: Need,
    probe: Probe,
}

/// What a process is without something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Not ready.
    Required,
    /// Degraded.
    Wanted,
    /// As ready as with it: another process does that part of the work.
    Told,
}

/// How ready a process is.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// `ready`; `degraded`: ready, but something is slower or partly away; `unavailable` and `draining`: send nothing.
    pub status: &'static str,
    /// Each dependency, where `?verbose` asked for it.
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
    pub error: Option<&'static str>,
    /// Whether this process can do nothing without it.
    pub required: bool,
    /// How long it took to answer, in milliseconds.
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
            need: Need::Required,
            probe,
        });
        self
    }

    /// Without this dependency the process is degraded, and still ready (`redis`, `objects`): taking every replica
    /// out of service would help nobody.
    #[must_use]
    pub fn want(mut self, name: &'static str, probe: Probe) -> Self {
        self.checks.push(Check {
            name,
            need: Need::Wanted,
            probe,
        });
        self
    }

    /// A part of the work that is another process's where the probe says so, which makes this one no less ready
    /// (`deployments`).
    #[must_use]
    pub fn tell(mut self, name: &'static str, probe: Probe) -> Self {
        self.checks.push(Check {
            name,
            need: Need::Told,
            probe,
        });
        self
    }

    /// Records which dependencies answer.
    async fn record(&self) {
        for (name, state) in self.readiness().await.dependencies.unwrap_or_default() {
            let up = if state.status == "unavailable" { 0.0 } else { 1.0 };
            metrics::gauge!(metric::DEPENDENCY_UP, "dependency" => name).set(up);
        }
    }

    /// Asks all dependencies at once, or gives the last answer where it is fresh.
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
            && asked_at.elapsed() < FRESH
        {
            return readiness.clone();
        }
        let dependencies: BTreeMap<_, _> = join_all(self.checks.iter().map(ask)).await.into_iter().collect();
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

async fn ask(check: &Check) -> (&'static str, Dependency) {
    let begun = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, (check.probe)())
        .await
        .unwrap_or(Err("no answer in time"));
    let error = answer.err();
    if let (Some(error), false) = (error, check.need == Need::Told) {
        tracing::warn!(dependency.name = check.name, error, "a dependency is away");
    }
    let status = match (error, check.need) {
        (None, _) => "ok",
        (Some(_), Need::Told) => "standby",
        (Some(_), Need::Required | Need::Wanted) => "unavailable",
    };
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    (
        check.name,
        Dependency {
            status,
            error,
            required: check.need == Need::Required,
            duration_ms,
        },
    )
}

/// Health and metrics alone, for roles without an API.
pub fn health_router(ops: Ops) -> Router {
    crate::layers::plain(routes(ops))
}

/// The routes; they stand outside of the limits that guard the API.
pub(crate) fn routes(ops: Ops) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/ok", get(ok))
        .route("/metrics", get(metrics))
        .with_state(ops)
}

/// Alive: the process answers. Asks no dependency, so a database that is away restarts nobody.
#[utoipa::path(get, path = "/livez", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Ok)))]
pub(crate) async fn livez() -> Json<Ok> {
    Json(Ok { ok: true })
}

/// Alive, as the official clients ask it.
#[utoipa::path(get, path = "/ok", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Ok)))]
pub(crate) async fn ok() -> Json<Ok> {
    Json(Ok { ok: true })
}

/// The answer of a live process.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Ok {
    ok: bool,
}

/// Ready: the process can do its work. `?verbose` names each dependency.
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
    if !verbose || !ops.opens(&headers) {
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

/// Metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(()),
    responses((status = 200, description = "Metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    if !ops.opens(&headers) {
        return ApiError::unauthorized(WANTS_KEY).into_response();
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
pub(crate) struct Described;
