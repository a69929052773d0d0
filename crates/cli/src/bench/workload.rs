//! Jobs that do nothing but be jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_durable::{Ctx, Outcome, Workflow};
use towpath_store::{self as store, Tx};

/// Kind and pool of the jobs.
pub const POOL: &str = "bench";

/// What the jobs report to.
pub struct Meter {
    /// When time began, for latencies.
    pub start: Instant,
    /// Handlers entered.
    pub entered: AtomicU64,
    /// From just before the enqueue to the handler.
    pub latencies: Mutex<Vec<Duration>>,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            entered: AtomicU64::new(0),
            latencies: Mutex::default(),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Steps to perform, one after another.
    pub steps: u32,
    /// When it was enqueued, nanoseconds since the meter's start; 0 to measure nothing.
    pub enqueued: u64,
}

impl Workflow for Job {
    const KIND: &'static str = "bench";
    const POOL: &'static str = POOL;
    const RETRY: RetryPolicy = RetryPolicy::fixed(0, Duration::ZERO);
    type World = Meter;

    async fn run(&self, ctx: &mut Ctx, meter: &Meter) -> Outcome {
        if self.enqueued > 0 {
            let latency = meter
                .start
                .elapsed()
                .saturating_sub(Duration::from_nanos(self.enqueued));
            meter.latencies.lock().push(latency);
        }
        meter.entered.fetch_add(1, Ordering::Relaxed);
        for step in 0..self.steps {
            ctx.step(&format!("step {step}"), async || Ok(step)).await?;
        }
        ctx.complete()
    }

    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }
}
