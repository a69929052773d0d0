//! Explains why a job is not running.

use std::collections::HashSet;

use serde::Serialize;
use towpath_domain::job::{JobState, SUSPECT};
use towpath_domain::{JobId, Timestamp, WorkerId};
use towpath_store::jobs::{self, Job};
use towpath_store::{self as store, Dialect, Tx, attempts, lanes, leases, pools, workers};

use crate::retry::backs_off;

/// The reason, with its details.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    pub state: JobState,
    #[serde(flatten)]
    pub why: StateReason,
    /// The reason as a sentence.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum StateReason {
    Over,
    Running {
        /// Lease holder.
        worker: Option<WorkerId>,
        /// End of the lease unless it is renewed.
        lease_until: Option<Timestamp>,
    },
    /// The job was asked to stop and has not ended yet.
    Stopping {
        /// Lease holder.
        worker: Option<WorkerId>,
    },
    /// The lease has expired and the rescue has not run yet.
    LeaseEnded {
        /// Former lease holder.
        worker: Option<WorkerId>,
    },
    /// Recorded for later.
    Scheduled {
        /// Due time.
        at: Timestamp,
    },
    /// The job asked to be continued later, without a failure.
    Snoozing {
        /// Due time.
        at: Timestamp,
    },
    /// The job failed and waits for its next attempt.
    BackingOff {
        /// Due time of the next attempt.
        at: Timestamp,
        /// Failures so far.
        failures: i64,
        error: Option<String>,
    },
    /// The worker was lost, and the job pauses before its next attempt.
    WorkerLost {
        /// Due time of the next attempt.
        at: Timestamp,
        /// Workers lost in a row, without a new step or checkpoint in between.
        lost_leases: i64,
    },
    /// Due, but not yet made ready by the scheduler.
    Due,
    /// Due, but its workers were lost repeatedly. A worker without another such job claims it.
    Suspect {
        /// Workers lost in a row.
        lost_leases: i64,
    },
    /// Its lane is full.
    LaneFull {
        lane: String,
        places: i64,
        /// Jobs that hold the slots.
        holders: Vec<JobId>,
        /// Earlier jobs of the lane.
        ahead: usize,
    },
    /// Waits for its children.
    WaitingForChildren {
        /// Number of open children.
        open: i64,
        /// Some of them.
        children: Vec<JobId>,
    },
    PoolPaused,
    /// The pool is paused for a drain.
    PoolDraining,
    /// No worker serves the pool.
    NoWorker,
    /// All workers of the pool are draining.
    WorkersDraining,
    /// The job is ready, and all workers of the pool are busy.
    WorkersBusy {
        /// Slots of these workers.
        slots: i64,
        /// Running jobs of the pool.
        running: i64,
        /// Ready jobs of the pool, including this one.
        ready: i64,
    },
    /// The job is ready and a slot is free: it is being claimed, or is behind other jobs of the pool.
    AboutToStart {
        /// Ready jobs of the pool, including this one.
        ready: i64,
    },
}

/// Explains why a job is not running, or that it is. `None` if there is no such job.
pub async fn explain(tx: &mut Tx<'_>, id: JobId) -> store::Result<Option<Explanation>> {
    let Some(job) = jobs::get(tx, id).await? else {
        return Ok(None);
    };
    let why = find_reason(tx, &job).await?;
    let text = sentence(&job, &why);
    Ok(Some(Explanation {
        state: job.state,
        why,
        text,
    }))
}

async fn find_reason(tx: &mut Tx<'_>, job: &Job) -> store::Result<StateReason> {
    let now = jobs::db_now(tx).await?;
    Ok(match job.state {
        state if state.is_final() => StateReason::Over,
        JobState::Running => running(tx, job, now).await?,
        JobState::Scheduled if job.run_at <= now && is_claimed_alone(job) => suspect(tx, job).await?,
        JobState::Scheduled if job.run_at <= now => StateReason::Due,
        JobState::Scheduled if backs_off(tx, job).await? => StateReason::BackingOff {
            at: job.run_at,
            failures: job.failures,
            error: job.error.clone(),
        },
        JobState::Scheduled if was_lost(tx, job).await? => StateReason::WorkerLost {
            at: job.run_at,
            lost_leases: job.lost_leases,
        },
        JobState::Scheduled if job.fence > 0 && job.started_at.is_some() => StateReason::Snoozing { at: job.run_at },
        JobState::Scheduled => StateReason::Scheduled { at: job.run_at },
        JobState::Blocked => lane_full(tx, job).await?,
        JobState::Waiting => {
            let children = jobs::unfinished_children(tx, job.id, 10).await?;
            StateReason::WaitingForChildren {
                open: job.open_children,
                children: children.into_iter().map(|child| child.id).collect(),
            }
        }
        _ => ready(tx, job).await?,
    })
}

async fn running(tx: &mut Tx<'_>, job: &Job, now: Timestamp) -> store::Result<StateReason> {
    let worker = job.worker_id;
    // On SQLite, leases of the only process do not expire.
    let by_time = tx.dialect() == Dialect::Postgres;
    let lease_until = leases::until(tx, job.id).await?;
    Ok(match lease_until {
        None => StateReason::LeaseEnded { worker },
        Some(until) if by_time && until < now => StateReason::LeaseEnded { worker },
        _ if job.cancel_at.is_some() => StateReason::Stopping { worker },
        lease_until => StateReason::Running {
            worker,
            lease_until: lease_until.filter(|_| by_time),
        },
    })
}

/// Whether a worker claims the job alone once it is due. In a lane it first needs a slot from the scheduler.
fn is_claimed_alone(job: &Job) -> bool {
    job.lost_leases >= i64::from(SUSPECT) && (job.lane.is_none() || job.lane_held)
}

/// Why a due suspect is not running; reasons that stop its whole pool apply to it too.
async fn suspect(tx: &mut Tx<'_>, job: &Job) -> store::Result<StateReason> {
    Ok(match ready(tx, job).await? {
        why @ (StateReason::PoolPaused
        | StateReason::PoolDraining
        | StateReason::NoWorker
        | StateReason::WorkersDraining) => why,
        _ => StateReason::Suspect {
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

async fn lane_full(tx: &mut Tx<'_>, job: &Job) -> store::Result<StateReason> {
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
    Ok(StateReason::LaneFull {
        lane: key,
        places,
        holders,
        ahead,
    })
}

async fn ready(tx: &mut Tx<'_>, job: &Job) -> store::Result<StateReason> {
    let pool = pools::overview(tx, &job.pool, workers::HEARTBEAT_WINDOW)
        .await?
        .unwrap_or_default();
    if pool.draining {
        return Ok(StateReason::PoolDraining);
    }
    if pool.paused {
        return Ok(StateReason::PoolPaused);
    }
    if pool.workers == 0 {
        let serves = |worker: &workers::Worker| worker.slots().contains_key(&job.pool);
        return Ok(
            if workers::alive(tx, workers::HEARTBEAT_WINDOW).await?.iter().any(serves) {
                StateReason::WorkersDraining
            } else {
                StateReason::NoWorker
            },
        );
    }
    // Jobs of draining workers use no slots of the workers that claim.
    let claiming: HashSet<_> = workers::alive(tx, workers::HEARTBEAT_WINDOW)
        .await?
        .into_iter()
        .filter(|worker| !worker.draining)
        .map(|worker| worker.id)
        .collect();
    let running = jobs::running_counts(tx)
        .await?
        .into_iter()
        .filter(|hand| hand.pool == job.pool && claiming.contains(&hand.worker_id))
        .map(|hand| hand.jobs)
        .sum();
    Ok(if running >= pool.slots {
        StateReason::WorkersBusy {
            slots: pool.slots,
            running,
            ready: pool.ready,
        }
    } else {
        StateReason::AboutToStart { ready: pool.ready }
    })
}

fn sentence(job: &Job, why: &StateReason) -> String {
    let pool = &job.pool;
    match why {
        StateReason::Over => format!("it is over: {}", job.state.as_str()),
        StateReason::Running {
            worker,
            lease_until: Some(until),
        } => format!(
            "it is running on worker {}; another worker takes it over if the lease is not renewed by {until}",
            name(*worker)
        ),
        StateReason::Running { worker, .. } => format!("it is running on worker {}", name(*worker)),
        StateReason::Stopping { worker } => format!("it was asked to stop and worker {} is ending it", name(*worker)),
        StateReason::LeaseEnded { worker } => {
            format!(
                "worker {} stopped renewing its lease; the scheduler returns it to ready within a second",
                name(*worker)
            )
        }
        StateReason::Scheduled { at } => format!("it is scheduled for {at}"),
        StateReason::Snoozing { at } => format!("it is snoozing until {at}; no attempt failed"),
        StateReason::BackingOff { at, failures, error } => {
            let error = error.as_deref().unwrap_or("no error text");
            format!("it failed {failures} times and is retried at {at}; the last error was: {error}")
        }
        StateReason::WorkerLost { at, lost_leases } => {
            format!("{lost_leases} workers in a row were lost with it; it is retried at {at}")
        }
        StateReason::Suspect { lost_leases } => format!(
            "{lost_leases} workers in a row were lost with it, so it does not run together with another such job: a \
             worker of the pool {pool} claims it when it has none"
        ),
        StateReason::Due => "it is due and the scheduler has not readied it yet; is one running?".to_owned(),
        StateReason::LaneFull {
            lane,
            places,
            holders,
            ahead,
        } => format!(
            "its lane {lane} has {places} slots, held by {}; {ahead} jobs come first",
            holders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        ),
        StateReason::WaitingForChildren { open, .. } => format!("it waits for {open} child jobs"),
        StateReason::PoolPaused => format!("the pool {pool} is paused"),
        StateReason::PoolDraining => {
            format!("the pool {pool} is draining and its jobs are not claimed until it is resumed")
        }
        StateReason::NoWorker => format!("no worker serves the pool {pool}; start one"),
        StateReason::WorkersDraining => {
            format!("every worker of the pool {pool} is draining; resume one or start another")
        }
        StateReason::WorkersBusy { slots, running, ready } => format!(
            "it is ready; the workers of the pool {pool} are busy: {running} jobs on {slots} slots, {ready} jobs ready"
        ),
        StateReason::AboutToStart { ready } => {
            format!("it is ready and the pool {pool} has a free slot; {ready} jobs are being claimed in order")
        }
    }
}

fn name(worker: Option<WorkerId>) -> String {
    worker.map_or_else(|| "unknown".to_owned(), |worker| worker.to_string())
}
