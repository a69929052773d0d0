//! What people and dashboards ask about jobs and queues.

pub(crate) mod model;

use std::collections::BTreeMap;

use axum::extract::State;
use serde::Serialize;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Timestamp};
use towpath_durable::Explanation;
use towpath_store::{jobs, pools};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(job)).routes(routes!(queues))
}

/// A job, without its input.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Job {
    #[schema(value_type = Uuid)]
    id: JobId,
    kind: String,
    pool: String,
    #[schema(value_type = String)]
    state: JobState,
    lane: Option<String>,
    #[schema(value_type = Option<Uuid>)]
    parent_id: Option<JobId>,
    /// Claims so far, less those given back.
    attempt: i64,
    failures: i64,
    /// The last error.
    error: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    run_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
    /// The one reason why it is not running now: `reason` for programs, `text` for people.
    #[schema(value_type = Object)]
    explanation: Explanation,
}

/// The state of a pool.
#[derive(Default, Serialize, utoipa::ToSchema)]
pub(crate) struct Queue {
    /// Open jobs by state.
    jobs: BTreeMap<String, i64>,
    /// When the oldest ready job was due.
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_ready: Option<Timestamp>,
}

/// A job of this workspace, and why it is not running now.
#[utoipa::path(get, path = "/internal/jobs/{job_id}", tag = "operations",
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job", body = Job),
              (status = 404, description = "No such job in this workspace"), ApiError))]
pub(crate) async fn job(State(app): State<App>, tenant: Tenant, Path(id): Path<JobId>) -> Result<Json<Job>, ApiError> {
    let missing = || ApiError::not_found("job");
    let found = app.store.read(async |tx| {
        let Some(job) = jobs::get(tx, id).await?.filter(|job| job.tenant_id == tenant.id) else {
            return Ok(None);
        };
        // It may be pruned between the two.
        Ok(towpath_durable::explain(tx, id)
            .await?
            .map(|explanation| (job, explanation)))
    });
    let (job, explanation) = found.await?.ok_or_else(missing)?;
    Ok(Json(Job {
        id: job.id,
        kind: job.kind,
        pool: job.pool,
        state: job.state,
        lane: job.lane,
        parent_id: job.parent_id,
        attempt: job.attempt,
        failures: job.failures,
        error: job.error,
        run_at: job.run_at,
        created_at: job.created_at,
        started_at: job.started_at,
        finished_at: job.finished_at,
        explanation,
    }))
}

/// How many jobs wait, by pool and state, over all workspaces: numbers only.
#[utoipa::path(get, path = "/internal/queues", tag = "operations",
    responses((status = 200, description = "Pools by name", body = BTreeMap<String, Queue>), ApiError))]
pub(crate) async fn queues(State(app): State<App>, _tenant: Tenant) -> Result<Json<BTreeMap<String, Queue>>, ApiError> {
    let (depths, oldest) = app
        .store
        .read(async |tx| Ok((pools::depths(tx).await?, pools::oldest_ready(tx).await?)))
        .await?;
    let mut queues: BTreeMap<String, Queue> = BTreeMap::new();
    for depth in depths {
        queues
            .entry(depth.pool)
            .or_default()
            .jobs
            .insert(depth.state, depth.jobs);
    }
    for oldest in oldest {
        queues.entry(oldest.pool).or_default().oldest_ready = Some(oldest.run_at);
    }
    Ok(Json(queues))
}
