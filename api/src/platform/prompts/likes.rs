//! Likes of prompts, one for each key.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use towpath_store::prompts::likes;

use super::{check_owner, prompt_not_found};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};
use crate::platform::datasets::model::JsonBody;

/// Whether the holder of this key likes a prompt.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewPromptLike)]
pub struct LikePrompt {
    like: bool,
}

/// Likes of a prompt.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptLikes)]
pub struct LikesView {
    likes: i64,
}

/// Like a prompt, or take a like back.
#[utoipa::path(post, path = "/likes/{owner}/{repo}", operation_id = "like", tag = "prompts", request_body = LikePrompt,
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "The number of likes", body = LikesView),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
    JsonBody(sent): JsonBody<LikePrompt>,
) -> Result<Json<LikesView>, ApiError> {
    check_owner(&owner)?;
    let changed = app
        .store
        .write(async |tx| likes::set(tx, tenant.id, &name, tenant.key, sent.like).await);
    let likes = changed.await.map_err(prompt_not_found)?;
    Ok(Json(LikesView { likes }))
}
