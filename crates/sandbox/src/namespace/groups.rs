//! Control groups of boxes, of version 1 or 2, where this machine lets this process make them.
//!
//! Version 2 hands controllers only to groups below one that holds no process: the platform moves into a leaf, which
//! deployments use as well.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::spec::Limits;

const MOUNT: &str = "/sys/fs/cgroup";
const LEAF: &str = "towpath-platform";
const PERIOD_US: u64 = 100_000;
/// How often, and how far apart, something is looked at that the kernel does in its time.
const TRIES: usize = 1000;
const PAUSE: Duration = Duration::from_millis(2);

/// What can be limited here.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    pub(super) memory: Option<Controller>,
    pub(super) cpu: Option<Controller>,
    pub(super) processes: Option<Controller>,
    pub(super) freezer: Option<Controller>,
}

/// Where groups of a controller are made.
#[derive(Clone, Debug)]
pub(super) struct Controller {
    folder: PathBuf,
    is_unified: bool,
}

impl Groups {
    /// Looks once.
    pub(super) fn of_machine() -> &'static Self {
        static FOUND: OnceLock<Groups> = OnceLock::new();
        FOUND.get_or_init(|| Self::find(Path::new(MOUNT)))
    }

    fn find(top: &Path) -> Self {
        let unified = if top.join("cgroup.controllers").is_file() {
            delegate(top).ok()
        } else {
            None
        };
        let controller = |name: &str| {
            unified.as_ref().map_or_else(
                || Controller {
                    folder: top.join(name),
                    is_unified: false,
                },
                |folder| Controller {
                    folder: folder.clone(),
                    is_unified: true,
                },
            )
        };
        let usable = |name: &str, limit: &dyn Fn(&Controller, &Path) -> io::Result<()>| {
            let controller = controller(name);
            controller.is_usable(limit).then_some(controller)
        };
        Self {
            memory: usable("memory", &|controller, group| controller.limit_memory(group, 1 << 30)),
            cpu: usable("cpu", &|controller, group| controller.limit_cpu(group, 1000)),
            processes: usable("pids", &|controller, group| controller.limit_processes(group, 1000)),
            freezer: usable("freezer", &|controller, group| {
                fs::metadata(group.join(controller.freezer_file())).map(drop)
            }),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Controller> {
        [&self.memory, &self.cpu, &self.processes, &self.freezer]
            .into_iter()
            .flatten()
    }

    /// The groups of one life, and the files that a process enters them by.
    pub(super) fn make(&self, name: &str, limits: &Limits) -> io::Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        for controller in self.all() {
            let group = controller.folder.join(name);
            make(&group)?;
            let entry = group.join("cgroup.procs");
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        if let Some((controller, bytes)) = self.memory.as_ref().zip(limits.memory_bytes) {
            controller.limit_memory(&controller.folder.join(name), bytes)?;
        }
        if let Some((controller, millis)) = self.cpu.as_ref().zip(limits.cpu_millis) {
            controller.limit_cpu(&controller.folder.join(name), millis)?;
        }
        if let Some((controller, count)) = self.processes.as_ref().zip(limits.processes) {
            controller.limit_processes(&controller.folder.join(name), count)?;
        }
        Ok(entries)
    }

    /// Removes them once the last process has left.
    pub(super) async fn remove(&self, name: &str) -> io::Result<()> {
        for controller in self.all() {
            let group = controller.folder.join(name);
            let mut tries = 0;
            loop {
                match fs::remove_dir(&group) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    // What was killed may take a moment to be gone.
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < TRIES => tries += 1,
                    other => {
                        other?;
                        break;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Freezes or thaws the processes of a life and waits until they are. Does nothing where it has no groups.
    pub(super) async fn freeze(&self, name: &str, frozen: bool) -> io::Result<()> {
        let Some(controller) = &self.freezer else { return Ok(()) };
        let group = controller.folder.join(name);
        if !group.is_dir() {
            return Ok(());
        }
        let (text, file, wanted) = match (controller.is_unified, frozen) {
            (true, true) => ("1", "cgroup.events", "frozen 1"),
            (true, false) => ("0", "cgroup.events", "frozen 0"),
            (false, true) => ("FROZEN", "freezer.state", "FROZEN"),
            (false, false) => ("THAWED", "freezer.state", "THAWED"),
        };
        fs::write(group.join(controller.freezer_file()), text)?;
        for _ in 0..TRIES {
            if fs::read_to_string(group.join(file))?.lines().any(|line| line == wanted) {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Controller {
    /// Only a limit that was taken says that limits can be had.
    fn is_usable(&self, limit: &dyn Fn(&Self, &Path) -> io::Result<()>) -> bool {
        let group = self.folder.join(format!("towpath-box-trial-{}", std::process::id()));
        let tried = make(&group).and_then(|()| limit(self, &group));
        let _ = fs::remove_dir(&group);
        tried.is_ok()
    }

    const fn freezer_file(&self) -> &'static str {
        if self.is_unified {
            "cgroup.freeze"
        } else {
            "freezer.state"
        }
    }

    fn limit_memory(&self, group: &Path, bytes: u64) -> io::Result<()> {
        let bytes = bytes.to_string();
        if self.is_unified {
            fs::write(group.join("memory.max"), bytes)?;
            // Not there without swap.
            let _ = fs::write(group.join("memory.swap.max"), "0");
        } else {
            fs::write(group.join("memory.limit_in_bytes"), &bytes)?;
            // The sum of both; not there where the kernel does not account for swap.
            let _ = fs::write(group.join("memory.memsw.limit_in_bytes"), bytes);
        }
        Ok(())
    }

    fn limit_cpu(&self, group: &Path, millis: u64) -> io::Result<()> {
        // The kernel takes no quota below a thousandth of a second.
        let quota = (millis.saturating_mul(PERIOD_US) / 1000).max(1000);
        if self.is_unified {
            return fs::write(group.join("cpu.max"), format!("{quota} {PERIOD_US}"));
        }
        fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(group.join("cpu.cfs_quota_us"), quota.to_string())
    }

    fn limit_processes(&self, group: &Path, count: u64) -> io::Result<()> {
        fs::write(group.join("pids.max"), count.to_string())
    }
}

/// The group below which others can be limited.
fn delegate(top: &Path) -> io::Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = top.join(own.unwrap_or_default());
    let is_leaf = own.file_name().is_some_and(|name| name == LEAF);
    let folder = if is_leaf {
        own.parent().unwrap_or(top).to_owned()
    } else {
        own
    };
    let control = folder.join("cgroup.subtree_control");
    let has = fs::read_to_string(&control)?;
    let missing: Vec<String> = ["cpu", "memory", "pids"]
        .iter()
        .filter(|name| !has.split_whitespace().any(|on| on == **name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(folder);
    }
    let pid = std::process::id().to_string();
    let leaf = folder.join(LEAF);
    if !is_leaf {
        make(&leaf)?;
        fs::write(leaf.join("cgroup.procs"), &pid)?;
    }
    match fs::write(&control, missing.join(" ")) {
        Err(error) if !is_leaf => {
            // Another process is in the group, or it is not ours to change.
            let _ = fs::write(folder.join("cgroup.procs"), pid);
            let _ = fs::remove_dir(&leaf);
            Err(error)
        }
        done => done.map(|()| folder),
    }
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
