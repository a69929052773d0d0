//! Worker processes.

use std::collections::{BTreeMap, HashMap};

use axum::extract::State;
use towpath_domain::WorkerId;
use towpath_store::{Store, jobs, workers};

use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path};
use crate::internal::job_stores::JobStores;
use crate::internal::model::{Worker, Workers};

/// List running worker processes, latest start first.
#[utoipa::path(get, path = "/internal/workers", tag = "workers", security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "Workers", body = Workers), ApiError))]
pub(crate) async fn list(State(JobStores { store, .. }): State<JobStores>) -> Result<Json<Workers>, ApiError> {
    let items = all(&store).await?;
    Ok(Json(Workers { items }))
}

/// Drain a worker: it learns of it within five seconds, claims no more jobs, finishes its jobs and keeps running; its
/// status is `drained` after its last job. `resume` ends it.
#[utoipa::path(post, path = "/internal/workers/{worker_id}/drain", tag = "workers", security(("api_key" = []), ("bearer" = [])),
    params(("worker_id" = Uuid, Path, description = "The worker")),
    responses((status = 200, description = "The worker, `draining` or `drained`", body = Worker),
              (status = 404, description = "No such worker", body = Error), ApiError))]
pub(crate) async fn drain(
    State(JobStores { store, .. }): State<JobStores>,
    Path(id): Path<WorkerId>,
) -> Result<Json<Worker>, ApiError> {
    if !store.write(async |tx| workers::drain(tx, id).await).await? {
        return Err(missing());
    }
    tracing::info!(worker.id = %id, "an operator drained a worker");
    get(&store, id).await
}

/// Resume a worker after a drain: it learns of it within five seconds and claims jobs again.
#[utoipa::path(post, path = "/internal/workers/{worker_id}/resume", tag = "workers", security(("api_key" = []), ("bearer" = [])),
    params(("worker_id" = Uuid, Path, description = "The worker")),
    responses((status = 200, description = "The worker, `active`", body = Worker),
              (status = 404, description = "No such worker", body = Error), ApiError))]
pub(crate) async fn resume(
    State(JobStores { store, .. }): State<JobStores>,
    Path(id): Path<WorkerId>,
) -> Result<Json<Worker>, ApiError> {
    if !store.write(async |tx| workers::resume(tx, id).await).await? {
        return Err(missing());
    }
    tracing::info!(worker.id = %id, "an operator resumed a worker");
    get(&store, id).await
}

fn missing() -> ApiError {
    ApiError::not_found("worker")
}

async fn get(store: &Store, id: WorkerId) -> Result<Json<Worker>, ApiError> {
    let worker = all(store).await?.into_iter().find(|worker| worker.id == id);
    worker.map(Json).ok_or_else(missing)
}

async fn all(store: &Store) -> Result<Vec<Worker>, ApiError> {
    let (rows, hands, now) = store
        .read(async |tx| {
            Ok((
                workers::list(tx).await?,
                jobs::running_counts(tx).await?,
                jobs::db_now(tx).await?,
            ))
        })
        .await?;
    let mut running: HashMap<WorkerId, BTreeMap<String, i64>> = HashMap::new();
    for hand in hands {
        running.entry(hand.worker_id).or_default().insert(hand.pool, hand.jobs);
    }
    Ok(rows
        .into_iter()
        .map(|worker| {
            let running = running.remove(&worker.id).unwrap_or_default();
            Worker::of(worker, running, now)
        })
        .collect())
}
