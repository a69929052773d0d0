//! State that all handlers of the agent API share.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use tokio_util::sync::CancellationToken;
use towpath_domain::{Clock, Secret, TenantId};
use towpath_durable::Engine;
use towpath_queue::Queue;
use towpath_runtime::GraphSet;
use towpath_store::Store;
use towpath_store::threads::Ttl;
use towpath_workflows::agent::{EVENT_RETENTION, WebhookRules};
use towpath_workflows::item_index::ItemIndex;
use towpath_workflows::run_agent::Recorder;

use super::auth::caller_cache::{AuthCache, CallerCache};
use super::cors::Cors;
use super::event_streaming::event_buffer::EventBuffers;
use super::live::run_status::RunStatusCache;
use super::runs::assistants::AssistantLoader;
use crate::auth::KeyCache;
use crate::internal::JobStores;
use crate::ops::Ops;

/// The state of the agent API; clones share it. The `cli` crate builds the [`Parts`].
#[derive(Clone)]
pub struct AgentApp(Arc<AgentAppState>);

/// What the `cli` crate provides.
pub struct Parts {
    /// Database of this server.
    pub store: Store,
    /// Engine of the workers in this process, if any.
    pub engine: Option<Engine>,
    /// Wakes, cancel signals and live events of runs.
    pub queue: Queue,
    /// Graphs of this server.
    pub graphs: GraphSet,
    /// The index of the store's items.
    pub items: ItemIndex,
    /// Workspace of this server: all rows it reads or writes belong to it.
    pub tenant: TenantId,
    /// Store with API keys; without it callers need no key.
    pub keys: Option<Store>,
    /// The process's clock.
    pub clock: Clock,
    /// Cancelled when the process starts to drain. Streams end; clients reconnect to another process.
    pub draining: CancellationToken,
    /// Health and metrics.
    pub ops: Ops,
    pub settings: Settings,
}

pub struct AgentAppState {
    parts: Parts,
    pub(crate) key_cache: KeyCache,
    pub(in crate::agent) caller_cache: CallerCache,
    pub(in crate::agent) recorder: Recorder,
    pub(in crate::agent) assistants: AssistantLoader,
    pub(in crate::agent) run_status: RunStatusCache,
    pub(in crate::agent) event_buffers: EventBuffers,
}

/// Limits and defaults of the agent API.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum number of concurrent requests; more get 503. A stream counts until its head is sent.
    pub max_requests: usize,
    /// Invalid keys per address and minute; more get 429. 0 disables the limit.
    pub failed_keys_per_minute: u32,
    /// Maximum size of a body.
    pub body_bytes: usize,
    /// Run slots of one worker process, for `/metrics`.
    pub slots: usize,
    /// Reject requests from foreign pages and with foreign host names: for a server without keys that only this machine
    /// reaches.
    pub this_machine_only: bool,
    /// CORS settings.
    pub cors: Cors,
    /// Path prefix of the API, such as `/agents/one`; empty for none.
    pub mount_prefix: String,
    /// Store the events of every run for resumption, not only with `stream_resumable`.
    pub always_resumable: bool,
    /// How long events are kept after the end of a run, and events of a thread.
    pub event_retention: Duration,
    /// Default TTL of threads.
    pub thread_ttl: Option<Ttl>,
    /// Default TTL of items in minutes; `None` means forever.
    pub item_ttl_minutes: Option<f64>,
    /// Default for renewing the TTL of an item when it is read.
    pub refresh_on_read: bool,
    /// Only the platform's gateway may call, which signs requests with this hexadecimal key.
    pub gateway_key: Option<Secret>,
    /// The auth of the graphs' author decides who may call.
    pub custom_auth: bool,
    /// It also decides about custom routes, which are open otherwise.
    pub custom_routes_auth: bool,
    /// Caching of authenticated callers.
    pub auth_cache: Option<AuthCache>,
    /// Disabled groups of routes: `assistants`, `threads`, `runs`, `store`, `meta`, `a2a`, `mcp`, `event_streaming`.
    pub disabled: Vec<String>,
    /// Headers that are copied to a run's `configurable` in addition to the defaults; `*` matches any part.
    pub headers_in: Vec<String>,
    /// Headers that are not copied.
    pub headers_out: Vec<String>,
    /// Addresses that webhooks may call.
    pub webhooks: WebhookRules,
    /// Interval of comments on a stream, or newlines on a waiting response.
    pub heartbeat: Duration,
    /// The deployment that this server is, for `/info`.
    pub deployment: DeploymentIdentity,
    /// How names of the reference server's metrics begin.
    pub metric_prefix: String,
    /// Most connections to Redis, if they are limited, for `/metrics`.
    pub redis_connections: Option<u32>,
    /// Headers of requests that are logged; `*` matches any part. None by default.
    pub logged_headers: Vec<String>,
    /// Headers that are not logged.
    pub unlogged_headers: Vec<String>,
}

/// Ids of the deployment that a server is, as far as it is one.
#[derive(Clone, Debug, Default)]
pub struct DeploymentIdentity {
    pub project: Option<String>,
    pub revision: Option<String>,
    /// Revision of the server's program.
    pub server_revision: Option<String>,
    pub tenant: Option<String>,
}

impl Settings {
    /// Whether a group of routes is disabled.
    pub(super) fn is_off(&self, group: &str) -> bool {
        self.disabled.iter().any(|disabled| disabled == group)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_requests: 1024,
            failed_keys_per_minute: 60,
            body_bytes: 300 << 20,
            slots: 10,
            this_machine_only: false,
            cors: Cors::default(),
            mount_prefix: String::new(),
            always_resumable: false,
            event_retention: EVENT_RETENTION,
            thread_ttl: None,
            item_ttl_minutes: None,
            refresh_on_read: true,
            gateway_key: None,
            custom_auth: false,
            custom_routes_auth: false,
            auth_cache: None,
            disabled: Vec::new(),
            headers_in: Vec::new(),
            headers_out: Vec::new(),
            webhooks: WebhookRules::default(),
            heartbeat: Duration::from_secs(5),
            deployment: DeploymentIdentity::default(),
            metric_prefix: "lg_api_".to_owned(),
            redis_connections: None,
            logged_headers: Vec::new(),
            unlogged_headers: Vec::new(),
        }
    }
}

impl AgentApp {
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(AgentAppState {
            recorder: Recorder::new(parts.store.clone(), parts.engine.clone()),
            assistants: AssistantLoader::new(parts.store.clone(), parts.tenant),
            run_status: RunStatusCache::default(),
            event_buffers: EventBuffers::default(),
            key_cache: KeyCache::new(parts.settings.failed_keys_per_minute),
            parts,
            caller_cache: CallerCache::default(),
        }))
    }
}

impl std::ops::Deref for AgentApp {
    type Target = AgentAppState;

    fn deref(&self) -> &AgentAppState {
        &self.0
    }
}

impl std::ops::Deref for AgentAppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl FromRef<AgentApp> for JobStores {
    fn from_ref(app: &AgentApp) -> Self {
        Self {
            store: app.store.clone(),
            agents: None,
        }
    }
}
