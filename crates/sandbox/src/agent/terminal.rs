//! `box-terminal`: takes its input as controlling terminal, and executes a command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let program = arguments.next().ok_or(io::ErrorKind::InvalidInput)?;
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(io::stdin())?;
    Err(Command::new(program).args(arguments).exec())
}
