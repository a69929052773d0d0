//! Jobs of an agent server and their services.
//!
//! An agent server has its own database, workers and scheduler, so its jobs are registered separately from the
//! platform's.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use towpath_domain::Secret;
use towpath_durable::Registry;
use towpath_outbound::Guard;
use towpath_queue::Queue;
use towpath_runtime::GraphSet;
use towpath_store::Store;
use towpath_store::threads::Ttl;

use crate::item_index::ItemIndex;
use crate::run_agent::RunLoader;
use crate::tracer::Tracer;

pub use crate::send_webhook::WebhookRules;
pub use crate::sweep_agent::ensure as ensure_sweeps;

/// Services of an agent server's workflows.
pub struct AgentServices {
    /// For reading. A workflow writes through its `Ctx`.
    pub store: Store,
    /// Loads starting runs.
    pub runs: RunLoader,
    /// Publishes live events.
    pub queue: Queue,
    /// The graphs that this server offers.
    pub graphs: GraphSet,
    /// Checks addresses from users.
    pub guard: Guard,
    /// The index of the store's items.
    pub items: ItemIndex,
    /// Traces runs of graphs that are declared as data, if a platform is configured.
    pub tracer: Option<Tracer>,
    pub settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Attempts before a run ends as failed.
    pub max_attempts: u32,
    /// Time limit of a run.
    pub timeout: Duration,
    /// How long events are kept after the end of a run.
    pub event_retention: Duration,
    /// Whether every event is logged: in several processes without Redis, readers only find events in the log.
    pub log_all: bool,
    pub webhook_secret: Option<Secret>,
    /// Settings of the graphs' author.
    pub author_settings: Reloadable<AuthorSettings>,
    /// Address of this server, as shown in the metadata of runs.
    pub api_url: Option<String>,
    /// Checkpoints kept for each namespace of a thread; 0 keeps all.
    pub keep_checkpoints: u32,
    /// How long checkpoints except the latest of a namespace are kept; zero keeps all.
    pub checkpoint_retention: Duration,
}

/// Settings of the graphs' author; their file may change while the server runs.
#[derive(Clone, Debug)]
pub struct AuthorSettings {
    /// Webhook settings.
    pub webhooks: WebhookRules,
    /// How long threads are kept that were created for runs.
    pub thread_ttl: Option<Ttl>,
    /// Whether reading an item restarts its time to live, unless the graph specifies it.
    pub refresh_on_read: bool,
}

impl Default for AuthorSettings {
    fn default() -> Self {
        Self {
            webhooks: WebhookRules::default(),
            thread_ttl: None,
            refresh_on_read: true,
        }
    }
}

/// A value that can be replaced while others read it; clones share it.
#[derive(Debug, Default)]
pub struct Reloadable<T>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Reloadable<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(value))))
    }

    #[must_use]
    pub fn current(&self) -> Arc<T> {
        self.0.read().clone()
    }

    /// Replaces the value for all readers.
    pub fn replace(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}

/// Default time that events are kept after the end of a run.
pub const EVENT_RETENTION: Duration = Duration::from_secs(120);

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            timeout: Duration::from_secs(86_400),
            event_retention: EVENT_RETENTION,
            log_all: false,
            webhook_secret: None,
            author_settings: Reloadable::default(),
            api_url: None,
            keep_checkpoints: 0,
            checkpoint_retention: Duration::ZERO,
        }
    }
}

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
        .with::<crate::run_agent::RunAgent>()
        .with::<crate::send_webhook::SendWebhook>()
        .with::<crate::send_push::SendPush>()
        .with::<crate::fire_cron::FireCron>()
        .with::<crate::embed_items::EmbedItems>()
        .with::<crate::sweep_agent::SweepAgent>()
}
