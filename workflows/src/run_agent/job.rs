//! The job of a run, for those who record it, and its lane.

use serde::{Deserialize, Serialize};
use towpath_domain::{RunId, TenantId, ThreadId};
use towpath_durable::Lane;

pub const POOL: &str = "agent";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunAgent {
    pub tenant: TenantId,
    pub run: RunId,
    pub thread: ThreadId,
    /// Whether the thread is deleted with it.
    #[serde(default)]
    pub temporary: bool,
    /// How long its events are kept after its end, in seconds.
    #[serde(default)]
    pub events_kept_s: u64,
}

#[must_use]
pub fn lane(thread: ThreadId) -> Lane {
    Lane::new(format!("thread:{thread}"), 1)
}
