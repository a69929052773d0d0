//! Names of the parts that every graph has.

/// Where a run enters.
pub(super) const START: &str = "__start__";
/// Where it leaves.
pub(super) const END: &str = "__end__";
/// The channel of packets.
pub(super) const TASKS: &str = "__pregel_tasks";
