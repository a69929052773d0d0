//! A cluster for the benchmark: one API, one scheduler and some workers on PostgreSQL, each a process of this binary.

use anyhow::Context as _;
use tempfile::TempDir;

use crate::bench::process::cpu_seconds;
use crate::bench::server::{self, Child};

pub struct Cluster {
    api: Child,
    workers: Vec<Child>,
    scheduler: Child,
    // Dropped last, after the processes that write to it.
    _objects: TempDir,
}

/// CPU seconds.
#[derive(Clone, Copy)]
pub struct Cpu {
    pub api: f64,
    /// Sum of all workers.
    pub workers: f64,
}

impl Cluster {
    /// Starts a cluster on the database at `uri`. Each worker performs at most `flushes` flushes at a time.
    pub async fn start(uri: &str, workers: u64, folds: u64) -> anyhow::Result<Self> {
        let objects = server::folder()?;
        let environment = [
            ("DATABASE_URI", uri.to_owned()),
            (
                "TOWPATH_OBJECTS",
                format!("file://{}/objects", objects.path().display()),
            ),
            ("TOWPATH_WORKERS_POOL_SLOTS", format!("flushes={folds}")),
            // Each process has its own data folder.
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

    pub fn base(&self) -> String {
        self.api.base()
    }

    /// CPU time so far, if the system reports it.
    pub fn cpu(&self) -> Option<Cpu> {
        let of = |child: &Child| cpu_seconds(&child.pid()?.to_string());
        Some(Cpu {
            api: of(&self.api)?,
            workers: self.workers.iter().map(of).sum::<Option<f64>>()?,
        })
    }

    /// Drains every process.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.api.stop().await.context("the API")?;
        for worker in self.workers {
            worker.stop().await.context("a worker")?;
        }
        self.scheduler.stop().await.context("the scheduler")
    }
}
