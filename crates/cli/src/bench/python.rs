//! A Python graph of two nodes, a checkpoint after each: through the server, in the same kind of process over the same
//! protocol without a server, and on the official development server.

mod bare;
mod endurance;
mod official;
pub(super) mod project;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::agent::BACKGROUND;
use super::client::Client;
use super::closed::{Seen, closed, settled};
use super::process::{self, cpu_seconds};
use super::report::Report;
use super::server::{self, Child};
use crate::arguments::BenchAgent;
use bare::Bare;
use official::Official;

/// Clients at a time.
const CLIENTS: [usize; 3] = [1, 20, 64];
/// Processes of the graph: what one processor does is what is compared with the process alone.
const HOSTS: usize = 1;
/// As many as the server starts where it is told nothing.
const ANY_HOSTS: usize = 0;
/// Before a phase of the official server, which looks once in a second for what there is to do when it was idle, and of
/// ours beside it, which starts processes when there is work for them.
const SETTLE: Duration = Duration::from_secs(2);
/// A phase is cut in so many, which take turns with those it is compared to: what else the machine does hits them alike.
const TURNS: u32 = 4;

/// Runs it.
///
/// # Errors
/// A server cannot be started, or a run fails.
pub async fn run(options: &BenchAgent) -> anyhow::Result<()> {
    let folder = server::folder()?;
    project::write(folder.path())?;
    let named = options.python.as_deref().or(options.official.as_deref());
    let python = project::interpreter(named, folder.path()).await?;
    let phase = Duration::from_secs(options.seconds);
    let mut report = Report::default();
    let bare = match options.runs {
        Some(_) => None,
        None => Some(Bare::start(&python, folder.path(), HOSTS).await?),
    };
    let child = Child::agent_in(folder, &python, HOSTS).await;
    let child = child.context("starting a server of its own")?;
    let client = Client::new(child.base(), project::ID, &project::input())?;
    let measured = async {
        if let Some(runs) = options.runs {
            return endurance::run(&child, &client, runs, &mut report).await;
        }
        let bare = bare.context("it was started")?;
        through(&child, &client, &bare, phase, &mut report).await?;
        drop(bare);
        Ok(())
    };
    let measured = measured.await;
    child.stop().await?;
    measured?;
    if let Some(official) = options.official.as_deref().filter(|_| options.runs.is_none()) {
        as_it_comes(&python, phase, &mut report).await?;
        beside(official, phase, &mut report).await?;
    }
    report.print(options.output)
}

/// How a row of the server is named.
fn ours(clients: usize) -> String {
    format!("create and wait, {}", of(clients))
}

fn of(clients: usize) -> String {
    if clients == 1 {
        "1 client".to_owned()
    } else {
        format!("{clients} clients")
    }
}

/// The names of what is measured once.
const FIRST_EVENT: &str = "first event, 1 client";
const FIRST_VALUES: &str = "first values, 1 client";

/// Before the names of what the server does with as many processes as it finds useful.
const AS_IT_COMES: &str = "processes as needed, ";

fn background() -> String {
    format!("{BACKGROUND} background runs")
}

/// The server and the process alone, in turns.
async fn through(
    child: &Child,
    client: &Client,
    bare: &Bare,
    phase: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let server = child.pid().context("the server runs")?;
    for clients in CLIENTS {
        let (mut alone, mut whole) = (Seen::default(), Seen::default());
        let (mut alone_cpu, mut whole_cpu) = (0.0, (0.0, 0.0));
        for _ in 0..TURNS {
            let before = hosts_cpu(std::process::id(), Some(server));
            let one = bare.clone();
            alone.add(closed(clients, phase / TURNS, move || one.clone().once()).await?);
            alone_cpu += hosts_cpu(std::process::id(), Some(server)) - before;
            let before = (hosts_cpu(server, None), cpu(server));
            let one = client.clone();
            whole.add(closed(clients, phase / TURNS, move || one.clone().create_and_wait()).await?);
            whole_cpu.0 += hosts_cpu(server, None) - before.0;
            whole_cpu.1 += cpu(server) - before.1;
        }
        let name = format!("process alone, {clients} at a time");
        alone.note(report, &name, "runs/s");
        whole.note_against(report, &ours(clients), "runs/s", &name);
        let per_run = |seconds: f64, seen: &Seen| 1000.0 * seconds / seen.count().max(1) as f64;
        let name = format!("{name}, CPU of Python for a run");
        report.note(name.clone(), per_run(alone_cpu, &alone), "ms");
        let what = format!("{}, CPU of Python for a run", ours(clients));
        report.against(what, per_run(whole_cpu.0, &whole), "ms", &name);
        let what = format!("{}, CPU of the server for a run", ours(clients));
        report.note(what, per_run(whole_cpu.1, &whole), "ms");
    }
    once(client, phase, "", report).await?;
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

/// What is measured with one client, and the runs in the background.
async fn once(client: &Client, phase: Duration, before: &str, report: &mut Report) -> anyhow::Result<()> {
    let one = client.clone();
    let seen = closed(1, phase, move || one.clone().first_event()).await?;
    seen.note(report, &format!("{before}{FIRST_EVENT}"), "runs/s");
    let one = client.clone();
    let seen = closed(1, phase, move || one.clone().first_values()).await?;
    seen.note(report, &format!("{before}{FIRST_VALUES}"), "runs/s");
    // Streams that were left after their first event are runs that go on.
    client.background(1).await?;
    let rate = client.background(BACKGROUND).await?;
    report.note(format!("{before}{}", background()), rate, "runs/s");
    Ok(())
}

/// The server as it comes, with as many processes of the graph as it finds useful.
async fn as_it_comes(python: &Path, phase: Duration, report: &mut Report) -> anyhow::Result<()> {
    let folder = server::folder()?;
    project::write(folder.path())?;
    let child = Child::agent_in(folder, python, ANY_HOSTS).await;
    let child = child.context("starting a server of its own")?;
    let client = Client::new(child.base(), project::ID, &project::input())?;
    let measured = async {
        for clients in CLIENTS {
            let one = client.clone();
            let seen = settled(clients, SETTLE, phase, move || one.clone().create_and_wait()).await?;
            seen.note(report, &format!("{AS_IT_COMES}{}", ours(clients)), "runs/s");
        }
        let rate = client.background(BACKGROUND).await?;
        report.note(format!("{AS_IT_COMES}{}", background()), rate, "runs/s");
        Ok(())
    };
    let measured = measured.await;
    child.stop().await?;
    measured
}

/// The official server, and how often ours is faster.
async fn beside(python: &Path, phase: Duration, report: &mut Report) -> anyhow::Result<()> {
    let official = Official::start(python).await?;
    let client = Client::new(official.base(), project::ID, &project::input())?;
    let measured = async {
        for clients in CLIENTS {
            let before = official.pid().map(cpu).unwrap_or_default();
            let one = client.clone();
            let seen = settled(clients, SETTLE, phase, move || one.clone().create_and_wait()).await?;
            let spent = official.pid().map(cpu).unwrap_or_default() - before;
            let name = format!("official server, {}", ours(clients));
            seen.note(report, &name, "runs/s");
            let per_run = 1000.0 * spent / seen.all().max(1) as f64;
            report.note(format!("{name}, CPU for a run"), per_run, "ms");
        }
        once(&client, phase, "official server, ", report).await
    };
    let measured = measured.await;
    official.stop().await?;
    measured?;
    for how in ["", AS_IT_COMES] {
        for what in CLIENTS.map(ours).into_iter().chain([background()]) {
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

/// CPU time in seconds of the processes that one started, without this one of them.
fn hosts_cpu(parent: u32, without: Option<u32>) -> f64 {
    let children = process::children(parent).into_iter();
    children.filter(|child| Some(*child) != without).map(cpu).sum()
}
