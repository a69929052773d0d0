//! Why a job is not running now.

use std::collections::HashSet;

use serde::Serialize;
use towpath_domain::job::{JobState, SUSPECT};
use towpath_domain::{JobId, Timestamp, WorkerId};
use towpath_store::jobs::{self, Job};
use towpath_store::{self as store, Dialect, Tx, attempts, lanes, leases, pools, workers};

use crate::retry::backs_off;

/// The one true reason, with what stands behind it.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Where the job stands.
    pub state: JobState,
    /// The reason.
    #[serde(flatten)]
    pub why: Why,
    /// The reason as a sentence.
    pub text: String,
}

/// Reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Why {
    /// It is over.
    Over,
    /// It runs.
    Running {
        /// Who holds it.
        worker: Option<WorkerId>,
        /// Until when, unless renewed.
        lease_until: Option<Timestamp>,
    },
    /// It runs, and was asked to stop.
    Stopping {
        /// Who holds it.
        worker: Option<WorkerId>,
    },
    /// Its lease has ended and the rescue has not come by yet.
    LeaseEnded {
        /// Who held it.
        worker: Option<WorkerId>,
    },
    /// It was recorded for later.
    Scheduled {
        /// When it is due.
        at: Timestamp,
    },
    /// It ran, and asked for a later turn without having failed.
    Snoozing {
        /// When it is due.
        at: Timestamp,
    },
    /// It failed and waits for its next attempt.
    BackingOff {
        /// When that is due.
        at: Timestamp,
        /// Failures so far.
        failures: i64,
        /// The last error.
        error: Option<String>,
    },
    /// Its worker was lost with it, and it rests before its next attempt.
    WorkerLost {
        /// When that is due.
        at: Timestamp,
        /// Workers lost in a row, without a new step or checkpoint of this job between them.
        lost_leases: i64,
    },
    /// Its time has come and the scheduler has not readied it yet.
    Due,
    /// Its time has come, but its workers were lost again and again. It is claimed by one that has no other such job.
    Suspect {
        /// Workers lost in a row.
        lost_leases: i64,
    },
    /// Its lane is full.
    LaneFull {
        /// The lane.
        lane: String,
        /// Its places.
        places: i64,
        /// Who holds them.
        holders: Vec<JobId>,
        /// Jobs of the lane that come first.
        ahead: usize,
    },
    /// It waits for its children.
    WaitingForChildren {
        /// How many are not over.
        open: i64,
        /// Some of them.
        children: Vec<JobId>,
    },
    /// Its pool is paused.
    PoolPaused,
    /// Its pool is paused so that it gets empty.
    PoolDraining,
    /// No worker serves its pool.
    NoWorker,
    /// Every worker that serves its pool is draining.
    WorkersDraining,
    /// It is ready and so are all who could do it: busy with others.
    WorkersBusy {
        /// Jobs that those may have at work at the same time.
        slots: i64,
        /// Jobs of the pool at work.
        running: i64,
        /// Ready jobs of the pool, this one included.
        ready: i64,
    },
    /// It is ready and a worker has room for it: it is being taken at this moment, or behind others of the pool.
    AboutToStart {
        /// Ready jobs of the pool, this one included.
        ready: i64,
    },
}

/// Says why a job is not running now, or that it is. `None` when there is no such job.
///
/// # Errors
/// As every statement.
pub async fn explain(tx: &mut Tx<'_>, id: JobId) -> store::Result<Option<Explanation>> {
    let Some(job) = jobs::get(tx, id).await? else {
        return Ok(None);
    };
    let why = reason(tx, &job).await?;
    let text = sentence(&job, &why);
    Ok(Some(Explanation {
        state: job.state,
        why,
        text,
    }))
}

async fn reason(tx: &mut Tx<'_>, job: &Job) -> store::Result<Why> {
    let now = jobs::db_now(tx).await?;
    Ok(match job.state {
        state if state.is_final() => Why::Over,
        JobState::Running => running(tx, job, now).await?,
        JobState::Scheduled if job.run_at <= now && is_claimed_alone(job) => suspect(tx, job).await?,
        JobState::Scheduled if job.run_at <= now => Why::Due,
        JobState::Scheduled if backs_off(tx, job).await? => Why::BackingOff {
            at: job.run_at,
            failures: job.failures,
            error: job.error.clone(),
        },
        JobState::Scheduled if was_lost(tx, job).await? => Why::WorkerLost {
            at: job.run_at,
            lost_leases: job.lost_leases,
        },
        JobState::Scheduled if job.fence > 0 && job.started_at.is_some() => Why::Snoozing { at: job.run_at },
        JobState::Scheduled => Why::Scheduled { at: job.run_at },
        JobState::Blocked => lane_full(tx, job).await?,
        JobState::Waiting => {
            let children = jobs::children(tx, job.id, true, 10).await?;
            Why::WaitingForChildren {
                open: job.open_children,
                children: children.into_iter().map(|child| child.id).collect(),
            }
        }
        _ => ready(tx, job).await?,
    })
}

async fn running(tx: &mut Tx<'_>, job: &Job, now: Timestamp) -> store::Result<Why> {
    let worker = job.worker_id;
    // On SQLite nothing is taken from the one process by time.
    let by_time = tx.dialect() == Dialect::Postgres;
    let lease_until = leases::until(tx, job.id).await?;
    Ok(match lease_until {
        None => Why::LeaseEnded { worker },
        Some(until) if by_time && until < now => Why::LeaseEnded { worker },
        _ if job.cancel_at.is_some() => Why::Stopping { worker },
        lease_until => Why::Running {
            worker,
            lease_until: lease_until.filter(|_| by_time),
        },
    })
}

/// Whether a worker claims the job as it is once it is due. In a lane it needs its place first, which the scheduler gives it.
fn is_claimed_alone(job: &Job) -> bool {
    job.lost_leases >= i64::from(SUSPECT) && (job.lane.is_none() || job.lane_held)
}

/// Why a job that is due and claimed alone is not running: what keeps all jobs of its pool from running keeps it, too.
async fn suspect(tx: &mut Tx<'_>, job: &Job) -> store::Result<Why> {
    Ok(match ready(tx, job).await? {
        why @ (Why::PoolPaused | Why::PoolDraining | Why::NoWorker | Why::WorkersDraining) => why,
        _ => Why::Suspect {
            lost_leases: job.lost_leases,
        },
    })
}

/// Whether the job is scheduled because the worker of its last attempt was lost. Taking it back raised the fence.
async fn was_lost(tx: &mut Tx<'_>, job: &Job) -> store::Result<bool> {
    if job.lost_leases == 0 {
        return Ok(false);
    }
    Ok(attempts::list(tx, job.id)
        .await?
        .last()
        .is_some_and(|last| last.fence + 1 == job.fence && last.outcome == "lost"))
}

async fn lane_full(tx: &mut Tx<'_>, job: &Job) -> store::Result<Why> {
    let key = job.lane.clone().unwrap_or_default();
    let places = lanes::get(tx, &key).await?.map_or(0, |lane| lane.places);
    let others = jobs::in_lane(tx, &key, 1000).await?;
    let ahead = others
        .iter()
        .filter(|other| other.state == JobState::Blocked && (other.lane_seq, other.id) < (job.lane_seq, job.id))
        .count();
    let holders = others
        .into_iter()
        .filter(|other| other.lane_held)
        .map(|other| other.id)
        .take(50)
        .collect();
    Ok(Why::LaneFull {
        lane: key,
        places,
        holders,
        ahead,
    })
}

async fn ready(tx: &mut Tx<'_>, job: &Job) -> store::Result<Why> {
    let pool = pools::overview(tx, &job.pool, workers::SEEN).await?.unwrap_or_default();
    if pool.draining {
        return Ok(Why::PoolDraining);
    }
    if pool.paused {
        return Ok(Why::PoolPaused);
    }
    if pool.workers == 0 {
        let serves = |worker: &workers::Worker| worker.slots().contains_key(&job.pool);
        return Ok(if workers::alive(tx, workers::SEEN).await?.iter().any(serves) {
            Why::WorkersDraining
        } else {
            Why::NoWorker
        });
    }
    // What draining workers still have in hand takes no place of those that claim.
    let claiming: HashSet<_> = workers::alive(tx, workers::SEEN)
        .await?
        .into_iter()
        .filter(|worker| !worker.draining)
        .map(|worker| worker.id)
        .collect();
    let running = jobs::in_hand(tx)
        .await?
        .into_iter()
        .filter(|hand| hand.pool == job.pool && claiming.contains(&hand.worker_id))
        .map(|hand| hand.jobs)
        .sum();
    Ok(if running >= pool.slots {
        Why::WorkersBusy {
            slots: pool.slots,
            running,
            ready: pool.ready,
        }
    } else {
        Why::AboutToStart { ready: pool.ready }
    })
}

fn sentence(job: &Job, why: &Why) -> String {
    let pool = &job.pool;
    match why {
        Why::Over => format!("it is over: {}", job.state.as_str()),
        Why::Running {
            worker,
            lease_until: Some(until),
        } => format!(
            "it is running on worker {}; another takes it over if that one does not renew its lease by {until}",
            name(*worker)
        ),
        Why::Running { worker, .. } => format!("it is running on worker {}", name(*worker)),
        Why::Stopping { worker } => format!("it was asked to stop and worker {} is ending it", name(*worker)),
        Why::LeaseEnded { worker } => {
            format!(
                "worker {} stopped renewing its lease; the scheduler will ready it within a second",
                name(*worker)
            )
        }
        Why::Scheduled { at } => format!("it is scheduled for {at}"),
        Why::Snoozing { at } => format!("it ran and asked to go on at {at}; nothing went wrong"),
        Why::BackingOff { at, failures, error } => {
            let error = error.as_deref().unwrap_or("no error text");
            format!("it failed {failures} times and tries again at {at}; the last error was: {error}")
        }
        Why::WorkerLost { at, lost_leases } => {
            format!("{lost_leases} workers in a row were lost with it; it tries again at {at}")
        }
        Why::Suspect { lost_leases } => format!(
            "{lost_leases} workers in a row were lost with it, so it is performed next to no other such job: a worker of the \
             pool {pool} takes it when it has none"
        ),
        Why::Due => "it is due and the scheduler has not readied it yet; is one running?".to_owned(),
        Why::LaneFull {
            lane,
            places,
            holders,
            ahead,
        } => format!(
            "its lane {lane} has {places} places, held by {}; {ahead} jobs come first",
            holders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        ),
        Why::WaitingForChildren { open, .. } => format!("it waits for {open} child jobs"),
        Why::PoolPaused => format!("the pool {pool} is paused"),
        Why::PoolDraining => format!("the pool {pool} is being emptied and gives out nothing until it is resumed"),
        Why::NoWorker => format!("no worker serves the pool {pool}; start one"),
        Why::WorkersDraining => format!("every worker of the pool {pool} is draining"),
        Why::WorkersBusy { slots, running, ready } => format!(
            "it is ready; the workers of the pool {pool} are busy: {running} jobs on {slots} slots, {ready} jobs ready"
        ),
        Why::AboutToStart { ready } => {
            format!("it is ready and the pool {pool} has a free slot; {ready} jobs are being taken in turn")
        }
    }
}

fn name(worker: Option<WorkerId>) -> String {
    worker.map_or_else(|| "unknown".to_owned(), |worker| worker.to_string())
}
