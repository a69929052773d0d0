//! Commits of prompts: what they were after each push.

use std::collections::HashMap;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_domain::{PromptCommitId, PromptId, Rejection, Timestamp, prompt};
use towpath_store as store;
use towpath_store::prompts::commits::{self, NewCommit, PromptCommit};
use towpath_store::prompts::{self, tags};

use super::{check_owner, prompt_not_found};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::datasets::model::{JsonBody, check_object_field};
use crate::platform::paging;

/// A commit without its manifest.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptCommit)]
pub struct CommitView {
    #[schema(value_type = Uuid)]
    id: PromptCommitId,
    #[schema(value_type = Uuid)]
    repo_id: PromptId,
    commit_hash: String,
    /// The commit before it.
    #[schema(value_type = Option<Uuid>)]
    parent_id: Option<PromptCommitId>,
    parent_commit_hash: Option<String>,
    /// SHA-256 of the manifest.
    manifest_sha: String,
    description: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// As `created_at`: commits do not change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Always empty.
    example_run_ids: Vec<String>,
    /// Always 0: not counted.
    num_downloads: i64,
    /// Always 0: not counted.
    num_views: i64,
}

impl CommitView {
    /// `ids` are those of parents, by their hashes.
    fn new(row: PromptCommit, ids: &HashMap<String, PromptCommitId>) -> Self {
        Self {
            id: row.id,
            repo_id: row.prompt_id,
            commit_hash: row.hash,
            parent_id: row.parent_hash.as_ref().and_then(|hash| ids.get(hash).copied()),
            parent_commit_hash: row.parent_hash,
            manifest_sha: row.manifest_hash,
            description: row.description,
            created_at: row.created_at,
            updated_at: row.created_at,
            example_run_ids: Vec::new(),
            num_downloads: 0,
            num_views: 0,
        }
    }
}

/// Wrapper in which clients expect a commit.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptCommitAnswer)]
pub struct OneCommit {
    commit: CommitView,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptCommitPage)]
pub struct CommitPage {
    commits: Vec<CommitView>,
    /// Commits on all pages.
    total: i64,
}

/// A commit to create. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewPromptCommit)]
pub struct CreateCommit {
    /// The prompt as JSON.
    #[schema(value_type = Object)]
    manifest: Box<RawValue>,
    /// Hash, beginning of the hash or tag of the commit before it; default the newest one.
    parent_commit: Option<String>,
    #[schema(max_length = 1_000, pattern = r"^[^\u0000]*$")]
    description: Option<String>,
}

/// The parents of commits that are read together.
async fn parent_ids(
    tx: &mut store::Tx<'_>,
    prompt: &prompts::Prompt,
    rows: &[PromptCommit],
) -> store::Result<HashMap<String, PromptCommitId>> {
    let hashes = rows.iter().filter_map(|row| row.parent_hash.clone()).collect();
    Ok(commits::ids(tx, prompt, hashes).await?.into_iter().collect())
}

/// Commit a new version of a prompt. 409 if the newest version has the same manifest.
#[utoipa::path(post, path = "/commits/{owner}/{repo}", operation_id = "create_commit", tag = "prompts",
    request_body = CreateCommit,
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "Created", body = OneCommit),
              (status = 404, description = "No such prompt in this workspace"),
              (status = 409, description = "The prompt has not changed"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
    JsonBody(new): JsonBody<CreateCommit>,
) -> Result<Json<OneCommit>, ApiError> {
    check_owner(&owner)?;
    let manifest = check_object_field("manifest", Some(new.manifest))?;
    let manifest = manifest.ok_or_else(|| Rejection::invalid("manifest", "expected an object"))?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let new = NewCommit {
        manifest: manifest.get().to_owned(),
        parent: new.parent_commit,
        description: new.description,
    };
    let made = app.store.write(async |tx| {
        let made = commits::create(tx, tenant.id, &name, &new).await?;
        let prompt = prompts::get(tx, tenant.id, &name).await?;
        let parents = parent_ids(tx, &prompt, std::slice::from_ref(&made)).await?;
        Ok((made, parents))
    });
    let (made, parents) = made.await.map_err(prompt_not_found)?;
    let commit = CommitView::new(made, &parents);
    Ok(Json(OneCommit { commit }))
}

/// List the commits of a prompt, newest first, without their manifests.
#[utoipa::path(get, path = "/commits/{owner}/{repo}", operation_id = "list_commits", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt"),
           ("tag" = Option<String>, Query, description = "Only the commit with this tag"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Commits", body = CommitPage),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
    sent: Pairs,
) -> Result<Json<CommitPage>, ApiError> {
    check_owner(&owner)?;
    sent.only(&["tag", "limit", "offset", "include_stats", "include_model"])?;
    sent.flag("include_stats")?;
    sent.flag("include_model")?;
    let tag = sent.all("tag").last().filter(|tag| !tag.is_empty());
    let (limit, offset) = paging::of(&sent)?;
    let read = app.store.read(async |tx| {
        let prompt = prompts::get(tx, tenant.id, &name).await?;
        let (found, total) = match tag {
            None => (commits::list(tx, &prompt, limit, offset).await?, prompt.commit_count),
            Some(tag) => tagged(tx, &prompt, tag, offset).await?,
        };
        let parents = parent_ids(tx, &prompt, &found).await?;
        Ok((found, total, parents))
    });
    let (found, total, parents) = read.await.map_err(prompt_not_found)?;
    let commits = found.into_iter().map(|row| CommitView::new(row, &parents));
    Ok(Json(CommitPage {
        commits: commits.collect(),
        total,
    }))
}

/// The page of a list that has at most the commit with a tag.
async fn tagged(
    tx: &mut store::Tx<'_>,
    prompt: &prompts::Prompt,
    tag: &str,
    offset: i64,
) -> store::Result<(Vec<PromptCommit>, i64)> {
    let hash = if tag == prompt::LATEST {
        prompt.last_commit_hash.clone()
    } else {
        let found = tags::list(tx, prompt, Some(tag)).await?;
        found.into_iter().next().map(|tagged| tagged.commit_hash)
    };
    let Some(hash) = hash else {
        return Ok((Vec::new(), 0));
    };
    if offset > 0 {
        return Ok((Vec::new(), 1));
    }
    Ok((vec![commits::resolve(tx, prompt, &hash).await?], 1))
}

/// A commit with its manifest.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptManifest)]
pub struct ManifestView {
    commit_hash: String,
    #[schema(value_type = Object)]
    manifest: Box<RawValue>,
    description: Option<String>,
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    examples: Vec<String>,
    /// Always null: a model is part of the manifest.
    model_config: Option<String>,
    /// Always null.
    model_provider: Option<String>,
}

/// Get a commit with its manifest. A manifest of a prompt and a model has the prompt only, unless `include_model` is set.
#[utoipa::path(get, path = "/commits/{owner}/{repo}/{commit}", operation_id = "get_commit", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt"),
           ("commit" = String, Path, description = "`latest`, a hash or at least eight digits of it, or a tag"),
           ("include_model" = Option<bool>, Query, description = "With the model")),
    responses((status = 200, description = "The commit", body = ManifestView),
              (status = 404, description = "No such prompt in this workspace, or no such commit"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name, commit)): Path<(String, String, String)>,
    sent: Pairs,
) -> Result<Json<ManifestView>, ApiError> {
    check_owner(&owner)?;
    sent.only(&["include_model", "include", "get_examples", "is_view"])?;
    sent.flag("get_examples")?;
    sent.flag("is_view")?;
    let mut included = sent.all("include").flat_map(|names| names.split(','));
    let with_model = sent.flag("include_model")? == Some(true) || included.any(|name| name == "model");
    let read = app.store.read(async |tx| {
        let prompt = prompts::get(tx, tenant.id, &name).await?;
        let found = commits::resolve(tx, &prompt, &commit).await?;
        let manifest = commits::manifest(tx, &found).await?;
        Ok((found, manifest))
    });
    let (found, manifest) = read.await.map_err(|error| match error {
        store::Error::NotFound => ApiError::not_found("prompt or commit"),
        error => error.into(),
    })?;
    let prompt_only = (!with_model).then(|| prompt::without_model(&manifest)).flatten();
    let unreadable = |_| store::Error::corrupt("prompt_commit", "manifest", found.id);
    let manifest = match prompt_only {
        Some(prompt_only) => prompt_only,
        None => RawValue::from_string(manifest).map_err(unreadable)?,
    };
    Ok(Json(ManifestView {
        commit_hash: found.hash,
        manifest,
        description: found.description,
        examples: Vec::new(),
        model_config: None,
        model_provider: None,
    }))
}
