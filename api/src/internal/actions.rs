//! What operators do to jobs and schedules, for routes and pages alike.

use towpath_domain::job::JobState;
use towpath_domain::{JobId, Rejection, ScheduleId};
use towpath_durable::CancelOutcome;
use towpath_store::{self as store, Store, Tx, jobs, schedules};

use crate::errors::ApiError;

/// Retries a job that failed or backs off. Fails with 409 and the reason if a retry is not allowed.
pub(crate) async fn retry_job(store: &Store, id: JobId) -> Result<(), ApiError> {
    let state = store
        .write(async |tx| towpath_durable::retry(tx, id).await)
        .await
        .map_err(of_job)?;
    tracing::info!(job.id = %id, job.state = state.as_str(), "an operator retried a job");
    Ok(())
}

/// Cancels a job and its children: at once, or by a request to stop if it is running. Fails with 409 if it has ended,
/// or if this server does not know its kind.
pub(crate) async fn cancel_job(store: &Store, id: JobId) -> Result<(), ApiError> {
    let cancelled = store.write(async |tx| cancel(tx, id).await).await.map_err(of_job)?;
    tracing::info!(job.id = %id, over = cancelled == CancelOutcome::Ended, "an operator cancelled a job");
    Ok(())
}

async fn cancel(tx: &mut Tx<'_>, id: JobId) -> store::Result<CancelOutcome> {
    let job = jobs::get(tx, id).await?.ok_or(store::Error::NotFound)?;
    // A running one is only told; whoever runs it knows its kind.
    if !job.state.is_final() && job.state != JobState::Running && !towpath_durable::is_known_kind(tx, &job.kind) {
        let text = format!("this server does not know jobs of the kind {}", job.kind);
        return Err(Rejection::conflict("", text).into());
    }
    match towpath_durable::cancel(tx, id).await? {
        CancelOutcome::AlreadyFinished => {
            let state = jobs::get(tx, id).await?.map_or(job.state, |job| job.state);
            Err(Rejection::conflict("", format!("the job has ended: {}", state.as_str())).into())
        }
        cancelled => Ok(cancelled),
    }
}

/// Pauses a schedule and cancels its waiting job. A job that is spawning at the moment finishes, unless it has not
/// advanced the schedule yet.
pub(crate) async fn pause_schedule(store: &Store, id: ScheduleId) -> Result<(), ApiError> {
    let paused = store
        .write(async |tx| {
            let schedule = schedules::get(tx, id)
                .await?
                .filter(|schedule| schedule.ended_at.is_none())
                .ok_or(store::Error::NotFound)?;
            // First: it takes the locks. The scheduler records another once the schedule is resumed.
            if let Some(job) = schedule.spawn_job {
                towpath_durable::cancel(tx, job).await?;
            }
            // Takes the cancellation back if the schedule has ended meanwhile.
            require_found(schedules::pause(tx, id).await?)
        })
        .await;
    paused.map_err(of_schedule)?;
    tracing::info!(schedule.id = %id, "an operator paused a schedule");
    Ok(())
}

/// Resumes a schedule; the scheduler records its next job.
pub(crate) async fn resume_schedule(store: &Store, id: ScheduleId) -> Result<(), ApiError> {
    let resumed = store
        .write(async |tx| require_found(schedules::resume(tx, id).await?))
        .await;
    resumed.map_err(of_schedule)?;
    tracing::info!(schedule.id = %id, "an operator resumed a schedule");
    Ok(())
}

fn require_found(found: bool) -> store::Result<()> {
    if found { Ok(()) } else { Err(store::Error::NotFound) }
}

fn of_schedule(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("schedule"),
        error => error.into(),
    }
}

fn of_job(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("job"),
        error => error.into(),
    }
}
