//! What this crate counts.

use metrics::Unit;

pub(crate) const AGENTS: &str = "towpath_deployment_agents";
/// Counted by whoever keeps deployments.
pub const RESTARTS: &str = "towpath_deployment_restarts_total";
pub(crate) const PROGRAM_SECONDS: &str = "towpath_build_program_seconds";

/// Says what the metrics of this room mean.
pub fn describe() {
    metrics::describe_gauge!(AGENTS, Unit::Count, "Agent servers of deployments that run");
    metrics::describe_counter!(
        RESTARTS,
        Unit::Count,
        "Agent servers of deployments that ended by themselves, and were started again"
    );
    metrics::describe_histogram!(
        PROGRAM_SECONDS,
        Unit::Seconds,
        "One program of a build, by what it is for: git, install_command, build_command"
    );
}
