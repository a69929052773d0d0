//! Runs: of a thread, and stateless ones that bring their thread along.

mod alone;
pub(super) mod assistants;
pub(super) mod batch;
mod begin;
mod model;
mod on_thread;
pub(crate) mod stop;

use super::app::AgentApp;
use crate::routes::Routes;

pub(super) use begin::Ready;
pub(super) use model::FIELDS;
pub(super) use on_thread::since;

pub(super) fn routes() -> Routes<AgentApp> {
    on_thread::routes()
        .merge(alone::routes())
        .merge(batch::routes())
        .merge(stop::routes())
}
