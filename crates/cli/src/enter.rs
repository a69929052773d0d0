//! `towpath enter`: becomes another program inside control groups and a cell. The platform starts code of deployments
//! through it.

use anyhow::Context as _;
use towpath_compute::launcher::{self, Cell, Layer};

use crate::arguments::Enter;

pub fn run(command: Enter) -> anyhow::Result<()> {
    let (program, arguments) = command.command.split_first().context("the program is missing")?;
    let cell = command.user.zip(command.temporary).map(|(user, temporary)| Cell {
        user,
        covers: command.covers,
        temporary,
        readable: command.readable,
        writable: command.writable,
        layer: command.layer.zip(command.over).map(|(folder, over)| Layer {
            folder,
            changes_root: over,
        }),
    });
    let error = launcher::enter(&command.groups, cell.as_ref(), program, arguments);
    Err(error).with_context(|| format!("starting {}", program.display()))
}
