//! The box commands of our own binary, selected by the first argument. Each starts without threads.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::{agent, launch, namespace};

/// Makes the namespaces of a box; ends when the box runs.
pub(crate) const LAUNCH: &str = "box-launch";
/// The first process of a box, until it becomes the agent.
pub(crate) const INIT: &str = "box-init";
/// The agent of a box.
pub(crate) const AGENT: &str = "box-agent";
/// Removes the box of a self-test whose platform has ended.
pub(crate) const GUARD: &str = "box-guard";
/// One operation on files, as the user of a box.
pub(crate) const FILE: &str = "box-file";
/// Does nothing: the loader of a program that has one lists its libraries instead.
pub(crate) const LIBRARIES: &str = "box-libraries";
/// Takes a terminal and becomes a command.
pub(crate) const TERMINAL: &str = "box-terminal";

/// Runs one of these commands. `None` for other arguments. Call it before any thread is started.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    let command = arguments.next()?;
    let done = match command.to_str()? {
        LAUNCH => folder(arguments).and_then(|folder| launch::run_launcher(&folder)),
        INIT => folder(arguments).and_then(|folder| launch::run_init(&folder)),
        AGENT => agent::run(),
        GUARD => namespace::run_guard(arguments),
        FILE => agent::file::run(arguments),
        LIBRARIES => Ok(()),
        TERMINAL => agent::terminal::run(arguments),
        _ => return None,
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", command.display());
            ExitCode::FAILURE
        }
    })
}

fn folder(mut arguments: impl Iterator<Item = OsString>) -> io::Result<PathBuf> {
    let folder = arguments.next().map(PathBuf::from);
    folder
        .ok_or_else(|| io::Error::other("the folder of the sandbox is missing; only the platform starts this command"))
}
