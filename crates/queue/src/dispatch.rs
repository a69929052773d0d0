//! Directed dispatch: queues of ready jobs in Redis, for each pool and tenant.
//!
//! They hold ids, and what decides when it is their turn. The jobs are in the database, where a worker claims exactly
//! the ids that it took. So an id may be lost, there twice, or outdated: a scan of the database finds what is missing,
//! and an outdated id is claimed by nobody.
//!
//! Keys in Redis, with the default prefix. All of them may disappear at any time.
//!
//! ```text
//! towpath:ready:<pool>:<tenant>   sorted set of ids: the queue of a tenant
//! towpath:ready:<pool>:turns      sorted set of tenants, the next one first
//! towpath:ready:<pool>:sizes      sorted set of tenants by the number of their ids
//! towpath:ready:<pool>:state      hash: number of ids, last turn, whether the database may have more jobs
//! towpath:ready:<pool>:refill     expires; while present, a process scans for the whole window
//! towpath:ready:<pool>:check      expires; while present, no other process checks for missing ids
//! ```
//!
//! A pool has at most [`WINDOW`] ids, however large its backlog: the least urgent ids of the tenant with the most ids
//! are dropped. A take that finds less than a quarter of the window asks its caller for a scan of the database; so does
//! about one take per second, for ids that were lost.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use redis::Pipeline;
use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, TenantId};

use crate::script_client::{Notices, ScriptClient};
use crate::{Error, Options, metric};

/// The most ids of one pool in Redis.
pub const WINDOW: usize = 10_000;

/// Below this number of ids, more are read from the database.
const LOW: usize = WINDOW / 4;

/// Ids that a check for missing ones reads.
const CHECKED: usize = 1000;

/// Ids in one call of the script, which blocks the server for about a millisecond.
const IDS_PER_SCRIPT: usize = 500;

/// Unused queues are deleted after this time.
const LIFE: Duration = Duration::from_secs(3600);

/// How long the other processes rely on the one that fills the window.
const REFILL: Duration = Duration::from_secs(2);

/// Time between two checks.
const CHECK: Duration = Duration::from_secs(1);

const PUSH: &str = concat!(include_str!("dispatch/window.lua"), include_str!("dispatch/push.lua"));
const TAKE: &str = concat!(include_str!("dispatch/window.lua"), include_str!("dispatch/take.lua"));

const NOTICES: Notices = Notices {
    gauge: metric::DISPATCH_UP,
    connected: "redis is connected; workers take ids of ready jobs again",
    unavailable: "redis is unavailable; workers scan the database for ready jobs",
    late: "redis did not answer in time; workers scan the database for ready jobs",
};

/// Ids of ready jobs that the caller shall claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenJobs {
    pub ids: Vec<JobId>,
    /// A scan of the database that this caller shall do, see [`crate::Queue::refill`].
    pub refill: Option<Refill>,
}

/// Why the database is scanned for the queues of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// Few ids are left, and the database may have more ready jobs.
    Window,
    /// Ids may have been lost.
    Check,
}

impl Refill {
    /// The most jobs to read.
    #[must_use]
    pub const fn limit(self) -> usize {
        match self {
            Self::Window => WINDOW,
            Self::Check => CHECKED,
        }
    }

    /// Whether these are all ready jobs of the pool: the scan gives each tenant an equal share of the limit.
    pub(crate) fn found_all(self, jobs: &[ReadyJob]) -> bool {
        let mut counts: HashMap<TenantId, usize> = HashMap::new();
        for job in jobs {
            *counts.entry(job.tenant).or_default() += 1;
        }
        let share = (self.limit() / counts.len().max(1)).max(1);
        jobs.len() < self.limit() && counts.values().all(|&count| count < share)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Check => "check",
        }
    }
}

/// The side of a worker: takes ids over a connection of its own.
pub struct JobQueues {
    client: ScriptClient,
    prefix: String,
}

impl JobQueues {
    /// Starts to connect.
    pub async fn start(uri: &str, options: Options) -> Result<Self, Error> {
        metric::describe_dispatch();
        Ok(Self {
            prefix: options.prefix.clone(),
            client: ScriptClient::start(uri, options, TAKE, NOTICES).await?,
        })
    }

    pub fn is_up(&self) -> bool {
        self.client.is_up()
    }

    /// See [`crate::Queue::take`].
    pub async fn take(&self, pool: &str, limit: usize) -> Option<TakenJobs> {
        let keys = keys(&self.prefix, pool);
        let fill = |command: &mut redis::Cmd| {
            command.arg(keys.len());
            for key in &keys {
                command.arg(key);
            }
            command.arg(limit).arg(millis(LIFE)).arg(LOW);
            command.arg(millis(REFILL)).arg(millis(CHECK));
        };
        let (taken, left) = self.client.run(fill, |answer: Vec<String>| read(&answer)).await?;
        metrics::counter!(metric::TAKEN, "pool" => pool.to_owned()).increment(taken.ids.len() as u64);
        metrics::gauge!(metric::WINDOW, "pool" => pool.to_owned()).set(left);
        Some(taken)
    }
}

/// What a process adds to the queues of a pool.
#[derive(Default)]
pub struct QueuedJobs {
    pub jobs: Vec<ReadyJob>,
    /// Whether a scan found all ready jobs of the pool; absent if there was no scan.
    pub scanned: Option<bool>,
}

impl QueuedJobs {
    /// Adds the commands to a pipeline.
    pub fn push(&self, pipeline: &mut Pipeline, prefix: &str, pool: &str) {
        let keys = keys(prefix, pool);
        let mut jobs: Vec<&ReadyJob> = self.jobs.iter().collect();
        jobs.sort_by_key(|job| job.tenant);
        let mut parts = jobs.chunks(IDS_PER_SCRIPT).peekable();
        loop {
            // The result of a scan counts without jobs too.
            let part = parts.next().unwrap_or_default();
            let is_last = parts.peek().is_none();
            let scanned = match self.scanned.filter(|_| is_last) {
                None => "",
                Some(false) => "some",
                Some(true) => "all",
            };
            // With its text, not its digest: the server may have been restarted.
            let command = pipeline.cmd("EVAL").arg(PUSH).arg(keys.len());
            for key in &keys {
                command.arg(key);
            }
            command.arg(WINDOW).arg(millis(LIFE)).arg(scanned);
            for job in part {
                command.arg(job.tenant.to_string()).arg(job.priority.saturating_neg());
                command.arg(member(job));
            }
            command.ignore();
            if is_last {
                return;
            }
        }
    }
}

/// In the order of `window.lua`.
fn keys(prefix: &str, pool: &str) -> [String; 6] {
    ["turns", "sizes", "state", "refill", "check", ""].map(|name| format!("{prefix}ready:{pool}:{name}"))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Digits of the due time in a member.
const TIME_DIGITS: usize = 16;

/// A job in its tenant's queue: its due time, so that members with one score are sorted by it, and its id.
fn member(job: &ReadyJob) -> String {
    let mut text = String::with_capacity(TIME_DIGITS + 32);
    let due = u64::try_from(job.run_at.micros()).unwrap_or(0);
    write!(text, "{due:016x}{}", job.id.0.simple()).expect("writing to a String does not fail");
    text
}

/// The answer of `take.lua`: the ids, and how many are left. `None` if it is not one.
fn read(answer: &[String]) -> Option<(TakenJobs, f64)> {
    let [refill, left, members @ ..] = answer else {
        return None;
    };
    let refill = match refill.as_str() {
        "refill" => Some(Refill::Window),
        "check" => Some(Refill::Check),
        "none" => None,
        _ => return None,
    };
    let ids = members.iter().map(|member| member.get(TIME_DIGITS..)?.parse().ok());
    let ids = ids.collect::<Option<Vec<JobId>>>()?;
    Some((TakenJobs { ids, refill }, left.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use towpath_domain::Timestamp;

    use super::*;

    fn job(run_at: i64) -> ReadyJob {
        ReadyJob {
            pool: "runs".to_owned(),
            tenant: TenantId::new(),
            priority: 0,
            run_at: Timestamp::from_micros(run_at),
            id: JobId::new(),
        }
    }

    #[test]
    fn members_are_in_the_order_of_their_due_times() {
        let [first, second, third] = [-5, 9, 1 << 50].map(job);
        assert!(member(&first) < member(&second) && member(&second) < member(&third));
        let answer = ["check".to_owned(), "7".to_owned(), member(&third), member(&first)];
        let (taken, left) = read(&answer).unwrap();
        assert_eq!(taken.ids, [third.id, first.id]);
        assert_eq!((taken.refill, left), (Some(Refill::Check), 7.0));
    }

    #[test]
    fn an_answer_of_another_shape_is_none() {
        let read = |answer: &[&str]| read(&answer.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["check"]), None);
        assert_eq!(read(&["later", "0"]), None);
        assert_eq!(read(&["none", "0", "abc"]), None);
        assert_eq!(read(&["none", "0"]), Some((TakenJobs::default(), 0.0)));
    }

    #[test]
    fn a_scan_found_all_if_no_tenant_had_its_share() {
        let of = |tenant: TenantId, count: usize| {
            let same = move |nth| ReadyJob { tenant, ..job(nth) };
            (0..i64::try_from(count).unwrap()).map(same)
        };
        let (big, small) = (TenantId::new(), TenantId::new());
        let jobs = |of_big, of_small| of(big, of_big).chain(of(small, of_small)).collect::<Vec<_>>();
        assert!(Refill::Check.found_all(&[]));
        assert!(Refill::Check.found_all(&jobs(CHECKED - 1, 0)));
        assert!(!Refill::Check.found_all(&jobs(CHECKED, 0)));
        assert!(Refill::Check.found_all(&jobs(CHECKED / 2 - 1, 1)));
        assert!(
            !Refill::Check.found_all(&jobs(CHECKED / 2, 1)),
            "the large one may have more"
        );
    }

    #[test]
    fn a_push_without_jobs_tells_of_a_scan() {
        let commands = |queued: &QueuedJobs| {
            let mut pipeline = redis::pipe();
            queued.push(&mut pipeline, "towpath:", "runs");
            pipeline.cmd_iter().count()
        };
        let none = QueuedJobs {
            jobs: Vec::new(),
            scanned: Some(true),
        };
        assert_eq!(commands(&none), 1);
        let many = QueuedJobs {
            jobs: (0..1001).map(job).collect(),
            scanned: None,
        };
        assert_eq!(commands(&many), 3);
    }
}
