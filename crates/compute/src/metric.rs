//! What this crate counts.

use metrics::Unit;

pub(crate) const AGENTS: &str = "towpath_deployment_agents";
/// Counted by the caller that runs deployments.
pub const RESTARTS: &str = "towpath_deployment_restarts_total";
pub(crate) const PROGRAM_SECONDS: &str = "towpath_build_program_seconds";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_gauge!(AGENTS, Unit::Count, "Running agent servers of deployments");
    metrics::describe_counter!(
        RESTARTS,
        Unit::Count,
        "Restarts of agent servers of deployments that ended by themselves"
    );
    metrics::describe_histogram!(
        PROGRAM_SECONDS,
        Unit::Seconds,
        "Duration of one program of a build, by purpose: git, install_command, build_command"
    );
}
