//! Control groups of boxes, version 1 or 2, if this process may create them.
//!
//! Version 2 delegates controllers only to groups below one without processes: the platform moves into a leaf, which
//! deployments also use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::spec::Limits;

const MOUNT_POINT: &str = "/sys/fs/cgroup";
const PLATFORM_GROUP: &str = "towpath-platform";
const PERIOD_US: u64 = 100_000;
/// Polling of asynchronous kernel operations: attempts and interval.
const MAX_POLLS: usize = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What can be limited here.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroups {
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

impl Cgroups {
    /// Looks once.
    pub(super) fn of_machine() -> &'static Self {
        static FOUND: OnceLock<Cgroups> = OnceLock::new();
        FOUND.get_or_init(|| Self::detect(Path::new(MOUNT_POINT)))
    }

    fn detect(top: &Path) -> Self {
        let unified = if top.join("cgroup.controllers").is_file() {
            delegate_controllers(top).ok()
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

    /// Creates the groups of one process life, and returns the files by which a process enters them.
    pub(super) fn make(&self, name: &str, limits: &Limits) -> io::Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        for controller in self.all() {
            let group = controller.folder.join(name);
            create_group(&group)?;
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
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < MAX_POLLS => tries += 1,
                    other => {
                        other?;
                        break;
                    }
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Freezes the processes of a process life and waits for it. No effect without groups.
    pub(super) async fn freeze(&self, name: &str) -> io::Result<()> {
        self.set_frozen(name, true).await
    }

    /// Thaws the processes of a process life and waits for it. No effect without groups.
    pub(super) async fn thaw(&self, name: &str) -> io::Result<()> {
        self.set_frozen(name, false).await
    }

    async fn set_frozen(&self, name: &str, frozen: bool) -> io::Result<()> {
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
        for _ in 0..MAX_POLLS {
            if fs::read_to_string(group.join(file))?.lines().any(|line| line == wanted) {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Controller {
    /// Only a limit that was taken says that limits can be had.
    fn is_usable(&self, limit: &dyn Fn(&Self, &Path) -> io::Result<()>) -> bool {
        let group = self.folder.join(format!("towpath-box-trial-{}", std::process::id()));
        let tried = create_group(&group).and_then(|()| limit(self, &group));
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
            // The sum of both; missing if the kernel does not account for swap.
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
fn delegate_controllers(top: &Path) -> io::Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = top.join(own.unwrap_or_default());
    let is_leaf = own.file_name().is_some_and(|name| name == PLATFORM_GROUP);
    let folder = if is_leaf {
        own.parent().unwrap_or(top).to_owned()
    } else {
        own
    };
    let control = folder.join("cgroup.subtree_control");
    let has = fs::read_to_string(&control)?;
    // A controller that is not delegated to this process would make the whole request fail.
    let offered = fs::read_to_string(folder.join("cgroup.controllers"))?;
    let missing: Vec<String> = ["cpu", "memory", "pids"]
        .iter()
        .filter(|name| offered.split_whitespace().any(|on| on == **name))
        .filter(|name| !has.split_whitespace().any(|on| on == **name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(folder);
    }
    let pid = std::process::id().to_string();
    let leaf = folder.join(PLATFORM_GROUP);
    if !is_leaf {
        create_group(&leaf)?;
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

fn create_group(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
