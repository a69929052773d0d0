//! What every handler of the agent surface shares.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use towpath_domain::{Clock, Secret, TenantId};
use towpath_durable::Engine;
use towpath_queue::Queue;
use towpath_runtime::GraphSet;
use towpath_store::Store;
use towpath_store::threads::Ttl;
use towpath_workflows::agent::{EVENTS_KEPT, Rules};
use towpath_workflows::run_agent::Recorder;

use super::cors::Cors;
use super::runs::assistants::Assistants;
use crate::auth::Keys;
use crate::ops::Ops;

/// The surface's state; clones share it. `cli` builds the [`Parts`].
#[derive(Clone)]
pub struct AgentApp(Arc<Inner>);

/// What `cli` wires into the surface.
pub struct Parts {
    /// The database of this server.
    pub store: Store,
    /// The engine of this process's workers, where it has some.
    pub engine: Option<Engine>,
    /// Wakes, cancel signals and live events of runs.
    pub queue: Queue,
    /// The graphs this server offers.
    pub graphs: GraphSet,
    /// Whose server it is: every row it reads or writes is this workspace's.
    pub tenant: TenantId,
    /// Where API keys are kept, where callers need one; without it everybody may call.
    pub keys: Option<Store>,
    /// The process's clock.
    pub clock: Clock,
    /// Cancelled when the process begins to drain. Streams end then; their readers come back to another process.
    pub draining: CancellationToken,
    /// Health and metrics.
    pub ops: Ops,
    /// Limits and defaults.
    pub settings: Settings,
}

/// The state behind an [`AgentApp`].
pub struct Inner {
    parts: Parts,
    pub(crate) known: Keys,
    pub(in crate::agent) remembered: super::auth::Remembered,
    pub(in crate::agent) recorder: Recorder,
    pub(in crate::agent) assistants: Assistants,
    pub(in crate::agent) looks: super::live::Looks,
    pub(in crate::agent) tapes: super::protocol::Tapes,
}

/// Limits and defaults of the surface.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests worked on at once; more are refused with 503. Streams count until their head is sent.
    pub requests: usize,
    /// Keys that open nothing which one address may send in a minute; more are answered 429. 0 is no limit.
    pub failed_keys_per_minute: u32,
    /// The most bytes a body may have.
    pub body_bytes: usize,
    /// Run slots of one worker process, for `/metrics`.
    pub slots: usize,
    /// Whether to refuse what pages of elsewhere want done, and calls under names of elsewhere: for a server that asks
    /// for no key because only this machine reaches it.
    pub this_machine_only: bool,
    /// Web pages that may call, and how.
    pub cors: Cors,
    /// Where the surface stands below its address, such as `/agents/one`; empty for the top.
    pub mount_prefix: String,
    /// Chunks of every run are kept for resumption, not only of those that ask (`stream_resumable`).
    pub always_resumable: bool,
    /// How long events of a run are kept after its end, and those of a thread itself.
    pub events_kept: Duration,
    /// How long threads live that do not say.
    pub thread_ttl: Option<Ttl>,
    /// How long items of the store live that do not say, in minutes; nothing means for ever.
    pub item_ttl_minutes: Option<f64>,
    /// Whether reading an item lets its time begin anew, where the request does not say.
    pub refresh_on_read: bool,
    /// Only a platform's gateway may call, which signs with this key; in hexadecimal digits.
    pub gateway_key: Option<Secret>,
    /// The auth of the graphs' author decides who may call.
    pub custom_auth: bool,
    /// It also decides about the author's own routes, which are open otherwise.
    pub own_routes_auth: bool,
    /// How long its answers about callers are used again.
    pub auth_cache: Option<AuthCache>,
    /// Groups of routes that are not offered: `assistants`, `threads`, `runs`, `store`, `a2a`, `event_streaming`, `meta`.
    pub disabled: Vec<String>,
    /// Headers that reach a run's `configurable` beside the usual ones, with `*` for any part.
    pub headers_in: Vec<String>,
    /// Headers that do not.
    pub headers_out: Vec<String>,
    /// Which addresses webhooks may call.
    pub webhooks: Rules,
    /// A comment is sent on a stream, or a newline on a waiting answer, this often.
    pub heartbeat: Duration,
}

/// How long answers about callers are used again.
#[derive(Clone, Debug)]
pub struct AuthCache {
    /// Headers that tell callers apart, in lower case.
    pub headers: Vec<String>,
    /// How long.
    pub ttl: Duration,
    /// Answers kept.
    pub most: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            requests: 1024,
            failed_keys_per_minute: 60,
            body_bytes: 300 << 20,
            slots: 10,
            this_machine_only: false,
            cors: Cors::default(),
            mount_prefix: String::new(),
            always_resumable: false,
            events_kept: EVENTS_KEPT,
            thread_ttl: None,
            item_ttl_minutes: None,
            refresh_on_read: true,
            gateway_key: None,
            custom_auth: false,
            own_routes_auth: false,
            auth_cache: None,
            disabled: Vec::new(),
            headers_in: Vec::new(),
            headers_out: Vec::new(),
            webhooks: Rules::default(),
            heartbeat: Duration::from_secs(5),
        }
    }
}

impl AgentApp {
    /// Wires the surface.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            recorder: Recorder::new(parts.store.clone(), parts.engine.clone()),
            assistants: Assistants::new(parts.store.clone(), parts.tenant),
            looks: super::live::Looks::default(),
            tapes: super::protocol::Tapes::default(),
            known: Keys::new(parts.settings.failed_keys_per_minute),
            parts,
            remembered: super::auth::Remembered::default(),
        }))
    }
}

impl std::ops::Deref for AgentApp {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl std::ops::Deref for Inner {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}
