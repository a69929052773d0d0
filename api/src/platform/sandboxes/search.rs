//! Finding files in boxes.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use towpath_domain::sandbox::check_text;
use towpath_domain::{BoxId, Rejection, Timestamp};
use towpath_sandbox::{GlobRequest, GrepRequest};

use super::wake::awake;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};

/// Results unless the request says otherwise.
const USUAL: usize = 1000;
/// The most.
const MOST: i64 = 10_000;

fn limit(sent: Option<i64>) -> Result<usize, Rejection> {
    match sent {
        None => Ok(USUAL),
        Some(limit) if (1..=MOST).contains(&limit) => Ok(usize::try_from(limit).unwrap_or(USUAL)),
        Some(_) => Err(Rejection::invalid("limit", format!("expected 1 to {MOST}"))),
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
pub struct Glob {
    /// `*.py` matches names at any depth; a pattern with `/` or `**` matches paths below `path`.
    #[schema(min_length = 1, max_length = 4096)]
    pattern: String,
    /// Where to look; the user's home without it.
    #[serde(default)]
    path: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<i64>,
}

/// A file that was found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxFile)]
pub struct File {
    path: String,
    is_dir: bool,
    size_bytes: u64,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
}

/// Files that were found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxFiles)]
pub struct Files {
    matches: Vec<File>,
    /// Whether there are more.
    truncated: bool,
}

/// Find files by their names.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/glob", tag = "sandbox-dataplane", request_body = Glob,
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Files", body = Files),
              (status = 404, description = "No such sandbox in this workspace, or no such path in it"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
pub async fn glob(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(asked): Json<Glob>,
) -> Result<Json<Files>, ApiError> {
    check_pattern("pattern", &asked.pattern)?;
    let path = asked.path.unwrap_or_else(|| ".".to_owned());
    check_text("path", &path, 4096)?;
    let search = GlobRequest {
        pattern: asked.pattern,
        path,
        limit: limit(asked.limit)?,
    };
    let awake = awake(&app, tenant.id, id).await?;
    let found = awake.agent.glob(&search).await;
    let found = found.map_err(|error| awake.failed(id, &error))?;
    let matches = found.matches.into_iter().map(|entry| File {
        path: entry.path,
        is_dir: entry.is_dir,
        size_bytes: entry.size_bytes,
        modified_at: Timestamp::from_micros(entry.modified_ns / 1000),
    });
    Ok(Json(Files {
        matches: matches.collect(),
        truncated: found.truncated,
    }))
}

/// A text to find in files.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxGrep)]
pub struct Grep {
    /// The text itself, no expression.
    #[schema(min_length = 1, max_length = 4096)]
    pattern: String,
    /// A file, or where to look; the user's home without it.
    #[serde(default)]
    path: Option<String>,
    /// Only in files that match, as in `glob`.
    #[serde(default)]
    glob: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<i64>,
}

/// A line that was found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxLine)]
pub struct Line {
    path: String,
    line: u64,
    text: String,
}

/// Lines that were found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxLines)]
pub struct Lines {
    matches: Vec<Line>,
    /// Whether there are more.
    truncated: bool,
}

/// Find lines that contain a text.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/grep", tag = "sandbox-dataplane", request_body = Grep,
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Lines", body = Lines),
              (status = 404, description = "No such sandbox in this workspace, or no such path in it"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 502, description = "The sandbox does not answer as it should"), ApiError))]
pub async fn grep(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(asked): Json<Grep>,
) -> Result<Json<Lines>, ApiError> {
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
        limit: limit(asked.limit)?,
    };
    let awake = awake(&app, tenant.id, id).await?;
    let found = awake.agent.grep(&search).await;
    let found = found.map_err(|error| awake.failed(id, &error))?;
    let matches = found.matches.into_iter().map(|line| Line {
        path: line.path,
        line: line.line,
        text: line.text,
    });
    Ok(Json(Lines {
        matches: matches.collect(),
        truncated: found.truncated,
    }))
}
