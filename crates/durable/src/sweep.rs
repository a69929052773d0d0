//! What the scheduler does to jobs: one transaction per job, or one for very many, each right when several schedulers do it at
//! once.
//!
//! A job that cannot be moved (its `end` fails, this version does not know its kind, somebody sits on its row) is logged and
//! passed by: it would be the first of every sweep, and keep all others from being moved.

use std::time::{Duration, Instant};

use towpath_domain::job::{Ended, JobState};
use towpath_domain::{JobId, WorkerId};
use towpath_store::jobs::{Fenced, Rest};
use towpath_store::leases::{Expired, Look, Reach};
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

/// How long jobs of lost workers are ended one by one before it is looked for lost workers again.
const ENDING: Duration = Duration::from_secs(1);

/// Gives due jobs their place. Returns how many got one.
///
/// # Errors
/// When the database is not available; what was moved before stays moved.
pub async fn ready_due(store: &Store) -> store::Result<usize> {
    let (mut plain, mut entered) = (0, 0);
    let mut after = jobs::FIRST;
    loop {
        // With each page: jobs that need no place do not wait for all those that do.
        plain += store.write(async |tx| jobs::ready_plain(tx, SWEEP).await).await?;
        let due = store.read(async |tx| jobs::due(tx, after, SWEEP).await).await?;
        for candidate in &due {
            entered += usize::from(ready(store, candidate.id).await?);
        }
        match due.last() {
            // Those that cannot be moved do not keep the ones behind them.
            Some(last) if is_full(&due) => after = last.position(),
            _ => break,
        }
    }
    count("due", plain + entered);
    Ok(plain + entered)
}

/// Whether a page of candidates may have others behind it.
fn is_full<T>(page: &[T]) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found >= SWEEP)
}

async fn ready(store: &Store, id: JobId) -> store::Result<bool> {
    let moved = store
        .write(async |tx| {
            jobs::pass_locked(tx).await?;
            let Some(mut hold) = Hold::take(tx, id, &[], false).await? else {
                return Ok(false);
            };
            let row = hold.job(id);
            // Somebody else may have been faster.
            if row.state != JobState::Scheduled || row.run_at > jobs::db_now(tx).await? {
                return Ok(false);
            }
            hold.enter(tx, id).await?;
            Ok(true)
        })
        .await;
    pass_by(id, moved)
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
pub async fn lost_workers(store: &Store, expired: Expired, reach: Reach) -> store::Result<Look> {
    let look = async |tx: &mut Tx<'_>| leases::look(tx, expired, reach).await;
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
    let look = lost_workers(store, Expired::End { by: None }, Reach::Holders).await?;
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
        leases::look(tx, Expired::Leave, Reach::Holders).await
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
                Dialect::Postgres => store.write_one(batch).await,
                // Several statements.
                Dialect::Sqlite => store.write(batch).await,
            };
            let moved = match moved {
                // The workers behind this one are looked after all the same.
                Err(error) if error.is_contended() => {
                    tracing::info!(worker.id = %worker, error = %error, "cannot take the jobs of a worker back yet");
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

/// Ends those jobs of lost workers that are not tried again, one by one with their families. Beside a scheduler only for a while: the
/// next look finds the rest, and other workers that were lost meanwhile.
async fn end_lost(store: &Store, workers: &[WorkerId], rest: Rest) -> store::Result<usize> {
    let until = (rest == Rest::Some).then(|| Instant::now() + ENDING);
    let mut ended = 0;
    let mut after = JobId::nil();
    loop {
        let ends = store
            .read(async |tx| jobs::beyond_rest(tx, workers, after, SWEEP).await)
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
    pass_by(id, moved)
}

/// Takes a job from this process, which has let go of it without writing down how its attempt ended: its lease goes on, so nobody
/// else would. Answers whether it was still this process's.
///
/// # Errors
/// As every statement.
pub async fn give_up(store: &Store, job: Fenced) -> store::Result<bool> {
    let given = store
        .write(async |tx| {
            jobs::pass_locked(tx).await?;
            let mut hold = Hold::fenced(tx, job, &[], true).await?;
            outcome::lost(tx, &mut hold, job.id, outcome::UNSAID).await
        })
        .await;
    let given = match given {
        // What ends with it cannot be written. It is put off, as by a worker that has just tried.
        Err(error) if !error.is_transient() && !matches!(error, store::Error::Stale) => {
            let text = format!("{}: {}", outcome::UNSAID, Cause::of(&error));
            store
                .write(async |tx| outcome::put_off(tx, job, outcome::PUT_OFF, &text).await)
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

/// Ends jobs whose deadline passed. One that runs has its worker's own timer, and `grace` on top before it is ended
/// over its head. Returns how many were ended.
///
/// # Errors
/// As every statement.
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
            jobs::pass_locked(tx).await?;
            let Some(mut hold) = Hold::take(tx, id, &[], true).await? else {
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
            hold.finish(tx, id, Some(Ended::TimedOut), false).await?;
            Ok(true)
        })
        .await;
    pass_by(id, moved)
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
            Err(error) if error.is_contended() => {
                tracing::info!(schedule.id = %schedule.id, "a schedule is locked by somebody; the sweep goes on without it");
            }
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
