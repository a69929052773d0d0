//! What this crate counts.

towpath_domain::metric_table! {
    pub fn describe;

    gauge AGENTS = "towpath_deployment_agents", "Running agent servers of deployments";
    counter RESTARTS = "towpath_deployment_restarts_total",
        "Restarts of agent servers of deployments that ended by themselves";
    histogram PROGRAM_SECONDS = "towpath_build_program_seconds",
        "Duration of one program of a build, by purpose: git, install_command, build_command";
}

/// Counts a restart. Called by the process that runs deployments.
pub fn count_restart() {
    metrics::counter!(RESTARTS).increment(1);
}
