//! CPU and memory limits, by control groups where this machine lets this process make them.
//!
//! Version 2 is tried below this process's own group, version 1 below each controller's. Where neither can be written,
//! as in most containers, the log of the deployment says so once and the agent server runs without.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use towpath_domain::DeploymentId;

use crate::backend::Launch;
use crate::log::Log;

const MOUNT: &str = "/sys/fs/cgroup";

/// Puts a process under the limits of its launch, as far as this machine allows.
pub(crate) fn apply(launch: &Launch, pid: Option<u32>, log: &Log) {
    let (Some(pid), true) = (pid, launch.cpus.is_some() || launch.memory_mb.is_some()) else {
        return;
    };
    let name = name(launch.deployment);
    let top = Path::new(MOUNT);
    let done = if top.join("cgroup.controllers").is_file() {
        version_2(top, &name, launch, pid)
    } else {
        version_1(top, &name, launch, pid)
    };
    if let Err(error) = done {
        log.warn(format!(
            "this machine does not limit CPU and memory of processes ({})",
            error.kind()
        ));
    }
}

/// Removes the groups of a deployment, which nothing is in any more.
pub(crate) fn forget(deployment: DeploymentId) {
    let (top, name) = (Path::new(MOUNT), name(deployment));
    let own = own_group().unwrap_or_default();
    for group in [
        top.join(own).join(&name),
        top.join("memory").join(&name),
        top.join("cpu").join(&name),
    ] {
        let _ = fs::remove_dir(group);
    }
}

fn name(deployment: DeploymentId) -> String {
    format!("towpath-{deployment}")
}

fn own_group() -> io::Result<String> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    Ok(own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default()
        .to_owned())
}

fn version_2(top: &Path, name: &str, launch: &Launch, pid: u32) -> io::Result<()> {
    let group = top.join(own_group()?).join(name);
    make(&group)?;
    if let Some(mb) = launch.memory_mb {
        fs::write(group.join("memory.max"), (mb << 20).to_string())?;
    }
    if let Some(cpus) = launch.cpus {
        fs::write(group.join("cpu.max"), format!("{} 100000", (cpus * 100_000.0) as u64))?;
    }
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

fn version_1(top: &Path, name: &str, launch: &Launch, pid: u32) -> io::Result<()> {
    let group = |controller: &str| -> io::Result<PathBuf> {
        let group = top.join(controller).join(name);
        make(&group)?;
        Ok(group)
    };
    if let Some(mb) = launch.memory_mb {
        let memory = group("memory")?;
        fs::write(memory.join("memory.limit_in_bytes"), (mb << 20).to_string())?;
        fs::write(memory.join("cgroup.procs"), pid.to_string())?;
    }
    if let Some(cpus) = launch.cpus {
        let cpu = group("cpu")?;
        fs::write(cpu.join("cpu.cfs_period_us"), "100000")?;
        fs::write(cpu.join("cpu.cfs_quota_us"), ((cpus * 100_000.0) as u64).to_string())?;
        fs::write(cpu.join("cgroup.procs"), pid.to_string())?;
    }
    Ok(())
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
