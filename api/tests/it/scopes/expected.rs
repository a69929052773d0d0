//! What each operation answers to a key that may call it, where everything it names is unknown.

use http::Method;

use crate::world::Call;

/// What is sent with a request.
#[derive(Clone, Copy)]
enum Body {
    Nothing,
    Json(&'static str),
    /// Of a kind and an encoding that no route reads.
    Unread,
    /// The same, of trace data.
    UnreadTraces,
}

/// An operation, what is sent to it, and what it answers.
pub struct Row {
    pub method: &'static str,
    pub path: &'static str,
    body: Body,
    pub status: u16,
}

impl Row {
    /// A call with the row's body.
    pub fn filled(&self, call: Call) -> Call {
        match self.body {
            Body::Nothing => call,
            Body::Json(text) => call.header("content-type", "application/json").body(text),
            Body::Unread => call.header("content-type", "text/plain").body("-"),
            Body::UnreadTraces => call
                .header("content-type", "text/plain")
                .header("content-encoding", "br")
                .body("-"),
        }
    }

    /// Whether it takes trace data.
    pub const fn is_ingest(&self) -> bool {
        matches!(self.body, Body::UnreadTraces)
    }
}

const fn bare(method: &'static str, path: &'static str, status: u16) -> Row {
    Row {
        method,
        path,
        body: Body::Nothing,
        status,
    }
}

const fn json(method: &'static str, path: &'static str, body: &'static str, status: u16) -> Row {
    Row {
        method,
        path,
        body: Body::Json(body),
        status,
    }
}

/// Refused for its body, behind the look at the key.
const fn unread(method: &'static str, path: &'static str) -> Row {
    Row {
        method,
        path,
        body: Body::Unread,
        status: 415,
    }
}

const fn traces(method: &'static str, path: &'static str) -> Row {
    Row {
        method,
        path,
        body: Body::UnreadTraces,
        status: 415,
    }
}

pub const ROWS: &[Row] = &[
    bare("GET", "/api/v1/bulk-exports", 200),
    unread("POST", "/api/v1/bulk-exports"),
    bare("GET", "/api/v1/bulk-exports/destinations", 200),
    unread("POST", "/api/v1/bulk-exports/destinations"),
    bare("GET", "/api/v1/bulk-exports/destinations/{destination_id}", 404),
    json("PATCH", "/api/v1/bulk-exports/destinations/{destination_id}", "{}", 404),
    bare("DELETE", "/api/v1/bulk-exports/destinations/{destination_id}", 404),
    // Whose runs is missing.
    bare("GET", "/api/v1/bulk-exports/runs", 422),
    bare("GET", "/api/v1/bulk-exports/{export_id}", 404),
    json(
        "PATCH",
        "/api/v1/bulk-exports/{export_id}",
        r#"{"status": "CANCELLED"}"#,
        404,
    ),
    bare("GET", "/api/v1/bulk-exports/{export_id}/runs", 404),
    bare("GET", "/api/v1/bulk-exports/{export_id}/runs/{run_id}", 404),
    traces("POST", "/runs/multipart"),
    traces("POST", "/runs/batch"),
    traces("POST", "/runs"),
    traces("PATCH", "/runs/{run_id}"),
    traces("POST", "/otel/v1/traces"),
    traces("POST", "/otel/v1/logs"),
    bare("GET", "/runs/{run_id}", 404),
    unread("POST", "/runs/query"),
    unread("POST", "/runs/query/validate"),
    unread("POST", "/runs/stats"),
    unread("POST", "/api/v2/runs/query"),
    bare("GET", "/api/v2/runs/{run_id}", 404),
    // Which project is missing.
    bare("GET", "/api/v2/runs/{run_id}/url", 422),
    unread("POST", "/api/v2/traces/query"),
    bare("GET", "/api/v2/traces/{trace_id}/runs", 422),
    unread("POST", "/api/v2/threads/query"),
    bare("GET", "/api/v2/threads/{thread_id}/traces", 422),
    bare("GET", "/api/v2/threads/{thread_id}/stats", 422),
    unread("POST", "/api/v2/threads/stats"),
    traces("POST", "/feedback"),
    bare("GET", "/feedback", 200),
    bare("GET", "/feedback/{feedback_id}", 404),
    json("PATCH", "/feedback/{feedback_id}", "{}", 404),
    bare("DELETE", "/feedback/{feedback_id}", 404),
    unread("POST", "/feedback/tokens"),
    // Which run is missing.
    bare("GET", "/feedback/tokens", 422),
    unread("POST", "/sessions"),
    bare("GET", "/sessions", 200),
    bare("GET", "/sessions/{session_id}", 404),
    json("PATCH", "/sessions/{session_id}", "{}", 404),
    bare("DELETE", "/sessions/{session_id}", 404),
    unread("POST", "/datasets"),
    bare("GET", "/datasets", 200),
    unread("POST", "/datasets/upload"),
    unread("POST", "/datasets/comparative"),
    bare("DELETE", "/datasets/comparative/{comparative_experiment_id}", 404),
    bare("GET", "/datasets/{dataset_id}", 404),
    json("PATCH", "/datasets/{dataset_id}", "{}", 404),
    bare("DELETE", "/datasets/{dataset_id}", 404),
    bare("PUT", "/datasets/{dataset_id}/share", 404),
    bare("GET", "/datasets/{dataset_id}/share", 404),
    bare("GET", "/datasets/{dataset_id}/comparative", 404),
    unread("POST", "/datasets/{dataset_id}/runs"),
    bare("GET", "/datasets/{dataset_id}/splits", 404),
    unread("PUT", "/datasets/{dataset_id}/splits"),
    unread("PUT", "/datasets/{dataset_id}/tags"),
    // Which version is missing.
    bare("GET", "/datasets/{dataset_id}/version", 400),
    bare("GET", "/datasets/{dataset_id}/versions", 404),
    bare("GET", "/datasets/{dataset_id}/versions/diff", 422),
    unread("POST", "/examples"),
    // Which ones is missing.
    bare("GET", "/examples", 400),
    bare("DELETE", "/examples", 422),
    unread("POST", "/examples/bulk"),
    unread("PATCH", "/examples/bulk"),
    bare("GET", "/examples/{example_id}", 404),
    json("PATCH", "/examples/{example_id}", "{}", 404),
    bare("DELETE", "/examples/{example_id}", 404),
    unread("POST", "/v1/platform/datasets/{dataset_id}/examples"),
    unread("PATCH", "/v1/platform/datasets/{dataset_id}/examples"),
    unread("POST", "/v1/platform/examples/multipart"),
    unread("PATCH", "/v1/platform/datasets/{dataset_id}/examples/metadata"),
    unread("POST", "/v1/platform/datasets/examples/delete"),
    bare(
        "DELETE",
        "/v1/platform/datasets/{dataset_id}/examples/{example_id}",
        404,
    ),
    bare("GET", "/model-price-map", 200),
    unread("POST", "/model-price-map"),
    bare("POST", "/model-price-map/reprice", 202),
    unread("PUT", "/model-price-map/{model_price_id}"),
    bare("DELETE", "/model-price-map/{model_price_id}", 404),
    unread("POST", "/feedback-configs"),
    bare("GET", "/feedback-configs", 200),
    unread("PATCH", "/feedback-configs"),
    // Which one is missing.
    bare("DELETE", "/feedback-configs", 400),
    unread("POST", "/repos"),
    bare("GET", "/repos", 200),
    unread("POST", "/repos/"),
    bare("GET", "/repos/", 200),
    bare("GET", "/repos/{owner}/{repo}", 404),
    json("PATCH", "/repos/{owner}/{repo}", "{}", 404),
    bare("DELETE", "/repos/{owner}/{repo}", 404),
    unread("POST", "/repos/{owner}/{repo}/tags"),
    bare("GET", "/repos/{owner}/{repo}/tags", 404),
    bare("GET", "/repos/{owner}/{repo}/tags/{tag_name}", 404),
    unread("PATCH", "/repos/{owner}/{repo}/tags/{tag_name}"),
    bare("DELETE", "/repos/{owner}/{repo}/tags/{tag_name}", 404),
    unread("POST", "/commits/{owner}/{repo}"),
    bare("GET", "/commits/{owner}/{repo}", 404),
    bare("GET", "/commits/{owner}/{repo}/", 404),
    bare("GET", "/commits/{owner}/{repo}/{commit}", 404),
    unread("POST", "/likes/{owner}/{repo}"),
    bare("GET", "/v1/platform/hub/repos/{owner}/{repo}/directories", 404),
    bare("DELETE", "/v1/platform/hub/repos/{owner}/{repo}/directories", 404),
    bare("POST", "/v1/platform/hub/repos/{owner}/{repo}/directories/commits", 404),
    unread("POST", "/annotation-queues"),
    bare("GET", "/annotation-queues", 200),
    bare("GET", "/annotation-queues/{queue_id}", 404),
    json("PATCH", "/annotation-queues/{queue_id}", "{}", 404),
    bare("DELETE", "/annotation-queues/{queue_id}", 404),
    unread("POST", "/annotation-queues/{queue_id}/runs"),
    bare("GET", "/annotation-queues/{queue_id}/runs", 404),
    unread("POST", "/annotation-queues/{queue_id}/runs/by-key"),
    // The place is no number.
    bare("GET", "/annotation-queues/{queue_id}/run/{index}", 422),
    bare("DELETE", "/annotation-queues/{queue_id}/runs/{queue_run_id}", 404),
    bare("GET", "/settings", 200),
    unread("POST", "/v2/deployments"),
    bare("GET", "/v2/deployments", 200),
    // Which ones is missing.
    bare("DELETE", "/v2/deployments", 422),
    bare("GET", "/v2/deployments/{deployment_id}", 404),
    json("PATCH", "/v2/deployments/{deployment_id}", "{}", 404),
    bare("DELETE", "/v2/deployments/{deployment_id}", 404),
    json("POST", "/v2/deployments/{deployment_id}/keys", "{}", 404),
    bare("POST", "/v2/deployments/{deployment_id}/push-token", 404),
    json("POST", "/v2/deployments/{deployment_id}/upload-url", "{}", 404),
    bare("POST", "/v2/deployments/{deployment_id}/revisions", 404),
    bare("GET", "/v2/deployments/{deployment_id}/revisions", 404),
    bare("GET", "/v2/deployments/{deployment_id}/revisions/{revision_id}", 404),
    bare(
        "POST",
        "/v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy",
        404,
    ),
    bare(
        "POST",
        "/v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt",
        404,
    ),
    bare(
        "POST",
        "/v1/projects/{project_id}/revisions/{revision_id}/interrupt",
        404,
    ),
    json(
        "POST",
        "/v1/projects/{project_id}/revisions/{revision_id}/build_logs",
        "{}",
        404,
    ),
    json(
        "POST",
        "/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs",
        "{}",
        404,
    ),
    json("POST", "/v1/projects/{project_id}/deploy_logs", "{}", 404),
    bare("GET", "/v2/image-pull-secrets", 200),
    unread("PUT", "/v2/image-pull-secrets/{name}"),
    bare("DELETE", "/v2/image-pull-secrets/{name}", 404),
    bare("GET", "/v2/listeners", 200),
    unread("POST", "/v2/listeners"),
    bare("GET", "/v2/listeners/{listener_id}", 404),
    json("PATCH", "/v2/listeners/{listener_id}", "{}", 404),
    bare("DELETE", "/v2/listeners/{listener_id}", 404),
    bare("GET", "/v1/integrations/github/install", 200),
    unread("POST", "/v1/integrations/github"),
    bare("DELETE", "/v1/integrations/github/{integration_id}", 404),
    bare("GET", "/v1/integrations/github/{integration_id}/repos", 404),
    bare("GET", "/v2/sandboxes/boxes", 200),
    unread("POST", "/v2/sandboxes/boxes"),
    unread("POST", "/v2/sandboxes/boxes/batch-delete"),
    bare("GET", "/v2/sandboxes/boxes/{name}", 404),
    json("PATCH", "/v2/sandboxes/boxes/{name}", "{}", 404),
    bare("DELETE", "/v2/sandboxes/boxes/{name}", 404),
    bare("GET", "/v2/sandboxes/boxes/{name}/status", 404),
    bare("POST", "/v2/sandboxes/boxes/{name}/start", 404),
    bare("POST", "/v2/sandboxes/boxes/{name}/stop", 404),
    json("POST", "/v2/sandboxes/boxes/{name}/snapshot", r#"{"name": "a"}"#, 404),
    json("POST", "/v2/sandboxes/boxes/{name}/service-url", r#"{"port": 80}"#, 404),
    bare("GET", "/v2/sandboxes/boxes/{name}/service-urls", 404),
    bare("DELETE", "/v2/sandboxes/boxes/{name}/service-urls", 404),
    json(
        "POST",
        "/v2/sandboxes/boxes/{name}/download-url",
        r#"{"path": "/a"}"#,
        404,
    ),
    bare("GET", "/v2/sandboxes/snapshots", 200),
    unread("POST", "/v2/sandboxes/snapshots"),
    bare("GET", "/v2/sandboxes/snapshots/{reference}", 404),
    bare("DELETE", "/v2/sandboxes/snapshots/{reference}", 404),
    bare("GET", "/v2/sandboxes/snapshots-by-name/{name}", 404),
    bare("GET", "/v2/sandboxes/volumes", 200),
    unread("POST", "/v2/sandboxes/volumes"),
    bare("GET", "/v2/sandboxes/volumes/{name}", 404),
    json("PATCH", "/v2/sandboxes/volumes/{name}", "{}", 404),
    bare("DELETE", "/v2/sandboxes/volumes/{name}", 404),
    json("POST", "/v2/sandboxes/volumes/{name}/clone", r#"{"name": "b"}"#, 404),
    bare("GET", "/v2/sandboxes/templates", 200),
    unread("POST", "/v2/sandboxes/templates"),
    unread("POST", "/v2/sandboxes/templates/batch-delete"),
    bare("GET", "/v2/sandboxes/templates/{name}", 404),
    json("PATCH", "/v2/sandboxes/templates/{name}", "{}", 404),
    bare("DELETE", "/v2/sandboxes/templates/{name}", 404),
    bare("GET", "/v2/sandboxes/pools", 200),
    unread("POST", "/v2/sandboxes/pools"),
    bare("GET", "/v2/sandboxes/pools/{name}", 404),
    json("PATCH", "/v2/sandboxes/pools/{name}", "{}", 404),
    bare("DELETE", "/v2/sandboxes/pools/{name}", 404),
    bare("GET", "/v2/sandboxes/registries", 200),
    unread("POST", "/v2/sandboxes/registries"),
    bare("GET", "/v2/sandboxes/registries/{name}", 404),
    json("PATCH", "/v2/sandboxes/registries/{name}", "{}", 404),
    bare("DELETE", "/v2/sandboxes/registries/{name}", 404),
    bare("GET", "/v2/sandboxes/usage", 200),
    bare("GET", "/v2/sandboxes/dp/{box_id}/execute/ws", 404),
    json(
        "POST",
        "/v2/sandboxes/dp/{box_id}/execute",
        r#"{"command": "true"}"#,
        404,
    ),
    json(
        "POST",
        "/v2/sandboxes/dp/{box_id}/execute/stream/start",
        r#"{"command": "true"}"#,
        404,
    ),
    json(
        "POST",
        "/v2/sandboxes/dp/{box_id}/execute/stream/resume",
        r#"{"command_id": "a"}"#,
        404,
    ),
    bare("GET", "/v2/sandboxes/dp/{box_id}/commands", 404),
    bare("GET", "/v2/sandboxes/dp/{box_id}/commands/{command_id}/output", 404),
    bare("POST", "/v2/sandboxes/dp/{box_id}/upload", 404),
    bare("GET", "/v2/sandboxes/dp/{box_id}/download", 404),
    json("POST", "/v2/sandboxes/dp/{box_id}/glob", r#"{"pattern": "*"}"#, 404),
    json("POST", "/v2/sandboxes/dp/{box_id}/grep", r#"{"pattern": "a"}"#, 404),
    bare("GET", "/v2/sandboxes/dp/{box_id}/tunnel", 404),
    bare("GET", "/internal/queues", 200),
    bare("GET", "/internal/queues/{pool}", 404),
    bare("POST", "/internal/queues/{pool}/pause", 404),
    bare("POST", "/internal/queues/{pool}/resume", 404),
    bare("POST", "/internal/queues/{pool}/drain", 404),
    bare("GET", "/internal/scaling/{pool}", 404),
    bare("GET", "/internal/jobs", 200),
    unread("POST", "/internal/jobs/bulk"),
    bare("GET", "/internal/jobs/{job_id}", 404),
    bare("POST", "/internal/jobs/{job_id}/retry", 404),
    bare("POST", "/internal/jobs/{job_id}/cancel", 404),
    bare("GET", "/internal/dead", 200),
    bare("POST", "/internal/dead/{job_id}/retry", 404),
    bare("GET", "/internal/workers", 200),
    bare("POST", "/internal/workers/{worker_id}/drain", 404),
    bare("POST", "/internal/workers/{worker_id}/resume", 404),
    bare("GET", "/internal/schedules", 200),
    bare("POST", "/internal/schedules/{schedule_id}/pause", 404),
    bare("POST", "/internal/schedules/{schedule_id}/resume", 404),
    bare("GET", "/internal/limits", 200),
    bare("GET", "/internal/keys", 200),
    unread("POST", "/internal/keys"),
    bare("POST", "/internal/keys/reseal", 202),
    bare("POST", "/internal/keys/{key_id}/revoke", 404),
    json("POST", "/internal/keys/{key_id}/rotate", "{}", 404),
    bare("POST", "/internal/deployments/{deployment_id}/accept-database", 404),
    bare("GET", "/internal/quarantine", 200),
    bare("GET", "/internal/quarantine/usage", 200),
    unread("POST", "/internal/quarantine/bulk"),
    bare("GET", "/internal/quarantine/{entry_id}", 404),
    bare("GET", "/internal/quarantine/{entry_id}/body", 404),
    bare("POST", "/internal/quarantine/{entry_id}/retry", 404),
    bare("POST", "/internal/quarantine/{entry_id}/drop", 404),
];

/// The row of an operation, which may stand at a second place.
pub fn row(method: &Method, path: &str) -> Option<&'static Row> {
    let at = |path: &str| {
        ROWS.iter()
            .find(|row| row.method == method.as_str() && row.path == path)
    };
    at(path).or_else(|| {
        ["/api/v1", "/api-host", "/api"]
            .iter()
            .find_map(|prefix| at(path.strip_prefix(prefix)?))
    })
}
