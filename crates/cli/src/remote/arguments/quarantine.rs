//! The command line of `towpath traces`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use towpath_domain::QuarantineId;

use super::ServerOptions;
use crate::arguments::Output;

/// `towpath traces`
#[derive(Debug, Args)]
pub struct Traces {
    /// What about.
    #[command(subcommand)]
    pub command: TracesCommand,
}

/// What `towpath traces` is about.
#[derive(Debug, Subcommand)]
pub enum TracesCommand {
    /// Show accepted trace data that could not be folded, fold it again, drop it.
    Quarantine(Quarantine),
}

/// `towpath traces quarantine`
#[derive(Debug, Args)]
pub struct Quarantine {
    /// Which server. Here --tenant narrows ls, retry --all and drop --all to one workspace.
    #[command(flatten)]
    pub server: ServerOptions,
    /// The same as --output json.
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<QuarantineCommand>,
}

impl Quarantine {
    /// How results are printed.
    pub fn output(&self) -> Output {
        if self.json { Output::Json } else { self.server.output }
    }
}

/// What `towpath traces quarantine` does.
#[derive(Debug, Subcommand)]
pub enum QuarantineCommand {
    /// List entries, the latest of each workspace first; those of one workspace with --tenant.
    Ls {
        /// At most so many.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        limit: u64,
    },
    /// Show an entry with what is known of its frames.
    Show {
        /// Id of the entry.
        entry: QuarantineId,
        /// Write the body of a frame into this file, as it was sent; it holds data of users.
        #[arg(long, value_name = "FILE")]
        body: Option<PathBuf>,
        /// Which frame that is, counted from 0. Only an entry whose object was missing can have several.
        #[arg(long, default_value_t = 0, requires = "body", value_parser = clap::value_parser!(u32).range(..1 << 20))]
        frame: u32,
    },
    /// Fold entries again. They count as accepted now, behind everything else.
    Retry(ChosenEntries),
    /// Drop entries for good. What was accepted with them is lost.
    Drop {
        /// Which.
        #[command(flatten)]
        chosen: ChosenEntries,
        /// Confirm that it is lost.
        #[arg(long, required = true)]
        yes: bool,
    },
}

impl Default for QuarantineCommand {
    fn default() -> Self {
        Self::Ls { limit: 50 }
    }
}

/// Entries named, or all of them.
#[derive(Debug, Args)]
pub struct ChosenEntries {
    /// These entries.
    #[arg(value_name = "ENTRY", required_unless_present = "all", conflicts_with = "all")]
    pub entries: Vec<QuarantineId>,
    /// All entries; those of one workspace with --tenant.
    #[arg(long)]
    pub all: bool,
}
