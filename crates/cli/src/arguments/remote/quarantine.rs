//! The command line of `towpath traces`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use towpath_domain::QuarantineId;

use super::ServerOptions;
use crate::arguments::output::Output;

/// `towpath traces`
#[derive(Debug, Args)]
pub struct Traces {
    /// What to do.
    #[command(subcommand)]
    pub command: TracesCommand,
}

/// What `towpath traces` is about.
#[derive(Debug, Subcommand)]
pub enum TracesCommand {
    /// Show, retry or drop accepted trace data that could not be flushed.
    Quarantine(Quarantine),
}

/// `towpath traces quarantine`
#[derive(Debug, Args)]
pub struct Quarantine {
    /// Which server. Here --tenant restricts ls, retry --all and drop --all to one workspace.
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
        /// Maximum number of rows.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        limit: u64,
    },
    /// Show an entry and its frames.
    Show {
        /// Id, as `towpath traces quarantine ls` shows it.
        entry: QuarantineId,
        /// Write the body of a frame to this file, as it was sent; it contains user data.
        #[arg(long, value_name = "FILE")]
        body: Option<PathBuf>,
        /// Index of that frame, counted from 0. Only an entry with a missing object can have several.
        #[arg(long, default_value_t = 0, requires = "body", value_parser = clap::value_parser!(u32).range(..1 << 20))]
        frame: u32,
    },
    /// Flush entries again. They count as accepted now, behind all other data.
    Retry(EntrySelection),
    /// Drop entries permanently. Their data is lost.
    Drop {
        #[command(flatten)]
        chosen: EntrySelection,
        /// Confirm the loss.
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
pub struct EntrySelection {
    /// Ids, as `towpath traces quarantine ls` shows them.
    #[arg(value_name = "ENTRY", required_unless_present = "all", conflicts_with = "all")]
    pub entries: Vec<QuarantineId>,
    /// All entries; those of one workspace with --tenant.
    #[arg(long)]
    pub all: bool,
}
