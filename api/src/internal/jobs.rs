//! Jobs and dead letters.

use axum::extract::State;
use serde::Deserialize;
use serde_json::value::RawValue;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId};
use towpath_store::{Store, attempts, jobs, lanes, leases, steps};

use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path, Query};
use crate::internal::job_stores::JobStores;
use crate::internal::model::{Job, JobDetail, Jobs, LaneState, State as StateName};
use crate::internal::{actions, cursor_of, limit, plain, read_cursor};

/// Maximum number of steps shown.
const STEPS: i64 = 1000;
/// Maximum number of children shown.
const CHILDREN: i64 = 100;

/// Filters and page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListJobs {
    #[param(pattern = r"^[^\u0000]*$")]
    pool: Option<String>,
    #[param(pattern = r"^[^\u0000]*$")]
    kind: Option<String>,
    #[param(inline, value_type = Option<StateName>)]
    state: Option<JobState>,
    /// Workspace.
    #[param(value_type = Option<Uuid>)]
    tenant: Option<TenantId>,
    #[param(pattern = r"^[^\u0000]*$")]
    lane: Option<String>,
    #[param(value_type = Option<Uuid>)]
    parent: Option<JobId>,
    /// Maximum number of results, 1 to 1000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the previous response.
    #[param(value_type = Option<Uuid>)]
    cursor: Option<JobId>,
}

/// List jobs of all workspaces, latest first. Paging with the cursor shows each job once, even if jobs change state.
#[utoipa::path(get, path = "/internal/jobs", tag = "jobs", security(("api_key" = []), ("bearer" = [])), params(ListJobs),
    responses((status = 200, description = "Jobs", body = Jobs), ApiError))]
pub(crate) async fn list(
    State(JobStores { store, .. }): State<JobStores>,
    Query(which): Query<ListJobs>,
) -> Result<Json<Jobs>, ApiError> {
    let limit = limit(which.limit)?;
    for (field, text) in [("pool", &which.pool), ("kind", &which.kind), ("lane", &which.lane)] {
        plain("query", field, text.as_deref())?;
    }
    let filter = jobs::Filter {
        pool: which.pool,
        kind: which.kind,
        state: which.state,
        tenant: which.tenant,
        lane: which.lane,
        parent: which.parent,
        worker: None,
    };
    let found = store
        .read(async |tx| jobs::list(tx, &filter, which.cursor, limit + 1).await)
        .await?;
    Ok(Json(page(found, limit, |last| last.id.to_string())))
}

/// One row more than shown is read, to know whether the list continues.
fn page(mut found: Vec<jobs::JobSummary>, limit: i64, cursor: impl FnOnce(&jobs::JobSummary) -> String) -> Jobs {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > limit;
    found.truncate(limit);
    Jobs {
        next_cursor: found.last().filter(|_| more).map(cursor),
        items: found.into_iter().map(Job::from).collect(),
    }
}

/// Options of the response.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetJob {
    /// Include the input of the job. It may contain user data.
    #[serde(default)]
    input: bool,
}

/// Get a job with its steps, attempts, children, lane and lease, and the reason why it is not running.
#[utoipa::path(get, path = "/internal/jobs/{job_id}", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job, or a run of an agent server, for the job that does it"), GetJob),
    responses((status = 200, description = "The job", body = JobDetail),
              (status = 404, description = "No such job", body = Error), ApiError))]
pub(crate) async fn get(
    State(operated): State<JobStores>,
    Path(id): Path<JobId>,
    Query(show): Query<GetJob>,
) -> Result<Json<JobDetail>, ApiError> {
    let (store, id) = operated.find_job(id).await?;
    if show.input {
        detail_with_input(&store, id).await.map(Json)
    } else {
        detail(&store, id).await.map(Json)
    }
}

pub(crate) async fn detail(store: &Store, id: JobId) -> Result<JobDetail, ApiError> {
    read_detail(store, id, false).await
}

pub(crate) async fn detail_with_input(store: &Store, id: JobId) -> Result<JobDetail, ApiError> {
    read_detail(store, id, true).await
}

async fn read_detail(store: &Store, id: JobId, input: bool) -> Result<JobDetail, ApiError> {
    let found = store.read(async |tx| {
        // It may be pruned between the two.
        let (Some(job), Some(explanation)) = (jobs::get(tx, id).await?, towpath_durable::explain(tx, id).await?) else {
            return Ok(None);
        };
        let lane = match &job.lane {
            Some(key) => lanes::get(tx, key).await?,
            None => None,
        };
        let of_job = jobs::Filter {
            parent: Some(id),
            ..jobs::Filter::default()
        };
        let children = jobs::list(tx, &of_job, None, CHILDREN).await?;
        let attempts = attempts::list(tx, id).await?;
        let steps = steps::list_finished(tx, id, STEPS).await?;
        let lease_until = leases::until(tx, id).await?;
        Ok(Some((job, explanation, lane, children, attempts, steps, lease_until)))
    });
    let (job, explanation, lane, children, attempts, steps, lease_until) =
        found.await?.ok_or_else(|| ApiError::not_found("job"))?;
    let given = if input {
        let text = RawValue::from_string(job.input.clone());
        Some(text.map_err(|_| towpath_store::Error::corrupt("job", "input", id))?)
    } else {
        None
    };
    Ok(JobDetail {
        explanation,
        lease_until,
        lane_state: lane.map(|lane| LaneState {
            key: lane.key,
            places: lane.places,
            held: lane.held,
        }),
        attempts: attempts.into_iter().map(Into::into).collect(),
        steps: steps.into_iter().map(Into::into).collect(),
        children: children.into_iter().map(Job::from).collect(),
        input: given,
        job: jobs::JobSummary::from(job).into(),
    })
}

/// Retry a failed job, or one that backs off, at once. Finished steps are not repeated. Rejected if the end of the job
/// already had effects.
#[utoipa::path(post, path = "/internal/jobs/{job_id}/retry", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job, open again", body = JobDetail),
              (status = 404, description = "No such job", body = Error),
              (status = 409, description = "The job cannot be retried; the text has the reason", body = Error), ApiError))]
pub(crate) async fn retry(
    State(operated): State<JobStores>,
    Path(id): Path<JobId>,
) -> Result<Json<JobDetail>, ApiError> {
    let (store, id) = operated.find_job(id).await?;
    actions::retry_job(&store, id).await?;
    detail(&store, id).await.map(Json)
}

/// Cancel a job and its children. A running job is asked to stop within ten seconds.
#[utoipa::path(post, path = "/internal/jobs/{job_id}/cancel", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job, cancelled or about to stop", body = JobDetail),
              (status = 404, description = "No such job", body = Error),
              (status = 409, description = "The job has ended", body = Error), ApiError))]
pub(crate) async fn cancel(
    State(operated): State<JobStores>,
    Path(id): Path<JobId>,
) -> Result<Json<JobDetail>, ApiError> {
    let (store, id) = operated.find_job(id).await?;
    actions::cancel_job(&store, id).await?;
    detail(&store, id).await.map(Json)
}

/// Page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDeadJobs {
    /// Maximum number of results, 1 to 1000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the previous response.
    #[param(pattern = "^[0-9]{1,16}_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// List dead letters: jobs whose attempts are exhausted, or that keep killing their workers. Latest end first.
#[utoipa::path(get, path = "/internal/dead", tag = "jobs", security(("api_key" = []), ("bearer" = [])), params(ListDeadJobs),
    responses((status = 200, description = "Dead letters", body = Jobs), ApiError))]
pub(crate) async fn dead(
    State(JobStores { store, .. }): State<JobStores>,
    Query(which): Query<ListDeadJobs>,
) -> Result<Json<Jobs>, ApiError> {
    let limit = limit(which.limit)?;
    let before = which.cursor.as_deref().map(read_cursor).transpose()?;
    let found = store.read(async |tx| jobs::dead(tx, before, limit + 1).await).await?;
    Ok(Json(page(found, limit, |last| {
        cursor_of(last.finished_at.unwrap_or(last.created_at), last.id)
    })))
}

/// Retry a dead letter.
#[utoipa::path(post, path = "/internal/dead/{job_id}/retry", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job, open again", body = JobDetail),
              (status = 404, description = "No such dead letter", body = Error),
              (status = 409, description = "The job cannot be retried; the text has the reason", body = Error), ApiError))]
pub(crate) async fn retry_dead(
    State(JobStores { store, .. }): State<JobStores>,
    Path(id): Path<JobId>,
) -> Result<Json<JobDetail>, ApiError> {
    let job = store.read(async |tx| jobs::get(tx, id).await).await?;
    job.filter(|job| job.dead)
        .ok_or_else(|| ApiError::not_found("dead letter"))?;
    actions::retry_job(&store, id).await?;
    detail(&store, id).await.map(Json)
}
