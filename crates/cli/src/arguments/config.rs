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
    /// The command whose settings are used; a few defaults differ.
    #[arg(long = "for", value_enum, default_value_t = ConfigTarget::Dev, global = true)]
    pub command_of: ConfigTarget,
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigVerb,
}

/// Whose settings.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ConfigTarget {
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

impl From<ConfigTarget> for Mode {
    fn from(command: ConfigTarget) -> Self {
        match command {
            ConfigTarget::Dev => Self::Dev,
            ConfigTarget::Api => Self::Api,
            ConfigTarget::Worker => Self::Worker,
            ConfigTarget::Scheduler => Self::Scheduler,
            ConfigTarget::Agent => Self::Agent,
        }
    }
}

/// What `towpath config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print each setting with its source; secrets are hidden.
    Show {
        /// Table for people or JSON for programs.
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Report problems of the settings; exit code 2 if there are any.
    Check,
}
