//! What a backend is told to start, and what runs then.

use towpath_domain::{DeploymentId, RevisionId, Secret};

/// A check needs only one process for its graphs, as each process loads all of them.
pub(crate) const ONE_HOST: (&str, &str) = ("TOWPATH_AGENT_HOSTS", "1");

/// An agent server to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Whose it is: its database outlives every revision.
    pub deployment: DeploymentId,
    /// What it runs.
    pub revision: RevisionId,
    /// The artifact's key.
    pub artifact: String,
    /// Variables, secrets among them.
    pub variables: Vec<(String, Secret)>,
    /// CPUs it may use.
    pub cpus: Option<f64>,
    /// Memory it may use, in MB.
    pub memory_mb: Option<u64>,
}

/// An agent server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningAgent {
    /// What it runs.
    pub revision: RevisionId,
    /// Where the gateway finds it: `host:port`.
    pub address: String,
}
