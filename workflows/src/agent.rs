//! What the jobs of an agent server share: their world, and which there are.
//!
//! An agent server has a database, workers and a scheduler of its own, so its jobs are registered apart from the
//! platform's.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use towpath_domain::Secret;
use towpath_durable::Registry;
use towpath_outbound::Guard;
use towpath_queue::Queue;
use towpath_runtime::GraphSet;
use towpath_store::Store;
use towpath_store::threads::Ttl;

use crate::run_agent::Runs;
use crate::tracer::Tracer;

pub use crate::send_webhook::Rules;
pub use crate::sweep_agent::ensure as ensure_sweeps;

/// The world of an agent server's workflows.
pub struct AgentWorld {
    /// For reading. A workflow writes through its `Ctx`.
    pub store: Store,
    /// Reads runs that begin.
    pub runs: Runs,
    /// Where live events go.
    pub queue: Queue,
    /// The graphs this server offers.
    pub graphs: GraphSet,
    /// Judges addresses that users gave.
    pub guard: Guard,
    /// Traces runs of graphs that are declared as data, where a platform wants that.
    pub tracer: Option<Tracer>,
    /// Times and limits.
    pub settings: Settings,
}

/// Times and limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A run whose worker failed so often ends as failed.
    pub max_attempts: u32,
    /// A run that takes longer ends as timed out.
    pub timeout: Duration,
    /// How long kept events stay after their run is over.
    pub events_kept: Duration,
    /// Every event goes through the log: where several processes have no Redis between them, readers find it only
    /// there.
    pub log_all: bool,
    /// Signs the bodies of webhooks.
    pub webhook_secret: Option<Secret>,
    /// What the graphs' author says.
    pub authored: Live<Authored>,
    /// Where this server is found, as its runs' metadata say.
    pub api_url: Option<String>,
    /// Checkpoints kept for each namespace of a thread; 0 keeps all.
    pub keep_checkpoints: u32,
    /// How long checkpoints are kept that are not the latest of their namespace; zero keeps all.
    pub checkpoints_kept: Duration,
}

/// What the graphs' author says about what runs do; their file may change while the server works.
#[derive(Clone, Debug)]
pub struct Authored {
    /// Which addresses webhooks may call, and what they are told.
    pub webhooks: Rules,
    /// How long threads live that are made for runs and kept.
    pub thread_ttl: Option<Ttl>,
    /// Whether items that a graph reads begin their time to live anew, where the graph does not say.
    pub refresh_on_read: bool,
}

impl Default for Authored {
    fn default() -> Self {
        Self {
            webhooks: Rules::default(),
            thread_ttl: None,
            refresh_on_read: true,
        }
    }
}

/// A value that may be replaced while others read it; clones share it.
#[derive(Debug, Default)]
pub struct Live<T>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Live<T> {
    /// Begins with this one.
    pub fn new(value: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(value))))
    }

    /// The value now.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        // Nothing panics while it is replaced.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has everybody read this one from now on.
    pub fn replace(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}

/// How long events of a thread or a run are kept after its end, unless the settings say.
pub const EVENTS_KEPT: Duration = Duration::from_secs(120);

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            timeout: Duration::from_secs(86_400),
            events_kept: EVENTS_KEPT,
            log_all: false,
            webhook_secret: None,
            authored: Live::default(),
            api_url: None,
            keep_checkpoints: 0,
            checkpoints_kept: Duration::ZERO,
        }
    }
}

/// Sends what transactions of this store leave to tell (wakes, cancels, live events) through the queue.
pub fn connect(store: &Store, queue: &Queue) {
    let queue = queue.clone();
    store.on_hints(move |told| {
        for (thread, frame) in told.events {
            queue.publish(thread, frame);
        }
        for pool in &told.wakes {
            queue.wake(pool);
        }
        if !told.cancels.is_empty() {
            queue.cancel(&told.cancels);
        }
    });
}

/// Every kind of job of an agent server.
#[must_use]
pub fn registry() -> Registry<AgentWorld> {
    Registry::default()
        .with::<crate::run_agent::RunAgent>()
        .with::<crate::send_webhook::SendWebhook>()
        .with::<crate::send_push::SendPush>()
        .with::<crate::fire_cron::FireCron>()
        .with::<crate::sweep_agent::SweepAgent>()
}
