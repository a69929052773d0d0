//! Assembles the root of a box and leaves the host's root.
//!
//! Layers and volumes are untrusted. Until the host's root is left, a link in them could lead out: so every path in the
//! root is opened one component at a time, and a link on the way is an error.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode as Bits, umask};
use nix::unistd::pivot_root;
use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstatvfs, mkdirat, open, openat2};

use super::{
    AGENT_PATH, AUTHORITY_PATH, BUNDLE_PATH, LIBRARY_FOLDER, LOADER_PATH, LaunchPlan, ROOT_FOLDER, SETUP_PATH,
};
use crate::namespace::proxy_files::{AUTHORITY_FILE, BUNDLE_FILE};
use crate::spec::{VolumeMount, VolumeSource};

const NONE: Option<&str> = None;
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// What the kernel tells of the machine, or lets be done to it.
const HIDDEN_PROC_FILES: [&str; 7] = [
    "kallsyms",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "sysrq-trigger",
    "timer_list",
];
const READ_ONLY_PROC_FOLDERS: [&str; 4] = ["bus", "fs", "irq", "sys"];

pub(super) fn enter(folder: &Path, launch: &LaunchPlan) -> io::Result<()> {
    umask(Bits::from_bits_truncate(0o022));
    unshare(CloneFlags::CLONE_NEWNS).map_err(with_context("a mount namespace"))?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).map_err(with_context("a mount namespace"))?;
    let root = mount_overlay(&folder.join(ROOT_FOLDER), launch)?;
    for path in &launch.readable {
        bind_mount(launch, Path::new(path), &root, path, Access::ReadOnly)?;
    }
    mount_run(&root, launch)?;
    if launch.agent.has_proxy {
        for (file, path) in [(AUTHORITY_FILE, AUTHORITY_PATH), (BUNDLE_FILE, BUNDLE_PATH)] {
            bind_mount(launch, &folder.join(file), &root, path, Access::ReadOnly)?;
        }
    }
    create_devices(&root, launch)?;
    mount_proc(&root, launch)?;
    for (index, volume) in launch.mounts.iter().enumerate() {
        let source = match &volume.source {
            VolumeSource::Folder(source) => source.clone(),
            VolumeSource::Image(image) => mount_image(folder, index, image, volume)?,
        };
        let access = if volume.read_only {
            Access::ReadOnly
        } else {
            Access::Write
        };
        bind_mount(launch, &source, &root, &volume.path, access)?;
    }
    rustix::process::fchdir(&root)?;
    pivot_root(".", ".").map_err(with_context("leaving the host's root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(with_context("leaving the host's root"))?;
    std::env::set_current_dir("/")
}

fn mount_overlay(target: &Path, launch: &LaunchPlan) -> io::Result<OwnedFd> {
    // The box can read mount options, so they contain no path of the host. Paths may also contain separators.
    let opened = |path: &PathBuf| open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from);
    let lower = launch.lower.iter().map(opened).collect::<io::Result<Vec<_>>>()?;
    let (upper, work) = (opened(&launch.upper)?, opened(&launch.work)?);
    let names: Vec<String> = lower.iter().map(descriptor_path).collect();
    let mut options = format!(
        "lowerdir={},upperdir={},workdir={}",
        names.join(":"),
        descriptor_path(&upper),
        descriptor_path(&work)
    );
    if launch.first_user.is_none() {
        options.push_str(",userxattr");
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("overlay"), target, Some("overlay"), flags, Some(options.as_str()))
        .map_err(with_context("the overlay"))?;
    Ok(open(
        target,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadOnly,
    Write,
}

/// Makes a path of the host visible in the box, without devices and set-user-id programs.
fn bind_mount(launch: &LaunchPlan, source: &Path, root: &OwnedFd, path: &str, access: Access) -> io::Result<()> {
    let is_folder = fs::metadata(source).map_err(with_path(path))?.is_dir();
    let target = open_in_root(root, path, is_folder).map_err(with_path(path))?;
    let mut flags = MsFlags::MS_BIND;
    // Nested mounts are excluded, as they would not become read-only. In a user namespace of the own account the kernel
    // does not allow that.
    if is_folder && launch.first_user.is_none() {
        flags |= MsFlags::MS_REC;
    }
    mount(Some(source), descriptor_path(&target).as_str(), NONE, flags, NONE)
        .map_err(|errno| with_path(path)(errno.into()))?;
    let mounted = open_in_root(root, path, is_folder)?;
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if access == Access::ReadOnly {
        flags |= MsFlags::MS_RDONLY;
    }
    // Flags of the host's mount cannot be removed in a user namespace.
    let has = fstatvfs(&mounted)?.f_flag;
    if has.contains(StatVfsMountFlags::NOEXEC) {
        flags |= MsFlags::MS_NOEXEC;
    }
    if has.contains(StatVfsMountFlags::RDONLY) {
        flags |= MsFlags::MS_RDONLY;
    }
    mount(NONE, descriptor_path(&mounted).as_str(), NONE, flags, NONE).map_err(|errno| with_path(path)(errno.into()))
}

/// Mounts the image of a volume where only this process sees it. The loop device is released with the last mount.
fn mount_image(folder: &Path, index: usize, image: &Path, volume: &VolumeMount) -> io::Result<PathBuf> {
    let target = folder.join(format!("volume-{index}"));
    fs::create_dir_all(&target)?;
    let access = if volume.read_only { "ro" } else { "rw" };
    let ended = Command::new("mount")
        .args(["-t", "ext4", "-o", &format!("loop,nosuid,nodev,{access}")])
        .arg("--")
        .arg(image)
        .arg(&target)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()?;
    if ended.status.success() {
        return Ok(target);
    }
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    Err(io::Error::other(format!("volume {}: {}", volume.path, said.trim())))
}

fn mount_run(root: &OwnedFd, launch: &LaunchPlan) -> io::Result<()> {
    let owner = launch
        .first_user
        .map_or_else(String::new, |user| format!(",uid={user},gid={user}"));
    let run = mount_file_system(
        root,
        "run",
        "tmpfs",
        MsFlags::empty(),
        &format!("mode=0755,size=16m{owner}"),
    )?;
    let own = PathBuf::from(descriptor_path(&run)).join("towpath");
    fs::create_dir(&own)?;
    fs::set_permissions(&own, Permissions::from_mode(0o755))?;
    bind_mount(launch, &launch.program, root, AGENT_PATH, Access::ReadOnly)?;
    for library in &launch.libraries {
        let target = format!("{LIBRARY_FOLDER}/{}", library.name);
        bind_mount(launch, &library.path, root, &target, Access::ReadOnly)?;
        if library.is_loader() {
            symlink(
                &target,
                own.join(Path::new(LOADER_PATH).file_name().unwrap_or_default()),
            )?;
        }
    }
    let setup = own.join(Path::new(SETUP_PATH).file_name().unwrap_or_default());
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o400)
        .open(&setup)?;
    file.write_all(&serde_json::to_vec(&launch.agent)?)?;
    launch
        .first_user
        .map_or(Ok(()), |user| chown(&setup, Some(user), Some(user)))
}

fn create_devices(root: &OwnedFd, launch: &LaunchPlan) -> io::Result<()> {
    let devices = mount_file_system(root, "dev", "tmpfs", MsFlags::MS_NOEXEC, "mode=0755,size=64k")?;
    let folder = PathBuf::from(descriptor_path(&devices));
    for device in DEVICES {
        let target = folder.join(device);
        fs::write(&target, "")?;
        let source = Path::new("/dev").join(device);
        mount(Some(&source), &target, NONE, MsFlags::MS_BIND, NONE).map_err(with_context("devices"))?;
    }
    for (link, to) in DEVICE_LINKS {
        symlink(to, folder.join(link))?;
    }
    mount_file_system(
        root,
        "dev/pts",
        "devpts",
        MsFlags::MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620",
    )?;
    let memory = format!("mode=1777,size={}", launch.shm_bytes);
    mount_file_system(root, "dev/shm", "tmpfs", MsFlags::empty(), &memory).map(drop)
}

fn mount_proc(root: &OwnedFd, launch: &LaunchPlan) -> io::Result<()> {
    // Processes of root are hidden from others; the agent's group sees all.
    let options = format!("hidepid=invisible,gid={}", launch.first_user.unwrap_or_default());
    let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    let processes = mount_file_system(root, "proc", "proc", flags, &options)?;
    let folder = PathBuf::from(descriptor_path(&processes));
    for file in HIDDEN_PROC_FILES {
        let target = folder.join(file);
        if target.exists() {
            mount(Some("/dev/null"), &target, NONE, MsFlags::MS_BIND, NONE)
                .map_err(with_context("hiding files of /proc"))?;
        }
    }
    for path in READ_ONLY_PROC_FOLDERS {
        let target = folder.join(path);
        if target.exists() {
            mount(Some(&target), &target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
                .map_err(with_context("/proc"))?;
            let flags = MsFlags::MS_BIND
                | MsFlags::MS_REMOUNT
                | MsFlags::MS_RDONLY
                | MsFlags::MS_NOSUID
                | MsFlags::MS_NODEV
                | MsFlags::MS_NOEXEC;
            mount(NONE, &target, NONE, flags, NONE).map_err(with_context("/proc"))?;
        }
    }
    Ok(())
}

/// Mounts a new file system in the root and opens it.
fn mount_file_system(root: &OwnedFd, path: &str, kind: &str, flags: MsFlags, options: &str) -> io::Result<OwnedFd> {
    let target = open_in_root(root, path, true).map_err(with_path(path))?;
    let flags = flags | MsFlags::MS_NOSUID;
    mount(
        Some(kind),
        descriptor_path(&target).as_str(),
        Some(kind),
        flags,
        Some(options),
    )
    .map_err(|errno| with_path(path)(errno.into()))?;
    open_in_root(root, path, true)
}

/// Opens a path in the root and creates it if missing. A link on the way is an error.
fn open_in_root(root: &OwnedFd, path: &str, is_folder: bool) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut at = root.try_clone()?;
    let mut components = path.split('/').filter(|component| !component.is_empty()).peekable();
    while let Some(component) = components.next() {
        if component == ".." {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let is_last = components.peek().is_none();
        let next = match openat2(&at, component, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::NOENT) if is_last && !is_folder => {
                let make = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                drop(openat2(&at, component, make, Mode::from_raw_mode(0o644), resolve)?);
                openat2(&at, component, flags, Mode::empty(), resolve)?
            }
            Err(rustix::io::Errno::NOENT) => {
                mkdirat(&at, component, Mode::from_raw_mode(0o755))?;
                openat2(&at, component, flags, Mode::empty(), resolve)?
            }
            Err(rustix::io::Errno::LOOP) => {
                return Err(io::Error::other("a symbolic link of the sandbox is at the mount point"));
            }
            other => other?,
        };
        at = next;
    }
    Ok(at)
}

/// A name by which the kernel finds what was opened.
fn descriptor_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn with_context(what: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| io::Error::other(format!("{what}: {errno}"))
}

fn with_path(path: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{path} in the sandbox: {error}"))
}
