//! Processes of the box's users.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::unistd::{Gid, Uid, fchown};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::AgentSetup;
use super::users::User;
use crate::exec::{ExecRequest, PtySize};
use crate::launch::{AUTHORITY_PATH, BUNDLE_PATH, agent_command};
use crate::program;
use crate::proxy::PROXY_PORT;
use crate::wire::{Failure, FailureKind};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_SHELL: &str = "/bin/sh";
const PROXY_VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
/// Programs reach the box itself without the proxy.
const DIRECT_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// What OpenSSL, curl, Git, Python and others read instead of the certificates of the system.
const BUNDLE_VARIABLES: [&str; 7] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
];

/// A command that was begun, and the ends of its streams.
#[derive(Debug)]
pub(super) struct SpawnedCommand {
    pub(super) pid: i32,
    /// Missing where it was closed.
    pub(super) input: Option<OwnedFd>,
    pub(super) output: Vec<OwnedFd>,
    /// Input and output at once.
    pub(super) terminal: Option<OwnedFd>,
}

pub(super) fn spawn_command(setup: &AgentSetup, request: &ExecRequest) -> Result<SpawnedCommand, Failure> {
    let user = User::find(setup, request.user.as_deref())?;
    let folder = work_dir(setup, &user, request.cwd.as_deref());
    if !folder.is_dir() {
        let text = format!("cwd {} is not a directory in the sandbox", folder.display());
        return Err(Failure::new(FailureKind::NotFound, text));
    }
    let shell = available_shell(&request.shell);
    let failed = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => FailureKind::Denied,
            io::ErrorKind::WouldBlock => FailureKind::Busy,
            io::ErrorKind::ArgumentListTooLong => FailureKind::Invalid,
            _ => FailureKind::Other,
        };
        Failure::new(kind, format!("starting {shell}: {error}"))
    };
    let spawned = match request.pty {
        Some(size) => spawn_in_terminal(setup, request, &user, &folder, &shell, size),
        None => spawn_with_pipes(setup, request, &user, &folder, &shell),
    };
    spawned.map_err(failed)
}

fn spawn_with_pipes(
    setup: &AgentSetup,
    request: &ExecRequest,
    user: &User,
    folder: &Path,
    shell: &str,
) -> io::Result<SpawnedCommand> {
    let mut command = prepare_command(Command::new(shell), setup, user, folder, &request.env);
    command.args(["-c", &request.command]);
    // The group is what is killed.
    command.process_group(0);
    let input = if request.close_stdin {
        Stdio::null()
    } else {
        Stdio::piped()
    };
    let mut child = command
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().map(OwnedFd::from);
    let errors = child.stderr.take().map(OwnedFd::from);
    Ok(SpawnedCommand {
        pid: child_pid(&child)?,
        input: child.stdin.take().map(OwnedFd::from),
        output: output.into_iter().chain(errors).collect(),
        terminal: None,
    })
}

fn spawn_in_terminal(
    setup: &AgentSetup,
    request: &ExecRequest,
    user: &User,
    folder: &Path,
    shell: &str,
    size: PtySize,
) -> io::Result<SpawnedCommand> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    resize_terminal(&slave, size)?;
    if let Some((user, group)) = user.ids {
        fchown(&slave, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    let mut command = prepare_command(agent_command(), setup, user, folder, &request.env);
    if !request.env.contains_key("TERM") {
        command.env("TERM", "xterm-256color");
    }
    let child = command
        .args([program::TERMINAL, shell, "-c", &request.command])
        .stdin(slave.try_clone()?)
        .stdout(slave.try_clone()?)
        .stderr(slave)
        .spawn()?;
    Ok(SpawnedCommand {
        pid: child_pid(&child)?,
        input: None,
        output: Vec::new(),
        terminal: Some(master),
    })
}

/// Changes the size of a terminal.
pub(super) fn resize_terminal(terminal: &OwnedFd, size: PtySize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Performs a file operation on a connection, as the user.
pub(super) fn spawn_file_operation(setup: &AgentSetup, user: &User, call: &str, connection: OwnedFd) -> io::Result<()> {
    let folder = work_dir(setup, user, None);
    let folder = if folder.is_dir() { folder } else { "/".into() };
    let child = prepare_command(agent_command(), setup, user, &folder, &BTreeMap::new())
        .args([program::FILE, call])
        .stdin(connection)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.map(drop)
}

fn prepare_command(
    mut command: Command,
    setup: &AgentSetup,
    user: &User,
    folder: &Path,
    variables: &BTreeMap<String, String>,
) -> Command {
    command
        .env_clear()
        .env("PATH", DEFAULT_PATH)
        .env("HOME", &user.home)
        .env("USER", &user.name)
        .env("LOGNAME", &user.name)
        .env("LANG", "C.UTF-8")
        .envs(proxy_variables(setup))
        .envs(&setup.env)
        .envs(variables)
        .current_dir(folder);
    if let Some((user, group)) = user.ids {
        command.uid(user).gid(group);
    }
    command
}

/// How programs find the proxy, and which certificates they trust.
fn proxy_variables(setup: &AgentSetup) -> Vec<(&'static str, String)> {
    if !setup.has_proxy {
        return Vec::new();
    }
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let of = |names: &[&'static str], value: &str| names.iter().map(|name| (*name, value.to_owned())).collect();
    let variables: [Vec<_>; 4] = [
        of(&PROXY_VARIABLES, &proxy),
        of(&DIRECT_VARIABLES, "localhost,127.0.0.1"),
        of(&BUNDLE_VARIABLES, BUNDLE_PATH),
        // It adds to what the program trusts anyway.
        of(&["NODE_EXTRA_CA_CERTS"], AUTHORITY_PATH),
    ];
    variables.concat()
}

/// Where relative paths begin.
pub(super) fn work_dir(setup: &AgentSetup, user: &User, cwd: Option<&str>) -> PathBuf {
    let base = setup.work_dir.as_deref().map_or(Path::new(&user.home), Path::new);
    let base = Path::new(&user.home).join(base);
    cwd.map_or(base.clone(), |cwd| base.join(cwd))
}

fn available_shell(asked: &str) -> String {
    let is_there = if asked.contains('/') {
        Path::new(asked).is_file()
    } else {
        DEFAULT_PATH
            .split(':')
            .any(|folder| Path::new(folder).join(asked).is_file())
    };
    let shell = if is_there { asked } else { DEFAULT_SHELL };
    shell.to_owned()
}

fn child_pid(child: &Child) -> io::Result<i32> {
    i32::try_from(child.id()).map_err(io::Error::other)
}
