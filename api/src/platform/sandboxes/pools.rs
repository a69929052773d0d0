//! Pools: sandboxes of a template that are started ahead. Used by older clients.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until, timeout_at};
use towpath_domain::sandbox::{BoxStatus, check_box_name};
use towpath_domain::{PoolId, Rejection, Timestamp};
use towpath_store::sandboxes::pools::{self, Pool as Row};
use towpath_store::sandboxes::{self, boxes, templates};
use towpath_store::{self as store, Tx};
use towpath_workflows::{delete_box, fill_pool};

use super::model::{PageParameters, PageRequest, check_count, missing, name_taken, quota_exceeded};
use super::readiness::require_node;
use super::templates::held_template;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole, whole_number};

/// Default page size.
const DEFAULT_LIMIT: i64 = 1000;
/// Maximum number of sandboxes in a pool.
const MAX_REPLICAS: i64 = 100;
/// Interval of checks while waiting for a pool.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxPool)]
pub struct Pool {
    #[schema(value_type = Uuid)]
    id: PoolId,
    name: String,
    template_name: String,
    /// Number of ready sandboxes.
    replicas: i64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Pool {
    async fn read(app: &App, row: Row) -> Result<Self, ApiError> {
        let template = app
            .store
            .read(async |tx| templates::get(tx, row.tenant_id, row.template_id).await)
            .await?;
        Ok(Self::from_row(row, template.name))
    }

    fn from_row(row: Row, template_name: String) -> Self {
        Self {
            template_name,
            id: row.id,
            name: row.name,
            replicas: row.replicas,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxPoolList)]
pub struct PoolList {
    pools: Vec<Pool>,
    offset: i64,
    next_cursor: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandboxPool)]
pub struct CreatePool {
    #[schema(max_length = 63)]
    name: String,
    /// A template without volumes.
    template_name: String,
    #[serde(deserialize_with = "whole_number")]
    #[schema(minimum = 0, maximum = 100)]
    replicas: i64,
    /// Wait until all sandboxes are running; default true.
    #[serde(default)]
    wait_for_ready: Option<bool>,
    /// Maximum seconds to wait.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 600, default = 30)]
    timeout: Option<i64>,
}

fn check_replicas(replicas: i64) -> Result<(), Rejection> {
    if (0..=MAX_REPLICAS).contains(&replicas) {
        Ok(())
    } else {
        Err(Rejection::invalid("replicas", format!("expected 0 to {MAX_REPLICAS}")))
    }
}

/// Checks the sandbox quota of the workspace.
async fn check_quota(app: &App, tx: &mut Tx<'_>, tenant: Tenant, more: i64) -> store::Result<Result<(), ApiError>> {
    let most = app.settings.sandbox_quota.boxes;
    sandboxes::lock_quota(tx, tenant.id).await?;
    if most > 0 && more > 0 && boxes::count(tx, tenant.id).await? + more > most {
        let text = format!("this workspace has a limit of {most} sandboxes, including those of its pools");
        return Ok(Err(quota_exceeded(text)));
    }
    Ok(Ok(()))
}

/// Create a pool.
#[utoipa::path(post, path = "/v2/sandboxes/pools", tag = "sandbox-pools", request_body = CreatePool,
    responses((status = 201, description = "The pool", body = Pool),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 504, description = "Its sandboxes are not ready in time; they are still starting"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, Json(new): Json<CreatePool>) -> Result<Response, ApiError> {
    check_box_name("name", &new.name)?;
    check_replicas(new.replicas)?;
    let timeout = new.timeout.unwrap_or(30);
    if !(1..=600).contains(&timeout) {
        return Err(Rejection::invalid("timeout", "expected 1 to 600 seconds").into());
    }
    require_node(&app).await?;
    let made = app.store.write(async |tx| {
        if let Err(refusal) = check_quota(&app, tx, tenant, new.replicas).await? {
            return Ok(Err(refusal));
        }
        let most = app.settings.sandbox_quota.pools;
        if let Err(refusal) = check_count(pools::count(tx, tenant.id).await?, most, "pools") {
            return Ok(Err(refusal));
        }
        let template = match held_template(tx, tenant, &new.template_name).await? {
            Ok(template) => template,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !templates::volumes_of(tx, &[template.id]).await?.is_empty() {
            let text = "a template with volumes cannot be pooled: only one sandbox may write to a volume";
            return Ok(Err(ApiError::with_name(
                StatusCode::BAD_REQUEST,
                "ValidationError",
                text,
            )));
        }
        Ok(Ok(
            pools::insert(tx, tenant.id, &new.name, template.id, new.replicas).await?
        ))
    });
    let row = made.await.map_err(name_taken("pool", &new.name))??;
    app.store
        .write(async |tx| fill_pool::start(tx, tenant.id, row.id).await)
        .await?;
    if new.wait_for_ready != Some(false) {
        wait_filled(&app, &row, Duration::from_secs(timeout.unsigned_abs())).await?;
    }
    Ok((StatusCode::CREATED, Json(Pool::read(&app, row).await?)).into_response())
}

/// Waits until all sandboxes of a pool are running.
async fn wait_filled(app: &App, pool: &Row, patience: Duration) -> Result<(), ApiError> {
    let deadline = Instant::now() + patience;
    let mut changes = app.sandbox_host.as_ref().map(|boxes| boxes.changes());
    loop {
        let members = app
            .store
            .read(async |tx| boxes::pool_members(tx, pool.tenant_id, pool.id).await)
            .await?;
        let ready = members
            .iter()
            .filter(|member| member.status == BoxStatus::Ready)
            .count();
        if i64::try_from(ready).unwrap_or(i64::MAX) >= pool.replicas {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let failed = members.iter().find_map(|member| member.status_message.as_deref());
            let why = failed.map_or_else(String::new, |why| format!(": {why}"));
            let text = format!(
                "{ready} of {} sandboxes of pool '{}' are running{why}",
                pool.replicas, pool.name
            );
            return Err(ApiError::with_name(StatusCode::GATEWAY_TIMEOUT, "Timeout", text));
        }
        let look = deadline.min(Instant::now() + POLL_INTERVAL);
        match &mut changes {
            Some(changes) => drop(timeout_at(look, changes.changed()).await),
            None => sleep_until(look).await,
        }
    }
}

/// List the pools of the workspace, sorted by name.
#[utoipa::path(get, path = "/v2/sandboxes/pools", tag = "sandbox-pools", params(PageParameters),
    responses((status = 200, description = "Pools", body = PoolList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, pairs: Pairs) -> Result<Json<PoolList>, ApiError> {
    let page = PageRequest::parse(&pairs, DEFAULT_LIMIT)?;
    let (rows, known) = app
        .store
        .read(async |tx| {
            let rows = pools::list(tx, tenant.id, page.limit, page.offset).await?;
            Ok((
                rows,
                templates::list(tx, tenant.id, None, i64::from(u16::MAX), 0).await?,
            ))
        })
        .await?;
    let next_cursor = page.next_cursor(rows.len());
    let pools = rows.into_iter().map(|row| {
        let template = known.iter().find(|template| template.id == row.template_id);
        let name = template.map(|template| template.name.clone()).unwrap_or_default();
        Pool::from_row(row, name)
    });
    Ok(Json(PoolList {
        pools: pools.collect(),
        offset: page.offset,
        next_cursor,
    }))
}

/// Get one pool by its name or its id.
#[utoipa::path(get, path = "/v2/sandboxes/pools/{name}", tag = "sandbox-pools",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The pool", body = Pool),
              (status = 404, description = "No such pool in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Json<Pool>, ApiError> {
    let found = app.store.read(async |tx| pools::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Pool", &name))?;
    Ok(Json(Pool::read(&app, row).await?))
}

/// Changes of a pool.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxPoolChange)]
pub struct UpdatePool {
    #[serde(default)]
    name: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 100)]
    replicas: Option<i64>,
}

/// Change a pool.
#[utoipa::path(patch, path = "/v2/sandboxes/pools/{name}", tag = "sandbox-pools", request_body = UpdatePool,
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Updated", body = Pool),
              (status = 404, description = "No such pool in this workspace"),
              (status = 409, description = "The name is already in use"),
              (status = 429, description = "The workspace has reached its quota"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(update): Json<UpdatePool>,
) -> Result<Json<Pool>, ApiError> {
    if let Some(name) = &update.name {
        check_box_name("name", name)?;
    }
    if let Some(replicas) = update.replicas {
        check_replicas(replicas)?;
    }
    let changed = app.store.write(async |tx| {
        // Before reading the pool, which another request may change.
        sandboxes::lock_quota(tx, tenant.id).await?;
        let row = pools::find(tx, tenant.id, &name).await?;
        let replicas = update.replicas.unwrap_or(row.replicas);
        if let Err(refusal) = check_quota(&app, tx, tenant, replicas - row.replicas).await? {
            return Ok(Err(refusal));
        }
        // The lane is locked before any row.
        fill_pool::start(tx, tenant.id, row.id).await?;
        let name = update.name.as_deref().unwrap_or(&row.name);
        Ok(Ok(pools::update(tx, tenant.id, row.id, name, replicas).await?))
    });
    let row = changed.await.map_err(|error| match error {
        store::Error::Conflict { .. } => {
            let text = "another pool of this workspace has this name";
            ApiError::with_name(StatusCode::CONFLICT, "NameConflict", text)
        }
        error => missing("Pool", &name)(error),
    })??;
    Ok(Json(Pool::read(&app, row).await?))
}

/// Delete a pool with its waiting sandboxes.
#[utoipa::path(delete, path = "/v2/sandboxes/pools/{name}", tag = "sandbox-pools",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such pool in this workspace"),
              (status = 409, description = "The pool is being filled"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let deleted = app.store.write(async |tx| {
        let row = pools::find(tx, tenant.id, &name).await?;
        let members = boxes::pool_members(tx, tenant.id, row.id).await?;
        for member in &members {
            delete_box::start(tx, tenant.id, member.id).await?;
        }
        // From here on nothing is added to the pool.
        pools::lock(tx, tenant.id, row.id).await?;
        let now = boxes::pool_members(tx, tenant.id, row.id).await?;
        if now
            .iter()
            .any(|member| members.iter().all(|known| known.id != member.id))
        {
            return Err(Rejection::conflict("", "the pool is being filled; retry").into());
        }
        for member in &members {
            // A caller may have claimed the sandbox since.
            if boxes::lock(tx, tenant.id, member.id).await?.pool_id == Some(row.id) {
                boxes::mark_deleting(tx, tenant.id, member.id).await?;
            }
        }
        pools::delete(tx, tenant.id, row.id).await
    });
    deleted.await.map_err(missing("Pool", &name))?;
    Ok(StatusCode::NO_CONTENT)
}
