//! `towpath enter`: becomes another program inside of control groups and of a cell. The platform starts code of deployments
//! through it.

use anyhow::Context as _;
use towpath_compute::launcher::{self, Cell, Layer};

use crate::arguments::Enter;

/// Becomes the program.
///
/// # Errors
/// A group or the cell cannot be entered, or there is no such program.
pub fn run(command: Enter) -> anyhow::Result<()> {
    let (program, arguments) = command.command.split_first().context("no program is named")?;
    let cell = command.user.zip(command.temporary).map(|(user, temporary)| Cell {
        user,
        covers: command.covers,
        temporary,
        readable: command.readable,
        writable: command.writable,
        layer: command
            .layer
            .zip(command.over)
            .map(|(folder, over)| Layer { folder, over }),
    });
    let error = launcher::enter(&command.groups, cell.as_ref(), program, arguments);
    Err(error).with_context(|| format!("starting {}", program.display()))
}
