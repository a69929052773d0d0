//! Routes that some clients call with a slash at the end.

use axum::extract::State;

use super::commits::CommitPage;
use super::{CreatePrompt, OnePrompt, PromptPage, commits};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::datasets::model::JsonBody;

/// As `POST /repos`.
#[utoipa::path(post, path = "/repos/", operation_id = "create_with_slash", tag = "prompts", request_body = CreatePrompt,
    responses((status = 200, description = "Created", body = OnePrompt),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(new): JsonBody<CreatePrompt>,
) -> Result<Json<OnePrompt>, ApiError> {
    super::create(State(app), tenant, JsonBody(new)).await
}

/// As `GET /repos`.
#[utoipa::path(get, path = "/repos/", operation_id = "list_with_slash", tag = "prompts",
    responses((status = 200, description = "Prompts", body = PromptPage), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<PromptPage>, ApiError> {
    super::list(State(app), tenant, sent).await
}

/// As `GET /commits/{owner}/{repo}`.
#[utoipa::path(get, path = "/commits/{owner}/{repo}/", operation_id = "list_commits_with_slash", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "Commits", body = CommitPage),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn list_commits(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
    sent: Pairs,
) -> Result<Json<CommitPage>, ApiError> {
    commits::list(State(app), tenant, Path((owner, name)), sent).await
}
