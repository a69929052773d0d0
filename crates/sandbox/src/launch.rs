//! Launches a box, with two processes without threads.
//!
//! [`run_launcher`] enters the control groups, creates the namespaces for process ids, network, host name, IPC and
//! control groups, starts [`run_init`] as the first process of the box, records it and exits. [`run_init`] assembles
//! the root, leaves the host's root, becomes the root of a user namespace that owns nothing else, confines itself and
//! becomes the agent.
//!
//! If the platform is root, all other namespaces belong to the host's user namespace: root of the box has no rights
//! over them. Otherwise the user namespace comes first and maps only the platform's own account.

mod confine;
mod loopback;
mod root_file_system;
mod seccomp;

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, getegid, geteuid, setgroups, sethostname, setresgid, setresuid};
use rustix::thread::{capabilities, set_capabilities};
use serde::{Deserialize, Serialize};

use crate::agent::AgentSetup;
use crate::client::SOCKET;
use crate::namespace::libraries::Library;
use crate::namespace::process_record::ProcessRecord;
use crate::program;
use crate::spec::VolumeMount;

/// What is to be made, in the folder of the life.
pub(crate) const LAUNCH_FILE: &str = "launch.json";
/// Where the root is assembled, beside it.
pub(crate) const ROOT_FOLDER: &str = "root";
/// Users of a box.
pub(crate) const USER_COUNT: u32 = 65_536;
/// Where the agent is in the box.
pub(crate) const AGENT_PATH: &str = "/run/towpath/agent";
/// What starts it in an image, with the libraries of the host.
pub(crate) const LOADER_PATH: &str = "/run/towpath/loader";
pub(crate) const LIBRARY_FOLDER: &str = "/run/towpath/lib";
/// What the agent reads at its start.
pub(crate) const SETUP_PATH: &str = "/run/towpath/box.json";

/// The certificate of the authority that the proxy uses.
pub(crate) const AUTHORITY_PATH: &str = "/run/towpath/authority.pem";
/// The same, behind those that the host trusts.
pub(crate) const BUNDLE_PATH: &str = "/run/towpath/bundle.pem";

/// The box to make. Written by the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchPlan {
    /// `cgroup.procs` of the groups to enter.
    pub(crate) groups: Vec<PathBuf>,
    /// The host user that is root in the box, the first of [`USER_COUNT`]. `None`: the platform's own account.
    pub(crate) first_user: Option<u32>,
    pub(crate) hostname: String,
    /// What becomes the agent.
    pub(crate) program: PathBuf,
    /// Read-only layers of the root, the upper ones first.
    pub(crate) lower: Vec<PathBuf>,
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    /// Folders of the host that the box sees, read-only.
    pub(crate) readable: Vec<String>,
    /// What the program needs of the host in a root that is not the host's.
    #[serde(default)]
    pub(crate) libraries: Vec<Library>,
    pub(crate) shm_bytes: u64,
    pub(crate) mounts: Vec<VolumeMount>,
    pub(crate) agent: AgentSetup,
}

impl LaunchPlan {
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(LAUNCH_FILE))?)?)
    }
}

/// The inner process asks to be recorded and mapped.
const READY_BYTE: u8 = b'?';
/// The outer process has done it.
const START_BYTE: u8 = b'!';

/// The outer process. Its standard input is the lock of the box, which it holds while it runs.
pub(crate) fn run_launcher(folder: &Path) -> io::Result<()> {
    close_inherited()?;
    let launch = LaunchPlan::read(folder)?;
    for group in &launch.groups {
        fs::write(group, "0").map_err(with_context("entering a control group"))?;
    }
    // A signal to the platform's terminal is none to the box.
    nix::unistd::setsid().map_err(|errno| with_context("a session of its own")(errno.into()))?;
    let apart = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    if launch.first_user.is_some() {
        unshare(apart).map_err(namespace_error)?;
    } else {
        let (user, group) = (geteuid(), getegid());
        unshare(apart | CloneFlags::CLONE_NEWUSER).map_err(namespace_error)?;
        fs::write("/proc/self/setgroups", "deny").map_err(with_context("mapping users"))?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1")).map_err(with_context("mapping users"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1")).map_err(with_context("mapping groups"))?;
    }
    sethostname(&launch.hostname).map_err(|errno| with_context("naming the host")(errno.into()))?;
    loopback::bring_up().map_err(with_context("the loopback interface"))?;
    // Root of the box has no rights over its network; a kernel without this setting reserves low ports for root.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");

    let listener = agent_listener(folder)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let child = Command::new("/proc/self/exe")
        .arg(program::INIT)
        .arg(folder)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .map_err(with_context("the first process"))?;
    let mut said = [0];
    if ours.read(&mut said)? == 1 && said == [READY_BYTE] {
        // From here on, the process can be found through the folder.
        ProcessRecord::of_process(child.id())?.write(folder)?;
        if let Some(first) = launch.first_user {
            let map = format!("0 {first} {USER_COUNT}");
            for file in ["uid_map", "gid_map"] {
                fs::write(format!("/proc/{}/{file}", child.id()), &map).map_err(with_context("mapping users"))?;
            }
        }
        ours.write_all(&[START_BYTE])?;
    }
    // EOF means that the agent has started or the process has ended; its error is on our standard error.
    let mut rest = Vec::new();
    ours.read_to_end(&mut rest)?;
    if rest.is_empty() && said == [READY_BYTE] {
        return Ok(());
    }
    Err(io::Error::other("the sandbox did not start"))
}

/// The first process of the box: standard input is the agent's socket, standard output is a pipe to the outer process.
pub(crate) fn run_init(folder: &Path) -> io::Result<()> {
    let outer = io::stdout().as_fd().try_clone_to_owned()?;
    let mut outer = UnixStream::from(outer);
    let launch = LaunchPlan::read(folder)?;
    if let Err(error) = initialize(folder, &launch, &mut outer) {
        // Any byte means failure; the text goes where the platform reads it.
        outer.write_all(b"x")?;
        return Err(error);
    }
    let error = agent_command()
        .arg(program::AGENT)
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .exec();
    outer.write_all(b"x")?;
    Err(with_context("the agent")(error))
}

fn initialize(folder: &Path, launch: &LaunchPlan, outer: &mut UnixStream) -> io::Result<()> {
    root_file_system::enter(folder, launch)?;
    if let Some(first) = launch.first_user {
        owned_by(first)?;
        unshare(CloneFlags::CLONE_NEWUSER).map_err(namespace_error)?;
    }
    outer.write_all(&[READY_BYTE])?;
    let mut said = [0];
    outer.read_exact(&mut said)?;
    if launch.first_user.is_some() {
        setgroups(&[])?;
        let (group, user) = (Gid::from_raw(0), Uid::from_raw(0));
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
    }
    confine::confine()
}

/// The program of the agent, in a box.
pub(crate) fn agent_command() -> Command {
    if !Path::new(LOADER_PATH).exists() {
        return Command::new(AGENT_PATH);
    }
    let mut command = Command::new(LOADER_PATH);
    command.args(["--library-path", LIBRARY_FOLDER, AGENT_PATH]);
    command
}

/// Makes the box's user the owner of its user namespace. Otherwise a box could use up the limits of the host's root,
/// such as 128 inotify instances.
fn owned_by(user: u32) -> io::Result<()> {
    let (root, user) = (Uid::from_raw(0), Uid::from_raw(user));
    setresuid(root, user, root)?;
    // The capabilities are still permitted, and only not in effect.
    let mut sets = capabilities(None)?;
    sets.effective = sets.permitted;
    Ok(set_capabilities(None, sets)?)
}

fn agent_listener(folder: &Path) -> io::Result<UnixListener> {
    // A path of any length would be too long for the kernel.
    std::env::set_current_dir(folder)?;
    let listener = UnixListener::bind(SOCKET).map_err(with_context("the socket of the agent"))?;
    fs::set_permissions(SOCKET, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Closes inherited descriptors, which must not leak into the box.
fn close_inherited() -> io::Result<()> {
    // The listing has its own descriptor, which is closed by the time the others are.
    let numbers: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

fn namespace_error(errno: Errno) -> io::Error {
    io::Error::other(format!(
        "namespaces: {errno}: the kernel or a security module does not let this account create them"
    ))
}

/// Says what was tried.
fn with_context(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
