//! `towpath bench soak`: months of load on the engine, compressed by moving the clock.
//!
//! Each simulated day records jobs and drains them with real workers. Then workers and scheduler stop, the clock moves ahead
//! by one day, and a new scheduler archives finished jobs, forgets old history and prunes lanes. Once it has caught up, the
//! tables are vacuumed and sampled. Autovacuum would do so many times in 24 hours; here a day takes seconds.
//!
//! Moving the clock is safe because nothing runs meanwhile: draining a worker ends its lease, so no lease looks expired
//! after the jump.
//!
//! The history reaches its full size within the first quarter of the days. The last quarter is compared with the second:
//! rows, database size, memory, connections, and on PostgreSQL the blocks each statement of the engine touches. Times are
//! reported, never asserted.

mod days;
mod growth;
mod recording;
mod summary;
mod system;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use towpath_store::baseline;

use crate::arguments::Output;

/// Retention of the history in days, unless a quarter of the run is shorter.
const KEEP_DAYS: u64 = 14;
/// With fewer jobs per day some kinds of job would be missing.
const MIN_JOBS_PER_DAY: u64 = 100;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The load of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    days: u64,
    jobs_per_day: u64,
    lanes_per_day: u64,
    keep_days: u64,
}

impl Plan {
    /// Spreads jobs and lanes evenly over the days.
    pub fn new(jobs: u64, lanes: Option<u64>, days: u64) -> anyhow::Result<Self> {
        let jobs_per_day = jobs / days.max(1);
        ensure!(
            jobs_per_day >= MIN_JOBS_PER_DAY,
            "{jobs} jobs on {days} days are fewer than {MIN_JOBS_PER_DAY} a day; raise --jobs or lower --days"
        );
        let lanes = lanes.unwrap_or(jobs / 10);
        Ok(Self {
            days,
            jobs_per_day,
            lanes_per_day: (lanes / days).max(1),
            keep_days: (days / 4).min(KEEP_DAYS),
        })
    }

    /// Retention of the history. The extra half day makes all jobs of one day expire with the same clock move.
    fn keep(&self) -> Duration {
        DAY * u32::try_from(self.keep_days).unwrap_or(u32::MAX) + DAY / 2
    }

    /// Length of a quarter, in days.
    fn quarter(&self) -> usize {
        usize::try_from(self.days / 4).unwrap_or(usize::MAX)
    }
}

/// The database of a run.
pub enum Database {
    /// A SQLite file.
    Sqlite {
        /// Folder of a file to keep; `None` for a temporary one.
        folder: Option<PathBuf>,
    },
    /// A database on a PostgreSQL server.
    Postgres {
        /// Address of the server.
        server: String,
        /// Name of a database to keep; `None` for a temporary one.
        name: Option<String>,
    },
}

impl Database {
    /// Creates the database unless it exists. Returns its address.
    async fn uri(&self, temporary: &Path) -> anyhow::Result<String> {
        match self {
            Self::Sqlite { folder } => {
                let folder = folder.as_deref().unwrap_or(temporary);
                std::fs::create_dir_all(folder).with_context(|| format!("creating the folder {}", folder.display()))?;
                Ok(format!("sqlite://{}", folder.join("soak.db").display()))
            }
            Self::Postgres { server, name } => {
                let made = match name {
                    None => baseline::make_database(server, &temporary_name()).await,
                    Some(name) => baseline::find_or_make_database(server, name).await,
                };
                made.context("creating a database for the benchmark")
            }
        }
    }

    /// Drops a temporary database. A temporary file goes with its folder.
    async fn discard(&self) -> anyhow::Result<()> {
        if let Self::Postgres { server, name: None } = self {
            baseline::drop_database(server, &temporary_name())
                .await
                .context("dropping the benchmark's database")?;
        }
        Ok(())
    }
}

fn temporary_name() -> String {
    format!("towpath_bench_{}", std::process::id())
}

/// Runs the plan, prints the summary, and checks the bounds.
pub async fn run(database: &Database, plan: &Plan, output: Output) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir().context("creating a temporary folder")?;
    let uri = database.uri(temporary.path()).await?;
    let measured = days::measure(plan, &uri).await;
    database.discard().await?;
    let summary = measured?;
    summary.print(output)?;
    let violations = summary.violations();
    ensure!(
        violations.is_empty(),
        "{} bounds are exceeded:\n{}",
        violations.len(),
        violations.join("\n")
    );
    Ok(())
}
