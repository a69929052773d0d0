//! Many runs through one graph process: neither it nor the server may grow.

use anyhow::Context as _;

use super::super::client::Client;
use super::super::closed_loop::run_count;
use super::super::process;
use super::super::report::Report;
use super::super::server::Child;

/// Concurrent clients.
const CLIENTS: usize = 20;
/// Memory is reported after this number of runs, or ten times.
const TOLD_EVERY: u64 = 10_000;

pub async fn run(child: &Child, client: &Client, runs: u64, report: &mut Report) -> anyhow::Result<()> {
    let server = child.pid().context("the server runs")?;
    let every = TOLD_EVERY.min(runs.div_ceil(10)).max(1);
    tell(child, server, 0, report)?;
    let mut done = 0;
    while done < runs {
        let now = every.min(runs - done);
        let one = client.clone();
        let seen = run_count(CLIENTS, now, move || one.clone().create_and_wait()).await?;
        done += now;
        report.note(format!("{done} runs"), seen.rate(), "runs/s");
        tell(child, server, done, report)?;
    }
    Ok(())
}

fn tell(child: &Child, server: u32, done: u64, report: &mut Report) -> anyhow::Result<()> {
    let mut note = |what: &str, value: Option<f64>, unit| {
        if let Some(value) = value {
            report.note(format!("{done} runs, {what}"), value, unit);
        }
    };
    note("memory of the server", process::memory_mb(server), "MB");
    note(
        "files of the server",
        process::files(server).map(|files| files as f64),
        "",
    );
    for host in process::children(server) {
        note("memory of the graph's process", process::memory_mb(host), "MB");
        note(
            "files of the graph's process",
            process::files(host).map(|files| files as f64),
            "",
        );
    }
    note("data folder", Some(child.stored("")? as f64 / 1048576.0), "MB");
    Ok(())
}
