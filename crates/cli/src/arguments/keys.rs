//! The command line of `towpath keys`.

use std::convert::Infallible;

use clap::{Args, Subcommand};
use towpath_domain::{DeploymentId, KeyId, Scope, Secret, TenantId};

use super::{Common, Output};

/// `towpath keys`
#[derive(Debug, Args)]
pub struct Keys {
    /// Shared options.
    #[command(flatten)]
    pub common: Common,
    /// Use this server, as an operator [default: the server that uses the data folder, if there is one; else the
    /// database itself]
    #[arg(long, value_name = "URL", env = "TOWPATH_SERVER", global = true)]
    pub server: Option<String>,
    /// An operator key for the server; prefer the environment, because arguments are visible in process lists
    /// [default: for a server on this machine, the key that `towpath dev` keeps in its data folder]
    #[arg(long, value_name = "KEY", env = "TOWPATH_API_KEY", hide_env_values = true, value_parser = secret, global = true)]
    pub api_key: Option<Secret>,
    /// Table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t, global = true)]
    pub output: Output,
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

/// What `towpath keys` does.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Create a key and print it once. Creates the first organization and workspace if there is none.
    Create {
        /// Name of the key.
        #[arg(long, default_value = "cli")]
        name: String,
        /// The only workspace that the key opens [default: all of its organization]
        #[arg(long, value_name = "UUID")]
        workspace: Option<TenantId>,
        /// Make it an operator key: /internal, the dashboard, jobs of every workspace. The first key is one.
        #[arg(long)]
        operator: bool,
        /// Scopes of the key, separated by commas: traces:write, traces:read, exports, agents:invoke,
        /// agents:invoke:<deployment id>, deployments, sandboxes, workspace:admin, org:admin, operator:read, operator
        /// [default: everything except operator rights]
        #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
        scope: Vec<Scope>,
        /// Restrict the key to calls of this deployment
        #[arg(long, value_name = "UUID", conflicts_with_all = ["scope", "operator"])]
        deployment: Option<DeploymentId>,
        /// Days until the key expires [default: never]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3650))]
        expires_in_days: Option<u32>,
    },
    /// Give a key a new secret and print it once. The old secret keeps working for a while.
    Rotate {
        /// The key's id, as `keys list` shows it.
        key: KeyId,
        /// How long the old secret keeps working.
        #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=720))]
        overlap_hours: u32,
    },
    /// List the keys, without their secrets.
    #[command(visible_alias = "ls")]
    List,
    /// Revoke a key permanently.
    Revoke {
        /// The key's id, as `keys list` shows it.
        key: KeyId,
    },
    /// Seal every stored secret again under the first encryption key. A job does it; afterwards the former encryption
    /// keys are no longer needed.
    Reseal,
}
