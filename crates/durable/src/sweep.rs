//! What the scheduler does to jobs: one transaction per job, each right when several schedulers do it at once.
//!
//! A job that cannot be moved (its `end` fails, or this version does not know its kind) is logged and passed by:
//! it would be the first of every sweep, and keep all others from being moved.

use std::time::Duration;

use towpath_domain::JobId;
use towpath_domain::job::{Ended, JobState};
use towpath_store::{self as store, Store, jobs, schedules};

use crate::failure::Cause;
use crate::hold::Hold;
use crate::metric;
use crate::outcome;
use crate::start::{Start, start_raw};

/// Candidates looked at in one sweep; the caller sweeps again at once when all were used.
const SWEEP: i64 = 500;

/// Gives due jobs their place. Returns how many got one.
///
/// # Errors
/// When the database is not available; what was moved before stays moved.
pub async fn ready_due(store: &Store) -> store::Result<usize> {
    let plain = store.write(async |tx| jobs::ready_plain(tx, SWEEP).await).await?;
    let due = store.read(async |tx| jobs::due(tx, SWEEP).await).await?;
    let mut entered = 0;
    for candidate in due {
        let moved = store
            .write(async |tx| {
                let Some(mut hold) = Hold::take(tx, candidate.id, &[], false).await? else {
                    return Ok(false);
                };
                let row = hold.job(candidate.id);
                // Somebody else may have been faster.
                if row.state != JobState::Scheduled || row.run_at > jobs::db_now(tx).await? {
                    return Ok(false);
                }
                hold.enter(tx, candidate.id).await?;
                Ok(true)
            })
            .await;
        entered += usize::from(pass_by(candidate.id, moved)?);
    }
    count("due", plain + entered);
    Ok(plain + entered)
}

fn count(sweep: &'static str, moved: usize) {
    metrics::counter!(metric::MOVES, "sweep" => sweep).increment(moved as u64);
}

/// Whether the job was moved, if that can be said; an error only where the other jobs would fare no better.
fn pass_by(job: JobId, moved: store::Result<bool>) -> store::Result<bool> {
    match moved {
        Err(error) if !error.is_transient() => {
            let error = Cause::of(&error);
            tracing::error!(job.id = %job, error = %error, "a job cannot be moved; the sweep goes on without it");
            Ok(false)
        }
        moved => moved,
    }
}

/// Takes jobs back from workers whose lease ended. Returns how many were rescued.
///
/// # Errors
/// As every statement.
pub async fn rescue(store: &Store) -> store::Result<usize> {
    let expired = store.read(async |tx| jobs::expired(tx, SWEEP).await).await?;
    let mut rescued = 0;
    for candidate in expired {
        rescued += usize::from(pass_by(candidate.id, take_back(store, candidate.id, true).await)?);
    }
    if rescued > 0 {
        metrics::counter!(metric::EXPIRED).increment(rescued as u64);
        count("rescued", rescued);
        tracing::warn!(
            jobs = rescued,
            "took jobs back from workers that stopped renewing their leases"
        );
    }
    Ok(rescued)
}

/// Readies whatever an earlier life of this process held. Only for SQLite, where one process is all there is, and
/// before its workers start.
///
/// # Errors
/// As every statement.
pub async fn ready_earlier_boots(store: &Store) -> store::Result<usize> {
    let held = store.read(async |tx| jobs::ready_earlier_boots(tx).await).await?;
    let mut rescued = 0;
    for candidate in held {
        rescued += usize::from(pass_by(candidate.id, take_back(store, candidate.id, false).await)?);
    }
    count("restarted", rescued);
    Ok(rescued)
}

async fn take_back(store: &Store, id: JobId, only_expired: bool) -> store::Result<bool> {
    store
        .write(async |tx| {
            // With its family: a job that ends here takes its open children along.
            let Some(mut hold) = Hold::take(tx, id, &[], true).await? else {
                return Ok(false);
            };
            let row = hold.job(id);
            let now = jobs::db_now(tx).await?;
            if row.state != JobState::Running || (only_expired && row.lease_until.is_none_or(|until| until >= now)) {
                return Ok(false);
            }
            outcome::lost(tx, &mut hold, id).await?;
            Ok(true)
        })
        .await
}

/// Ends jobs whose deadline passed. One that runs has its worker's own timer, and `grace` on top before it is ended
/// over its head. Returns how many were ended.
///
/// # Errors
/// As every statement.
pub async fn end_overdue(store: &Store, grace: Duration) -> store::Result<usize> {
    let overdue = store.read(async |tx| jobs::overdue(tx, SWEEP).await).await?;
    let mut ended = 0;
    for candidate in overdue {
        let moved = store
            .write(async |tx| {
                let Some(mut hold) = Hold::take(tx, candidate.id, &[], true).await? else {
                    return Ok(false);
                };
                let row = hold.job(candidate.id);
                let now = jobs::db_now(tx).await?;
                let Some(deadline) = row.deadline_at else {
                    return Ok(false);
                };
                let over = if row.state == JobState::Running {
                    deadline.plus(grace)
                } else {
                    deadline
                };
                if row.state.is_final() || now < over {
                    return Ok(false);
                }
                if row.state == JobState::Running {
                    tx.signal_cancel(candidate.id);
                }
                hold.finish(tx, candidate.id, Some(Ended::TimedOut), false).await?;
                Ok(true)
            })
            .await;
        ended += usize::from(pass_by(candidate.id, moved)?);
    }
    count("overdue", ended);
    Ok(ended)
}

/// Records the spawn job of each active schedule that has none. `rest` is how long one that ended without advancing
/// its schedule is left alone. Returns how many were recorded.
///
/// # Errors
/// When the database is not available; what was recorded before stays.
pub async fn respawn(store: &Store, rest: Duration) -> store::Result<usize> {
    let rested = store.clock().now().minus(rest);
    let missing = store
        .read(async |tx| schedules::without_spawn(tx, rested, SWEEP).await)
        .await?;
    let mut recorded = 0;
    for schedule in missing {
        let spawned = store
            .write(async |tx| {
                let how = Start::new(schedule.tenant_id).at(schedule.next_at);
                let job = start_raw(tx, &schedule.kind, &schedule.pool, &schedule.input, how).await?;
                if schedules::set_spawn(tx, schedule.id, schedule.next_at, schedule.spawn_job, job).await? {
                    Ok(())
                } else {
                    // Rolled back: another scheduler has recorded it, or the schedule moved on.
                    Err(store::Error::Stale)
                }
            })
            .await;
        match spawned {
            Ok(()) => {
                tracing::warn!(schedule.id = %schedule.id, "a schedule had no spawn job; recorded one");
                recorded += 1;
            }
            Err(store::Error::Stale) => {}
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let error = Cause::of(&error);
                tracing::error!(schedule.id = %schedule.id, error = %error, "cannot record the spawn job of a schedule");
            }
        }
    }
    count("respawned", recorded);
    Ok(recorded)
}
