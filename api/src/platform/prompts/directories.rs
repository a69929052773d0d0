//! Agents and skills, which newer clients keep beside prompts. This build has none: each route says so, instead of that
//! there is no such route.

use http::StatusCode;

use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Path;

fn unavailable() -> ApiError {
    // With 404, clients report that there is no such agent, and show this text.
    ApiError::new(
        StatusCode::NOT_FOUND,
        "agents and skills are not available in this build: push a prompt, or keep their files in a Git repository",
    )
}

/// Get an agent or a skill. There are none.
#[utoipa::path(get, path = "/v1/platform/hub/repos/{owner}/{repo}/directories", operation_id = "get_directory", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Its name")),
    responses((status = 404, description = "Not available in this build"), ApiError))]
pub async fn get(_: Tenant, Path((_owner, _name)): Path<(String, String)>) -> Result<StatusCode, ApiError> {
    Err(unavailable())
}

/// Delete an agent or a skill. There are none.
#[utoipa::path(delete, path = "/v1/platform/hub/repos/{owner}/{repo}/directories", operation_id = "delete_directory", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Its name")),
    responses((status = 404, description = "Not available in this build"), ApiError))]
pub async fn delete(_: Tenant, Path((_owner, _name)): Path<(String, String)>) -> Result<StatusCode, ApiError> {
    Err(unavailable())
}

/// Push a version of an agent or a skill. Always refused.
#[utoipa::path(post, path = "/v1/platform/hub/repos/{owner}/{repo}/directories/commits", operation_id = "create_directory_commit",
    tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Its name")),
    responses((status = 404, description = "Not available in this build"), ApiError))]
pub async fn create(_: Tenant, Path((_owner, _name)): Path<(String, String)>) -> Result<StatusCode, ApiError> {
    Err(unavailable())
}
