//! Jobs of an agent server.
//!
//! An agent server has its own database, workers and scheduler, so its jobs are registered separately from the
//! platform's.

use towpath_durable::Registry;
use towpath_queue::Queue;
use towpath_store::Store;

use crate::embed_items::EmbedItems;
use crate::fire_cron::FireCron;
use crate::run_agent::RunAgent;
use crate::send_push::SendPush;
use crate::send_webhook::SendWebhook;
use crate::sweep_agent::SweepAgent;

pub use crate::agent_services::{AgentServices, AuthorSettings, EVENT_RETENTION, Settings};
pub use crate::reloadable::Reloadable;
pub use crate::send_webhook::WebhookRules;
pub use crate::sweep_agent::ensure as ensure_sweeps;

/// Sends notifications of this store's transactions (wakes, cancels, live events) through the queue.
pub fn connect(store: &Store, queue: &Queue) {
    let queue = queue.clone();
    store.on_hints(move |mut told| {
        for (thread, frame) in std::mem::take(&mut told.events) {
            queue.publish(thread, frame);
        }
        towpath_durable::send_hints(&queue, &told);
    });
}

/// Every kind of job of an agent server.
#[must_use]
pub fn registry() -> Registry<AgentServices> {
    Registry::default()
        .with::<RunAgent>()
        .with::<SendWebhook>()
        .with::<SendPush>()
        .with::<FireCron>()
        .with::<EmbedItems>()
        .with::<SweepAgent>()
}
