//! Pools: boxes of a template that are started ahead. Of the older clients.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};
use towpath_domain::sandbox::{BoxStatus, check_box_name};
use towpath_domain::{PoolId, Rejection, Timestamp};
use towpath_store::sandboxes::pools::{self, Pool as Row};
use towpath_store::sandboxes::{boxes, templates};
use towpath_store::{self as store};
use towpath_workflows::{box_delete, pool_fill};

use super::model::{Page, PageParameters, missing, taken};
use super::wake::machine;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole, whole_number};

/// What a list without a limit shows.
const USUAL: i64 = 1000;
/// Boxes that wait in one pool.
const MOST: i64 = 100;
/// How long a request that waits for a pool waits for a change before it looks again.
const LOOK: Duration = Duration::from_millis(500);

/// A pool.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxPool)]
pub struct Pool {
    #[schema(value_type = Uuid)]
    id: PoolId,
    name: String,
    template_name: String,
    /// How many wait.
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
        Ok(Self::of(row, template.name))
    }

    fn of(row: Row, template_name: String) -> Self {
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

/// Pools.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxPoolList)]
pub struct PoolList {
    pools: Vec<Pool>,
    offset: i64,
    next_cursor: Option<String>,
}

/// A pool to make.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewSandboxPool)]
pub struct New {
    #[schema(max_length = 63)]
    name: String,
    /// A template without volumes.
    template_name: String,
    #[serde(deserialize_with = "whole_number")]
    #[schema(minimum = 0, maximum = 100)]
    replicas: i64,
    /// Whether the answer comes when all of them run; so unless this is false.
    #[serde(default)]
    wait_for_ready: Option<bool>,
    /// How many seconds the answer may take.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 600, default = 30)]
    timeout: Option<i64>,
}

fn check_replicas(replicas: i64) -> Result<(), Rejection> {
    if (0..=MOST).contains(&replicas) {
        Ok(())
    } else {
        Err(Rejection::invalid("replicas", format!("expected 0 to {MOST}")))
    }
}

/// Make a pool.
#[utoipa::path(post, path = "/v2/sandboxes/pools", tag = "sandbox-pools", request_body = New,
    responses((status = 201, description = "The pool", body = Pool),
              (status = 409, description = "The name is taken"),
              (status = 501, description = "This process has no sandboxes"),
              (status = 504, description = "Its sandboxes do not run in time; they are still being started"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, Json(new): Json<New>) -> Result<Response, ApiError> {
    check_box_name("name", &new.name)?;
    check_replicas(new.replicas)?;
    let timeout = new.timeout.unwrap_or(30);
    if !(1..=600).contains(&timeout) {
        return Err(Rejection::invalid("timeout", "expected 1 to 600 seconds").into());
    }
    machine(&app)?;
    let made = app.store.write(async |tx| {
        let template = match templates::find(tx, tenant.id, &new.template_name).await {
            Err(store::Error::NotFound) => {
                let shown: String = new.template_name.chars().take(64).collect();
                let text = format!("template '{shown}' not found");
                return Ok(Err(ApiError::named(StatusCode::BAD_REQUEST, "TemplateNotFound", text)));
            }
            found => found?,
        };
        if !templates::mounts(tx, &[template.id]).await?.is_empty() {
            let text = "a template with volumes cannot be pooled: only one sandbox may write to a volume";
            return Ok(Err(ApiError::named(StatusCode::BAD_REQUEST, "ValidationError", text)));
        }
        Ok(Ok(
            pools::insert(tx, tenant.id, &new.name, template.id, new.replicas).await?
        ))
    });
    let row = made.await.map_err(taken("pool", &new.name))??;
    app.store
        .write(async |tx| pool_fill::start(tx, tenant.id, row.id).await)
        .await?;
    if new.wait_for_ready != Some(false) {
        full(&app, &row, Duration::from_secs(timeout.unsigned_abs())).await?;
    }
    Ok((StatusCode::CREATED, Json(Pool::read(&app, row).await?)).into_response())
}

/// Waits until all boxes of a pool run.
async fn full(app: &App, pool: &Row, patience: Duration) -> Result<(), ApiError> {
    let deadline = Instant::now() + patience;
    let mut changes = machine(app)?.changes();
    loop {
        let members = app
            .store
            .read(async |tx| boxes::members(tx, pool.tenant_id, pool.id).await)
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
                "{ready} of {} sandboxes of pool '{}' run{why}",
                pool.replicas, pool.name
            );
            return Err(ApiError::named(StatusCode::GATEWAY_TIMEOUT, "Timeout", text));
        }
        let look = deadline.min(Instant::now() + LOOK);
        let _ = timeout_at(look, changes.changed()).await;
    }
}

/// The pools of the workspace, by name.
#[utoipa::path(get, path = "/v2/sandboxes/pools", tag = "sandbox-pools", params(PageParameters),
    responses((status = 200, description = "Pools", body = PoolList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, pairs: Pairs) -> Result<Json<PoolList>, ApiError> {
    let page = Page::of(&pairs, USUAL)?;
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
    let next_cursor = page.next(rows.len());
    let pools = rows.into_iter().map(|row| {
        let template = known.iter().find(|template| template.id == row.template_id);
        let name = template.map(|template| template.name.clone()).unwrap_or_default();
        Pool::of(row, name)
    });
    Ok(Json(PoolList {
        pools: pools.collect(),
        offset: page.offset,
        next_cursor,
    }))
}

/// One pool, by its name or its id.
#[utoipa::path(get, path = "/v2/sandboxes/pools/{name}", tag = "sandbox-pools",
    params(("name" = String, Path, description = "Its name or its id")),
    responses((status = 200, description = "The pool", body = Pool),
              (status = 404, description = "No such pool in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Json<Pool>, ApiError> {
    let found = app.store.read(async |tx| pools::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Pool", &name))?;
    Ok(Json(Pool::read(&app, row).await?))
}

/// What is to change.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxPoolChange)]
pub struct Update {
    #[serde(default)]
    name: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 100)]
    replicas: Option<i64>,
}

/// Change a pool.
#[utoipa::path(patch, path = "/v2/sandboxes/pools/{name}", tag = "sandbox-pools", request_body = Update,
    params(("name" = String, Path, description = "Its name or its id")),
    responses((status = 200, description = "As it is now", body = Pool),
              (status = 404, description = "No such pool in this workspace"),
              (status = 409, description = "The name is taken"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
    Json(update): Json<Update>,
) -> Result<Json<Pool>, ApiError> {
    if let Some(name) = &update.name {
        check_box_name("name", name)?;
    }
    if let Some(replicas) = update.replicas {
        check_replicas(replicas)?;
    }
    let changed = app.store.write(async |tx| {
        let row = pools::find(tx, tenant.id, &name).await?;
        // The lane is locked before any row.
        pool_fill::start(tx, tenant.id, row.id).await?;
        let name = update.name.as_deref().unwrap_or(&row.name);
        pools::update(tx, tenant.id, row.id, name, update.replicas.unwrap_or(row.replicas)).await
    });
    let row = changed.await.map_err(|error| match error {
        store::Error::Conflict { .. } => {
            let text = "another pool of this workspace has that name";
            ApiError::named(StatusCode::CONFLICT, "NameConflict", text)
        }
        error => missing("Pool", &name)(error),
    })?;
    Ok(Json(Pool::read(&app, row).await?))
}

/// Delete a pool with the sandboxes that wait in it.
#[utoipa::path(delete, path = "/v2/sandboxes/pools/{name}", tag = "sandbox-pools",
    params(("name" = String, Path, description = "Its name or its id")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such pool in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let deleted = app.store.write(async |tx| {
        let row = pools::find(tx, tenant.id, &name).await?;
        let members = boxes::members(tx, tenant.id, row.id).await?;
        for member in &members {
            box_delete::start(tx, tenant.id, member.id).await?;
        }
        for member in &members {
            // A caller may have claimed it since.
            if boxes::lock(tx, tenant.id, member.id).await?.pool_id == Some(row.id) {
                boxes::delete(tx, tenant.id, member.id).await?;
            }
        }
        pools::delete(tx, tenant.id, row.id).await
    });
    deleted.await.map_err(missing("Pool", &name))?;
    Ok(StatusCode::NO_CONTENT)
}
