//! Finds files in sandboxes.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use towpath_domain::sandbox::check_text;
use towpath_domain::{BoxId, Rejection, Timestamp};
use towpath_sandbox::{GlobRequest, GrepRequest};

use super::readiness::ensure_running;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// Default number of results.
const DEFAULT_LIMIT: usize = 1000;
/// Maximum number of results.
const MAX_RESULTS: i64 = 10_000;

fn parse_limit(sent: Option<i64>) -> Result<usize, Rejection> {
    match sent {
        None => Ok(DEFAULT_LIMIT),
        Some(limit) if (1..=MAX_RESULTS).contains(&limit) => Ok(usize::try_from(limit).unwrap_or(DEFAULT_LIMIT)),
        Some(_) => Err(Rejection::invalid("limit", format!("expected 1 to {MAX_RESULTS}"))),
    }
}

fn check_pattern(field: &str, pattern: &str) -> Result<(), Rejection> {
    if pattern.is_empty() {
        return Err(Rejection::invalid(field, "must not be empty"));
    }
    check_text(field, pattern, 4096)
}

/// Files to find by their names.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxGlob)]
pub struct GlobFiles {
    /// `*.py` matches names at any depth; a pattern with `/` or `**` matches paths below `path`.
    #[schema(min_length = 1, max_length = 4096)]
    pattern: String,
    /// Folder to search; by default the home directory.
    #[serde(default)]
    path: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<i64>,
}

/// A file that was found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxFile)]
pub struct FoundFile {
    path: String,
    is_dir: bool,
    size_bytes: u64,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
}

/// Files that were found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxFiles)]
pub struct GlobResult {
    matches: Vec<FoundFile>,
    /// Whether there are more results.
    truncated: bool,
}

/// Find files by their names.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/glob", tag = "sandbox-dataplane", request_body = GlobFiles,
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Files", body = GlobResult),
              (status = 404, description = "No such sandbox in this workspace, or no such path in it"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn glob(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(asked): Json<GlobFiles>,
) -> Result<Json<GlobResult>, ApiError> {
    check_pattern("pattern", &asked.pattern)?;
    let path = asked.path.unwrap_or_else(|| ".".to_owned());
    check_text("path", &path, 4096)?;
    let search = GlobRequest {
        pattern: asked.pattern,
        path,
        limit: parse_limit(asked.limit)?,
    };
    let awake = ensure_running(&app, tenant.id, id).await?;
    let found = awake.agent.glob(&search).await;
    let found = found.map_err(|error| awake.agent_error(id, &error))?;
    let matches = found.matches.into_iter().map(|entry| FoundFile {
        path: entry.path,
        is_dir: entry.is_dir,
        size_bytes: entry.size_bytes,
        modified_at: Timestamp::from_micros(entry.modified_ns / 1000),
    });
    Ok(Json(GlobResult {
        matches: matches.collect(),
        truncated: found.truncated,
    }))
}

/// Lines to find.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxGrep)]
pub struct GrepFiles {
    /// Literal text.
    #[schema(min_length = 1, max_length = 4096)]
    pattern: String,
    /// File or folder to search; by default the home directory.
    #[serde(default)]
    path: Option<String>,
    /// Only files that match, as in `glob`.
    #[serde(default)]
    glob: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<i64>,
}

/// A matching line.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxLine)]
pub struct FoundLine {
    path: String,
    line: u64,
    text: String,
}

/// Matching lines.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxLines)]
pub struct GrepResult {
    matches: Vec<FoundLine>,
    /// Whether there are more results.
    truncated: bool,
}

/// Find lines that contain a text.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/grep", tag = "sandbox-dataplane", request_body = GrepFiles,
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Lines", body = GrepResult),
              (status = 404, description = "No such sandbox in this workspace, or no such path in it"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn grep(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(asked): Json<GrepFiles>,
) -> Result<Json<GrepResult>, ApiError> {
    check_pattern("pattern", &asked.pattern)?;
    let path = asked.path.unwrap_or_else(|| ".".to_owned());
    check_text("path", &path, 4096)?;
    if let Some(glob) = &asked.glob {
        check_pattern("glob", glob)?;
    }
    let search = GrepRequest {
        pattern: asked.pattern,
        path,
        glob: asked.glob,
        limit: parse_limit(asked.limit)?,
    };
    let awake = ensure_running(&app, tenant.id, id).await?;
    let found = awake.agent.grep(&search).await;
    let found = found.map_err(|error| awake.agent_error(id, &error))?;
    let matches = found.matches.into_iter().map(|line| FoundLine {
        path: line.path,
        line: line.line,
        text: line.text,
    });
    Ok(Json(GrepResult {
        matches: matches.collect(),
        truncated: found.truncated,
    }))
}
