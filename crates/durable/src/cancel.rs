//! Cancelling jobs.

use towpath_domain::JobId;
use towpath_domain::job::JobState;
use towpath_store::{self as store, Tx};

use crate::locked_jobs::LockedJobs;

/// The result of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The job was queued or waiting, and has ended.
    Ended,
    /// The job is running; its worker has been signalled, and the job has its grace time.
    Requested,
    /// The job had ended already, or does not exist.
    AlreadyFinished,
}

/// Cancels a job and its open descendants. Running jobs are asked to stop: their worker gets the signal after the
/// commit, or at its next renewal. It takes locks, so call it before the transaction's business writes.
pub async fn cancel(tx: &mut Tx<'_>, id: JobId) -> store::Result<CancelOutcome> {
    let Some(mut hold) = LockedJobs::lock(tx, id, &[], true).await? else {
        return Ok(CancelOutcome::AlreadyFinished);
    };
    let before = hold.job(id).state;
    hold.cancel(tx, &[id]).await?;
    Ok(match before {
        state if state.is_final() => CancelOutcome::AlreadyFinished,
        JobState::Running => CancelOutcome::Requested,
        _ => CancelOutcome::Ended,
    })
}

/// Cancels jobs and their open descendants, like [`cancel`], in a constant number of statements. `first` is called when
/// all of them are locked: business rows that it settles are visible to the ends of the jobs.
pub async fn cancel_all(
    tx: &mut Tx<'_>,
    ids: &[JobId],
    first: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
) -> store::Result<()> {
    let mut hold = LockedJobs::lock_families(tx, ids, &[]).await?;
    first(tx).await?;
    hold.cancel(tx, ids).await
}
