//! The command line of `towpath config`, and of whose settings are meant.

use clap::{Args, Subcommand, ValueEnum};

use super::{Common, Output};
use crate::config::Mode;

/// `towpath config`
#[derive(Debug, Args)]
pub struct ConfigCommand {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// The command whose settings are meant; a few defaults differ.
    #[arg(long = "for", value_enum, default_value_t = For::Dev, global = true)]
    pub command_of: For,
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigVerb,
}

/// Whose settings.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum For {
    /// `towpath dev`
    Dev,
    /// `towpath serve --role api` or `all`
    Api,
    /// `towpath serve --role worker`
    Worker,
    /// `towpath serve --role scheduler`
    Scheduler,
    /// `towpath agent`
    Agent,
}

impl From<For> for Mode {
    fn from(command: For) -> Self {
        match command {
            For::Dev => Self::Dev,
            For::Api => Self::Api,
            For::Worker => Self::Worker,
            For::Scheduler => Self::Scheduler,
            For::Agent => Self::Agent,
        }
    }
}

/// What `towpath config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print each setting with where it comes from; secrets are hidden.
    Show {
        /// Table for people or JSON for programs.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Say what is wrong with the settings; exit code 2 when something is.
    Check,
}
