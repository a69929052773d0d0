//! Pools and their queues.

use axum::extract::State;
use towpath_store::pools::Overview;
use towpath_store::{Store, jobs, pools, workers};

use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path};
use crate::internal::job_stores::JobStores;
use crate::internal::model::{Queue, Queues, Scaling};

/// List all pools with their queues, across workspaces.
#[utoipa::path(get, path = "/internal/queues", tag = "queues", security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "Pools by name", body = Queues), ApiError))]
pub(crate) async fn list(State(JobStores { store, .. }): State<JobStores>) -> Result<Json<Queues>, ApiError> {
    let (pools, now) = store
        .read(async |tx| {
            Ok((
                pools::list(tx, workers::HEARTBEAT_WINDOW).await?,
                jobs::db_now(tx).await?,
            ))
        })
        .await?;
    let items = pools.into_iter().map(|pool| Queue::of(pool, now)).collect();
    Ok(Json(Queues { items }))
}

/// Get one pool.
#[utoipa::path(get, path = "/internal/queues/{pool}", tag = "queues", security(("api_key" = []), ("bearer" = [])),
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The pool", body = Queue),
              (status = 404, description = "No such pool", body = Error), ApiError))]
pub(crate) async fn get(
    State(JobStores { store, .. }): State<JobStores>,
    Path(name): Path<String>,
) -> Result<Json<Queue>, ApiError> {
    queue(&store, &name).await.map(Json)
}

/// Pause a pool: no jobs are claimed; running ones continue.
#[utoipa::path(post, path = "/internal/queues/{pool}/pause", tag = "queues", security(("api_key" = []), ("bearer" = [])),
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The pool, paused", body = Queue),
              (status = 404, description = "No such pool", body = Error), ApiError))]
pub(crate) async fn pause(
    State(JobStores { store, .. }): State<JobStores>,
    Path(name): Path<String>,
) -> Result<Json<Queue>, ApiError> {
    change(&store, &name, Change::Pause).await.map(Json)
}

/// Resume a pool after a pause or drain.
#[utoipa::path(post, path = "/internal/queues/{pool}/resume", tag = "queues", security(("api_key" = []), ("bearer" = [])),
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The pool, active", body = Queue),
              (status = 404, description = "No such pool", body = Error), ApiError))]
pub(crate) async fn resume(
    State(JobStores { store, .. }): State<JobStores>,
    Path(name): Path<String>,
) -> Result<Json<Queue>, ApiError> {
    change(&store, &name, Change::Resume).await.map(Json)
}

/// Drain a pool: no jobs are claimed; its status is `drained` after running ones have ended.
#[utoipa::path(post, path = "/internal/queues/{pool}/drain", tag = "queues", security(("api_key" = []), ("bearer" = [])),
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The pool, `draining` or `drained`", body = Queue),
              (status = 404, description = "No such pool", body = Error), ApiError))]
pub(crate) async fn drain(
    State(JobStores { store, .. }): State<JobStores>,
    Path(name): Path<String>,
) -> Result<Json<Queue>, ApiError> {
    change(&store, &name, Change::Drain).await.map(Json)
}

/// Get the metrics of a pool for autoscalers. A pool that this server uses exists before its first job and worker.
#[utoipa::path(get, path = "/internal/scaling/{pool}", tag = "queues", security(("api_key" = []), ("bearer" = [])),
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "Number and age of waiting jobs", body = Scaling),
              (status = 404, description = "No such pool", body = Error), ApiError))]
pub(crate) async fn scaling(
    State(JobStores { store, .. }): State<JobStores>,
    Path(name): Path<String>,
) -> Result<Json<Scaling>, ApiError> {
    let (pool, now) = find(&store, &name).await?;
    Ok(Json(Scaling::of(pool, now)))
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Pause,
    Resume,
    Drain,
}

async fn change(store: &Store, name: &str, change: Change) -> Result<Queue, ApiError> {
    // Only pools that there are: a mistyped name must not look as if it had been paused.
    find(store, name).await?;
    store
        .write(async |tx| match change {
            Change::Pause => pools::pause(tx, name).await,
            Change::Resume => pools::resume(tx, name).await,
            Change::Drain => pools::drain(tx, name).await,
        })
        .await?;
    tracing::info!(pool = name, ?change, "an operator changed a pool");
    queue(store, name).await
}

async fn queue(store: &Store, name: &str) -> Result<Queue, ApiError> {
    let (pool, now) = find(store, name).await?;
    Ok(Queue::of(pool, now))
}

async fn find(store: &Store, name: &str) -> Result<(Overview, towpath_domain::Timestamp), ApiError> {
    if name.contains('\0') {
        // No pool is called so, and PostgreSQL cannot even be asked.
        return Err(ApiError::not_found("pool"));
    }
    let found = store
        .read(async |tx| {
            let pool = match pools::overview(tx, name, workers::HEARTBEAT_WINDOW).await? {
                Some(pool) => Some(pool),
                None if towpath_durable::has_pool(tx, name) => Some(Overview {
                    pool: name.to_owned(),
                    ..Overview::default()
                }),
                None => None,
            };
            Ok((pool, jobs::db_now(tx).await?))
        })
        .await?;
    let (pool, now) = found;
    Ok((pool.ok_or_else(|| ApiError::not_found("pool"))?, now))
}
