//! Worker processes of the benchmark: this binary, with jobs that only the benchmark has.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use towpath_durable::{Engine, Registry, Settings};
use towpath_queue::{DispatchMode, Queue};
use towpath_store::Store;
use towpath_workers::Workers;

use crate::bench::workload::{Job, Meter, POOL};

/// Time limit of a start and of a stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a worker says when it has its lease.
const READY: &str = "ready";

/// What a worker process is told, as a line on its standard input: the addresses may contain passwords.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    pub database: String,
    pub redis: String,
    pub prefix: String,
    pub directed: bool,
    pub slots: usize,
}

impl Options {
    pub fn queue_options(&self) -> towpath_queue::Options {
        towpath_queue::Options {
            prefix: self.prefix.clone(),
            dispatch: if self.directed {
                DispatchMode::Directed
            } else {
                DispatchMode::Scan
            },
            ..towpath_queue::Options::default()
        }
    }
}

/// Running worker processes. They end when their standard input does.
pub struct Crew(Vec<(Child, ChildStdin)>);

impl Crew {
    /// Starts this many, and returns when all of them may claim.
    pub async fn start(options: &Options, workers: u16) -> anyhow::Result<Self> {
        let mut line = serde_json::to_string(options)?;
        line.push('\n');
        let mut crew = Vec::with_capacity(usize::from(workers));
        for _ in 0..workers {
            let mut child = Command::new(std::env::current_exe()?)
                .args(["bench", "dispatch-worker"])
                .env_clear()
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .context("starting a worker process")?;
            let mut input = child.stdin.take().context("its standard input")?;
            input.write_all(line.as_bytes()).await?;
            crew.push((child, input));
        }
        for (child, _) in &mut crew {
            let output = child.stdout.take().context("its standard output")?;
            let said = tokio::time::timeout(PATIENCE, BufReader::new(output).lines().next_line()).await;
            let said = said.context("a worker process was not ready in time")??;
            ensure!(said.as_deref() == Some(READY), "a worker process ended early");
        }
        Ok(Self(crew))
    }

    /// Drains all of them.
    pub async fn stop(self) -> anyhow::Result<()> {
        let (mut children, inputs): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        drop(inputs);
        for child in &mut children {
            let status = tokio::time::timeout(PATIENCE, child.wait())
                .await
                .context("a worker process did not end in time")??;
            ensure!(status.success(), "a worker process ended with {status}");
        }
        Ok(())
    }
}

/// `towpath bench dispatch-worker`: one of the worker processes.
pub async fn work() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let options: Options =
        serde_json::from_str(&line).context("this command is started by `towpath bench dispatch`")?;
    let store = Store::open(
        &options.database,
        towpath_store::Options {
            connections: 3,
            ..towpath_store::Options::default()
        },
    )
    .await?;
    let queue = Queue::redis(&options.redis, options.queue_options()).await?;
    let hints = queue.clone();
    store.on_hints(move |told| towpath_durable::send_hints(&hints, &told));
    let mut registry = Registry::default().with::<Job>();
    registry.attach(&store);
    let workers = Workers::start(
        Engine::new(store, Settings::default()),
        &queue,
        &Arc::new(registry),
        &Arc::new(Meter::default()),
        &towpath_workers::Options::new([(POOL, options.slots)]),
    )?;
    workers.leased().await;
    println!("{READY}");
    // Until the standard input ends.
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())).await??;
    workers.drain(Duration::from_secs(30)).await;
    Ok(())
}
