//! Runs: of a thread, and stateless ones that bring their thread along.

pub(super) mod assistants;
pub(super) mod batch;
mod begin;
pub(crate) mod cancel;
mod model;
mod on_thread;
mod stop;
mod without_thread;

use super::app::AgentApp;
use crate::routes::Routes;

pub(super) use begin::PreparedRun;
pub(super) use model::{FIELDS, Run};
pub(super) use on_thread::since;

pub(super) fn routes() -> Routes<AgentApp> {
    on_thread::routes()
        .merge(without_thread::routes())
        .merge(batch::routes())
        .merge(stop::routes())
}
