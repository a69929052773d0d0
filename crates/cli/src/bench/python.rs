//! A Python graph with two nodes and a checkpoint after each: through the server, in the same kind of process without a
//! server, and on the official development server.

mod bare_host;
mod endurance;
mod official;
pub(super) mod project;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::client::{BACKGROUND, Client};
use super::closed_loop::{PhaseResult, run_after_settling, run_for};
use super::process::{self, cpu_seconds};
use super::report::Report;
use super::server::{self, Child};
use crate::arguments::BenchAgent;
use bare_host::BareHost;
use official::Official;

/// Concurrent clients.
const CLIENTS: [usize; 3] = [1, 20, 64];
/// One graph process, to compare with the bare process.
const HOSTS: usize = 1;
/// The default number of processes of the server.
const ANY_HOSTS: usize = 0;
/// Before a phase of the official server, which polls once a second when idle, and of the compared server, which starts
/// processes on demand.
const SETTLE: Duration = Duration::from_secs(2);
/// Each phase is cut into rounds that alternate with the comparison, so that other load on the machine affects both.
const ROUNDS: u32 = 4;

pub async fn run(options: &BenchAgent) -> anyhow::Result<()> {
    let folder = server::folder()?;
    project::write(folder.path())?;
    let named = options.python.as_deref().or(options.official.as_deref());
    let python = project::interpreter(named, folder.path()).await?;
    let phase = Duration::from_secs(options.seconds);
    let mut report = Report::default();
    let bare = match options.runs {
        Some(_) => None,
        None => Some(BareHost::start(&python, folder.path(), HOSTS).await?),
    };
    let child = Child::agent_in(folder, &python, HOSTS).await;
    let child = child.context("starting a server of its own")?;
    let client = Client::new(child.base(), project::ID, &project::input())?;
    let measured = async {
        if let Some(runs) = options.runs {
            return endurance::run(&child, &client, runs, &mut report).await;
        }
        let bare = bare.context("it was started")?;
        compare_with_bare(&child, &client, &bare, phase, &mut report).await?;
        drop(bare);
        Ok(())
    };
    let measured = measured.await;
    child.stop().await?;
    measured?;
    if let Some(official) = options.official.as_deref().filter(|_| options.runs.is_none()) {
        measure_default_hosts(&python, phase, &mut report).await?;
        compare_with_official(official, phase, &mut report).await?;
    }
    report.print(options.output)
}

/// Name of a row of the server.
fn server_row(clients: usize) -> String {
    format!("create and wait, {}", bare_row(clients))
}

fn bare_row(clients: usize) -> String {
    if clients == 1 {
        "1 client".to_owned()
    } else {
        format!("{clients} clients")
    }
}

/// Names of single measurements.
const FIRST_EVENT: &str = "first event, 1 client";
const FIRST_VALUES: &str = "first values, 1 client";

/// Prefix of rows with the default number of processes.
const DEFAULT_HOSTS_PREFIX: &str = "processes as needed, ";

fn background() -> String {
    format!("{BACKGROUND} background runs")
}

/// The server and the bare process, in alternating rounds.
async fn compare_with_bare(
    child: &Child,
    client: &Client,
    bare: &BareHost,
    phase: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let server = child.pid().context("the server runs")?;
    for clients in CLIENTS {
        let (mut alone, mut whole) = (PhaseResult::default(), PhaseResult::default());
        let (mut alone_cpu, mut whole_cpu) = (0.0, (0.0, 0.0));
        for _ in 0..ROUNDS {
            let before = hosts_cpu(std::process::id(), Some(server));
            let one = bare.clone();
            alone.add(run_for(clients, phase / ROUNDS, move || one.clone().once()).await?);
            alone_cpu += hosts_cpu(std::process::id(), Some(server)) - before;
            let before = (hosts_cpu(server, None), cpu(server));
            let one = client.clone();
            whole.add(run_for(clients, phase / ROUNDS, move || one.clone().create_and_wait()).await?);
            whole_cpu.0 += hosts_cpu(server, None) - before.0;
            whole_cpu.1 += cpu(server) - before.1;
        }
        let name = format!("process alone, {clients} at a time");
        alone.note(report, &name, "runs/s");
        whole.note_with_ratio(report, &server_row(clients), "runs/s", &name);
        let per_run = |seconds: f64, seen: &PhaseResult| 1000.0 * seconds / seen.count().max(1) as f64;
        let name = format!("{name}, CPU of Python for a run");
        report.note(name.clone(), per_run(alone_cpu, &alone), "ms");
        let what = format!("{}, CPU of Python for a run", server_row(clients));
        report.against(what, per_run(whole_cpu.0, &whole), "ms", &name);
        let what = format!("{}, CPU of the server for a run", server_row(clients));
        report.note(what, per_run(whole_cpu.1, &whole), "ms");
    }
    measure_single_client(client, phase, "", report).await?;
    if let Some(mb) = child.memory_mb() {
        report.note("memory of the server", mb, "MB");
    }
    for host in process::children(server) {
        report.note(
            "memory of the graph's process",
            process::memory_mb(host).unwrap_or_default(),
            "MB",
        );
    }
    Ok(())
}

/// Measurements with one client, and background runs.
async fn measure_single_client(
    client: &Client,
    phase: Duration,
    before: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let one = client.clone();
    let seen = run_for(1, phase, move || one.clone().first_event()).await?;
    seen.note(report, &format!("{before}{FIRST_EVENT}"), "runs/s");
    let one = client.clone();
    let seen = run_for(1, phase, move || one.clone().first_values()).await?;
    seen.note(report, &format!("{before}{FIRST_VALUES}"), "runs/s");
    // Streams that were left after their first event are still running.
    client.background(1).await?;
    let rate = client.background(BACKGROUND).await?;
    report.note(format!("{before}{}", background()), rate, "runs/s");
    Ok(())
}

/// The server with its default number of processes.
async fn measure_default_hosts(python: &Path, phase: Duration, report: &mut Report) -> anyhow::Result<()> {
    let folder = server::folder()?;
    project::write(folder.path())?;
    let child = Child::agent_in(folder, python, ANY_HOSTS).await;
    let child = child.context("starting a server of its own")?;
    let client = Client::new(child.base(), project::ID, &project::input())?;
    let measured = async {
        for clients in CLIENTS {
            let one = client.clone();
            let seen = run_after_settling(clients, SETTLE, phase, move || one.clone().create_and_wait()).await?;
            seen.note(
                report,
                &format!("{DEFAULT_HOSTS_PREFIX}{}", server_row(clients)),
                "runs/s",
            );
        }
        let rate = client.background(BACKGROUND).await?;
        report.note(format!("{DEFAULT_HOSTS_PREFIX}{}", background()), rate, "runs/s");
        Ok(())
    };
    let measured = measured.await;
    child.stop().await?;
    measured
}

/// The official server, and the ratio to this one.
async fn compare_with_official(python: &Path, phase: Duration, report: &mut Report) -> anyhow::Result<()> {
    let official = Official::start(python).await?;
    let client = Client::new(official.base(), project::ID, &project::input())?;
    let measured = async {
        for clients in CLIENTS {
            let before = official.pid().map(cpu).unwrap_or_default();
            let one = client.clone();
            let seen = run_after_settling(clients, SETTLE, phase, move || one.clone().create_and_wait()).await?;
            let spent = official.pid().map(cpu).unwrap_or_default() - before;
            let name = format!("official server, {}", server_row(clients));
            seen.note(report, &name, "runs/s");
            let per_run = 1000.0 * spent / seen.count_with_settling().max(1) as f64;
            report.note(format!("{name}, CPU for a run"), per_run, "ms");
        }
        measure_single_client(&client, phase, "official server, ", report).await
    };
    let measured = measured.await;
    official.stop().await?;
    measured?;
    for how in ["", DEFAULT_HOSTS_PREFIX] {
        for what in CLIENTS.map(server_row).into_iter().chain([background()]) {
            let (name, other) = (format!("{how}{what}"), format!("official server, {what}"));
            if let (Some(ours), Some(theirs)) = (report.value(&name), report.value(&other)) {
                report.note(format!("times the official server, {name}"), ours / theirs, "");
            }
        }
    }
    Ok(())
}

/// CPU time of a process in seconds.
fn cpu(pid: u32) -> f64 {
    cpu_seconds(&pid.to_string()).unwrap_or_default()
}

/// CPU time in seconds of the child processes of one process, except `without`.
fn hosts_cpu(parent: u32, without: Option<u32>) -> f64 {
    let children = process::children(parent).into_iter();
    children.filter(|child| Some(*child) != without).map(cpu).sum()
}
