//! What the scheduler does to jobs: one transaction per job, or one for very many, each right when several schedulers do it at
//! once.
//!
//! A job that cannot be moved (its `end` fails, this version does not know its kind, somebody sits on its row) is logged and
//! passed by: it would be the first of every sweep, and keep all others from being moved.

use std::time::Duration;

use towpath_domain::job::{Ended, JobState};
use towpath_domain::{JobId, WorkerId};
use towpath_store::jobs::{Fenced, Rest};
use towpath_store::leases::{Expired, Look};
use towpath_store::{self as store, Dialect, Store, Tx, jobs, leases, schedules};

use crate::failure::Cause;
use crate::hold::Hold;
use crate::metric;
use crate::outcome;
use crate::start::{Start, start_raw};

/// Candidates looked at in one sweep; the caller sweeps again at once when all were used.
const SWEEP: i64 = 500;

/// Jobs taken back in one statement.
const BATCH: i64 = 1000;

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
        Err(error) if error.is_contended() => {
            tracing::info!(job.id = %job, "a job is locked by somebody; the sweep goes on without it");
            Ok(false)
        }
        Err(error) if !error.is_transient() => {
            let error = Cause::of(&error);
            tracing::error!(job.id = %job, error = %error, "a job cannot be moved; the sweep goes on without it");
            Ok(false)
        }
        moved => moved,
    }
}

/// Looks for workers that have jobs and no lease. With [`Expired::End`] leases that have passed their time are ended first. One
/// short statement.
///
/// # Errors
/// As every statement.
pub async fn lost_workers(store: &Store, expired: Expired) -> store::Result<Look> {
    let look = async |tx: &mut Tx<'_>| leases::look(tx, expired).await;
    match store.dialect() {
        Dialect::Postgres => store.write_one(look).await,
        Dialect::Sqlite => store.write(look).await,
    }
}

/// Ends leases of single jobs that have passed their time: those of processes of an earlier version, which are still running or
/// were when this one came. Their jobs are found by the next [`lost_workers`].
///
/// # Errors
/// As every statement.
pub async fn end_old_leases(store: &Store) -> store::Result<u64> {
    store.write_one(async |tx| leases::end_old(tx).await).await
}

/// Takes the jobs of workers without a lease away from them: a thousand in one statement, but for those that end with it. Rows
/// that somebody has locked are left for the next time. Returns how many were taken back.
///
/// # Errors
/// As every statement.
pub async fn take_back(store: &Store, workers: &[WorkerId]) -> store::Result<usize> {
    if workers.is_empty() {
        return Ok(0);
    }
    let rescued = take_all(store, workers, Rest::Some).await?;
    if rescued > 0 {
        metrics::counter!(metric::EXPIRED).increment(rescued as u64);
        count("rescued", rescued);
        tracing::warn!(
            jobs = rescued,
            workers = workers.len(),
            "took jobs back from workers that stopped renewing their leases"
        );
    }
    Ok(rescued)
}

/// All of it at once: ends leases that have passed their time, and takes back what was held under them. For whoever knows that
/// time did not stand still.
///
/// # Errors
/// As every statement.
pub async fn rescue(store: &Store) -> store::Result<usize> {
    end_old_leases(store).await?;
    let look = lost_workers(store, Expired::End { by: None }).await?;
    take_back(store, &look.lost).await
}

/// Readies whatever an earlier life of this process held. Only for SQLite, where one process is all there is, and
/// before its workers start.
///
/// # Errors
/// As every statement.
pub async fn ready_earlier_boots(store: &Store) -> store::Result<usize> {
    let held = store.write(async |tx| {
        leases::end_all(tx).await?;
        leases::look(tx, Expired::Leave).await
    });
    let rescued = take_all(store, &held.await?.lost, Rest::None).await?;
    count("restarted", rescued);
    Ok(rescued)
}

async fn take_all(store: &Store, workers: &[WorkerId], rest: Rest) -> store::Result<usize> {
    let mut taken = 0;
    for worker in workers {
        loop {
            let batch = async |tx: &mut Tx<'_>| jobs::take_back(tx, *worker, rest, BATCH).await;
            let moved = match store.dialect() {
                Dialect::Postgres => store.write_one(batch).await?,
                // Several statements.
                Dialect::Sqlite => store.write(batch).await?,
            };
            taken += moved;
            if moved < usize::try_from(BATCH).unwrap_or(usize::MAX) {
                break;
            }
        }
    }
    let ends = store
        .read(async |tx| jobs::beyond_rest(tx, workers, SWEEP).await)
        .await?;
    for id in ends {
        let moved = store
            .write(async |tx| {
                jobs::pass_locked(tx).await?;
                // With its family: a job that ends here takes its open children along.
                let Some(mut hold) = Hold::take(tx, id, &[], true).await? else {
                    return Ok(false);
                };
                let row = hold.job(id);
                let theirs = row.worker_id.is_some_and(|worker| workers.contains(&worker));
                if row.state != JobState::Running || !theirs {
                    return Ok(false);
                }
                outcome::lost(tx, &mut hold, id, outcome::SILENT).await?;
                Ok(true)
            })
            .await;
        taken += usize::from(pass_by(id, moved)?);
    }
    Ok(taken)
}

/// Takes a job from this process, which has let go of it without writing down how its attempt ended: its lease goes on, so nobody
/// else would. Answers whether it was still this process's.
///
/// # Errors
/// As every statement.
pub async fn give_up(store: &Store, job: Fenced) -> store::Result<bool> {
    let given = store.write(async |tx| {
        let mut hold = Hold::fenced(tx, job, &[], true).await?;
        outcome::lost(tx, &mut hold, job.id, outcome::UNSAID).await
    });
    match given.await {
        Ok(()) => Ok(true),
        Err(store::Error::Stale) => Ok(false),
        Err(error) => Err(error),
    }
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
                jobs::pass_locked(tx).await?;
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
