//! What clients and operators ask about the server itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use towpath_store::Dialect;
use towpath_store::agent_stats::{OpenRuns, open_runs};

use super::answer::Json;
use super::app::AgentApp;
use super::errors::AgentError;
use super::extract::{Flag, Query};
use crate::routes::{Routes, routes};

/// The release of the agent protocol's reference server whose interface this is. Studios refuse to talk to versions
/// they take for old ones, so the product's own version stands beside it.
const PROTOCOL_VERSION: &str = "0.16.7";
/// The release of the graph library whose checkpoints and streams these are.
const GRAPH_LIBRARY_VERSION: &str = "1.2.22";

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(root))
        .routes(routes!(ok))
        .routes(routes!(info))
        .routes(routes!(metrics))
        .routes(routes!(livez))
        .routes(routes!(readyz))
}

/// What is left of them where the graph file turns the others off: whether the server lives.
pub(super) fn probes() -> axum::Router<AgentApp> {
    let alive = || axum::routing::get(livez);
    axum::Router::new()
        .route("/", alive())
        .route("/ok", alive())
        .route("/livez", alive())
        .route("/readyz", axum::routing::get(readyz))
}

/// How health is asked.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HealthQuery {
    /// Also ask what this server depends on.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    check_db: Flag,
}

/// How a live server answers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Ok {
    ok: bool,
    /// `healthy` or `unhealthy`, by dependency, where `check_db` asked for it.
    services: BTreeMap<&'static str, &'static str>,
}

/// Alive.
#[utoipa::path(get, path = "/ok", tag = "system", params(HealthQuery), security(()),
    responses((status = 200, description = "Alive", body = Ok),
              (status = 500, description = "A dependency that it cannot do without is away", body = Ok), AgentError))]
pub(crate) async fn ok(State(app): State<AgentApp>, Query(asked): Query<HealthQuery>) -> Response {
    let mut services = BTreeMap::new();
    let mut ok = true;
    if asked.check_db.0 {
        let readiness = app.ops.health().readiness().await;
        ok = matches!(readiness.status, "ready" | "degraded");
        for (name, state) in readiness.dependencies.unwrap_or_default() {
            services.insert(name, if state.status == "ok" { "healthy" } else { "unhealthy" });
        }
    }
    let status = if ok {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    (status, Json(Ok { ok, services })).into_response()
}

/// Alive, as [`ok`].
#[utoipa::path(get, path = "/", tag = "system", params(HealthQuery), security(()),
    responses((status = 200, description = "Alive", body = Ok),
              (status = 500, description = "A dependency that it cannot do without is away", body = Ok), AgentError))]
pub(crate) async fn root(app: State<AgentApp>, asked: Query<HealthQuery>) -> Response {
    ok(app, asked).await
}

/// Alive: asks no dependency, so a database that is away restarts nobody.
#[utoipa::path(get, path = "/livez", tag = "system", security(()),
    responses((status = 200, description = "Alive", body = Ok)))]
pub(crate) async fn livez() -> Json<Ok> {
    Json(Ok {
        ok: true,
        services: BTreeMap::new(),
    })
}

/// Ready: the process can do its work.
#[utoipa::path(get, path = "/readyz", tag = "system", security(()),
    responses((status = 200, description = "Ready, perhaps degraded", body = crate::ops::Readiness),
              (status = 503, description = "Not ready", body = crate::ops::Readiness)))]
pub(crate) async fn readyz(State(app): State<AgentApp>, headers: HeaderMap) -> Response {
    let mut readiness = app.ops.health().readiness().await;
    if !app.ops.is_authorized(&headers) {
        readiness.dependencies = None;
    }
    let status = if matches!(readiness.status, "ready" | "degraded") {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, [(CACHE_CONTROL, "no-store")], Json(readiness)).into_response()
}

/// What this server is and can.
#[utoipa::path(get, path = "/info", tag = "system", security(()),
    responses((status = 200, description = "Version and abilities", body = Object)))]
pub(crate) async fn info(State(app): State<AgentApp>) -> Json<Value> {
    let deployment = &app.settings.deployment;
    Json(json!({
        "version": PROTOCOL_VERSION,
        "langgraph_py_version": GRAPH_LIBRARY_VERSION,
        "server": { "name": "towpath", "version": env!("CARGO_PKG_VERSION") },
        "flags": {
            "assistants": true,
            "crons": true,
            "langsmith": false,
            "langsmith_tracing_replicas": false,
            "langsmith_tracing_session_on_runs": false,
            "strict_resume": true,
        },
        "host": {
            "kind": "self-hosted",
            "project_id": deployment.project,
            "host_revision_id": deployment.revision,
            "revision_id": deployment.server_revision.as_ref().or(deployment.revision.as_ref()),
            "tenant_id": deployment.tenant,
        },
    }))
}

/// How metrics are written.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MetricsQuery {
    /// `prometheus`, or `json`.
    #[param(pattern = "^(prometheus|json)$")]
    format: Option<String>,
}

/// Metrics: this process's, and how busy the server is.
#[utoipa::path(get, path = "/metrics", tag = "system", params(MetricsQuery), security(()),
    responses((status = 200, description = "Metrics", content((String = "text/plain"), (Object = "application/json"))),
              AgentError))]
pub(crate) async fn metrics(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Query(MetricsQuery { format }): Query<MetricsQuery>,
) -> Result<Response, AgentError> {
    if !app.ops.is_authorized(&headers) {
        return Err(AgentError::new(StatusCode::UNAUTHORIZED, crate::ops::KEY_REQUIRED));
    }
    let open = app
        .store
        .read(async |tx| open_runs(tx, app.tenant).await)
        .await
        .map_err(AgentError::from)?;
    let rendered = app.ops.rendered();
    match format.as_deref() {
        None | Some("prometheus") => {
            let text = rendered.clone() + &prometheus(&app, &open, &rendered);
            let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            Ok((kind, text).into_response())
        }
        Some("json") => Ok(Json(as_json(&app, &open, &rendered)).into_response()),
        Some(_) => Err(AgentError::invalid("format: expected prometheus or json")),
    }
}

struct SlotUsage {
    total: i64,
    busy: i64,
}

/// Slots of one worker process, and how many of them the runs at work would fill.
fn slots(app: &AgentApp, open: &OpenRuns) -> SlotUsage {
    let most = i64::try_from(app.settings.slots).unwrap_or(i64::MAX);
    SlotUsage {
        total: most,
        busy: open.running.min(most),
    }
}

/// The names that dashboards of the reference server use.
fn prometheus(app: &AgentApp, open: &OpenRuns, rendered: &str) -> String {
    let prefix = &app.settings.metric_prefix;
    let SlotUsage { total: most, busy } = slots(app, open);
    let mut text = String::new();
    for (name, about, value) in [
        ("num_pending_runs", "Runs that wait", open.pending),
        ("num_running_runs", "Runs at work", open.running),
        ("workers_max", "Run slots of one worker process", most),
        ("workers_active", "Run slots in use", busy),
        ("workers_available", "Run slots free", most - busy),
    ] {
        let _ = writeln!(
            text,
            "# HELP {prefix}{name} {about}\n# TYPE {prefix}{name} gauge\n{prefix}{name} {value}"
        );
    }
    for (name, about, value) in [
        (
            "pending_runs_wait_time_max",
            "Longest wait in seconds",
            open.longest_wait_seconds,
        ),
        (
            "pending_runs_wait_time_med",
            "Median wait in seconds",
            open.median_wait_seconds,
        ),
        (
            "pending_unblocked_runs_wait_time_max",
            "Longest wait in seconds of a run that nothing stands before",
            open.longest_unblocked_wait_seconds,
        ),
    ] {
        let _ = writeln!(
            text,
            "# HELP {prefix}{name} {about}\n# TYPE {prefix}{name} gauge\n{prefix}{name} {value}"
        );
    }
    if let Some(pool) = PoolUsage::of(app) {
        for (name, about, kind, value) in [
            ("max", "Most connections to the database", "gauge", pool.pool_max),
            ("size", "Connections to the database", "gauge", pool.pool_size),
            (
                "available",
                "Free connections to the database",
                "gauge",
                pool.pool_available,
            ),
            (
                "requests_queued_total",
                "Requests that waited for a connection to the database",
                "counter",
                pool.requests_queued,
            ),
            (
                "requests_errors_total",
                "Requests that got no connection to the database",
                "counter",
                pool.requests_errors,
            ),
        ] {
            let name = format!("{prefix}pg_pool_{name}");
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {value}");
        }
    }
    if let Some(redis) = RedisUsage::of(app) {
        for (name, about, value) in [
            ("max", "Most connections to Redis", redis.pool_max),
            ("size", "Connections to Redis", redis.pool_size),
            (
                "available",
                "Connections to Redis that take commands; all open ones do, at the same time",
                redis.pool_available,
            ),
        ] {
            let name = format!("{prefix}redis_pool_{name}");
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} gauge\n{name} {value}");
        }
    }
    let requests = requests(rendered);
    if !requests.is_empty() {
        let name = format!("{prefix}http_requests_total");
        let _ = writeln!(text, "# HELP {name} HTTP requests answered\n# TYPE {name} counter");
        for Requests {
            method,
            path,
            status,
            count,
        } in requests
        {
            let _ = writeln!(
                text,
                "{name}{{method=\"{method}\",path=\"{path}\",status=\"{status}\"}} {count}"
            );
        }
    }
    text
}

fn as_json(app: &AgentApp, open: &OpenRuns, rendered: &str) -> Value {
    let SlotUsage { total: most, busy } = slots(app, open);
    let mut all = json!({
        "queue": {
            "n_pending": open.pending,
            "n_running": open.running,
            "pending_runs_wait_time_max_secs": open.longest_wait_seconds,
            "pending_runs_wait_time_med_secs": open.median_wait_seconds,
            "pending_unblocked_runs_wait_time_max_secs": open.longest_unblocked_wait_seconds,
        },
        "workers": { "max": most, "active": busy, "available": most - busy },
        "api": { "http_requests_total": requests(rendered) },
    });
    if let Some(pool) = PoolUsage::of(app) {
        all["postgres"] = json!(pool);
    }
    if let Some(redis) = RedisUsage::of(app) {
        all["redis"] = json!(redis);
    }
    all
}

/// Connections of this process to PostgreSQL, by the names of the reference server.
#[derive(Serialize)]
struct PoolUsage {
    pool_max: u64,
    pool_size: u64,
    pool_available: u64,
    requests_queued: u64,
    requests_errors: u64,
}

impl PoolUsage {
    fn of(app: &AgentApp) -> Option<Self> {
        let connections = app.store.connections();
        (app.store.dialect() == Dialect::Postgres).then(|| Self {
            pool_max: connections.limit.into(),
            pool_size: u64::from(connections.busy) + u64::from(connections.idle),
            pool_available: connections.idle.into(),
            requests_queued: connections.waits,
            requests_errors: connections.failures,
        })
    }
}

/// Connections of this process to Redis, by the names of the reference server. They are few and fixed: each carries many
/// commands at a time.
#[derive(Serialize)]
struct RedisUsage {
    pool_max: u32,
    pool_size: u32,
    pool_available: u32,
}

impl RedisUsage {
    fn of(app: &AgentApp) -> Option<Self> {
        let connections = app.queue.connections()?;
        Some(Self {
            pool_max: app.settings.redis_connections.unwrap_or(connections.needed),
            pool_size: connections.open,
            pool_available: connections.open,
        })
    }
}

/// Requests of one kind.
#[derive(Debug, PartialEq, Serialize)]
struct Requests {
    method: String,
    path: String,
    status: String,
    count: u64,
}

/// Reads them out of this process's own metrics.
fn requests(rendered: &str) -> Vec<Requests> {
    let lines = rendered
        .lines()
        .filter_map(|line| line.strip_prefix("towpath_http_requests_total{"));
    lines
        .filter_map(|line| {
            let (labels, count) = line.rsplit_once("} ")?;
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value.to_owned())
            };
            Some(Requests {
                method: label("method")?,
                path: label("route")?,
                status: label("status")?,
                count: count.trim().parse().ok()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_from_the_processes_own_metrics() {
        let rendered = "# TYPE x counter\n\
            towpath_http_requests_total{route=\"/threads/{thread_id}\",method=\"GET\",status=\"200\"} 7\n\
            towpath_http_requests_in_flight 1\n";
        let found = requests(rendered);
        assert_eq!(
            found,
            [Requests {
                method: "GET".into(),
                path: "/threads/{thread_id}".into(),
                status: "200".into(),
                count: 7
            }]
        );
    }
}
