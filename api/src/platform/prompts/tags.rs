//! Tags of commits: names that can be moved to another commit.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::{PromptCommitId, Timestamp};
use towpath_store as store;
use towpath_store::prompts;
use towpath_store::prompts::tags::{self, Existing, TaggedCommit};
use uuid::Uuid;

use super::{check_owner, prompt_not_found};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};
use crate::platform::datasets::model::JsonBody;

/// A tag of a commit.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptTag)]
pub struct TagView {
    id: Uuid,
    tag_name: String,
    #[schema(value_type = Uuid)]
    commit_id: PromptCommitId,
    commit_hash: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<TaggedCommit> for TagView {
    fn from(row: TaggedCommit) -> Self {
        Self {
            id: row.id,
            tag_name: row.name,
            commit_id: row.commit_id,
            commit_hash: row.commit_hash,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

fn tag_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("prompt or tag"),
        error => error.into(),
    }
}

/// List the tags of a prompt, by name. `latest` is not among them.
#[utoipa::path(get, path = "/repos/{owner}/{repo}/tags", operation_id = "list_tags", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "Tags", body = Vec<TagView>),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
) -> Result<Json<Vec<TagView>>, ApiError> {
    check_owner(&owner)?;
    let read = app.store.read(async |tx| {
        let prompt = prompts::get(tx, tenant.id, &name).await?;
        tags::list(tx, &prompt, None).await
    });
    let found = read.await.map_err(prompt_not_found)?;
    Ok(Json(found.into_iter().map(TagView::from).collect()))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewPromptTag)]
pub struct TagCommit {
    /// Letters, digits, dashes, underscores and dots; not `latest`.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    tag_name: String,
    #[schema(value_type = Uuid)]
    commit_id: PromptCommitId,
}

/// Tag a commit. The tag is removed from the commit that had it.
#[utoipa::path(post, path = "/repos/{owner}/{repo}/tags", operation_id = "create_tag", tag = "prompts",
    request_body = TagCommit,
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "Tagged", body = TagView),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
    JsonBody(new): JsonBody<TagCommit>,
) -> Result<Json<TagView>, ApiError> {
    check_owner(&owner)?;
    let made = app
        .store
        .write(async |tx| tags::put(tx, tenant.id, &name, &new.tag_name, new.commit_id, Existing::Any).await);
    Ok(Json(made.await.map_err(prompt_not_found)?.into()))
}

/// Get a tag with its commit.
#[utoipa::path(get, path = "/repos/{owner}/{repo}/tags/{tag_name}", operation_id = "get_tag", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt"),
           ("tag_name" = String, Path, description = "The tag")),
    responses((status = 200, description = "The tag", body = TagView),
              (status = 404, description = "No such prompt in this workspace, or no such tag"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name, tag)): Path<(String, String, String)>,
) -> Result<Json<TagView>, ApiError> {
    check_owner(&owner)?;
    let read = app.store.read(async |tx| {
        let prompt = prompts::get(tx, tenant.id, &name).await?;
        tags::list(tx, &prompt, Some(&tag)).await
    });
    let found = read.await.map_err(tag_not_found)?.pop();
    let found = found.ok_or_else(|| ApiError::not_found("prompt or tag"))?;
    Ok(Json(found.into()))
}

/// Another commit for a tag.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = PromptTagChange)]
pub struct MoveTag {
    #[schema(value_type = Uuid)]
    commit_id: PromptCommitId,
}

/// Move a tag to another commit.
#[utoipa::path(patch, path = "/repos/{owner}/{repo}/tags/{tag_name}", operation_id = "update_tag", tag = "prompts",
    request_body = MoveTag,
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt"),
           ("tag_name" = String, Path, description = "The tag")),
    responses((status = 200, description = "Moved", body = TagView),
              (status = 404, description = "No such prompt in this workspace, or no such tag"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name, tag)): Path<(String, String, String)>,
    JsonBody(change): JsonBody<MoveTag>,
) -> Result<Json<TagView>, ApiError> {
    check_owner(&owner)?;
    let moved = app
        .store
        .write(async |tx| tags::put(tx, tenant.id, &name, &tag, change.commit_id, Existing::Required).await);
    Ok(Json(moved.await.map_err(tag_not_found)?.into()))
}

/// Delete a tag. Its commit stays.
#[utoipa::path(delete, path = "/repos/{owner}/{repo}/tags/{tag_name}", operation_id = "delete_tag", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt"),
           ("tag_name" = String, Path, description = "The tag")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such prompt in this workspace, or no such tag"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name, tag)): Path<(String, String, String)>,
) -> Result<StatusCode, ApiError> {
    check_owner(&owner)?;
    let gone = app
        .store
        .write(async |tx| tags::delete(tx, tenant.id, &name, &tag).await);
    gone.await.map_err(tag_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}
