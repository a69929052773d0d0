//! A cluster of the benchmark's own: one API, one scheduler and some workers on PostgreSQL, each a process of this binary.

use anyhow::Context as _;
use tempfile::TempDir;

use crate::bench::process::cpu_seconds;
use crate::bench::server::{self, Child};

/// The cluster at work.
pub struct Cluster {
    api: Child,
    workers: Vec<Child>,
    scheduler: Child,
    // Last: its files go after the processes that write them.
    _objects: TempDir,
}

/// Processor seconds so far.
#[derive(Clone, Copy)]
pub struct Cpu {
    /// Of the API.
    pub api: f64,
    /// Of all workers.
    pub workers: f64,
}

impl Cluster {
    /// Starts it on the database at `uri`, ready. Each worker performs at most so many folds at a time.
    ///
    /// # Errors
    /// A process cannot be started, or does not become ready.
    pub async fn start(uri: &str, workers: u64, folds: u64) -> anyhow::Result<Self> {
        let objects = server::folder()?;
        let environment = [
            ("DATABASE_URI", uri.to_owned()),
            (
                "TOWPATH_OBJECTS",
                format!("file://{}/objects", objects.path().display()),
            ),
            ("TOWPATH_WORKERS_POOL_SLOTS", format!("folds={folds}")),
            // Each process has a data folder of its own.
            ("TOWPATH_ENCRYPTION_KEY", "5a".repeat(32)),
        ];
        let start = async |role: &str| {
            let child = Child::serve(role, &environment).await;
            child.with_context(|| format!("starting a process with the role {role}"))
        };
        let api = start("api").await?;
        let scheduler = start("scheduler").await?;
        let mut performing = Vec::new();
        for _ in 0..workers {
            performing.push(start("worker").await?);
        }
        Ok(Self {
            api,
            workers: performing,
            scheduler,
            _objects: objects,
        })
    }

    /// Address of the API.
    pub fn base(&self) -> String {
        self.api.base()
    }

    /// Processor time so far, where the system tells.
    pub fn cpu(&self) -> Option<Cpu> {
        let of = |child: &Child| cpu_seconds(&child.pid()?.to_string());
        Some(Cpu {
            api: of(&self.api)?,
            workers: self.workers.iter().map(of).sum::<Option<f64>>()?,
        })
    }

    /// Lets every process drain.
    ///
    /// # Errors
    /// One fails, or does not end.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.api.stop().await.context("the API")?;
        for worker in self.workers {
            worker.stop().await.context("a worker")?;
        }
        self.scheduler.stop().await.context("the scheduler")
    }
}
