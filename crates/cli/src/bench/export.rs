//! `towpath bench export`: a day's trace runs to Parquet files, copied and scanned, and beside it the same by DuckDB.
//!
//! Rows are made once, as folds leave them, and compacted. Each figure is a process of its own, so that its peak memory
//! is that of the work and of nothing before it.

mod peer;
mod phase;
mod prepare;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::arguments::{BenchExport, ExportPhase};

/// What a process of one phase tells.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    rows: u64,
    bytes: u64,
    seconds: f64,
    /// CPU time of all its threads.
    cpu_seconds: f64,
    /// Highest resident memory, in MB.
    peak_mb: f64,
}

pub async fn run(options: &BenchExport) -> anyhow::Result<()> {
    if let (Some(phase), Some(folder)) = (options.phase, &options.folder) {
        let seen = match phase {
            ExportPhase::Prepare => prepare::run(folder, options.rows, options.late / 100.0).await?,
            phase => phase::run(folder, phase, options.destination.as_deref()).await?,
        };
        println!("{}", serde_json::to_string(&seen)?);
        return Ok(());
    }
    let folder = tempfile::Builder::new().prefix("towpath-bench.").tempdir()?;
    let mut report = Report::default();
    let made = process(options, ExportPhase::Prepare, folder.path()).await?;
    report.note("rows made and compacted", rate(&made), "rows/s");
    report.note("stored", made.bytes as f64 / made.rows as f64, "bytes/row");
    let peer = match &options.peer {
        Some(python) => {
            let seen = peer::run(python, folder.path()).await?;
            ensure!(
                seen.rows == made.rows,
                "the peer wrote {} of {} rows",
                seen.rows,
                made.rows
            );
            note(&mut report, "DuckDB COPY, all fields", &seen, "");
            "DuckDB COPY, all fields"
        }
        None => "",
    };
    for (phase, name) in [
        (ExportPhase::Spliced, "copied, all fields"),
        (ExportPhase::SplicedV2, "copied, all fields, v2_beta"),
        (ExportPhase::SplicedSubset, "copied, 6 fields"),
        (ExportPhase::Scanned, "scanned, all fields"),
        (ExportPhase::ScannedSubset, "scanned, 6 fields"),
        (ExportPhase::Late, "with late rows, all fields"),
    ] {
        if phase == ExportPhase::Late && options.late == 0.0 {
            continue;
        }
        let seen = process(options, phase, folder.path()).await?;
        ensure!(seen.rows == made.rows, "{name}: {} of {} rows", seen.rows, made.rows);
        note(&mut report, name, &seen, peer);
        // Ten million rows are 5 GB, and in a folder they need not lie once for each figure.
        let written = folder.path().join("exports").join(phase.name());
        tokio::fs::remove_dir_all(written)
            .await
            .or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
    }
    report.print(options.output)
}

fn note(report: &mut Report, name: &str, seen: &Seen, against: &str) {
    if against.is_empty() {
        report.note(name, rate(seen), "rows/s");
    } else {
        report.against(name, rate(seen), "rows/s", against);
    }
    report.note(format!("{name}: peak memory"), seen.peak_mb, "MB");
    report.note(format!("{name}: CPU"), seen.cpu_seconds, "s");
    report.note(format!("{name}: size"), seen.bytes as f64 / (1024.0 * 1024.0), "MB");
}

fn rate(seen: &Seen) -> f64 {
    seen.rows as f64 / seen.seconds
}

/// This binary once more, for one phase.
async fn process(options: &BenchExport, phase: ExportPhase, folder: &Path) -> anyhow::Result<Seen> {
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command
        .args(["bench", "export", "--phase"])
        .arg(phase.name())
        .arg("--folder")
        .arg(folder)
        .args(["--rows", &options.rows.to_string(), "--late", &options.late.to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some(destination) = &options.destination {
        command.args(["--destination", destination]);
    }
    let output = command.output().await?;
    ensure!(
        output.status.success(),
        "the phase {} ended with {}: {}",
        phase.name(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("what the phase {} tells", phase.name()))
}

/// Highest resident memory of this process so far, in MB, and its CPU time in seconds.
fn used() -> anyhow::Result<(f64, f64)> {
    let status = std::fs::read_to_string("/proc/self/status").context("this system does not tell")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: f64 = line
        .context("no peak memory is told")?
        .trim()
        .trim_end_matches(" kB")
        .parse()?;
    Ok((
        kilobytes / 1024.0,
        super::process::cpu_seconds("self").context("no CPU time is told")?,
    ))
}
