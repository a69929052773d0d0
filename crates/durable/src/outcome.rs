//! Records how an attempt ended.

use std::time::Duration;

use towpath_domain::job::{EndReason, JobState, MAX_LOST_LEASES, RetryPolicy, backoff_after_lost_lease};
use towpath_store::jobs::{self, JobFence, JobTransition};
use towpath_store::{self as store, Tx};

use crate::failure::Failure;
use crate::locked_jobs::{LockedJobs, note_attempt};
use crate::workflow::EndHandlers;

/// Records an attempt that did not succeed, as its holder. Stale if another worker holds the job.
pub(crate) async fn record(
    tx: &mut Tx<'_>,
    job: JobFence,
    failure: &Failure,
    policy: RetryPolicy,
) -> store::Result<()> {
    // Descendants matter only if this ends the job. Few jobs have any, and the row shows it.
    let family = jobs::get(tx, job.id).await?.is_some_and(|row| row.open_children > 0);
    let mut hold = LockedJobs::lock_fenced(tx, job, &[], family).await?;
    let row = hold.job(job.id).clone();
    if row.cancel_at.is_some() {
        note_attempt(tx, &row, "cancelled", None, "cancelled").await?;
        return hold.finish(tx, job.id, Some(EndReason::Cancelled), false).await;
    }
    match failure {
        Failure::Lost => Ok(()),
        Failure::Cancelled => {
            note_attempt(tx, &row, "cancelled", None, "cancelled").await?;
            hold.finish(tx, job.id, Some(EndReason::Cancelled), false).await
        }
        Failure::Snooze(span) => {
            let mut to = JobTransition::of(&row, JobState::Scheduled);
            to.run_at = Some(jobs::db_now(tx).await?.plus(*span));
            to.attempt -= 1;
            to.lane_held = row.lane_held && row.keep_place;
            hold.move_to(tx, job.id, to).await
        }
        Failure::Retry(cause) | Failure::Fatal(cause) | Failure::TimedOut(cause) => {
            let timed_out = matches!(failure, Failure::TimedOut(_));
            let n = u32::try_from(row.failures).unwrap_or(u32::MAX);
            note_attempt(
                tx,
                &row,
                if timed_out { "timed_out" } else { "failed" },
                Some(row.failures),
                cause.text(),
            )
            .await?;
            let ends = tx
                .attached::<EndHandlers>()
                .ok_or_else(|| store::Error::corrupt("job", "kind", job.id))?;
            ends.attempt_failed(tx, &row, n, cause.text()).await?;
            let delay = if matches!(failure, Failure::Fatal(_)) {
                None
            } else {
                policy.delay_after(n.saturating_add(1))
            };
            let Some(delay) = delay else {
                let ended = if timed_out {
                    EndReason::TimedOut
                } else {
                    EndReason::Failed(cause.text().to_owned())
                };
                hold.count_failure(job.id, cause.text());
                return hold.finish(tx, job.id, Some(ended), true).await;
            };
            let mut to = JobTransition::of(&row, JobState::Scheduled);
            to.run_at = Some(jobs::db_now(tx).await?.plus(delay));
            to.failures += 1;
            to.lane_held = row.lane_held && row.keep_place;
            to.error = Some(cause.text().to_owned());
            hold.move_to(tx, job.id, to).await
        }
    }
}

/// Returns a job as if it had not been claimed, because its worker stops.
pub(crate) async fn hand_back(tx: &mut Tx<'_>, job: JobFence) -> store::Result<()> {
    let family = jobs::get(tx, job.id).await?.is_some_and(|row| row.open_children > 0);
    let mut hold = LockedJobs::lock_fenced(tx, job, &[], family).await?;
    give_back(tx, &mut hold, job).await
}

async fn give_back(tx: &mut Tx<'_>, hold: &mut LockedJobs, job: JobFence) -> store::Result<()> {
    let row = hold.job(job.id).clone();
    if row.cancel_at.is_some() {
        note_attempt(tx, &row, "cancelled", None, "cancelled").await?;
        return hold.finish(tx, job.id, Some(EndReason::Cancelled), false).await;
    }
    let mut to = JobTransition::of(&row, JobState::Ready);
    to.attempt -= 1;
    to.fence += 1;
    hold.move_to(tx, job.id, to).await
}

/// Snooze of a job whose end cannot be written. An operator must intervene, so retries are rare.
pub(crate) const PUT_OFF: Duration = Duration::from_secs(30);

/// Releases a job whose end cannot be written; on SQLite no lease would expire. Only writes the job and its lane,
/// because something else is what failed.
pub(crate) async fn snooze(tx: &mut Tx<'_>, job: JobFence, span: Duration, error: &str) -> store::Result<()> {
    let mut hold = LockedJobs::lock_fenced(tx, job, &[], false).await?;
    let row = hold.job(job.id).clone();
    let mut to = JobTransition::of(&row, JobState::Scheduled);
    to.run_at = Some(jobs::db_now(tx).await?.plus(span));
    to.lane_held = row.lane_held && row.keep_place;
    to.error = Some(error.to_owned());
    hold.move_to(tx, job.id, to).await
}

/// Error of an attempt whose worker lost its lease.
pub(crate) const SILENT: &str = "its worker stopped renewing the lease";

/// Error of an attempt that was dropped by a worker that is still running.
pub(crate) const UNSAID: &str = "its worker dropped it and could not record the reason";

/// Takes a job from a worker that lost it: back to its former state with a delay, or ended if it keeps killing its
/// workers. It keeps its lane slot, so that the order of a lane is deterministic and [`jobs::take_back`] need not read
/// lanes. The caller has locked the job and checked the loss.
pub(crate) async fn record_lost(
    tx: &mut Tx<'_>,
    hold: &mut LockedJobs,
    id: towpath_domain::JobId,
    why: &'static str,
) -> store::Result<()> {
    let row = hold.job(id).clone();
    note_attempt(tx, &row, "lost", None, why).await?;
    if row.cancel_at.is_some() {
        return hold.finish(tx, id, Some(EndReason::Cancelled), false).await;
    }
    let lost_leases = row.lost_leases + 1;
    if lost_leases > i64::from(MAX_LOST_LEASES) {
        let error = row
            .error
            .map_or_else(String::new, |error| format!("; the last error was: {error}"));
        let error = format!("its worker died {lost_leases} times in a row without any progress{error}");
        return hold.finish(tx, id, Some(EndReason::Failed(error)), true).await;
    }
    let mut to = JobTransition::of(&row, JobState::Scheduled);
    let lost = u32::try_from(lost_leases).unwrap_or(u32::MAX);
    let rest = backoff_after_lost_lease(lost, retry_jitter(id, row.fence));
    to.run_at = Some(jobs::db_now(tx).await?.plus(rest));
    to.lost_leases = lost_leases;
    to.fence += 1;
    hold.move_to(tx, id, to).await
}

/// A number from 0 to 1 that depends on the job and its attempt.
fn retry_jitter(id: towpath_domain::JobId, fence: i64) -> f64 {
    let bytes = id.0.as_bytes();
    let bits = u16::from_be_bytes([bytes[14], bytes[15]]);
    let fence = u16::try_from(fence & 0xffff).unwrap_or_default();
    f64::from(bits.wrapping_add(fence.wrapping_mul(40_503))) / f64::from(u16::MAX)
}

/// Ends a job whose deadline passed while this worker held it. The clock of the database decides; otherwise the job is
/// returned as if it had not been claimed.
pub(crate) async fn deadline(tx: &mut Tx<'_>, job: JobFence) -> store::Result<()> {
    let mut hold = LockedJobs::lock_fenced(tx, job, &[], true).await?;
    let row = hold.job(job.id).clone();
    let now = jobs::db_now(tx).await?;
    if row.deadline_at.is_none_or(|deadline| now < deadline) {
        return give_back(tx, &mut hold, job).await;
    }
    note_attempt(tx, &row, "timed_out", None, "the deadline has passed").await?;
    hold.finish(tx, job.id, Some(EndReason::TimedOut), false).await
}
