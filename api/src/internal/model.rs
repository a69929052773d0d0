//! What the operators' routes answer.

use serde::Serialize;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, ScheduleId, TenantId, Timestamp, WorkerId};
use towpath_durable::Explanation;
use towpath_store::attempts;
use towpath_store::jobs::JobSummary;
use towpath_store::pools::Overview;
use towpath_store::schedules;
use towpath_store::steps;
use towpath_store::workers;

use std::collections::BTreeMap;
use std::time::Duration;

/// Whether jobs of a pool are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PoolStatus {
    /// Claimed by every worker that serves the pool.
    Active,
    /// Not claimed.
    Paused,
    /// Not claimed, until the pool is empty; some jobs are still running.
    Draining,
    /// Not claimed, and no job is running.
    Drained,
}

impl PoolStatus {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

/// A pool and its queue.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Queue {
    pub(crate) pool: String,
    pub(crate) status: PoolStatus,
    /// Jobs for later: delayed, backing off or snoozing.
    #[schema(minimum = 0)]
    pub(crate) scheduled: i64,
    /// Due jobs whose lane is full.
    #[schema(minimum = 0)]
    pub(crate) blocked: i64,
    /// Due jobs that wait for a worker: the depth of the queue.
    #[schema(minimum = 0)]
    pub(crate) ready: i64,
    /// Running jobs.
    #[schema(minimum = 0)]
    pub(crate) running: i64,
    /// Jobs that wait for their children; they occupy no worker.
    #[schema(minimum = 0)]
    pub(crate) waiting: i64,
    /// When the oldest ready job was due.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) oldest_ready: Option<Timestamp>,
    /// Seconds since then; 0 if no job is ready.
    #[schema(minimum = 0)]
    pub(crate) oldest_ready_age_seconds: f64,
    /// Workers that serve the pool and claim jobs.
    #[schema(minimum = 0)]
    pub(crate) workers: i64,
    /// Total slots of these workers.
    #[schema(minimum = 0)]
    pub(crate) slots: i64,
}

impl Queue {
    /// State at `now`, by the clock of due times.
    pub(crate) fn of(pool: Overview, now: Timestamp) -> Self {
        let status = match (pool.paused, pool.draining, pool.running) {
            (false, ..) => PoolStatus::Active,
            (true, false, _) => PoolStatus::Paused,
            (true, true, 0) => PoolStatus::Drained,
            (true, true, _) => PoolStatus::Draining,
        };
        Self {
            pool: pool.pool,
            status,
            scheduled: pool.scheduled,
            blocked: pool.blocked,
            ready: pool.ready,
            running: pool.running,
            waiting: pool.waiting,
            oldest_ready: pool.oldest_ready,
            oldest_ready_age_seconds: pool
                .oldest_ready
                .map_or(Duration::ZERO, |due| now.since(due))
                .as_secs_f64(),
            workers: pool.workers,
            slots: pool.slots,
        }
    }
}

/// The pools.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Queues {
    /// By name.
    pub(crate) items: Vec<Queue>,
}

/// Metrics of a pool for autoscalers.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Scaling {
    pub(crate) pool: String,
    /// Ready jobs; 0 while the pool is paused, since more workers would not help.
    #[schema(minimum = 0)]
    pub(crate) depth: i64,
    /// Jobs that need a slot: running ones, and ready ones unless the pool is paused. Scale by this number, which keeps
    /// the workers of running jobs.
    #[schema(minimum = 0)]
    pub(crate) load: i64,
    /// Age of the oldest of them.
    #[schema(minimum = 0)]
    pub(crate) oldest_ready_age_seconds: f64,
    /// Running jobs.
    #[schema(minimum = 0)]
    pub(crate) running: i64,
    /// Total slots of the pool's workers.
    #[schema(minimum = 0)]
    pub(crate) slots: i64,
}

impl Scaling {
    /// State at `now`, by the clock of due times.
    pub(crate) fn of(pool: Overview, now: Timestamp) -> Self {
        let paused = pool.paused;
        let queue = Queue::of(pool, now);
        let depth = if paused { 0 } else { queue.ready };
        Self {
            pool: queue.pool,
            depth,
            load: depth + queue.running,
            oldest_ready_age_seconds: if paused { 0.0 } else { queue.oldest_ready_age_seconds },
            running: queue.running,
            slots: queue.slots,
        }
    }
}

/// A job in a list, without its input.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Job {
    #[schema(value_type = Uuid)]
    pub(crate) id: JobId,
    /// Workspace.
    #[schema(value_type = Uuid)]
    pub(crate) tenant_id: TenantId,
    pub(crate) kind: String,
    pub(crate) pool: String,
    #[schema(inline, value_type = State)]
    pub(crate) state: JobState,
    /// Higher values are claimed first within a workspace.
    pub(crate) priority: i64,
    pub(crate) lane: Option<String>,
    #[schema(value_type = Option<Uuid>)]
    pub(crate) parent_id: Option<JobId>,
    /// Number of claims, without those that were returned.
    pub(crate) attempt: i64,
    pub(crate) failures: i64,
    /// Number of consecutive lost leases.
    pub(crate) lost_leases: i64,
    /// Worker that runs it.
    #[schema(value_type = Option<Uuid>)]
    pub(crate) worker_id: Option<WorkerId>,
    /// The last error.
    pub(crate) error: Option<String>,
    /// Whether it is a dead letter.
    pub(crate) dead: bool,
    /// Due time.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) run_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) deadline_at: Option<Timestamp>,
    /// Time of the cancellation request.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) cancel_at: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) finished_at: Option<Timestamp>,
}

/// The states of a job, for the API description.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for `JobState`, which knows nothing of the API")]
pub(crate) enum State {
    Scheduled,
    Blocked,
    Ready,
    Running,
    Waiting,
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
}

impl From<JobSummary> for Job {
    fn from(job: JobSummary) -> Self {
        Self {
            id: job.id,
            tenant_id: job.tenant_id,
            kind: job.kind,
            pool: job.pool,
            state: job.state,
            priority: job.priority,
            lane: job.lane,
            parent_id: job.parent_id,
            attempt: job.attempt,
            failures: job.failures,
            lost_leases: job.lost_leases,
            worker_id: job.worker_id,
            error: job.error,
            dead: job.dead,
            run_at: job.run_at,
            deadline_at: job.deadline_at,
            cancel_at: job.cancel_at,
            created_at: job.created_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
        }
    }
}

/// A page of jobs.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Jobs {
    /// Latest first.
    pub(crate) items: Vec<Job>,
    /// Cursor of the next page; null on the last page.
    pub(crate) next_cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct JobDetail {
    #[serde(flatten)]
    pub(crate) job: Job,
    /// Why it is not running: `reason` for programs, `text` for people.
    #[schema(value_type = Object)]
    pub(crate) explanation: Explanation,
    /// When its lease ends unless renewed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) lease_until: Option<Timestamp>,
    /// Its lane, if any.
    pub(crate) lane_state: Option<LaneState>,
    /// Unsuccessful attempts, oldest first.
    pub(crate) attempts: Vec<Attempt>,
    /// Finished steps, which are not repeated; the first 1,000.
    pub(crate) steps: Vec<Step>,
    /// The latest 100 children.
    pub(crate) children: Vec<Job>,
    /// Input of the job, with `?input=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) input: Option<Box<serde_json::value::RawValue>>,
}

/// Usage of a lane.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct LaneState {
    pub(crate) key: String,
    /// Maximum number of running jobs.
    pub(crate) places: i64,
    /// Number of running jobs.
    pub(crate) held: i64,
}

/// An unsuccessful attempt.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Attempt {
    /// Number of the claim.
    pub(crate) fence: i64,
    /// `failed`, `timed_out`, `lost` (its worker died) or `cancelled`.
    pub(crate) outcome: String,
    /// The n of `retry_n`, for failures and time-outs.
    pub(crate) failure: Option<i64>,
    pub(crate) error: String,
    #[schema(value_type = Option<Uuid>)]
    pub(crate) worker_id: Option<WorkerId>,
    /// When it ended.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) at: Timestamp,
}

impl From<attempts::Attempt> for Attempt {
    fn from(attempt: attempts::Attempt) -> Self {
        Self {
            fence: attempt.fence,
            outcome: attempt.outcome,
            failure: attempt.failure,
            error: attempt.error,
            worker_id: attempt.worker_id,
            at: attempt.at,
        }
    }
}

/// A finished step.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// Number of the claim that finished it.
    pub(crate) fence: i64,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) at: Timestamp,
}

impl From<steps::FinishedStep> for Step {
    fn from(step: steps::FinishedStep) -> Self {
        Self {
            name: step.name,
            fence: step.fence,
            at: step.at,
        }
    }
}

/// A worker process.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Worker {
    /// Id of this process life.
    #[schema(value_type = Uuid)]
    pub(crate) id: WorkerId,
    pub(crate) host: String,
    /// Process id on the host.
    pub(crate) pid: i64,
    pub(crate) version: String,
    /// `active`; `draining`: claims no more jobs; `drained`: no jobs left either; `silent`: not seen for 15 s.
    pub(crate) status: &'static str,
    /// Slots by pool.
    pub(crate) pools: BTreeMap<String, i64>,
    /// Running jobs by pool.
    pub(crate) running: BTreeMap<String, i64>,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) started_at: Timestamp,
    /// Time of the last heartbeat.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) seen_at: Timestamp,
}

impl Worker {
    pub(crate) fn of(worker: workers::Worker, running: BTreeMap<String, i64>, now: Timestamp) -> Self {
        let status = match (now.since(worker.seen_at) < workers::HEARTBEAT_WINDOW, worker.draining) {
            (false, _) => "silent",
            (true, true) if running.is_empty() && worker.has_stopped_claiming() => "drained",
            (true, true) => "draining",
            (true, false) => "active",
        };
        Self {
            id: worker.id,
            status,
            pools: worker.slots(),
            running,
            host: worker.host,
            pid: worker.pid,
            version: worker.version,
            started_at: worker.started_at,
            seen_at: worker.seen_at,
        }
    }
}

#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Workers {
    /// Latest start first.
    pub(crate) items: Vec<Worker>,
}

/// A schedule of jobs.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Schedule {
    #[schema(value_type = Uuid)]
    pub(crate) id: ScheduleId,
    /// Workspace.
    #[schema(value_type = Uuid)]
    pub(crate) tenant_id: TenantId,
    /// Kind of its jobs.
    pub(crate) kind: String,
    /// Pool of its jobs.
    pub(crate) pool: String,
    /// Time of the next job.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) next_at: Timestamp,
    pub(crate) paused: bool,
    /// The job recorded for `next_at`.
    #[schema(value_type = Option<Uuid>)]
    pub(crate) spawn_job: Option<JobId>,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) created_at: Timestamp,
}

impl From<schedules::Schedule> for Schedule {
    fn from(schedule: schedules::Schedule) -> Self {
        Self {
            id: schedule.id,
            tenant_id: schedule.tenant_id,
            kind: schedule.kind,
            pool: schedule.pool,
            next_at: schedule.next_at,
            paused: schedule.paused,
            spawn_job: schedule.spawn_job,
            created_at: schedule.created_at,
        }
    }
}

/// A page of schedules.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Schedules {
    /// Latest first.
    pub(crate) items: Vec<Schedule>,
    /// Cursor of the next page; null on the last page.
    pub(crate) next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_pool_keeps_its_load() {
        let scaling = |ready, running, paused| {
            let pool = Overview {
                ready,
                running,
                paused,
                ..Overview::default()
            };
            let scaling = Scaling::of(pool, Timestamp::from_micros(0));
            (scaling.depth, scaling.load)
        };
        assert_eq!(scaling(0, 1, false), (0, 1), "the worker of the only job is needed");
        assert_eq!(scaling(3, 2, false), (3, 5));
        assert_eq!(scaling(3, 2, true), (0, 2), "only what is at work");
        assert_eq!(scaling(0, 0, false), (0, 0));
    }
}
