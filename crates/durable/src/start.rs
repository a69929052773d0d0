//! Recording jobs.

use std::time::Duration;

use towpath_domain::job::{JobState, ReadyJob};
use towpath_domain::{JobId, TenantId, Timestamp};
use towpath_store::jobs::{self, BatchedJob, NewJob};
use towpath_store::{self as store, Tx, lanes};

use crate::lane::Lane;
use crate::locked_jobs::LockedJobs;
use crate::metric;
use crate::trace;
use crate::workflow::Workflow;

/// How a job starts.
#[derive(Clone, Debug)]
pub struct Start {
    tenant: TenantId,
    pool: Option<String>,
    lane: Option<Lane>,
    start_time: StartTime,
    deadline: Option<Timestamp>,
    parent: Option<JobId>,
    priority: i64,
    traceparent: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum StartTime {
    Now,
    At(Timestamp),
    After(Duration),
}

impl StartTime {
    /// The due time, and whether it has come.
    async fn run_at(self, tx: &mut Tx<'_>) -> store::Result<(Timestamp, bool)> {
        Ok(match self {
            Self::Now => (tx.now(), true),
            Self::At(time) => (time, time <= jobs::db_now(tx).await?),
            Self::After(delay) if delay.is_zero() => (tx.now(), true),
            Self::After(delay) => (jobs::db_now(tx).await?.plus(delay), false),
        })
    }
}

impl Start {
    /// At once, without a lane or a deadline.
    #[must_use]
    pub const fn new(tenant: TenantId) -> Self {
        Self {
            tenant,
            pool: None,
            lane: None,
            start_time: StartTime::Now,
            deadline: None,
            parent: None,
            priority: 0,
            traceparent: None,
        }
    }

    /// In this pool instead of that of its kind: only some processes can perform it. Only for [`start`].
    #[must_use]
    pub fn pool(mut self, pool: String) -> Self {
        self.pool = Some(pool);
        self
    }

    #[must_use]
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Not before `time`, when it enters its lane.
    #[must_use]
    pub const fn at(mut self, time: Timestamp) -> Self {
        self.start_time = StartTime::At(time);
        self
    }

    /// Not before `delay` has passed.
    #[must_use]
    pub const fn after(mut self, delay: Duration) -> Self {
        self.start_time = StartTime::After(delay);
        self
    }

    /// Ends as timed out unless it has ended by `time`.
    #[must_use]
    pub const fn deadline(mut self, time: Timestamp) -> Self {
        self.deadline = Some(time);
        self
    }

    /// As a child of the job whose [`Ctx::wait`](crate::Ctx::wait) is running.
    #[must_use]
    pub const fn child_of(mut self, parent: JobId) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Higher priorities go first within a tenant; on PostgreSQL, during a backlog, with a delay of about half a
    /// second. The default is 0.
    #[must_use]
    pub const fn priority(mut self, priority: i64) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the trace context (W3C `traceparent`). By default, a job that is due now belongs to the trace of the
    /// request or job that records it, and a later one starts its own trace, because a chain of spawns would never end.
    #[must_use]
    pub fn traceparent(mut self, traceparent: Option<String>) -> Self {
        self.traceparent = traceparent;
        self
    }
}

/// Records a job in the caller's transaction; workers of its pool are woken after the commit.
///
/// Call it before the transaction's business writes if the job has a lane: lanes are locked first everywhere.
///
/// `Corrupt` if the input cannot be written as JSON, which is a defect of the workflow.
pub async fn start<W: Workflow>(tx: &mut Tx<'_>, input: &W, how: Start) -> store::Result<JobId> {
    let id = JobId::new();
    let input = serde_json::to_string(input).map_err(|_| store::Error::corrupt("job", "input", id))?;
    let pool = how.pool.clone();
    let pool = pool.as_deref().unwrap_or(W::POOL);
    record(tx, id, W::KIND, pool, input, W::KEEP_PLACE, how).await
}

/// Records due jobs of one kind, each in its lane, in a constant number of statements.
pub async fn start_all<W: Workflow>(tx: &mut Tx<'_>, jobs: &[(W, Lane)], how: Start) -> store::Result<Vec<JobId>> {
    let lanes: Vec<Lane> = jobs.iter().map(|(_, lane)| lane.clone()).collect();
    let places = LockedJobs::reserve_all(tx, &lanes).await?;
    let mut each = Vec::with_capacity(jobs.len());
    for ((input, lane), (seq, free)) in jobs.iter().zip(places) {
        let id = JobId::new();
        each.push(BatchedJob {
            id,
            state: if free { JobState::Ready } else { JobState::Blocked },
            input: serde_json::to_string(input).map_err(|_| store::Error::corrupt("job", "input", id))?,
            lane: Some(lane.key.clone()),
            lane_seq: Some(seq),
            lane_held: free,
        });
    }
    record_all::<W>(tx, &each, tx.now(), how).await
}

/// Records jobs of one kind without a lane, in a constant number of statements.
pub async fn start_all_apart<W: Workflow>(tx: &mut Tx<'_>, jobs: &[W], how: Start) -> store::Result<Vec<JobId>> {
    let (run_at, due) = how.start_time.run_at(tx).await?;
    let mut each = Vec::with_capacity(jobs.len());
    for input in jobs {
        let id = JobId::new();
        each.push(BatchedJob {
            id,
            state: if due { JobState::Ready } else { JobState::Scheduled },
            input: serde_json::to_string(input).map_err(|_| store::Error::corrupt("job", "input", id))?,
            lane: None,
            lane_seq: None,
            lane_held: false,
        });
    }
    record_all::<W>(tx, &each, run_at, how).await
}

async fn record_all<W: Workflow>(
    tx: &mut Tx<'_>,
    each: &[BatchedJob],
    run_at: Timestamp,
    how: Start,
) -> store::Result<Vec<JobId>> {
    let Some(first) = each.first() else {
        return Ok(Vec::new());
    };
    let due = each.iter().any(|job| job.state != JobState::Scheduled);
    let like = NewJob {
        id: first.id,
        tenant_id: how.tenant,
        kind: W::KIND,
        pool: W::POOL,
        priority: how.priority,
        state: first.state,
        run_at,
        deadline_at: how.deadline,
        input: String::new(),
        lane: None,
        lane_seq: None,
        lane_held: false,
        keep_place: W::KEEP_PLACE,
        parent_id: how.parent,
        traceparent: how
            .traceparent
            .or_else(|| Some(trace::current().filter(|_| due)?.to_string())),
    };
    jobs::insert_all(tx, &like, each).await?;
    if let Some(parent) = how.parent {
        tx.note_child(parent);
    }
    let of = |state| each.iter().filter(|job| job.state == state).count() as u64;
    for job in each.iter().filter(|job| job.state == JobState::Ready) {
        tx.ready(ReadyJob {
            pool: W::POOL.to_owned(),
            tenant: how.tenant,
            priority: how.priority,
            run_at,
            id: job.id,
        });
    }
    if of(JobState::Blocked) > 0 {
        metrics::counter!(metric::BLOCKED, "pool" => W::POOL).increment(of(JobState::Blocked));
    }
    metrics::counter!(metric::ENQUEUED, "pool" => W::POOL, "kind" => W::KIND).increment(each.len() as u64);
    Ok(each.iter().map(|job| job.id).collect())
}

/// Like [`start`], for a kind that is only known by name: the scheduler re-creates jobs of a schedule. The job does not
/// keep its lane slot while it backs off.
pub async fn start_raw(tx: &mut Tx<'_>, kind: &str, pool: &str, input: &str, how: Start) -> store::Result<JobId> {
    record(tx, JobId::new(), kind, pool, input.to_owned(), false, how).await
}

/// A job that is due now, without lane or parent, for callers that record it with other rows in one statement and then
/// call [`record_started_metrics`].
pub fn ready<W: Workflow>(tenant: TenantId, input: &W, now: Timestamp) -> store::Result<NewJob<'static>> {
    let id = JobId::new();
    Ok(NewJob {
        id,
        tenant_id: tenant,
        kind: W::KIND,
        pool: W::POOL,
        priority: 0,
        state: JobState::Ready,
        run_at: now,
        deadline_at: None,
        input: serde_json::to_string(input).map_err(|_| store::Error::corrupt("job", "input", id))?,
        lane: None,
        lane_seq: None,
        lane_held: false,
        keep_place: W::KEEP_PLACE,
        parent_id: None,
        traceparent: trace::current().map(|current| current.to_string()),
    })
}

/// Call it after inserting the job: workers of its pool are woken after the commit.
pub fn record_started_metrics(tx: &mut Tx<'_>, job: &NewJob<'_>) {
    if job.state == JobState::Ready {
        tx.ready(ReadyJob {
            pool: job.pool.to_owned(),
            tenant: job.tenant_id,
            priority: job.priority,
            run_at: job.run_at,
            id: job.id,
        });
    }
    count_started(job);
}

/// Like [`record_started_metrics`], in the transaction of the pool's own claimer, which needs no wake.
pub fn count_started(job: &NewJob<'_>) {
    if job.state == JobState::Blocked {
        metrics::counter!(metric::BLOCKED, "pool" => job.pool.to_owned()).increment(1);
    }
    metrics::counter!(metric::ENQUEUED, "pool" => job.pool.to_owned(), "kind" => job.kind.to_owned()).increment(1);
}

async fn record(
    tx: &mut Tx<'_>,
    id: JobId,
    kind: &str,
    pool: &str,
    input: String,
    keep_place: bool,
    how: Start,
) -> store::Result<JobId> {
    let (run_at, due) = how.start_time.run_at(tx).await?;
    let (lane_seq, state) = match &how.lane {
        _ if !due => {
            if let Some(lane) = &how.lane {
                // The job enters the lane when it is due; the lane must exist by then. Recording does not wait for jobs
                // in it.
                lanes::ensure(tx, lane.key(), lane.limit).await?;
            }
            (None, JobState::Scheduled)
        }
        None => (None, JobState::Ready),
        Some(lane) => {
            let (seq, free) = LockedJobs::reserve(tx, lane).await?;
            (Some(seq), if free { JobState::Ready } else { JobState::Blocked })
        }
    };
    let traceparent = how
        .traceparent
        .or_else(|| Some(trace::current().filter(|_| due)?.to_string()));
    let job = NewJob {
        id,
        tenant_id: how.tenant,
        kind,
        pool,
        priority: how.priority,
        state,
        run_at,
        deadline_at: how.deadline,
        input,
        lane_held: how.lane.is_some() && state == JobState::Ready,
        lane: how.lane.map(|lane| lane.key),
        lane_seq,
        keep_place,
        parent_id: how.parent,
        traceparent,
    };
    jobs::insert(tx, &job).await?;
    if let Some(parent) = how.parent {
        tx.note_child(parent);
    }
    record_started_metrics(tx, &job);
    Ok(id)
}
