//! The daily cycle and its samples.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use towpath_store::baseline::{Outcomes, Pages, Probe, Processes, Rows};

use super::Plan;
use super::recording::DayJobs;
use super::summary::Summary;
use super::system::System;
use super::workload::{Meter, Tally};
use crate::bench::process;

/// Grace of the workers' drain; no job is running by then.
const GRACE: Duration = Duration::from_secs(30);

/// The sample of a day.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Day {
    /// Counts from 0, also across runs on a kept database.
    pub day: i64,
    /// Time to record the jobs, in seconds.
    pub recorded_s: f64,
    /// Time to drain them, in seconds.
    pub drained_s: f64,
    /// Rate of the drain.
    pub jobs_per_s: f64,
    /// Time until the scheduler has caught up after the clock moved, in seconds.
    pub pruned_s: f64,
    /// Time to vacuum the tables, in seconds.
    pub vacuumed_s: f64,
    /// Sampled after the drain, before the workers stop.
    #[serde(flatten)]
    pub processes: Processes,
    /// Sampled at the end of the day, like everything below.
    #[serde(flatten)]
    pub rows: Rows,
    /// Size of the database.
    pub size_mb: f64,
    /// Pages of the SQLite file; absent on PostgreSQL.
    pub pages: Option<Pages>,
    /// Resident memory of this process; 0 where `/proc` is missing.
    pub memory_mb: f64,
}

/// Runs all days of the plan.
pub async fn measure(plan: &Plan, uri: &str) -> anyhow::Result<Summary> {
    let mut system = System::open(uri, plan.keep()).await?;
    let mut probe = Probe::open(uri).await.context("connecting to the database")?;
    let mut summary = Summary::new(*plan, probe.uncounted());
    summary.costs.push(probe.costs().await?);
    for _ in 0..plan.days {
        let number = system.day();
        let day = perform(&mut system, &mut probe, plan)
            .await
            .with_context(|| format!("day {number}"))?;
        report_progress(&day);
        summary.days.push(day);
        summary.costs.push(probe.costs().await?);
    }
    system.close().await;
    Ok(summary)
}

/// A run takes minutes, so each day is reported on standard error.
fn report_progress(day: &Day) {
    eprintln!(
        "day {}: {:.0} jobs/s; recorded in {:.1} s, drained in {:.1} s, pruned in {:.1} s, vacuumed in {:.1} s; {} \
         rows in job, {} in job_history, {:.0} MB, memory {:.0} MB",
        day.day,
        day.jobs_per_s,
        day.recorded_s,
        day.drained_s,
        day.pruned_s,
        day.vacuumed_s,
        day.rows.job,
        day.rows.job_history,
        day.size_mb,
        day.memory_mb
    );
}

async fn perform(system: &mut System, probe: &mut Probe, plan: &Plan) -> anyhow::Result<Day> {
    let number = system.day();
    let began = system.store().clock().now();
    let jobs = DayJobs {
        day: began.micros(),
        number,
        count: plan.jobs_per_day,
        lanes: plan.lanes_per_day,
    };
    let recorded = system.record(&jobs).await.context("recording jobs")?;
    let meter = Arc::new(Meter::new(jobs.day, jobs.count));
    let (workers, drained) = system.drain(&meter).await?;
    let processes = probe.processes().await?;
    workers.drain(GRACE).await;
    check(&meter, &probe.outcomes(began).await?)?;
    system.next_day().await?;
    let pruned = system.wait_until_pruned().await?;
    let vacuuming = Instant::now();
    probe.vacuum().await.context("vacuuming")?;
    let vacuumed = vacuuming.elapsed();
    let size = probe.size().await?;
    Ok(Day {
        day: number,
        recorded_s: recorded.as_secs_f64(),
        drained_s: drained.as_secs_f64(),
        jobs_per_s: jobs.count as f64 / drained.as_secs_f64(),
        pruned_s: pruned.as_secs_f64(),
        vacuumed_s: vacuumed.as_secs_f64(),
        processes,
        rows: probe.rows().await?,
        size_mb: size.bytes as f64 / f64::from(1 << 20),
        pages: size.pages,
        memory_mb: process::memory_mb(std::process::id()).unwrap_or_default(),
    })
}

/// Checks that every job succeeded exactly once. An attempt that loses its lease after the meter counted it is repeated, so
/// repeats are bounded by lost leases.
fn check(meter: &Meter, outcomes: &Outcomes) -> anyhow::Result<()> {
    let Tally { missing, repeated } = meter.tally();
    let jobs = meter.jobs();
    ensure!(missing == 0, "{missing} of {jobs} jobs were not performed");
    ensure!(
        u64::try_from(outcomes.succeeded)? == jobs && outcomes.bad == 0 && outcomes.open == 0,
        "of {jobs} jobs {} succeeded, {} ended otherwise, and {} have not ended",
        outcomes.succeeded,
        outcomes.bad,
        outcomes.open
    );
    ensure!(
        repeated <= u64::try_from(outcomes.lost)?,
        "{repeated} jobs were performed more than once, and {} leases were lost",
        outcomes.lost
    );
    Ok(())
}
