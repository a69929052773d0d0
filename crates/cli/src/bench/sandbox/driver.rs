//! The driver in this process, without a platform.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use towpath_sandbox::{
    BoxAgent, BoxHandle, BoxSpec, Driver as _, ExecEvent, ExecRequest, Limits, NamespaceDriver, NamespaceSettings,
};
use uuid::Uuid;

use super::{Durations, Report};
use crate::arguments::BenchSandbox;

/// Boxes that are started or ended at a time.
const CONCURRENCY: usize = 8;
/// Boxes that execute at a time, and commands of each.
const BUSY_BOXES: usize = 100;
const BUSY_COMMANDS: usize = 20;
/// Files of the box that is forked: 60 MB in 3,000 files.
const FILES: &str = "mkdir files && cd files && head -c 60000000 /dev/urandom | split -b 20000 -a 4 - f";
const GENERATION: u64 = 1;

pub(super) async fn measure(
    options: &BenchSandbox,
    settings: NamespaceSettings,
    report: &mut Report,
) -> anyhow::Result<()> {
    let driver = NamespaceDriver::new(settings.clone())?;
    driver.capabilities().await.context("this machine has no sandboxes")?;
    let measured = async {
        single_boxes(options, &driver, report).await?;
        forks(options, &driver, report).await?;
        idle_boxes(options, &driver, report).await
    };
    let measured = measured.await;
    destroy_all(settings).await?;
    measured
}

/// Ends and removes every box of a folder.
pub(super) async fn destroy_all(settings: NamespaceSettings) -> anyhow::Result<()> {
    let driver = NamespaceDriver::new(settings)?;
    let left = driver.inventory().await?;
    stream::iter(left)
        .map(|state| {
            let driver = &driver;
            async move {
                driver.destroy(state.id, state.generation).await?;
                anyhow::Ok(driver.forget(state.id).await?)
            }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await
}

async fn single_boxes(options: &BenchSandbox, driver: &NamespaceDriver, report: &mut Report) -> anyhow::Result<()> {
    let (mut created, mut warm, mut destroyed) = (Durations::default(), Durations::default(), Durations::default());
    for _ in 0..options.rounds {
        let (handle, agent) = created.time(start_and_run(driver, &spec(Vec::new()))).await?;
        warm.time(run(&agent, "true")).await?;
        destroyed.time(destroy(driver, &handle)).await?;
    }
    created.note(report, "driver: create and first command");
    warm.note(report, "driver: command in a running box");
    destroyed.note(report, "driver: end and remove");
    Ok(())
}

async fn forks(options: &BenchSandbox, driver: &NamespaceDriver, report: &mut Report) -> anyhow::Result<()> {
    let (origin, agent) = start_and_run(driver, &spec(Vec::new())).await?;
    run(&agent, FILES).await?;
    // A machine without a freezer captures stopped boxes.
    if !driver.capabilities().await?.can_freeze {
        driver.stop(origin.id, GENERATION, Duration::ZERO).await?;
    }
    let layer = Uuid::now_v7();
    let begun = Instant::now();
    driver.capture_layer(origin.id, GENERATION, layer).await?;
    let captured = begun.elapsed().as_secs_f64() * 1000.0;
    report.note("driver: capture of 3,000 files, 60 MB", captured, "ms");
    let mut forked = Durations::default();
    for _ in 0..options.rounds {
        let (handle, _) = forked.time(start_and_run(driver, &spec(vec![layer]))).await?;
        destroy(driver, &handle).await?;
    }
    forked.note(report, "driver: fork of it and first command");
    destroy(driver, &origin).await?;
    Ok(driver.remove_layer(layer).await?)
}

async fn idle_boxes(options: &BenchSandbox, driver: &NamespaceDriver, report: &mut Report) -> anyhow::Result<()> {
    let count = options.boxes;
    let before = available_mb()?;
    let begun = Instant::now();
    let boxes: Vec<(BoxHandle, BoxAgent)> = stream::iter(0..count)
        .map(|_| async move { start_and_run(driver, &spec(Vec::new())).await })
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await?;
    report.note(
        format!("driver: {count} idle boxes made"),
        begun.elapsed().as_secs_f64(),
        "s",
    );
    // Of the whole machine: most of a box is in the kernel.
    report.note(
        format!("driver: memory of {count} idle boxes"),
        before - available_mb()?,
        "MB",
    );
    let mut each = Durations::default();
    for (_, agent) in &boxes {
        each.time(run(agent, "true")).await?;
    }
    each.note(report, &format!("driver: command in each of {count} boxes"));
    let busy = &boxes[..boxes.len().min(BUSY_BOXES)];
    let executed = try_join_all(busy.iter().map(|(_, agent)| async move {
        let mut own = Durations::default();
        for _ in 0..BUSY_COMMANDS {
            own.time(run(agent, "true")).await?;
        }
        anyhow::Ok(own)
    }));
    let all = executed.await?.into_iter().flat_map(|own| own.0).collect();
    Durations(all).note(report, &format!("driver: command, {} boxes at once", busy.len()));
    let begun = Instant::now();
    stream::iter(&boxes)
        .map(|(handle, _)| destroy(driver, handle))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await?;
    report.note(
        format!("driver: {count} boxes ended"),
        begun.elapsed().as_secs_f64(),
        "s",
    );
    Ok(())
}

async fn start_and_run(driver: &NamespaceDriver, spec: &BoxSpec) -> anyhow::Result<(BoxHandle, BoxAgent)> {
    let handle = driver.start(spec, GENERATION).await?;
    let agent = driver.agent(&handle);
    run(&agent, "true").await?;
    Ok((handle, agent))
}

async fn destroy(driver: &NamespaceDriver, handle: &BoxHandle) -> anyhow::Result<()> {
    driver.destroy(handle.id, handle.generation).await?;
    Ok(driver.forget(handle.id).await?)
}

/// Runs a command to its successful end.
async fn run(agent: &BoxAgent, command: &str) -> anyhow::Result<()> {
    let request = ExecRequest::new(Uuid::now_v7().simple().to_string(), command);
    let mut execution = agent.execute(&request).await?;
    while let Some(event) = execution.events.next().await? {
        if let ExecEvent::Exit { exit_code, .. } = event {
            ensure!(exit_code == 0, "{command}: exit code {exit_code}");
            return Ok(());
        }
    }
    bail!("{command}: no exit code")
}

fn spec(layers: Vec<Uuid>) -> BoxSpec {
    BoxSpec {
        id: Uuid::now_v7(),
        hostname: "bench".to_owned(),
        root: towpath_sandbox::RootFileSystem {
            base: "host".to_owned(),
            layers,
        },
        fresh: false,
        user: None,
        work_dir: None,
        env: BTreeMap::new(),
        limits: Limits::default(),
        mounts: Vec::new(),
        has_proxy: false,
    }
}

fn available_mb() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = kib
        .context("/proc/meminfo has no MemAvailable")?
        .trim()
        .trim_end_matches(" kB");
    Ok(kib.parse::<f64>()? / 1024.0)
}
