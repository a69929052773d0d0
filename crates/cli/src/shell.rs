//! `towpath completions` and `towpath man`: made from the command line itself.

use std::io::Write as _;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::arguments::{Arguments, Completions, Man};

pub fn completions(command: &Completions) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(command.shell, &mut Arguments::command(), "towpath", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

pub fn man(command: &Man) -> anyhow::Result<()> {
    let arguments = Arguments::command();
    match &command.to {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| format!("folder {}", folder.display()))?;
            clap_mangen::generate_to(arguments, folder).with_context(|| format!("folder {}", folder.display()))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(arguments).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(())
}
