//! The Agent Protocol, as far as it differs from this API. Its agents are assistants. A body with `agent_id` and without
//! `assistant_id` follows that protocol: it is renamed before custom auth judges it, and waits are answered in its shape.

mod agents;
mod run_body;
mod run_result;

pub(super) use self::run_body::{JudgedRun, RunBody, rename_run, rename_search};
pub(super) use self::run_result::{RunWaitResponse, run_result};

use super::app::AgentApp;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(agents::search))
        .routes(routes!(agents::get))
        .routes(routes!(agents::schemas))
}
