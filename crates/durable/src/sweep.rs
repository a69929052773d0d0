//! Sweeps of the scheduler: one transaction for each job or for many, correct with several schedulers at once.
//!
//! A job that cannot be moved (its `end` fails, its kind is unknown to this version, or its row is locked) is logged
//! and skipped, so that it does not block the jobs behind it in every sweep.

use std::time::{Duration, Instant};

use towpath_domain::job::{EndReason, JobState};
use towpath_domain::{JobId, WorkerId};
use towpath_store::jobs::{JobFence, RescueDelay};
use towpath_store::leases::{ExpiredLeases, LostWorkerScope, LostWorkers};
use towpath_store::{self as store, Dialect, Store, Tx, jobs, leases, schedules};

use crate::failure::Cause;
use crate::locked_jobs::LockedJobs;
use crate::metric;
use crate::outcome;
use crate::start::{Start, start_raw};

/// Candidates of one sweep; the caller sweeps again at once if all were used.
const SWEEP: i64 = 500;

/// Jobs taken back in one statement.
const BATCH: i64 = 1000;

/// How long jobs of lost workers are ended one by one before the next scan for lost workers.
const ENDING: Duration = Duration::from_secs(1);

/// Lets due jobs enter their lanes. Returns the number of ready ones.
pub async fn ready_due(store: &Store) -> store::Result<usize> {
    let (mut plain, mut entered) = (0, 0);
    let mut after = jobs::FIRST;
    loop {
        // In each page, so that jobs without a lane do not wait for all those with one.
        plain += store.write(async |tx| jobs::ready_plain(tx, SWEEP).await).await?;
        let due = store.read(async |tx| jobs::due(tx, after, SWEEP).await).await?;
        for candidate in &due {
            entered += usize::from(ready(store, candidate.id).await?);
        }
        match due.last() {
            // Jobs that cannot be moved do not block those behind them.
            Some(last) if is_full(&due) => after = last.position(),
            _ => break,
        }
    }
    count("due", plain + entered);
    Ok(plain + entered)
}

/// Whether more candidates may follow a page.
fn is_full<T>(page: &[T]) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found >= SWEEP)
}

async fn ready(store: &Store, id: JobId) -> store::Result<bool> {
    let moved = store
        .write(async |tx| {
            jobs::limit_lock_wait(tx).await?;
            let Some(mut hold) = LockedJobs::lock(tx, id, &[], false).await? else {
                return Ok(false);
            };
            let row = hold.job(id);
            // Another scheduler may have been faster.
            if row.state != JobState::Scheduled || row.run_at > jobs::db_now(tx).await? {
                return Ok(false);
            }
            hold.enter(tx, id).await?;
            Ok(true)
        })
        .await;
    tolerate_unmovable(id, moved)
}

fn count(sweep: &'static str, moved: usize) {
    metrics::counter!(metric::MOVES, "sweep" => sweep).increment(moved as u64);
}

/// Whether the job was moved; only errors that would affect all jobs are returned.
fn tolerate_unmovable(job: JobId, moved: store::Result<bool>) -> store::Result<bool> {
    match moved {
        Err(error) if error.is_contended() => {
            tracing::info!(job.id = %job, "a job is locked by another transaction; the sweep skips it");
            Ok(false)
        }
        Err(error) if !error.is_transient() => {
            let error = Cause::of(&error);
            tracing::error!(job.id = %job, error = %error, "a job cannot be moved; the sweep skips it");
            Ok(false)
        }
        moved => moved,
    }
}

/// Finds workers with jobs but no lease. With [`ExpiredLeases::End`], expired leases are ended first. One short
/// statement.
pub async fn lost_workers(store: &Store, expired: ExpiredLeases, reach: LostWorkerScope) -> store::Result<LostWorkers> {
    let look = async |tx: &mut Tx<'_>| leases::find_lost_workers(tx, expired, reach).await;
    match store.dialect() {
        Dialect::Postgres => store.write_one(look).await,
        Dialect::Sqlite => store.write(look).await,
    }
}

/// Ends expired leases of single jobs, which only processes of an earlier version have. Their jobs are found by the
/// next [`lost_workers`].
pub async fn end_old_leases(store: &Store) -> store::Result<u64> {
    store.write_one(async |tx| leases::end_job_leases(tx).await).await
}

/// Takes jobs back from workers without a lease, a thousand in one statement, except those that end with it. Locked
/// rows are left for the next time. Returns the number of jobs taken back.
pub async fn take_back(store: &Store, workers: &[WorkerId]) -> store::Result<usize> {
    if workers.is_empty() {
        return Ok(0);
    }
    let rescued = take_back_all(store, workers, RescueDelay::Backoff).await?;
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

/// Ends expired leases and takes back their jobs. Only correct if the clock was not interrupted.
pub async fn rescue(store: &Store) -> store::Result<usize> {
    end_old_leases(store).await?;
    let look = lost_workers(store, ExpiredLeases::End { by: None }, LostWorkerScope::AllWorkers).await?;
    take_back(store, &look.workers).await
}

/// Makes jobs of an earlier process life ready. For SQLite only, which has a single process, before its workers start.
pub async fn release_earlier_boots(store: &Store) -> store::Result<usize> {
    let held = store.write(async |tx| {
        leases::end_all(tx).await?;
        leases::find_lost_workers(tx, ExpiredLeases::Keep, LostWorkerScope::AllWorkers).await
    });
    let rescued = take_back_all(store, &held.await?.workers, RescueDelay::Immediate).await?;
    count("restarted", rescued);
    Ok(rescued)
}

async fn take_back_all(store: &Store, workers: &[WorkerId], rest: RescueDelay) -> store::Result<usize> {
    let mut taken = 0;
    for worker in workers {
        loop {
            let batch = async |tx: &mut Tx<'_>| jobs::take_back(tx, *worker, rest, BATCH).await;
            let moved = match store.dialect() {
                Dialect::Postgres => store.write_one(batch).await,
                // Needs several statements.
                Dialect::Sqlite => store.write(batch).await,
            };
            let moved = match moved {
                // Workers behind this one are still handled.
                Err(error) if error.is_contended() => {
                    tracing::info!(worker.id = %worker, error = %error, "cannot take back the jobs of a worker yet");
                    break;
                }
                moved => moved?,
            };
            taken += moved;
            if moved < usize::try_from(BATCH).unwrap_or(usize::MAX) {
                break;
            }
        }
    }
    taken += end_lost(store, workers, rest).await?;
    Ok(taken)
}

/// Ends the jobs of lost workers that are not retried, one by one with their families. In a running scheduler only for
/// a limited time: the next scan finds the rest, and workers that were lost meanwhile.
async fn end_lost(store: &Store, workers: &[WorkerId], rest: RescueDelay) -> store::Result<usize> {
    let until = (rest == RescueDelay::Backoff).then(|| Instant::now() + ENDING);
    let mut ended = 0;
    let mut after = JobId::nil();
    loop {
        let ends = store
            .read(async |tx| jobs::exhausted(tx, workers, after, SWEEP).await)
            .await?;
        for id in &ends {
            ended += usize::from(end_one(store, *id, workers).await?);
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(ended);
            }
        }
        match ends.last() {
            Some(last) if is_full(&ends) => after = *last,
            _ => return Ok(ended),
        }
    }
}

async fn end_one(store: &Store, id: JobId, workers: &[WorkerId]) -> store::Result<bool> {
    let moved = store
        .write(async |tx| {
            jobs::limit_lock_wait(tx).await?;
            // With its family, because a job that ends cancels its open children.
            let Some(mut hold) = LockedJobs::lock(tx, id, &[], true).await? else {
                return Ok(false);
            };
            let row = hold.job(id);
            let theirs = row.worker_id.is_some_and(|worker| workers.contains(&worker));
            if row.state != JobState::Running || !theirs {
                return Ok(false);
            }
            outcome::record_lost(tx, &mut hold, id, outcome::SILENT).await?;
            Ok(true)
        })
        .await;
    tolerate_unmovable(id, moved)
}

/// Takes a job from this process, which dropped it without recording its attempt: the lease is still renewed, so no
/// other process would. Returns whether this process still held it.
pub async fn give_up(store: &Store, job: JobFence) -> store::Result<bool> {
    let given = store
        .write(async |tx| {
            jobs::limit_lock_wait(tx).await?;
            let mut hold = LockedJobs::lock_fenced(tx, job, &[], true).await?;
            outcome::record_lost(tx, &mut hold, job.id, outcome::UNSAID).await
        })
        .await;
    let given = match given {
        // Its end cannot be written. It is postponed, as by a worker whose attempt to write failed.
        Err(error) if !error.is_transient() && !matches!(error, store::Error::Stale) => {
            let text = format!("{}: {}", outcome::UNSAID, Cause::of(&error));
            store
                .write(async |tx| outcome::snooze(tx, job, outcome::PUT_OFF, &text).await)
                .await
        }
        given => given,
    };
    match given {
        Ok(()) => Ok(true),
        Err(store::Error::Stale) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Ends jobs whose deadline has passed. The worker of a running job has its own timer, and `grace` more before the job
/// is ended here. Returns the number of ended jobs.
pub async fn end_overdue(store: &Store, grace: Duration) -> store::Result<usize> {
    let mut ended = 0;
    let mut after = jobs::FIRST;
    loop {
        let overdue = store.read(async |tx| jobs::overdue(tx, after, SWEEP).await).await?;
        for candidate in &overdue {
            ended += usize::from(end_late(store, candidate.id, grace).await?);
        }
        match overdue.last() {
            Some(last) if is_full(&overdue) => after = last.position(),
            _ => break,
        }
    }
    count("overdue", ended);
    Ok(ended)
}

async fn end_late(store: &Store, id: JobId, grace: Duration) -> store::Result<bool> {
    let moved = store
        .write(async |tx| {
            jobs::limit_lock_wait(tx).await?;
            let Some(mut hold) = LockedJobs::lock(tx, id, &[], true).await? else {
                return Ok(false);
            };
            let row = hold.job(id);
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
                tx.signal_cancel(id);
            }
            hold.finish(tx, id, Some(EndReason::TimedOut), false).await?;
            Ok(true)
        })
        .await;
    tolerate_unmovable(id, moved)
}

/// Records the spawn job of each active schedule that has none. `rest` is the delay after a spawn job that ended
/// without advancing its schedule. Returns the number of recorded jobs.
pub async fn respawn(store: &Store, rest: Duration) -> store::Result<usize> {
    let rested = store.clock().now().minus(rest);
    let missing = store
        .read(async |tx| schedules::active_without_spawn(tx, rested, SWEEP).await)
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
                    // Rolled back: another scheduler recorded the job, or the schedule moved on.
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
            Err(error) if error.is_contended() => {
                tracing::info!(schedule.id = %schedule.id, "a schedule is locked by another transaction; the sweep \
                                                            skips it");
            }
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let error = Cause::of(&error);
                tracing::error!(schedule.id = %schedule.id, error = %error, "cannot record the spawn job of a \
                     schedule");
            }
        }
    }
    count("respawned", recorded);
    Ok(recorded)
}
