//! The jobs: some have a step, some fail their first attempt, some have children.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_durable::{Ctx, Failure, Outcome, Start, Workflow};
use towpath_store::{self as store, Tx};

/// Pool of the jobs.
pub const POOL: &str = "soak";

/// Counts how often each job of a day ran to its end.
pub struct Meter {
    day: i64,
    times: Vec<AtomicU8>,
    performed: AtomicU64,
}

/// Deviations from "every job ran to its end exactly once".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Jobs that never did.
    pub missing: u64,
    /// Runs in excess of one per job.
    pub repeated: u64,
}

impl Meter {
    /// For jobs `0..jobs` of this day.
    pub fn new(day: i64, jobs: u64) -> Self {
        Self {
            day,
            times: (0..jobs).map(|_| AtomicU8::new(0)).collect(),
            performed: AtomicU64::new(0),
        }
    }

    /// Number of jobs of the day.
    pub fn jobs(&self) -> u64 {
        self.times.len() as u64
    }

    /// Number of jobs that ran to their end at least once.
    pub fn performed(&self) -> u64 {
        self.performed.load(Ordering::Relaxed)
    }

    /// The deviations so far.
    pub fn tally(&self) -> Tally {
        let times = || self.times.iter().map(|times| u64::from(times.load(Ordering::Relaxed)));
        Tally {
            missing: times().filter(|times| *times == 0).count() as u64,
            repeated: times().map(|times| times.saturating_sub(1)).sum(),
        }
    }

    fn note(&self, job: &Job) {
        let number = usize::try_from(job.number).unwrap_or(usize::MAX);
        // An interrupted run may have left jobs of another day.
        let times = self.times.get(number).filter(|_| job.day == self.day);
        if times.is_some_and(|times| times.fetch_add(1, Ordering::Relaxed) == 0) {
            self.performed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Start of its day, in microseconds. Unique, also when a run is interrupted and the day is repeated.
    pub day: i64,
    /// Number within the day, from 0.
    pub number: u64,
    /// Number of steps.
    pub steps: u32,
    /// Number of children; their job numbers follow that of the parent.
    pub children: u64,
    /// Whether the first attempt fails.
    pub fails: bool,
}

impl Job {
    /// A job without steps, children or failure.
    pub fn new(day: i64, number: u64) -> Self {
        Self {
            day,
            number,
            ..Self::default()
        }
    }

    fn child(&self, nth: u64) -> Self {
        Self::new(self.day, self.number + nth)
    }
}

impl Workflow for Job {
    const KIND: &'static str = "soak";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(1, Duration::ZERO);
    type World = Meter;

    async fn run(&self, ctx: &mut Ctx, meter: &Meter) -> Outcome {
        if self.fails && ctx.failures() == 0 {
            return Err(Failure::retry("the first attempt fails on purpose"));
        }
        if self.children > 0 && ctx.children().await?.is_empty() {
            let (tenant, parent) = (ctx.tenant(), ctx.job());
            let children: Vec<Self> = (1..=self.children).map(|nth| self.child(nth)).collect();
            return ctx
                .wait(&[], async |tx| {
                    let how = Start::new(tenant).child_of(parent);
                    towpath_durable::start_all_apart(tx, &children, how).await.map(drop)
                })
                .await;
        }
        for step in 0..self.steps {
            ctx.step(&format!("step {step}"), async || Ok(step)).await?;
        }
        meter.note(self);
        ctx.complete()
    }

    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}
