//! What operators do to jobs and schedules, for routes and pages alike.

use towpath_domain::job::JobState;
use towpath_domain::{JobId, Rejection, ScheduleId};
use towpath_durable::Cancelled;
use towpath_store::{self as store, Store, Tx, jobs, schedules};

use crate::errors::ApiError;

/// Has a job performed again that ended badly, or one that backs off at once.
///
/// # Errors
/// 404; 409 with the reason why it would be wrong.
pub(crate) async fn retry_job(store: &Store, id: JobId) -> Result<(), ApiError> {
    let state = store
        .write(async |tx| towpath_durable::retry(tx, id).await)
        .await
        .map_err(of_job)?;
    tracing::info!(job.id = %id, job.state = state.as_str(), "an operator had a job tried again");
    Ok(())
}

/// Cancels a job and what it started: over at once, or told to stop where it runs.
///
/// # Errors
/// 404; 409 when it is over, or when this server does not know how its kind ends.
pub(crate) async fn cancel_job(store: &Store, id: JobId) -> Result<(), ApiError> {
    let cancelled = store.write(async |tx| cancel(tx, id).await).await.map_err(of_job)?;
    tracing::info!(job.id = %id, over = cancelled == Cancelled::Ended, "an operator cancelled a job");
    Ok(())
}

async fn cancel(tx: &mut Tx<'_>, id: JobId) -> store::Result<Cancelled> {
    let job = jobs::get(tx, id).await?.ok_or(store::Error::NotFound)?;
    // A running one is only told; whoever runs it knows its kind.
    if !job.state.is_final() && job.state != JobState::Running && !towpath_durable::knows(tx, &job.kind) {
        let text = format!("this server does not know jobs of the kind {}", job.kind);
        return Err(Rejection::conflict("", text).into());
    }
    match towpath_durable::cancel(tx, id).await? {
        Cancelled::Over => {
            let state = jobs::get(tx, id).await?.map_or(job.state, |job| job.state);
            Err(Rejection::conflict("", format!("the job is over: {}", state.as_str())).into())
        }
        cancelled => Ok(cancelled),
    }
}

/// Pauses a schedule, with the job that waits to spawn for it, or lets it go on. What spawns at this moment does so
/// to the end, unless it has not moved the schedule yet.
///
/// # Errors
/// 404, also for one that has ended.
pub(crate) async fn pause_schedule(store: &Store, id: ScheduleId, paused: bool) -> Result<(), ApiError> {
    let done = store
        .write(async |tx| {
            let schedule = schedules::get(tx, id)
                .await?
                .filter(|schedule| schedule.ended_at.is_none())
                .ok_or(store::Error::NotFound)?;
            // First: it takes the locks. The scheduler records another once the schedule goes on.
            if let Some(job) = schedule.spawn_job.filter(|_| paused) {
                towpath_durable::cancel(tx, job).await?;
            }
            if schedules::pause(tx, id, paused).await? {
                Ok(())
            } else {
                Err(store::Error::NotFound)
            }
        })
        .await;
    done.map_err(|error| match error {
        store::Error::NotFound => ApiError::not_found("schedule"),
        error => error.into(),
    })?;
    tracing::info!(schedule.id = %id, paused, "an operator paused a schedule or let it go on");
    Ok(())
}

fn of_job(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("job"),
        error => error.into(),
    }
}
