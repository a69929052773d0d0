//! What every handler of the platform surface shares.

mod ingest_limiter;
mod pool_history;
mod query_executor;
mod storage_quota;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use towpath_domain::export::Limits;
use towpath_domain::sandbox::SandboxQuota;
use towpath_domain::{Clock, DeploymentId, DiskStatus};
use towpath_queue::Queue;
use towpath_store::Store;
use towpath_store::sealing::Sealer;
use towpath_traces::objects::Objects;
use towpath_traces::wal::Wal;
use towpath_workflows::sandbox_host::SandboxHost;
use towpath_workflows::sandbox_nodes::NodeClient;

use crate::auth::{Authenticator, KeyCache};
use crate::concurrency::ConcurrencyLimit;
use crate::limits::Limits as RateLimits;
use crate::ops::Ops;
use crate::session::UsedLinks;

pub(crate) use ingest_limiter::IngestLimiter;
pub(crate) use pool_history::{History, PoolHistory};
pub use query_executor::QueryExecutor;
pub(crate) use storage_quota::StorageQuota;

/// Destinations that are tested at once.
const DESTINATIONS_AT_ONCE: usize = 16;

/// The surface's state; clones share it. `cli` builds the [`Parts`].
#[derive(Clone)]
pub struct App(Arc<AppState>);

/// What `cli` wires into the surface.
pub struct Parts {
    /// The database.
    pub store: Store,
    /// The database of the agent server in the same process, where there is one: its jobs are shown too.
    pub agents: Option<Store>,
    /// Where wakes and cancel signals go.
    pub queue: Queue,
    /// Where accepted trace bodies become durable.
    pub wal: Wal,
    /// Where traces are read.
    pub queries: QueryExecutor,
    /// Where source archives lie.
    pub objects: Objects,
    /// Seals the credentials of destinations.
    pub sealer: Sealer,
    /// Where exports may go, and how addresses of users are judged.
    pub destinations: towpath_outbound::Settings,
    /// Where traces and uploads end up.
    pub disk: DiskStatus,
    /// The process's clock.
    pub clock: Clock,
    /// Health and metrics.
    pub ops: Ops,
    /// The machine of boxes, in a process that is a node.
    pub sandbox_host: Option<Arc<SandboxHost>>,
    /// Reaches the boxes of other nodes.
    pub sandbox_nodes: NodeClient,
    /// Cancelled when the process begins to drain.
    pub draining: CancellationToken,
    /// How often one caller may ask.
    pub limits: RateLimits,
    /// Limits.
    pub settings: Settings,
}

/// The state behind an [`App`].
pub struct AppState {
    parts: Parts,
    pub(crate) key_cache: KeyCache,
    pub(crate) ingest_limiter: IngestLimiter,
    pub(crate) storage_quota: StorageQuota,
    /// Looks at destinations, which somebody waits for.
    pub(crate) destination_checks: ConcurrencyLimit,
    pub(crate) history: History,
    pub(crate) used_links: UsedLinks,
}

/// Limits of the surface.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests worked on at once; more are refused with 503. Health and metrics are not counted.
    pub max_requests: usize,
    /// Keys that open nothing which one address may send in a minute; more are answered 429. 0 is no limit.
    pub failed_keys_per_minute: u32,
    /// The most bytes the body of a trace ingest request may have as sent (compressed or not). `/info` advertises
    /// 20 MiB, which official clients count over the parts alone, so some room for the frame around them is needed.
    pub ingest_body_bytes: usize,
    /// Memory that ingest bodies under way may take together; more are refused with 503.
    pub ingest_memory_bytes: usize,
    /// Trace data that a workspace may keep, once folded; more is refused with 507. 0 is no limit.
    pub stored_bytes_per_workspace: u64,
    /// How many exports work at the same time.
    pub exports: Limits,
    /// Boxes and what belongs to them that a workspace may have.
    pub sandbox_quota: SandboxQuota,
    /// Whether only this machine reaches this surface. Browsers must then call the dashboard by a name of this machine,
    /// or by that of `public_url`.
    pub loopback: bool,
    /// Where others reach this surface, without a slash at its end: what addresses in answers begin with.
    pub public_url: String,
    /// How long the gateway has a request wait for a deployment whose agent server is replaced or started again.
    pub gateway_wait: Duration,
    /// Whether deployments of a second workspace are refused, because those of one run beside each other as processes.
    pub one_workspace: bool,
    /// Whose keys the gateway opens a deployment to.
    pub gateway_access: GatewayAccess,
    /// Whether deployments may judge their callers themselves, in place of keys.
    pub gateway_own_auth: bool,
}

/// Whose keys the gateway opens a deployment to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayAccess {
    /// Those of its organisation, unless they are limited to a workspace.
    #[default]
    Organization,
    /// Those that open its workspace.
    Workspace,
}

impl Settings {
    /// Where the gateway serves a deployment.
    #[must_use]
    pub fn deployment_url(&self, deployment: DeploymentId) -> String {
        format!("{}/d/{deployment}", self.public_url)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_requests: 256,
            failed_keys_per_minute: 60,
            ingest_body_bytes: 24 << 20,
            ingest_memory_bytes: 256 << 20,
            stored_bytes_per_workspace: 0,
            exports: Limits::default(),
            sandbox_quota: SandboxQuota::default(),
            loopback: false,
            public_url: "http://127.0.0.1:8400".to_owned(),
            gateway_wait: Duration::from_secs(5),
            one_workspace: false,
            gateway_access: GatewayAccess::default(),
            gateway_own_auth: false,
        }
    }
}

impl App {
    /// Wires the surface.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let intake = IngestLimiter::new(parts.settings.ingest_memory_bytes);
        let stored = StorageQuota::new(parts.settings.stored_bytes_per_workspace);
        Self(Arc::new(AppState {
            key_cache: KeyCache::new(parts.settings.failed_keys_per_minute),
            parts,
            ingest_limiter: intake,
            storage_quota: stored,
            destination_checks: ConcurrencyLimit::new(DESTINATIONS_AT_ONCE),
            history: History::default(),
            used_links: UsedLinks::default(),
        }))
    }

    /// Writes when keys were used last. Call it about once a minute.
    pub async fn record_key_uses(&self) -> towpath_store::Result<()> {
        self.0.key_cache.record_uses(&self.0.parts.store).await
    }

    pub(crate) fn authenticator(&self) -> Authenticator<'_> {
        Authenticator {
            keys: &self.key_cache,
            store: &self.store,
            sealer: &self.sealer,
            clock: &self.clock,
        }
    }

    /// Forgets what keys were found to open: call it after a key was revoked or a workspace made in this process.
    pub fn forget_keys(&self) {
        self.0.key_cache.clear();
    }
}

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl std::ops::Deref for AppState {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}
