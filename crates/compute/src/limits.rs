//! CPU and memory limits by control groups, if this process may create them.
//!
//! A group is created before the start, and the [launcher](crate::launcher) enters it before it executes the agent
//! server, so that all its children are in the group from their start. Each start has its own group, because the check,
//! the standby and the serving one exist at the same time.
//!
//! Version 2 requires controllers to be delegated to groups below this process's own, which must then contain no
//! process: so this process moves into a leaf. Version 1 is used below the root of each controller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::launch::Launch;

const MOUNT: &str = "/sys/fs/cgroup";
/// What names of groups begin with.
const PREFIX: &str = "towpath-";
/// Where this process is once others may have groups.
const LEAF: &str = "towpath-platform";
/// One that nothing has entered for so long was left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(60);
/// Attempts to remove a group while its last processes end.
const REMOVALS: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// What can be limited here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    memory: Option<Controller>,
    cpu: Option<Controller>,
}

/// Where groups of a controller are made.
#[derive(Clone, Debug)]
struct Controller {
    folder: PathBuf,
    unified: bool,
}

impl Limits {
    /// Looks, and prepares this process's own group, once.
    pub(crate) fn of_machine() -> &'static Self {
        static FOUND: OnceLock<Limits> = OnceLock::new();
        FOUND.get_or_init(|| {
            let found = Self::find(Path::new(MOUNT));
            found.sweep();
            if found.memory.is_none() || found.cpu.is_none() {
                tracing::warn!(
                    memory = found.memory.is_some(),
                    cpu = found.cpu.is_some(),
                    "this process cannot limit the CPU and memory of deployments on this machine"
                );
            }
            found
        })
    }

    fn find(top: &Path) -> Self {
        let (memory, cpu) = if top.join("cgroup.controllers").is_file() {
            let folder = match delegate(top) {
                Ok(folder) => folder,
                Err(error) => {
                    tracing::info!(%error, "control groups cannot be handed on");
                    return Self::default();
                }
            };
            let unified = |folder: &PathBuf| Controller {
                folder: folder.clone(),
                unified: true,
            };
            (unified(&folder), unified(&folder))
        } else {
            let apart = |name: &str| Controller {
                folder: top.join(name),
                unified: false,
            };
            (apart("memory"), apart("cpu"))
        };
        Self {
            memory: Some(memory).filter(|memory| memory.is_usable(|group| memory.limit_memory(group, 1024))),
            cpu: Some(cpu).filter(|cpu| cpu.is_usable(|group| cpu.limit_cpu(group, 1.0))),
        }
    }

    /// Whether memory is.
    pub(crate) const fn memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether CPU is.
    pub(crate) const fn cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Creates the groups for one start. `None` if no limits are requested or possible.
    pub(crate) fn groups(&self, launch: &Launch, run: &str) -> io::Result<Groups> {
        let name = format!("{PREFIX}{}-{run}", launch.deployment);
        let mut groups = Groups::default();
        if let (Some(memory), Some(mb)) = (&self.memory, launch.memory_mb) {
            let group = groups.add(memory.folder.join(&name))?;
            memory.limit_memory(&group, mb)?;
        }
        if let (Some(cpu), Some(cpus)) = (&self.cpu, launch.cpus) {
            let group = groups.add(cpu.folder.join(&name))?;
            cpu.limit_cpu(&group, cpus)?;
        }
        Ok(groups)
    }

    /// Removes groups that an earlier process left. A group with processes cannot be removed and stays.
    fn sweep(&self) {
        for controller in [&self.memory, &self.cpu].into_iter().flatten() {
            let Ok(entries) = fs::read_dir(&controller.folder) else {
                continue;
            };
            for entry in entries.flatten() {
                let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
                let made = entry.metadata().and_then(|about| about.modified());
                let old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LEFT_BEHIND));
                if ours && old && entry.file_name() != LEAF {
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }
}

impl Controller {
    /// Only a limit that was taken says that limits can be had.
    fn is_usable(&self, limit: impl FnOnce(&Path) -> io::Result<()>) -> bool {
        let group = self.folder.join(format!("{PREFIX}trial-{}", std::process::id()));
        let tried = make(&group).and_then(|()| limit(&group));
        let _ = fs::remove_dir(&group);
        tried.is_ok()
    }

    fn limit_memory(&self, group: &Path, mb: u64) -> io::Result<()> {
        let bytes = (mb << 20).to_string();
        if self.unified {
            fs::write(group.join("memory.max"), bytes)?;
            // Not there without swap.
            let _ = fs::write(group.join("memory.swap.max"), "0");
        } else {
            fs::write(group.join("memory.limit_in_bytes"), &bytes)?;
            // The sum of both; missing if the kernel does not account for swap.
            let _ = fs::write(group.join("memory.memsw.limit_in_bytes"), bytes);
        }
        Ok(())
    }

    fn limit_cpu(&self, group: &Path, cpus: f64) -> io::Result<()> {
        let quota = (cpus * 100_000.0) as u64;
        if self.unified {
            return fs::write(group.join("cpu.max"), format!("{quota} 100000"));
        }
        fs::write(group.join("cpu.cfs_period_us"), "100000")?;
        fs::write(group.join("cpu.cfs_quota_us"), quota.to_string())
    }
}

/// The groups of one start. Dropped, the empty ones are removed.
#[derive(Debug, Default)]
pub(crate) struct Groups(Vec<PathBuf>);

impl Groups {
    fn add(&mut self, group: PathBuf) -> io::Result<PathBuf> {
        make(&group)?;
        if !self.0.contains(&group) {
            self.0.push(group.clone());
        }
        Ok(group)
    }

    /// The files that a process enters them by.
    pub(crate) fn entries(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().map(|group| group.join("cgroup.procs"))
    }

    /// Removes them. What was killed may take a moment to be gone.
    pub(crate) async fn remove(mut self) {
        for _ in 0..REMOVALS {
            self.0.retain(|group| !removed(group));
            if self.0.is_empty() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            removed(group);
        }
    }
}

fn removed(group: &Path) -> bool {
    match fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The group below which others can be limited.
fn delegate(top: &Path) -> io::Result<PathBuf> {
    let own = top.join(own_group()?);
    // An earlier life of this process, started from there, has prepared it.
    let is_leaf = own.file_name().is_some_and(|name| name == LEAF);
    let folder = if is_leaf {
        own.parent().unwrap_or(top).to_owned()
    } else {
        own
    };
    let control = folder.join("cgroup.subtree_control");
    let hands_on = |text: &str| {
        ["cpu", "memory"]
            .iter()
            .all(|name| text.split_whitespace().any(|on| on == *name))
    };
    if hands_on(&fs::read_to_string(&control)?) {
        return Ok(folder);
    }
    let pid = std::process::id().to_string();
    let leaf = folder.join(LEAF);
    make(&leaf)?;
    let moved = fs::write(leaf.join("cgroup.procs"), &pid);
    let done = moved.and_then(|()| fs::write(&control, "+cpu +memory"));
    if let Err(error) = done {
        // Another process is in the group, or it is not ours to change.
        let _ = fs::write(folder.join("cgroup.procs"), pid);
        let _ = fs::remove_dir(&leaf);
        return Err(error);
    }
    Ok(folder)
}

fn own_group() -> io::Result<String> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    Ok(own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default()
        .to_owned())
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use towpath_domain::{DeploymentId, RevisionId};

    use super::*;

    /// A program that is started through the groups is in them, with all its children.
    #[tokio::test]
    async fn what_a_limited_process_starts_is_limited_too() {
        let limits = Limits::of_machine();
        if !limits.memory() {
            eprintln!("skipped: this machine lets nobody here limit memory");
            return;
        }
        let launch = Launch {
            deployment: DeploymentId::new(),
            revision: RevisionId::new(),
            artifact: String::new(),
            variables: Vec::new(),
            cpus: None,
            memory_mb: Some(64),
        };
        let groups = limits.groups(&launch, "test").unwrap();
        let entries: Vec<PathBuf> = groups.entries().collect();
        assert_eq!(entries.len(), 1);
        // Like the launcher; then a child of the started program prints its group.
        let script = format!("echo 0 > {} && sh -c 'cat /proc/self/cgroup'", entries[0].display());
        let said = Command::new("sh")
            .args(["-c", &script])
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains(&launch.deployment.to_string()), "{said}");
        let group = groups.0[0].clone();
        groups.remove().await;
        assert!(!group.exists(), "the group is still there");
    }
}
