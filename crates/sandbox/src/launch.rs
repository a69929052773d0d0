//! How a box comes to be, in two processes without threads.
//!
//! [`outside`] enters the control groups, makes the namespaces of process ids, network, host name, IPC and control groups,
//! starts [`inside`] as the first process of the box, records it and ends. [`inside`] assembles the root, leaves the
//! host's, becomes the root of a user namespace that owns nothing else, confines itself and becomes the agent.
//!
//! Where the platform is root, every other namespace belongs to the host's user namespace: root of the box has no rights
//! over them. Where it is not, the user namespace comes first and maps the platform's own account alone.

mod confine;
mod filter;
mod loopback;
mod root;

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
use serde::{Deserialize, Serialize};

use crate::agent::Setup;
use crate::client::SOCKET;
use crate::namespace::record::Record;
use crate::program;
use crate::spec::Mount;

/// What is to be made, in the folder of the life.
pub(crate) const FILE: &str = "launch.json";
/// Where the root is assembled, beside it.
pub(crate) const ROOT: &str = "root";
/// Users of a box.
pub(crate) const USERS: u32 = 65_536;
/// Where the agent lies in the box.
pub(crate) const AGENT: &str = "/run/towpath/agent";
/// What the agent reads at its start.
pub(crate) const SETUP: &str = "/run/towpath/box.json";

/// The box to make. Written by the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// `cgroup.procs` of the groups to enter.
    pub(crate) groups: Vec<PathBuf>,
    /// The user of the host that is root in the box, the first of [`USERS`]. None: the own account is.
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
    pub(crate) shm_bytes: u64,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) agent: Setup,
}

impl Launch {
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(FILE))?)?)
    }
}

/// The inner process asks to be recorded and mapped.
const ASK: u8 = b'?';
/// The outer process has done it.
const GO: u8 = b'!';

/// The outer process. Its standard input is the lock of the box, which it holds as long as it runs.
pub(crate) fn outside(folder: &Path) -> io::Result<()> {
    close_inherited()?;
    let launch = Launch::read(folder)?;
    for group in &launch.groups {
        fs::write(group, "0").map_err(at("entering a control group"))?;
    }
    // A signal to the platform's terminal is none to the box.
    nix::unistd::setsid().map_err(|errno| at("a session of its own")(errno.into()))?;
    let apart = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    if launch.first_user.is_some() {
        unshare(apart).map_err(namespaces)?;
    } else {
        let (user, group) = (geteuid(), getegid());
        unshare(apart | CloneFlags::CLONE_NEWUSER).map_err(namespaces)?;
        fs::write("/proc/self/setgroups", "deny").map_err(at("mapping users"))?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1")).map_err(at("mapping users"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1")).map_err(at("mapping groups"))?;
    }
    sethostname(&launch.hostname).map_err(|errno| at("naming the host")(errno.into()))?;
    loopback::up().map_err(at("the loopback interface"))?;
    // Root of the box has no rights over its network; a kernel without the setting keeps low ports to root.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");

    let listener = listen(folder)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let child = Command::new("/proc/self/exe")
        .arg(program::INIT)
        .arg(folder)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .map_err(at("the first process"))?;
    let mut said = [0];
    if ours.read(&mut said)? == 1 && said == [ASK] {
        // From here on whoever finds the folder finds the process.
        Record::of(child.id())?.write(folder)?;
        if let Some(first) = launch.first_user {
            let map = format!("0 {first} {USERS}");
            for file in ["uid_map", "gid_map"] {
                fs::write(format!("/proc/{}/{file}", child.id()), &map).map_err(at("mapping users"))?;
            }
        }
        ours.write_all(&[GO])?;
    }
    // The end says that the agent has begun, or the process has ended: its error stands in our standard error.
    let mut rest = Vec::new();
    ours.read_to_end(&mut rest)?;
    if rest.is_empty() && said == [ASK] {
        return Ok(());
    }
    Err(io::Error::other("the box did not start"))
}

/// The first process of the box: standard input is the agent's socket, standard output leads to the outer process.
pub(crate) fn inside(folder: &Path) -> io::Result<()> {
    let outer = io::stdout().as_fd().try_clone_to_owned()?;
    let mut outer = UnixStream::from(outer);
    let launch = Launch::read(folder)?;
    if let Err(error) = begin(folder, &launch, &mut outer) {
        // Any byte is a failure; the text goes where the platform reads it.
        outer.write_all(b"x")?;
        return Err(error);
    }
    let error = Command::new(AGENT)
        .arg(program::AGENT)
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .exec();
    outer.write_all(b"x")?;
    Err(at("the agent")(error))
}

fn begin(folder: &Path, launch: &Launch, outer: &mut UnixStream) -> io::Result<()> {
    root::enter(folder, launch)?;
    if launch.first_user.is_some() {
        unshare(CloneFlags::CLONE_NEWUSER).map_err(namespaces)?;
    }
    outer.write_all(&[ASK])?;
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

fn listen(folder: &Path) -> io::Result<UnixListener> {
    // A path of any length would be too long for the kernel.
    std::env::set_current_dir(folder)?;
    let listener = UnixListener::bind(SOCKET).map_err(at("the socket of the agent"))?;
    fs::set_permissions(SOCKET, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Closes what the platform may have handed on by accident: a box must not inherit it.
fn close_inherited() -> io::Result<()> {
    let entries: Vec<_> = fs::read_dir("/proc/self/fd")?.flatten().collect();
    for entry in entries {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(number) = number.filter(|number| *number > 2) {
            // The listing's own is closed already.
            let _ = nix::unistd::close(number);
        }
    }
    Ok(())
}

fn namespaces(errno: Errno) -> io::Error {
    io::Error::other(format!(
        "namespaces: {errno}: the kernel or a security module does not let this account make them"
    ))
}

/// Says what was tried.
fn at(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
