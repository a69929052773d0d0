//! What the path of a request says before it is routed: whose clients call it, and whether it brings data to keep.

use http::Method;

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
pub(crate) fn is_ingest(method: &Method, path: &str) -> bool {
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

/// Whether a path is one of the operators'. Authors of graphs may have routes of their own beside them.
pub(crate) fn is_operators(path: &str) -> bool {
    let group = path.strip_prefix("/internal/").and_then(|rest| rest.split('/').next());
    group.is_some_and(|group| matches!(group, "queues" | "scaling" | "jobs" | "workers" | "dead" | "schedules"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
