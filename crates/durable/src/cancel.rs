//! Cancelling from outside.

use towpath_domain::JobId;
use towpath_domain::job::JobState;
use towpath_store::{self as store, Tx};

use crate::hold::Hold;

/// What a cancel met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was queued or waited, and is over now.
    Ended,
    /// It runs; its worker was told and has its grace.
    Asked,
    /// It was over already, or there is no such job.
    Over,
}

/// Cancels a job and everything it started that is not over. Jobs that run are asked to stop: their worker hears of
/// it after the commit, or at its next renewal. Takes locks, so call it before the transaction's business writes.
///
/// # Errors
/// As every statement, and what the `end` of a kind answers.
pub async fn cancel(tx: &mut Tx<'_>, id: JobId) -> store::Result<Cancelled> {
    let Some(mut hold) = Hold::take(tx, id, &[], true).await? else {
        return Ok(Cancelled::Over);
    };
    let before = hold.job(id).state;
    hold.cancel(tx, &[id]).await?;
    Ok(match before {
        state if state.is_final() => Cancelled::Over,
        JobState::Running => Cancelled::Asked,
        _ => Cancelled::Ended,
    })
}

/// Cancels jobs and everything they started that is not over, as [`cancel`] does with one, in as many statements for many as
/// for one. `first` is called when all of them are locked: business rows that it settles are found settled by the ends of the
/// jobs.
///
/// # Errors
/// As every statement, and what `first` or the `end` of a kind answers.
pub async fn cancel_all(
    tx: &mut Tx<'_>,
    ids: &[JobId],
    first: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<()>,
) -> store::Result<()> {
    let mut hold = Hold::families(tx, ids, &[]).await?;
    first(tx).await?;
    hold.cancel(tx, ids).await
}
