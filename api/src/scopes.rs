//! The scope that each route needs: a line for each, by its template. Templates and not paths are looked up, so that a
//! path cannot be written in a way that makes it another route here than at the router. A route without a line is
//! refused, and a test holds the lines to the routers.
//!
//! The gateway, the registry and the agent surface ask by themselves.

use axum::extract::{MatchedPath, Request};
use http::Method;
use towpath_domain::{Scope, Scopes};
use towpath_store::access::Principal;

use crate::errors::ApiError;

/// What a route asks of a key that is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredAccess {
    /// Nothing more.
    Key,
    Scope(Scope),
    /// This scope of operators, or administering keys: the handler looks at whose.
    Keys(Scope),
}

/// Looking at keys, and changing them.
const KEYS_READ: RequiredAccess = RequiredAccess::Keys(OperatorRead);
const KEYS: RequiredAccess = RequiredAccess::Keys(Operator);

struct RouteScope {
    method: &'static str,
    path: &'static str,
    access: RequiredAccess,
}

const fn line(method: &'static str, path: &'static str, scope: Scope) -> RouteScope {
    needs(method, path, RequiredAccess::Scope(scope))
}

const fn needs(method: &'static str, path: &'static str, need: RequiredAccess) -> RouteScope {
    RouteScope {
        method,
        path,
        access: need,
    }
}

use Scope::{
    Deployments, Exports, Operator, OperatorRead, OrgAdmin, Sandboxes, TracesRead, TracesWrite, WorkspaceAdmin,
};

const ROUTE_SCOPES: &[RouteScope] = &[
    line("GET", "/api/v1/bulk-exports", Exports),
    line("POST", "/api/v1/bulk-exports", Exports),
    line("GET", "/api/v1/bulk-exports/destinations", Exports),
    line("POST", "/api/v1/bulk-exports/destinations", Exports),
    line("GET", "/api/v1/bulk-exports/destinations/{destination_id}", Exports),
    line("PATCH", "/api/v1/bulk-exports/destinations/{destination_id}", Exports),
    line("DELETE", "/api/v1/bulk-exports/destinations/{destination_id}", Exports),
    line("GET", "/api/v1/bulk-exports/runs", Exports),
    line("GET", "/api/v1/bulk-exports/{export_id}", Exports),
    line("PATCH", "/api/v1/bulk-exports/{export_id}", Exports),
    line("GET", "/api/v1/bulk-exports/{export_id}/runs", Exports),
    line("GET", "/api/v1/bulk-exports/{export_id}/runs/{run_id}", Exports),
    line("POST", "/runs/multipart", TracesWrite),
    line("POST", "/runs/batch", TracesWrite),
    line("POST", "/runs", TracesWrite),
    line("PATCH", "/runs/{run_id}", TracesWrite),
    line("POST", "/otel/v1/traces", TracesWrite),
    line("POST", "/otel/v1/logs", TracesWrite),
    line("GET", "/runs/{run_id}", TracesRead),
    line("POST", "/runs/query", TracesRead),
    line("POST", "/runs/query/validate", TracesRead),
    line("POST", "/runs/stats", TracesRead),
    line("POST", "/api/v2/runs/query", TracesRead),
    line("GET", "/api/v2/runs/{run_id}", TracesRead),
    line("GET", "/api/v2/runs/{run_id}/url", TracesRead),
    line("POST", "/api/v2/traces/query", TracesRead),
    line("GET", "/api/v2/traces/{trace_id}/runs", TracesRead),
    line("POST", "/api/v2/threads/query", TracesRead),
    line("GET", "/api/v2/threads/{thread_id}/traces", TracesRead),
    line("GET", "/api/v2/threads/{thread_id}/stats", TracesRead),
    line("POST", "/api/v2/threads/stats", TracesRead),
    line("POST", "/feedback", TracesWrite),
    line("GET", "/feedback", TracesRead),
    line("GET", "/feedback/{feedback_id}", TracesRead),
    line("PATCH", "/feedback/{feedback_id}", TracesWrite),
    line("DELETE", "/feedback/{feedback_id}", TracesWrite),
    line("POST", "/feedback/tokens", TracesWrite),
    line("GET", "/feedback/tokens", TracesRead),
    line("POST", "/sessions", TracesWrite),
    line("GET", "/sessions", TracesRead),
    line("GET", "/sessions/{session_id}", TracesRead),
    line("PATCH", "/sessions/{session_id}", TracesWrite),
    // Who may send traces must not be able to remove those of others.
    line("DELETE", "/sessions/{session_id}", WorkspaceAdmin),
    line("GET", "/model-price-map", TracesRead),
    // They change the costs of what others sent.
    line("POST", "/model-price-map", WorkspaceAdmin),
    line("POST", "/model-price-map/reprice", WorkspaceAdmin),
    line("PUT", "/model-price-map/{model_price_id}", WorkspaceAdmin),
    line("DELETE", "/model-price-map/{model_price_id}", WorkspaceAdmin),
    line("POST", "/datasets", TracesWrite),
    line("GET", "/datasets", TracesRead),
    line("POST", "/datasets/upload", TracesWrite),
    line("POST", "/datasets/comparative", TracesWrite),
    line(
        "DELETE",
        "/datasets/comparative/{comparative_experiment_id}",
        TracesWrite,
    ),
    line("GET", "/datasets/{dataset_id}", TracesRead),
    line("PATCH", "/datasets/{dataset_id}", TracesWrite),
    // As with projects: with a dataset goes what others put into it, in all versions.
    line("DELETE", "/datasets/{dataset_id}", WorkspaceAdmin),
    line("PUT", "/datasets/{dataset_id}/share", WorkspaceAdmin),
    line("GET", "/datasets/{dataset_id}/share", TracesRead),
    line("GET", "/datasets/{dataset_id}/comparative", TracesRead),
    line("POST", "/datasets/{dataset_id}/runs", TracesRead),
    line("GET", "/datasets/{dataset_id}/splits", TracesRead),
    line("PUT", "/datasets/{dataset_id}/splits", TracesWrite),
    line("PUT", "/datasets/{dataset_id}/tags", TracesWrite),
    line("GET", "/datasets/{dataset_id}/version", TracesRead),
    line("GET", "/datasets/{dataset_id}/versions", TracesRead),
    line("GET", "/datasets/{dataset_id}/versions/diff", TracesRead),
    line("POST", "/examples", TracesWrite),
    line("GET", "/examples", TracesRead),
    line("DELETE", "/examples", TracesWrite),
    line("POST", "/examples/bulk", TracesWrite),
    line("PATCH", "/examples/bulk", TracesWrite),
    line("GET", "/examples/{example_id}", TracesRead),
    line("PATCH", "/examples/{example_id}", TracesWrite),
    line("DELETE", "/examples/{example_id}", TracesWrite),
    line("POST", "/v1/platform/datasets/{dataset_id}/examples", TracesWrite),
    line("PATCH", "/v1/platform/datasets/{dataset_id}/examples", TracesWrite),
    line("POST", "/v1/platform/examples/multipart", TracesWrite),
    line(
        "PATCH",
        "/v1/platform/datasets/{dataset_id}/examples/metadata",
        TracesWrite,
    ),
    // For good, so that no earlier version has them.
    line("POST", "/v1/platform/datasets/examples/delete", WorkspaceAdmin),
    line(
        "DELETE",
        "/v1/platform/datasets/{dataset_id}/examples/{example_id}",
        TracesWrite,
    ),
    line("POST", "/feedback-configs", TracesWrite),
    line("GET", "/feedback-configs", TracesRead),
    line("PATCH", "/feedback-configs", TracesWrite),
    line("DELETE", "/feedback-configs", TracesWrite),
    line("POST", "/repos", TracesWrite),
    line("GET", "/repos", TracesRead),
    line("POST", "/repos/", TracesWrite),
    line("GET", "/repos/", TracesRead),
    line("GET", "/repos/{owner}/{repo}", TracesRead),
    line("PATCH", "/repos/{owner}/{repo}", TracesWrite),
    // As with datasets: with a prompt goes what others committed to it.
    line("DELETE", "/repos/{owner}/{repo}", WorkspaceAdmin),
    line("POST", "/repos/{owner}/{repo}/tags", TracesWrite),
    line("GET", "/repos/{owner}/{repo}/tags", TracesRead),
    line("GET", "/repos/{owner}/{repo}/tags/{tag_name}", TracesRead),
    line("PATCH", "/repos/{owner}/{repo}/tags/{tag_name}", TracesWrite),
    line("DELETE", "/repos/{owner}/{repo}/tags/{tag_name}", TracesWrite),
    line("POST", "/commits/{owner}/{repo}", TracesWrite),
    line("GET", "/commits/{owner}/{repo}", TracesRead),
    line("GET", "/commits/{owner}/{repo}/", TracesRead),
    line("GET", "/commits/{owner}/{repo}/{commit}", TracesRead),
    line("POST", "/likes/{owner}/{repo}", TracesWrite),
    line("GET", "/v1/platform/hub/repos/{owner}/{repo}/directories", TracesRead),
    line(
        "DELETE",
        "/v1/platform/hub/repos/{owner}/{repo}/directories",
        WorkspaceAdmin,
    ),
    line(
        "POST",
        "/v1/platform/hub/repos/{owner}/{repo}/directories/commits",
        TracesWrite,
    ),
    line("POST", "/annotation-queues", TracesWrite),
    line("GET", "/annotation-queues", TracesRead),
    line("GET", "/annotation-queues/{queue_id}", TracesRead),
    line("PATCH", "/annotation-queues/{queue_id}", TracesWrite),
    line("DELETE", "/annotation-queues/{queue_id}", TracesWrite),
    line("POST", "/annotation-queues/{queue_id}/runs", TracesWrite),
    line("GET", "/annotation-queues/{queue_id}/runs", TracesRead),
    line("POST", "/annotation-queues/{queue_id}/runs/by-key", TracesWrite),
    line("GET", "/annotation-queues/{queue_id}/run/{index}", TracesRead),
    line(
        "DELETE",
        "/annotation-queues/{queue_id}/runs/{queue_run_id}",
        TracesWrite,
    ),
    needs("GET", "/settings", RequiredAccess::Key),
    line("POST", "/v2/deployments", Deployments),
    line("GET", "/v2/deployments", Deployments),
    line("DELETE", "/v2/deployments", Deployments),
    line("GET", "/v2/deployments/{deployment_id}", Deployments),
    line("PATCH", "/v2/deployments/{deployment_id}", Deployments),
    line("DELETE", "/v2/deployments/{deployment_id}", Deployments),
    line("POST", "/v2/deployments/{deployment_id}/keys", Deployments),
    line("POST", "/v2/deployments/{deployment_id}/push-token", Deployments),
    line("POST", "/v2/deployments/{deployment_id}/upload-url", Deployments),
    line("POST", "/v2/deployments/{deployment_id}/revisions", Deployments),
    line("GET", "/v2/deployments/{deployment_id}/revisions", Deployments),
    line(
        "GET",
        "/v2/deployments/{deployment_id}/revisions/{revision_id}",
        Deployments,
    ),
    line(
        "POST",
        "/v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy",
        Deployments,
    ),
    line(
        "POST",
        "/v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt",
        Deployments,
    ),
    line(
        "POST",
        "/v1/projects/{project_id}/revisions/{revision_id}/interrupt",
        Deployments,
    ),
    line(
        "POST",
        "/v1/projects/{project_id}/revisions/{revision_id}/build_logs",
        Deployments,
    ),
    line(
        "POST",
        "/v1/projects/{project_id}/revisions/{revision_id}/deploy_logs",
        Deployments,
    ),
    line("POST", "/v1/projects/{project_id}/deploy_logs", Deployments),
    line("GET", "/v2/image-pull-secrets", Deployments),
    line("PUT", "/v2/image-pull-secrets/{name}", WorkspaceAdmin),
    line("DELETE", "/v2/image-pull-secrets/{name}", WorkspaceAdmin),
    line("GET", "/v2/listeners", Deployments),
    line("POST", "/v2/listeners", WorkspaceAdmin),
    line("GET", "/v2/listeners/{listener_id}", Deployments),
    line("PATCH", "/v2/listeners/{listener_id}", WorkspaceAdmin),
    line("DELETE", "/v2/listeners/{listener_id}", WorkspaceAdmin),
    line("GET", "/v1/integrations/github/install", Deployments),
    line("POST", "/v1/integrations/github", WorkspaceAdmin),
    line("DELETE", "/v1/integrations/github/{integration_id}", WorkspaceAdmin),
    line("GET", "/v1/integrations/github/{integration_id}/repos", Deployments),
    line("GET", "/v2/sandboxes/boxes", Sandboxes),
    line("POST", "/v2/sandboxes/boxes", Sandboxes),
    line("POST", "/v2/sandboxes/boxes/batch-delete", Sandboxes),
    line("GET", "/v2/sandboxes/boxes/{name}", Sandboxes),
    line("PATCH", "/v2/sandboxes/boxes/{name}", Sandboxes),
    line("DELETE", "/v2/sandboxes/boxes/{name}", Sandboxes),
    line("GET", "/v2/sandboxes/boxes/{name}/status", Sandboxes),
    line("POST", "/v2/sandboxes/boxes/{name}/start", Sandboxes),
    line("POST", "/v2/sandboxes/boxes/{name}/stop", Sandboxes),
    line("POST", "/v2/sandboxes/boxes/{name}/snapshot", Sandboxes),
    line("POST", "/v2/sandboxes/boxes/{name}/service-url", Sandboxes),
    line("GET", "/v2/sandboxes/boxes/{name}/service-urls", Sandboxes),
    line("DELETE", "/v2/sandboxes/boxes/{name}/service-urls", Sandboxes),
    line("POST", "/v2/sandboxes/boxes/{name}/download-url", Sandboxes),
    line("GET", "/v2/sandboxes/snapshots", Sandboxes),
    line("POST", "/v2/sandboxes/snapshots", Sandboxes),
    line("GET", "/v2/sandboxes/snapshots/{reference}", Sandboxes),
    line("DELETE", "/v2/sandboxes/snapshots/{reference}", Sandboxes),
    line("GET", "/v2/sandboxes/snapshots-by-name/{name}", Sandboxes),
    line("GET", "/v2/sandboxes/volumes", Sandboxes),
    line("POST", "/v2/sandboxes/volumes", Sandboxes),
    line("GET", "/v2/sandboxes/volumes/{name}", Sandboxes),
    line("PATCH", "/v2/sandboxes/volumes/{name}", Sandboxes),
    line("DELETE", "/v2/sandboxes/volumes/{name}", Sandboxes),
    line("POST", "/v2/sandboxes/volumes/{name}/clone", Sandboxes),
    line("GET", "/v2/sandboxes/templates", Sandboxes),
    line("POST", "/v2/sandboxes/templates", Sandboxes),
    line("POST", "/v2/sandboxes/templates/batch-delete", Sandboxes),
    line("GET", "/v2/sandboxes/templates/{name}", Sandboxes),
    line("PATCH", "/v2/sandboxes/templates/{name}", Sandboxes),
    line("DELETE", "/v2/sandboxes/templates/{name}", Sandboxes),
    line("GET", "/v2/sandboxes/pools", Sandboxes),
    line("POST", "/v2/sandboxes/pools", Sandboxes),
    line("GET", "/v2/sandboxes/pools/{name}", Sandboxes),
    line("PATCH", "/v2/sandboxes/pools/{name}", Sandboxes),
    line("DELETE", "/v2/sandboxes/pools/{name}", Sandboxes),
    line("GET", "/v2/sandboxes/registries", Sandboxes),
    line("POST", "/v2/sandboxes/registries", WorkspaceAdmin),
    line("GET", "/v2/sandboxes/registries/{name}", Sandboxes),
    line("PATCH", "/v2/sandboxes/registries/{name}", WorkspaceAdmin),
    line("DELETE", "/v2/sandboxes/registries/{name}", WorkspaceAdmin),
    line("GET", "/v2/sandboxes/usage", Sandboxes),
    line("GET", "/v2/sandboxes/dp/{box_id}/execute/ws", Sandboxes),
    line("POST", "/v2/sandboxes/dp/{box_id}/execute", Sandboxes),
    line("POST", "/v2/sandboxes/dp/{box_id}/execute/stream/start", Sandboxes),
    line("POST", "/v2/sandboxes/dp/{box_id}/execute/stream/resume", Sandboxes),
    line("GET", "/v2/sandboxes/dp/{box_id}/commands", Sandboxes),
    line(
        "GET",
        "/v2/sandboxes/dp/{box_id}/commands/{command_id}/output",
        Sandboxes,
    ),
    line("POST", "/v2/sandboxes/dp/{box_id}/upload", Sandboxes),
    line("GET", "/v2/sandboxes/dp/{box_id}/download", Sandboxes),
    line("POST", "/v2/sandboxes/dp/{box_id}/glob", Sandboxes),
    line("POST", "/v2/sandboxes/dp/{box_id}/grep", Sandboxes),
    line("GET", "/v2/sandboxes/dp/{box_id}/tunnel", Sandboxes),
    line("GET", "/internal/queues", OperatorRead),
    line("GET", "/internal/queues/{pool}", OperatorRead),
    line("POST", "/internal/queues/{pool}/pause", Operator),
    line("POST", "/internal/queues/{pool}/resume", Operator),
    line("POST", "/internal/queues/{pool}/drain", Operator),
    line("GET", "/internal/scaling/{pool}", OperatorRead),
    line("GET", "/internal/jobs", OperatorRead),
    line("POST", "/internal/jobs/bulk", Operator),
    line("GET", "/internal/jobs/{job_id}", OperatorRead),
    line("POST", "/internal/jobs/{job_id}/retry", Operator),
    line("POST", "/internal/jobs/{job_id}/cancel", Operator),
    line("GET", "/internal/dead", OperatorRead),
    line("POST", "/internal/dead/{job_id}/retry", Operator),
    line("GET", "/internal/workers", OperatorRead),
    line("POST", "/internal/workers/{worker_id}/drain", Operator),
    line("POST", "/internal/workers/{worker_id}/resume", Operator),
    line("GET", "/internal/schedules", OperatorRead),
    line("POST", "/internal/schedules/{schedule_id}/pause", Operator),
    line("POST", "/internal/schedules/{schedule_id}/resume", Operator),
    line("GET", "/internal/limits", OperatorRead),
    needs("GET", "/internal/keys", KEYS_READ),
    needs("POST", "/internal/keys", KEYS),
    line("POST", "/internal/keys/reseal", Operator),
    needs("POST", "/internal/keys/{key_id}/revoke", KEYS),
    needs("POST", "/internal/keys/{key_id}/rotate", KEYS),
    line(
        "POST",
        "/internal/deployments/{deployment_id}/accept-database",
        Operator,
    ),
    line("GET", "/internal/quarantine", OperatorRead),
    line("GET", "/internal/quarantine/usage", OperatorRead),
    line("POST", "/internal/quarantine/bulk", Operator),
    line("GET", "/internal/quarantine/{entry_id}", OperatorRead),
    // What tenants sent, in full.
    line("GET", "/internal/quarantine/{entry_id}/body", Operator),
    line("POST", "/internal/quarantine/{entry_id}/retry", Operator),
    line("POST", "/internal/quarantine/{entry_id}/drop", Operator),
];

/// Pages of the dashboard behind its gate.
const PAGES: &[RouteScope] = &[
    line("GET", "/ui/traces", OperatorRead),
    line("GET", "/ui/traces/{project_id}", OperatorRead),
    line("GET", "/ui/traces/{project_id}/{run_id}", OperatorRead),
    line("GET", "/ui/datasets", OperatorRead),
    line("GET", "/ui/datasets/{dataset_id}", OperatorRead),
    line("GET", "/ui/prompts", OperatorRead),
    line("GET", "/ui/prompts/{tenant_id}/{name}", OperatorRead),
    line("GET", "/ui/quarantine", OperatorRead),
    line("GET", "/ui/quarantine/{entry_id}", OperatorRead),
    line("POST", "/ui/quarantine/{entry_id}/{action}", Operator),
    line("GET", "/ui/queues", OperatorRead),
    line("POST", "/ui/queues/{pool}/{action}", Operator),
    line("GET", "/ui/jobs", OperatorRead),
    line("GET", "/ui/jobs/{job_id}", OperatorRead),
    line("POST", "/ui/jobs/{job_id}/{action}", Operator),
    line("GET", "/ui/workers", OperatorRead),
    line("POST", "/ui/workers/{worker_id}/{action}", Operator),
    line("GET", "/ui/deployments", OperatorRead),
    line("GET", "/ui/deployments/{deployment_id}", OperatorRead),
    line("POST", "/ui/deployments/{deployment_id}/delete", Operator),
    line("GET", "/ui/revisions/{revision_id}", OperatorRead),
    line("POST", "/ui/revisions/{revision_id}/{action}", Operator),
    line("GET", "/ui/sandboxes", OperatorRead),
    line("GET", "/ui/sandboxes/{box_id}", OperatorRead),
    line("POST", "/ui/sandboxes/{box_id}/snapshot", Operator),
    line("POST", "/ui/sandboxes/{box_id}/{action}", Operator),
    line("POST", "/ui/sandbox-nodes/{node_id}/{action}", Operator),
    line("GET", "/ui/exports", OperatorRead),
    line("GET", "/ui/exports/destinations", OperatorRead),
    line("POST", "/ui/exports/destinations/{destination_id}/delete", Operator),
    line("GET", "/ui/exports/{export_id}", OperatorRead),
    line("GET", "/ui/schedules", OperatorRead),
    line("POST", "/ui/schedules/{schedule_id}/{action}", Operator),
    line("GET", "/ui/limits", OperatorRead),
    line("GET", "/ui/dead", OperatorRead),
    line("POST", "/ui/dead/{job_id}/retry", Operator),
    needs("GET", "/ui/keys", KEYS_READ),
    needs("POST", "/ui/keys", KEYS),
    needs("POST", "/ui/keys/{key_id}/{action}", KEYS),
];

/// Where routes stand a second time.
const PREFIXES: [&str; 3] = ["/api/v1", "/api-host", "/api"];

/// What a request of this template needs; nothing for routes that are not declared.
pub(crate) fn required_access(method: &Method, template: &str) -> Option<RequiredAccess> {
    // A handler of GET answers HEAD, too.
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let declared = |path: &str| {
        let mut lines = ROUTE_SCOPES.iter().chain(PAGES);
        let line = lines.find(|line| line.path == path && line.method == method.as_str())?;
        Some(line.access)
    };
    declared(template).or_else(|| {
        PREFIXES
            .iter()
            .find_map(|prefix| declared(template.strip_prefix(prefix)?))
    })
}

/// A route that is declared nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndeclaredRoute;

/// For tests: the scopes that are declared for a route, one of which is needed; none where a valid key is enough.
///
/// # Errors
/// The route is not declared.
pub fn required_scopes(method: &Method, template: &str) -> Result<Vec<Scope>, UndeclaredRoute> {
    match required_access(method, template) {
        Some(RequiredAccess::Key) => Ok(Vec::new()),
        Some(RequiredAccess::Scope(scope)) => Ok(vec![scope]),
        Some(RequiredAccess::Keys(operator)) => Ok(vec![operator, OrgAdmin, WorkspaceAdmin]),
        None => Err(UndeclaredRoute),
    }
}

/// What reads needs less than what changes something: the rule of operators' pages.
pub(crate) fn operator_scope(method: &Method) -> Scope {
    match *method {
        Method::GET | Method::HEAD => OperatorRead,
        _ => Operator,
    }
}

/// Whether a key administers others. One that was made without scopes does not: such keys did not before there were
/// scopes.
pub(crate) fn administers(caller: &Principal) -> bool {
    caller.is_limited && caller.scopes.allow(WorkspaceAdmin)
}

/// What this request needs.
pub(crate) fn access_for(request: &Request) -> Option<RequiredAccess> {
    let template = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("", MatchedPath::as_str);
    let need = required_access(request.method(), template);
    if need.is_none() {
        tracing::error!(http.route = template, "a route has no required scope");
    }
    need
}

/// Refuses a key that lacks what a route needs. A route that is not declared is closed, not open.
pub(crate) fn check(need: Option<RequiredAccess>, holder: &Principal) -> Result<(), ApiError> {
    match need {
        Some(RequiredAccess::Key) => Ok(()),
        Some(RequiredAccess::Keys(_)) if administers(holder) => Ok(()),
        Some(RequiredAccess::Scope(scope) | RequiredAccess::Keys(scope)) => require(&holder.scopes, scope),
        None => Err(ApiError::forbidden("this route cannot be opened")),
    }
}

/// Refuses a key without this scope.
pub(crate) fn require(scopes: &Scopes, scope: Scope) -> Result<(), ApiError> {
    if scopes.allow(scope) {
        Ok(())
    } else {
        Err(ApiError::forbidden(format!("the API key lacks the scope {scope}")))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use utoipa::openapi::OpenApi;

    use super::*;
    use crate::docs;
    use crate::routes::Route;

    /// Holds the lines to what routers that need a key say of themselves.
    pub(crate) fn covers(document: &OpenApi) {
        let mut left: BTreeSet<_> = ROUTE_SCOPES.iter().map(|line| (line.method, line.path)).collect();
        for (path, item) in &document.paths.paths {
            for (method, _) in docs::operations(item) {
                let need = required_access(&method.parse().unwrap(), path);
                assert!(need.is_some(), "{method} {path} has no line: which scope does it need?");
                left.retain(|line| *line != (method, path.as_str()));
            }
        }
        assert!(left.is_empty(), "lines without a route: {left:?}");
    }

    /// Holds the lines of pages to the routes of the dashboard.
    pub(crate) fn covers_pages(routes: Vec<Route>) {
        let pages: BTreeSet<_> = routes.into_iter().map(|route| (route.method, route.path)).collect();
        let lines: BTreeSet<_> = PAGES.iter().map(|line| (line.method, line.path)).collect();
        assert_eq!(pages, lines, "the routes of the dashboard, and the lines of them");
    }

    #[test]
    fn templates_are_looked_up_at_all_their_places() {
        let read = Some(RequiredAccess::Scope(TracesRead));
        assert_eq!(required_access(&Method::GET, "/runs/{run_id}"), read);
        assert_eq!(required_access(&Method::HEAD, "/api/v1/runs/{run_id}"), read);
        assert_eq!(
            required_access(&Method::POST, "/api-host/v2/deployments"),
            Some(RequiredAccess::Scope(Deployments))
        );
        for (method, path) in [
            (Method::GET, "/runs/1"),
            (Method::PUT, "/runs/{run_id}"),
            (Method::GET, ""),
            (Method::GET, "/api/v1/api/v1/runs/{run_id}"),
        ] {
            assert_eq!(required_access(&method, path), None, "{method} {path}");
        }
    }
}
