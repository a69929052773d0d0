//! `towpath enter`: becomes another program inside of control groups. The platform starts agent servers through it.

use anyhow::Context as _;
use towpath_compute::launcher;

use crate::arguments::Enter;

/// Becomes the program.
///
/// # Errors
/// A group cannot be entered, or there is no such program.
pub fn run(command: &Enter) -> anyhow::Result<()> {
    let (program, arguments) = command.command.split_first().context("no program is named")?;
    let error = launcher::enter(&command.groups, program, arguments);
    Err(error).with_context(|| format!("starting {}", program.display()))
}
