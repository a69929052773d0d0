//! `towpath bench export`: exports of a month's trace runs to Parquet files, copied and scanned, compared with DuckDB.
//!
//! Rows are created once, in segments as flushes write them, and compacted. Each phase runs in its own process, so that
//! its peak memory only covers its own work.

mod duckdb;
mod phase;
mod prepare;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::arguments::{BenchExport, ExportPhase};

/// Result of the process of one phase.
#[derive(Debug, Serialize, Deserialize)]
struct PhaseResult {
    rows: u64,
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// Peak resident memory, in MB.
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
            let seen = duckdb::run(python, folder.path()).await?;
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
        // Ten million rows are 5 GB, so each phase removes its files.
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

fn note(report: &mut Report, name: &str, seen: &PhaseResult, against: &str) {
    if against.is_empty() {
        report.note(name, rate(seen), "rows/s");
    } else {
        report.against(name, rate(seen), "rows/s", against);
    }
    report.note(format!("{name}: peak memory"), seen.peak_mb, "MB");
    report.note(format!("{name}: CPU"), seen.cpu_seconds, "s");
    report.note(format!("{name}: size"), seen.bytes as f64 / (1024.0 * 1024.0), "MB");
}

fn rate(seen: &PhaseResult) -> f64 {
    seen.rows as f64 / seen.seconds
}

/// Runs this binary for one phase.
async fn process(options: &BenchExport, phase: ExportPhase, folder: &Path) -> anyhow::Result<PhaseResult> {
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
    serde_json::from_slice(&output.stdout).with_context(|| format!("reading the output of phase {}", phase.name()))
}

/// Peak resident memory of this process in MB, and its CPU time in seconds.
fn resource_usage() -> anyhow::Result<(f64, f64)> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: f64 = line
        .context("/proc/self/status contains no peak memory")?
        .trim()
        .trim_end_matches(" kB")
        .parse()?;
    Ok((
        kilobytes / 1024.0,
        super::process::cpu_seconds("self").context("the CPU time is unavailable")?,
    ))
}
