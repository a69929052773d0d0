//! Writing down how an attempt ended.

use std::time::Duration;

use towpath_domain::job::{Ended, JobState, MAX_LOST_LEASES, RetryPolicy, rest_after_lost_lease};
use towpath_store::jobs::{self, Fenced, Move};
use towpath_store::{self as store, Tx};

use crate::failure::Failure;
use crate::hold::{Hold, note_attempt};
use crate::workflow::Ends;

/// Records an attempt that did not end well, as its holder. Stale when somebody else holds the job.
pub(crate) async fn record(tx: &mut Tx<'_>, job: Fenced, failure: &Failure, policy: RetryPolicy) -> store::Result<()> {
    // Descendants matter only if this ends the job; a job seldom has any, and the row says whether.
    let family = jobs::get(tx, job.id).await?.is_some_and(|row| row.open_children > 0);
    let mut hold = Hold::fenced(tx, job, &[], family).await?;
    let row = hold.job(job.id).clone();
    if row.cancel_at.is_some() {
        note_attempt(tx, &row, "cancelled", None, "cancelled").await?;
        return hold.finish(tx, job.id, Some(Ended::Cancelled), false).await;
    }
    match failure {
        Failure::Lost => Ok(()),
        Failure::Cancelled => {
            note_attempt(tx, &row, "cancelled", None, "cancelled").await?;
            hold.finish(tx, job.id, Some(Ended::Cancelled), false).await
        }
        Failure::Snooze(span) => {
            let mut to = Move::of(&row, JobState::Scheduled);
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
                .attached::<Ends>()
                .ok_or_else(|| store::Error::corrupt("job", "kind", job.id))?;
            ends.failed(tx, &row, n, cause.text()).await?;
            let delay = if matches!(failure, Failure::Fatal(_)) {
                None
            } else {
                policy.delay_after(n.saturating_add(1))
            };
            let Some(delay) = delay else {
                let ended = if timed_out {
                    Ended::TimedOut
                } else {
                    Ended::Failed(cause.text().to_owned())
                };
                hold.count_failure(job.id, cause.text());
                return hold.finish(tx, job.id, Some(ended), true).await;
            };
            let mut to = Move::of(&row, JobState::Scheduled);
            to.run_at = Some(jobs::db_now(tx).await?.plus(delay));
            to.failures += 1;
            to.lane_held = row.lane_held && row.keep_place;
            to.error = Some(cause.text().to_owned());
            hold.move_to(tx, job.id, to).await
        }
    }
}

/// Gives a job back as if it had not been claimed: its worker leaves.
pub(crate) async fn hand_back(tx: &mut Tx<'_>, job: Fenced) -> store::Result<()> {
    let family = jobs::get(tx, job.id).await?.is_some_and(|row| row.open_children > 0);
    let mut hold = Hold::fenced(tx, job, &[], family).await?;
    give_back(tx, &mut hold, job).await
}

async fn give_back(tx: &mut Tx<'_>, hold: &mut Hold, job: Fenced) -> store::Result<()> {
    let row = hold.job(job.id).clone();
    if row.cancel_at.is_some() {
        note_attempt(tx, &row, "cancelled", None, "cancelled").await?;
        return hold.finish(tx, job.id, Some(Ended::Cancelled), false).await;
    }
    let mut to = Move::of(&row, JobState::Ready);
    to.attempt -= 1;
    to.fence += 1;
    hold.move_to(tx, job.id, to).await
}

/// How long a job rests whose end cannot be written. Somebody has to look at it, so it is not tried often.
pub(crate) const PUT_OFF: Duration = Duration::from_secs(30);

/// Lets go of a job whose end cannot be written: its worker has nothing more to do with it, and on SQLite no lease
/// would end. Touches nothing but the job and its lane, because something else is what failed.
pub(crate) async fn put_off(tx: &mut Tx<'_>, job: Fenced, span: Duration, error: &str) -> store::Result<()> {
    let mut hold = Hold::fenced(tx, job, &[], false).await?;
    let row = hold.job(job.id).clone();
    let mut to = Move::of(&row, JobState::Scheduled);
    to.run_at = Some(jobs::db_now(tx).await?.plus(span));
    to.lane_held = row.lane_held && row.keep_place;
    to.error = Some(error.to_owned());
    hold.move_to(tx, job.id, to).await
}

/// Why an attempt ended whose worker lost its lease.
pub(crate) const SILENT: &str = "its worker stopped renewing the lease";

/// Why an attempt ended that left nothing behind while its worker goes on.
pub(crate) const UNSAID: &str = "its worker let go of it and could not write down why";

/// Takes a job from a worker that lost it: back to where it was, due after a rest, or over when it keeps killing its workers. It
/// keeps its place in its lane, so that the order of a lane is not a matter of chance, and [`jobs::take_back`] need not look at
/// lanes. Expects the job to be locked and the loss checked by the caller.
pub(crate) async fn lost(
    tx: &mut Tx<'_>,
    hold: &mut Hold,
    id: towpath_domain::JobId,
    why: &'static str,
) -> store::Result<()> {
    let row = hold.job(id).clone();
    note_attempt(tx, &row, "lost", None, why).await?;
    if row.cancel_at.is_some() {
        return hold.finish(tx, id, Some(Ended::Cancelled), false).await;
    }
    let lost_leases = row.lost_leases + 1;
    if lost_leases > i64::from(MAX_LOST_LEASES) {
        let error = row
            .error
            .map_or_else(String::new, |error| format!("; the last error was: {error}"));
        let error = format!("its worker died {lost_leases} times in a row without any progress{error}");
        return hold.finish(tx, id, Some(Ended::Failed(error)), true).await;
    }
    let mut to = Move::of(&row, JobState::Scheduled);
    let lost = u32::try_from(lost_leases).unwrap_or(u32::MAX);
    let rest = rest_after_lost_lease(lost, chance(id, row.fence));
    to.run_at = Some(jobs::db_now(tx).await?.plus(rest));
    to.lost_leases = lost_leases;
    to.fence += 1;
    hold.move_to(tx, id, to).await
}

/// From 0 to 1, another for each job and each of its attempts.
fn chance(id: towpath_domain::JobId, fence: i64) -> f64 {
    let bytes = id.0.as_bytes();
    let bits = u16::from_be_bytes([bytes[14], bytes[15]]);
    let fence = u16::try_from(fence & 0xffff).unwrap_or_default();
    f64::from(bits.wrapping_add(fence.wrapping_mul(40_503))) / f64::from(u16::MAX)
}

/// Ends a job whose deadline passed while this worker held it. Whether it has is for the database's clock to say; else the job is
/// given back as if it had not been claimed.
pub(crate) async fn deadline(tx: &mut Tx<'_>, job: Fenced) -> store::Result<()> {
    let mut hold = Hold::fenced(tx, job, &[], true).await?;
    let row = hold.job(job.id).clone();
    let now = jobs::db_now(tx).await?;
    if row.deadline_at.is_none_or(|deadline| now < deadline) {
        return give_back(tx, &mut hold, job).await;
    }
    note_attempt(tx, &row, "timed_out", None, "the deadline has passed").await?;
    hold.finish(tx, job.id, Some(Ended::TimedOut), false).await
}
