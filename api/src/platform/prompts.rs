//! Prompts of a workspace, as the tracing clients keep them. Submodules hold their commits, tags and likes.

pub mod commits;
pub mod directories;
pub mod likes;
pub mod slashes;
pub mod tags;

use std::collections::HashSet;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use towpath_domain::prompt::OWNER;
use towpath_domain::{PromptId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::prompts::{self, Filter, Order, Prompt, PromptFields};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, Pairs, Path};
use crate::platform::datasets::model::{self, JsonBody};
use crate::platform::exports::MAX_OFFSET;

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Prompt)]
pub struct PromptView {
    #[schema(value_type = Uuid)]
    id: PromptId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    /// Unique in the workspace.
    repo_handle: String,
    /// The name behind `-/`.
    full_name: String,
    /// Always null: workspaces have no public name.
    owner: Option<String>,
    description: Option<String>,
    readme: Option<String>,
    tags: Vec<String>,
    /// Always `prompt`.
    repo_type: &'static str,
    /// Always false.
    is_public: bool,
    is_archived: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    num_likes: i64,
    num_commits: i64,
    /// Always 0: not counted.
    num_downloads: i64,
    /// Always 0: not counted.
    num_views: i64,
    /// Whether the holder of this key likes it.
    liked_by_auth_user: bool,
    last_commit_hash: Option<String>,
    /// Always null: prompts are not forked.
    original_repo_id: Option<String>,
    /// Always null.
    original_repo_full_name: Option<String>,
    /// Always null.
    upstream_repo_id: Option<String>,
    /// Always null.
    upstream_repo_full_name: Option<String>,
}

impl PromptView {
    fn new(row: Prompt, liked: &HashSet<PromptId>) -> Result<Self, ApiError> {
        Ok(Self {
            tags: row.labels()?,
            liked_by_auth_user: liked.contains(&row.id),
            id: row.id,
            tenant_id: row.tenant_id,
            full_name: format!("{OWNER}/{}", row.name),
            repo_handle: row.name,
            owner: None,
            description: row.description,
            readme: row.readme,
            repo_type: "prompt",
            is_public: false,
            is_archived: row.is_archived,
            created_at: row.created_at,
            updated_at: row.updated_at,
            num_likes: row.like_count,
            num_commits: row.commit_count,
            num_downloads: 0,
            num_views: 0,
            last_commit_hash: row.last_commit_hash,
            original_repo_id: None,
            original_repo_full_name: None,
            upstream_repo_id: None,
            upstream_repo_full_name: None,
        })
    }
}

/// Wrapper in which clients expect a prompt.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptAnswer)]
pub struct OnePrompt {
    repo: PromptView,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptPage)]
pub struct PromptPage {
    repos: Vec<PromptView>,
    /// Prompts on all pages.
    total: i64,
}

/// A prompt to create. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewPrompt)]
pub struct CreatePrompt {
    /// The name: letters, digits, dashes, underscores and dots.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    repo_handle: String,
    #[schema(max_length = 10_000, pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    #[schema(max_length = 100_000, pattern = r"^[^\u0000]*$")]
    readme: Option<String>,
    tags: Option<Vec<String>>,
    /// Refused if true: not available in this build.
    is_public: Option<bool>,
    /// Only `prompt` is available.
    repo_type: Option<String>,
}

/// Refuses prompts that other workspaces could read.
fn refuse_public(is_public: Option<bool>) -> Result<(), ApiError> {
    if is_public == Some(true) {
        return Err(Rejection::unsupported("is_public", "a public prompt").into());
    }
    Ok(())
}

/// Maps a missing row to 404 for a prompt.
fn prompt_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("prompt"),
        error => error.into(),
    }
}

/// All prompts of a workspace have the owner `-`.
fn check_owner(owner: &str) -> Result<(), ApiError> {
    if owner == OWNER {
        return Ok(());
    }
    let text = format!("prompt not found: the owner of every prompt here is `{OWNER}`; use its name alone");
    Err(ApiError::new(StatusCode::NOT_FOUND, text))
}

/// Create a prompt without commits.
#[utoipa::path(post, path = "/repos", tag = "prompts", request_body = CreatePrompt,
    responses((status = 200, description = "Created", body = OnePrompt),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(new): JsonBody<CreatePrompt>,
) -> Result<Json<OnePrompt>, ApiError> {
    refuse_public(new.is_public)?;
    if let Some(kind) = new.repo_type.filter(|kind| kind != "prompt") {
        let shown: String = kind.chars().take(40).collect();
        return Err(Rejection::unsupported("repo_type", format!("a repository of the type {shown}")).into());
    }
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let fields = PromptFields {
        description: new.description,
        readme: new.readme,
        labels: new.tags,
        is_archived: None,
    };
    let made = app
        .store
        .write(async |tx| prompts::create(tx, tenant.id, &new.repo_handle, &fields).await);
    let repo = PromptView::new(made.await?, &HashSet::new())?;
    Ok(Json(OnePrompt { repo }))
}

/// Parameters of the list.
const PARAMETERS: [&str; 19] = [
    "limit",
    "offset",
    "query",
    "match_prefix",
    "tags",
    "is_public",
    "is_archived",
    "has_commits",
    "repo_type",
    "repo_types",
    "sort_field",
    "sort_direction",
    "tenant_id",
    "tenant_handle",
    "source",
    "include_owners",
    "with_latest_manifest",
    "tag_value_id",
    "upstream_repo_handle",
];

/// The last value of a parameter, one of a few.
fn choice<'a>(sent: &'a Pairs, name: &'static str, known: &[&str]) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = sent.all(name).last().filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    if known.contains(&value) {
        return Ok(Some(value));
    }
    let loc = vec![LocSegment::from("query"), LocSegment::from(name)];
    let text = format!("expected one of {}", known.join(", "));
    Err(ApiError::invalid_at(loc, "enum", text))
}

/// What a list has to contain; `None` if nothing can fit.
fn criteria(sent: &Pairs, tenant: TenantId) -> Result<Option<Filter>, ApiError> {
    model::refuse_parameters(
        sent,
        &["source", "tag_value_id", "upstream_repo_handle", "tenant_handle"],
    )?;
    if sent.flag("with_latest_manifest")? == Some(true) {
        return Err(Rejection::unsupported("with_latest_manifest", "a list with manifests").into());
    }
    sent.flag("match_prefix")?;
    sent.flag("include_owners")?;
    let workspaces = sent.read::<TenantId>("tenant_id", "a UUID")?;
    let kinds = || sent.all("repo_type").chain(sent.all("repo_types"));
    let is_other_kind = kinds().next().is_some() && !kinds().any(|kind| kind == "prompt");
    let is_archived = match choice(sent, "is_archived", &["true", "false", "allow"])? {
        Some("true") => Some(true),
        Some("allow") => None,
        _ => Some(false),
    };
    let order = match choice(
        sent,
        "sort_field",
        &["updated_at", "num_likes", "num_downloads", "num_views", "relevance"],
    )? {
        Some("num_likes") => Order::Likes,
        // What is not counted is the same for all of them.
        _ => Order::UpdatedAt,
    };
    let is_ascending = choice(sent, "sort_direction", &["asc", "desc"])? == Some("asc");
    let text = sent.all("query").last().filter(|text| !text.is_empty());
    let filter = Filter {
        text: text.map(str::to_owned),
        labels: sent.all("tags").map(str::to_owned).collect(),
        is_archived,
        has_commits: sent.flag("has_commits")?,
        order,
        is_ascending,
    };
    let is_public = choice(sent, "is_public", &["true", "false"])? == Some("true");
    let is_elsewhere = workspaces.last().is_some_and(|workspace| *workspace != tenant);
    Ok((!is_public && !is_elsewhere && !is_other_kind).then_some(filter))
}

/// List prompts, those that changed last first. Unknown filters are rejected.
#[utoipa::path(get, path = "/repos", tag = "prompts",
    params(("query" = Option<String>, Query, description = "Text in the name or the description, in any case"),
           ("tags" = Option<Vec<String>>, Query, description = "Tags that a prompt has, all of them"),
           ("is_archived" = Option<String>, Query, description = "`true`, `false` or `allow`; default `false`"),
           ("is_public" = Option<String>, Query, description = "`true` or `false`; no prompt is public"),
           ("has_commits" = Option<bool>, Query, description = "Only prompts with or without commits"),
           ("sort_field" = Option<String>, Query, description = "`updated_at`, the default, or `num_likes`"),
           ("sort_direction" = Option<String>, Query, description = "`desc`, the default, or `asc`"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Prompts", body = PromptPage), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<PromptPage>, ApiError> {
    sent.only(&PARAMETERS)?;
    let criteria = criteria(&sent, tenant.id)?;
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let Some(criteria) = criteria else {
        return Ok(Json(PromptPage {
            repos: Vec::new(),
            total: 0,
        }));
    };
    let read = app.store.read(async |tx| {
        let (found, total) = prompts::list(tx, tenant.id, &criteria, limit, offset).await?;
        let ids: Vec<PromptId> = found.iter().map(|row| row.id).collect();
        let liked = prompts::likes::of_key(tx, tenant.id, tenant.key, &ids).await?;
        Ok((found, total, liked))
    });
    let (found, total, liked) = read.await?;
    let repos = found.into_iter().map(|row| PromptView::new(row, &liked));
    Ok(Json(PromptPage {
        repos: repos.collect::<Result<_, _>>()?,
        total,
    }))
}

/// Get one prompt.
#[utoipa::path(get, path = "/repos/{owner}/{repo}", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "The prompt", body = OnePrompt),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
) -> Result<Json<OnePrompt>, ApiError> {
    check_owner(&owner)?;
    let read = app.store.read(async |tx| {
        let found = prompts::get(tx, tenant.id, &name).await?;
        let liked = prompts::likes::of_key(tx, tenant.id, tenant.key, &[found.id]).await?;
        Ok((found, liked))
    });
    let (found, liked) = read.await.map_err(prompt_not_found)?;
    let repo = PromptView::new(found, &liked)?;
    Ok(Json(OnePrompt { repo }))
}

/// Changes of a prompt; null and omitted fields stay unchanged. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = PromptChange)]
pub struct UpdatePrompt {
    #[schema(max_length = 10_000, pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    #[schema(max_length = 100_000, pattern = r"^[^\u0000]*$")]
    readme: Option<String>,
    /// Replaces all tags of the prompt.
    tags: Option<Vec<String>>,
    /// Refused if true: not available in this build.
    is_public: Option<bool>,
    is_archived: Option<bool>,
}

/// Change a prompt. Its commits stay.
#[utoipa::path(patch, path = "/repos/{owner}/{repo}", tag = "prompts", request_body = UpdatePrompt,
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "Updated", body = OnePrompt),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
    JsonBody(change): JsonBody<UpdatePrompt>,
) -> Result<Json<OnePrompt>, ApiError> {
    check_owner(&owner)?;
    refuse_public(change.is_public)?;
    let fields = PromptFields {
        description: change.description,
        readme: change.readme,
        labels: change.tags,
        is_archived: change.is_archived,
    };
    let changed = app.store.write(async |tx| {
        let changed = prompts::update(tx, tenant.id, &name, &fields).await?;
        let liked = prompts::likes::of_key(tx, tenant.id, tenant.key, &[changed.id]).await?;
        Ok((changed, liked))
    });
    let (changed, liked) = changed.await.map_err(prompt_not_found)?;
    let repo = PromptView::new(changed, &liked)?;
    Ok(Json(OnePrompt { repo }))
}

/// Delete a prompt with its commits, tags and likes. Answers an empty object, which clients parse.
#[utoipa::path(delete, path = "/repos/{owner}/{repo}", tag = "prompts",
    params(("owner" = String, Path, description = "`-`"), ("repo" = String, Path, description = "Name of the prompt")),
    responses((status = 200, description = "Gone", body = Object),
              (status = 404, description = "No such prompt in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path((owner, name)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    check_owner(&owner)?;
    loop {
        let some = app
            .store
            .write(async |tx| prompts::commits::delete_batch(tx, tenant.id, &name).await);
        if !some.await.map_err(prompt_not_found)? {
            break;
        }
    }
    let gone = app.store.write(async |tx| prompts::delete(tx, tenant.id, &name).await);
    gone.await.map_err(prompt_not_found)?;
    Ok(Json(json!({})))
}
