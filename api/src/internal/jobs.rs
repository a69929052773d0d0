//! Jobs and dead letters.

use axum::extract::State;
use serde::Deserialize;
use serde_json::value::RawValue;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId};
use towpath_store::{Store, attempts, jobs, lanes, leases, steps};

use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path, Query};
use crate::internal::model::{Job, JobDetail, Jobs, LaneState, State as StateName};
use crate::internal::{Operated, act, cursor_of, limit, plain, read_cursor};

/// Steps shown of one job.
const STEPS: i64 = 1000;
/// Children shown of one job.
const CHILDREN: i64 = 100;

/// Which jobs.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// In this pool.
    #[param(pattern = r"^[^\u0000]*$")]
    pool: Option<String>,
    /// Of this kind.
    #[param(pattern = r"^[^\u0000]*$")]
    kind: Option<String>,
    /// In this state.
    #[param(inline, value_type = Option<StateName>)]
    state: Option<JobState>,
    /// Of this workspace.
    #[param(value_type = Option<Uuid>)]
    tenant: Option<TenantId>,
    /// In this lane.
    #[param(pattern = r"^[^\u0000]*$")]
    lane: Option<String>,
    /// Recorded by this job for itself.
    #[param(value_type = Option<Uuid>)]
    parent: Option<JobId>,
    /// At most so many, 1 to 1000; 100 unless said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the answer before.
    #[param(value_type = Option<Uuid>)]
    cursor: Option<JobId>,
}

/// Jobs of all workspaces, the latest first. A list that is read on by its cursor shows each job once, however jobs
/// move meanwhile.
#[utoipa::path(get, path = "/internal/jobs", tag = "jobs", security(("api_key" = []), ("bearer" = [])), params(Which),
    responses((status = 200, description = "Jobs", body = Jobs), ApiError))]
pub(crate) async fn list(
    State(Operated { store, .. }): State<Operated>,
    Query(which): Query<Which>,
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

/// One row more was read than is shown, to know whether the list goes on.
fn page(mut found: Vec<jobs::Listed>, limit: i64, cursor: impl FnOnce(&jobs::Listed) -> String) -> Jobs {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > limit;
    found.truncate(limit);
    Jobs {
        next_cursor: found.last().filter(|_| more).map(cursor),
        items: found.into_iter().map(Job::from).collect(),
    }
}

/// What to show of a job.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Show {
    /// Show also what the job was given. It may hold data of users.
    #[serde(default)]
    input: bool,
}

/// A job with its steps, attempts, children, lane and lease, and the one reason why it is not running now.
#[utoipa::path(get, path = "/internal/jobs/{job_id}", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job, or a run of an agent server, for the job that does it"), Show),
    responses((status = 200, description = "The job", body = JobDetail),
              (status = 404, description = "No such job", body = Error), ApiError))]
pub(crate) async fn get(
    State(operated): State<Operated>,
    Path(id): Path<JobId>,
    Query(show): Query<Show>,
) -> Result<Json<JobDetail>, ApiError> {
    let (store, id) = operated.holding(id).await?;
    detail(&store, id, show.input).await.map(Json)
}

/// # Errors
/// 404.
pub(crate) async fn detail(store: &Store, id: JobId, input: bool) -> Result<JobDetail, ApiError> {
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
        let steps = steps::done(tx, id, STEPS).await?;
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
        job: jobs::Listed::from(job).into(),
    })
}

/// Try a job again that ended badly, or one that backs off at once. Finished steps are not repeated. Refused where the
/// job's end has settled what it was for.
#[utoipa::path(post, path = "/internal/jobs/{job_id}/retry", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job, open again", body = JobDetail),
              (status = 404, description = "No such job", body = Error),
              (status = 409, description = "Performing it again would be wrong; the text says why", body = Error), ApiError))]
pub(crate) async fn retry(
    State(operated): State<Operated>,
    Path(id): Path<JobId>,
) -> Result<Json<JobDetail>, ApiError> {
    let (store, id) = operated.holding(id).await?;
    act::retry_job(&store, id).await?;
    detail(&store, id, false).await.map(Json)
}

/// Cancel a job with all it started. One that runs is asked to stop and has ten seconds for it.
#[utoipa::path(post, path = "/internal/jobs/{job_id}/cancel", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job, over or about to be", body = JobDetail),
              (status = 404, description = "No such job", body = Error),
              (status = 409, description = "It is over", body = Error), ApiError))]
pub(crate) async fn cancel(
    State(operated): State<Operated>,
    Path(id): Path<JobId>,
) -> Result<Json<JobDetail>, ApiError> {
    let (store, id) = operated.holding(id).await?;
    act::cancel_job(&store, id).await?;
    detail(&store, id, false).await.map(Json)
}

/// Which dead letters.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichDead {
    /// At most so many, 1 to 1000; 100 unless said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the answer before.
    #[param(pattern = "^[0-9]{1,16}_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
    cursor: Option<String>,
}

/// Dead letters: jobs whose attempts are spent, or that keep killing their workers. The latest to end first.
#[utoipa::path(get, path = "/internal/dead", tag = "jobs", security(("api_key" = []), ("bearer" = [])), params(WhichDead),
    responses((status = 200, description = "Dead letters", body = Jobs), ApiError))]
pub(crate) async fn dead(
    State(Operated { store, .. }): State<Operated>,
    Query(which): Query<WhichDead>,
) -> Result<Json<Jobs>, ApiError> {
    let limit = limit(which.limit)?;
    let before = which.cursor.as_deref().map(read_cursor).transpose()?;
    let found = store.read(async |tx| jobs::dead(tx, before, limit + 1).await).await?;
    Ok(Json(page(found, limit, |last| {
        cursor_of(last.finished_at.unwrap_or(last.created_at), last.id)
    })))
}

/// Try a dead letter again.
#[utoipa::path(post, path = "/internal/dead/{job_id}/retry", tag = "jobs", security(("api_key" = []), ("bearer" = [])),
    params(("job_id" = Uuid, Path, description = "The job")),
    responses((status = 200, description = "The job, open again", body = JobDetail),
              (status = 404, description = "No such dead letter", body = Error),
              (status = 409, description = "Performing it again would be wrong; the text says why", body = Error), ApiError))]
pub(crate) async fn retry_dead(
    State(Operated { store, .. }): State<Operated>,
    Path(id): Path<JobId>,
) -> Result<Json<JobDetail>, ApiError> {
    let job = store.read(async |tx| jobs::get(tx, id).await).await?;
    job.filter(|job| job.dead)
        .ok_or_else(|| ApiError::not_found("dead letter"))?;
    act::retry_job(&store, id).await?;
    detail(&store, id, false).await.map(Json)
}
