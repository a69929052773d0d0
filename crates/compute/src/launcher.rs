//! What stands between the platform and a program it starts: it enters control groups and becomes that program.
//!
//! The kernel counts what a process uses from the moment it is in a group, and its children from their first. So the
//! process enters by itself, before it is the program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// The sub-command of `towpath` that does this.
pub const COMMAND: &str = "enter";

/// Enters the groups whose `cgroup.procs` these are, and becomes the program. Comes back only when it cannot.
#[must_use]
pub fn enter(groups: &[PathBuf], program: &OsStr, arguments: &[OsString]) -> io::Error {
    for group in groups {
        // Zero is whoever writes.
        if let Err(error) = std::fs::write(group, "0") {
            return io::Error::new(error.kind(), format!("entering {}: {error}", group.display()));
        }
    }
    Command::new(program).args(arguments).exec()
}
