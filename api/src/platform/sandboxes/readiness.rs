//! Waits until sandboxes are running or stopped.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::BoxStatus;
use towpath_domain::{BoxId, TenantId};
use towpath_sandbox::{BoxAgent, Error};
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::sandboxes::network::BoxNetwork;
use towpath_store::sandboxes::nodes;
use towpath_store::{self as store};
use towpath_workflows::sandbox_host::{MAX_CONNECTIONS, SandboxHost, UseGuard};
use towpath_workflows::sandbox_nodes::{ConnectionPurpose, unavailable_text};
use towpath_workflows::start_box;

use crate::app::App;
use crate::errors::{ApiError, chain};
use crate::metric;

/// How long a request waits for a sandbox to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checks for changes by another process.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The same while a sandbox of another node starts or stops, which nothing announces.
const REMOTE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running sandbox.
pub(crate) struct RunningBox {
    pub agent: BoxAgent,
    /// Keeps it from stopping as idle.
    pub in_use: BoxUse,
    /// Cancelled when this process begins to drain.
    pub draining: CancellationToken,
    /// If it runs on this node.
    host: Option<Arc<SandboxHost>>,
}

/// Keeps a sandbox from stopping as idle. On another node, the connections to it do.
pub(crate) struct BoxUse {
    _guard: Option<UseGuard>,
}

/// The sandbox host of this process, if it has one.
pub(crate) fn local_host(app: &App) -> Option<&Arc<SandboxHost>> {
    app.sandbox_host.as_ref().filter(|boxes| !boxes.is_lost())
}

/// The sandbox host of this process, if the sandbox is on it. A sandbox without a node is placed on any.
fn host_of<'a>(app: &'a App, row: &SandboxBox) -> Option<&'a Arc<SandboxHost>> {
    local_host(app).filter(|host| row.host_id.is_none_or(|node| node == host.host_id()))
}

/// Checks that a node can perform what is requested.
pub(crate) async fn require_node(app: &App) -> Result<(), ApiError> {
    if local_host(app).is_some() || app.store.read(async |tx| nodes::count_alive(tx).await).await? > 0 {
        return Ok(());
    }
    let text = "no process of this installation runs sandboxes: start one with sandboxes.enabled";
    Err(ApiError::with_name(StatusCode::NOT_IMPLEMENTED, "Unsupported", text))
}

/// Checks that the node of a sandbox can start it.
pub(crate) async fn require_node_of(app: &App, row: &SandboxBox) -> Result<(), ApiError> {
    let Some(node) = row.host_id.filter(|_| host_of(app, row).is_none()) else {
        return require_node(app).await;
    };
    let found = app.store.read(async |tx| {
        let Some(node) = nodes::find(tx, node).await?.filter(|node| !node.is_alive) else {
            return Ok(None);
        };
        // A sandbox without files leaves a lost node.
        Ok(start_box::is_bound(tx, row).await?.then_some(node))
    });
    match found.await? {
        Some(node) => Err(ApiError::unavailable(unavailable_text(&node), Duration::from_secs(10))),
        None => require_node(app).await,
    }
}

/// A sandbox of this workspace that is not being deleted.
pub(crate) async fn get_box(app: &App, tenant: TenantId, id: BoxId) -> Result<SandboxBox, ApiError> {
    let gone = || ApiError::not_found("sandbox");
    let found = app.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
    match found {
        Ok(row) if row.status == BoxStatus::Deleting || row.pool_id.is_some() => Err(gone()),
        Err(store::Error::NotFound) => Err(gone()),
        found => Ok(found?),
    }
}

/// Starts a stopped sandbox and waits until it is running.
pub(crate) async fn ensure_running(app: &App, tenant: TenantId, id: BoxId) -> Result<RunningBox, ApiError> {
    let mut row = get_box(app, tenant, id).await?;
    if local_host(app).is_none() {
        require_node(app).await?;
    }
    // Taken once, also if the sandbox turns out to be on another node.
    let in_use = local_host(app).map(|machine| begin_use(machine, id)).transpose()?;
    let began = Instant::now();
    let deadline = began + START_TIMEOUT;
    let mut changes = app.sandbox_host.as_ref().map(|machine| machine.changes());
    loop {
        match row.status {
            BoxStatus::Ready => match agent_of(app, &row, ConnectionPurpose::Use).await {
                Ok(Some(agent)) => {
                    metrics::histogram!(metric::BOX_HELD).record(began.elapsed());
                    let host = host_of(app, &row).cloned();
                    return Ok(RunningBox {
                        agent,
                        in_use: BoxUse {
                            _guard: in_use.filter(|_| host.is_some()),
                        },
                        draining: app.draining.clone(),
                        host,
                    });
                }
                // Its processes were killed, or its node was restarted.
                Ok(None) => {
                    let why = Some("its processes ended");
                    app.store
                        .write(async |tx| boxes::mark_stopped(tx, tenant, id, row.generation, why).await)
                        .await?;
                }
                Err(error) => return Err(agent_error(&error)),
            },
            BoxStatus::Stopped => {
                require_node_of(app, &row).await?;
                app.store
                    .write(async |tx| start_box::restart(tx, tenant, id).await)
                    .await?;
            }
            BoxStatus::Failed => {
                let why = row.status_message.as_deref().unwrap_or("it could not be started");
                let text = format!("the sandbox is not running: {why}; retry with POST /boxes/{{name}}/start");
                return Err(ApiError::with_name(StatusCode::BAD_REQUEST, "NotReady", text));
            }
            BoxStatus::Provisioning => {
                if Instant::now() >= deadline {
                    let text = "the sandbox is still starting";
                    return Err(ApiError::unavailable(text, Duration::from_secs(1)));
                }
                wait_for_change(app, &row, &mut changes, deadline).await;
            }
            BoxStatus::Deleting => return Err(ApiError::not_found("sandbox")),
        }
        row = get_box(app, tenant, id).await?;
    }
}

fn begin_use(machine: &Arc<SandboxHost>, id: BoxId) -> Result<UseGuard, ApiError> {
    if machine.connections(id) >= MAX_CONNECTIONS {
        let text = format!("the sandbox has reached its limit of {MAX_CONNECTIONS} connections");
        return Err(ApiError::too_many(text, Duration::from_secs(1)));
    }
    Ok(machine.begin_use(id))
}

/// Waits until a sandbox may have changed. Changes on this node are announced; others are found by looking.
async fn wait_for_change(app: &App, row: &SandboxBox, changes: &mut Option<watch::Receiver<u64>>, deadline: Instant) {
    let is_here = host_of(app, row).is_some();
    match changes.as_mut().filter(|_| is_here) {
        Some(changes) => {
            let look = deadline.min(Instant::now() + POLL_INTERVAL);
            let _ = timeout_at(look, changes.changed()).await;
        }
        None => sleep_until(deadline.min(Instant::now() + REMOTE_POLL_INTERVAL)).await,
    }
}

/// The agent of a sandbox that its row calls ready; `None` if this life of it is not running.
async fn agent_of(app: &App, row: &SandboxBox, purpose: ConnectionPurpose) -> Result<Option<BoxAgent>, Error> {
    match host_of(app, row) {
        Some(host) => host.agent(row).await,
        None => app.sandbox_nodes.agent(row, purpose).await,
    }
}

/// The agent of a running sandbox, for read-only views: it is neither started nor kept from stopping as idle.
pub(crate) async fn running_agent(app: &App, row: &SandboxBox) -> Result<Option<BoxAgent>, ApiError> {
    if row.status != BoxStatus::Ready {
        return Ok(None);
    }
    let agent = agent_of(app, row, ConnectionPurpose::View).await;
    agent.map_err(|error| agent_error(&error))
}

/// The response of an agent; `None` if its sandbox has just ended.
pub(crate) fn none_if_stopped<T>(app: &App, id: BoxId, answer: Result<T, Error>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::NotRunning) => {
            // The next request gets a new handle from the host.
            if let Some(machine) = &app.sandbox_host {
                machine.remove_handle(id);
            }
            Ok(None)
        }
        Err(error) => Err(agent_error(&error)),
    }
}

/// Applies a stored network configuration to a running sandbox.
pub(crate) async fn apply_network(app: &App, row: &SandboxBox, network: &BoxNetwork) -> Result<(), ApiError> {
    if let Some(host) = host_of(app, row) {
        host.set_network(network, &app.sealer);
        return Ok(());
    }
    match app.sandbox_nodes.apply_network(row).await {
        // It reads its configuration at its next start.
        Ok(()) | Err(Error::NotRunning) => Ok(()),
        Err(error) => {
            let text = format!("the configuration is saved but not applied yet: {error}; send the request again");
            Err(ApiError::unavailable(text, Duration::from_secs(5)))
        }
    }
}

/// Waits until `is_enough` or a timeout. Returns the last row in either case.
pub(crate) async fn wait_for(
    app: &App,
    row: SandboxBox,
    patience: Duration,
    is_enough: impl Fn(&SandboxBox) -> bool,
) -> Result<(SandboxBox, bool), ApiError> {
    let deadline = Instant::now() + patience;
    let mut changes = app.sandbox_host.as_ref().map(|boxes| boxes.changes());
    let mut row = row;
    loop {
        if is_enough(&row) {
            return Ok((row, true));
        }
        if Instant::now() >= deadline {
            return Ok((row, false));
        }
        wait_for_change(app, &row, &mut changes, deadline).await;
        row = get_box(app, row.tenant_id, row.id).await?;
    }
}

/// The error response for a failure inside of a sandbox.
pub(crate) fn agent_error(error: &Error) -> ApiError {
    let text = error.to_string();
    let (status, name) = match error {
        Error::Invalid(_) | Error::IsDirectory(_) => (StatusCode::BAD_REQUEST, "ValidationError"),
        Error::Unsupported(_) => (StatusCode::NOT_IMPLEMENTED, "Unsupported"),
        Error::Stale { .. } => (StatusCode::CONFLICT, "Conflict"),
        Error::NotRunning => {
            let text = "the sandbox has just ended; retry to start it";
            return ApiError::unavailable(text, Duration::from_secs(1));
        }
        Error::NotFound(_) => (StatusCode::NOT_FOUND, "FileNotFound"),
        Error::Denied(_) => (StatusCode::FORBIDDEN, "PermissionDenied"),
        Error::Range { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "ReadError"),
        Error::Busy(_) => return ApiError::too_many(text, Duration::from_secs(1)),
        Error::Unreachable(_) => return ApiError::unavailable(text, Duration::from_secs(5)),
        Error::TimedOut(_) => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
        Error::Refused(_) | Error::Agent(_) => (StatusCode::BAD_GATEWAY, "ConnectionError"),
        Error::Io { .. } => {
            tracing::error!(error = %chain(error), "the sandbox host failed");
            (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
        }
    };
    ApiError::with_name(status, name, text)
}

impl RunningBox {
    /// The error response for a failure inside of this sandbox.
    pub(crate) fn agent_error(&self, id: BoxId, error: &Error) -> ApiError {
        if matches!(error, Error::NotRunning) {
            self.forget(id);
        }
        agent_error(error)
    }

    /// The next request gets a new handle from the host.
    pub(crate) fn forget(&self, id: BoxId) {
        if let Some(host) = &self.host {
            host.remove_handle(id);
        }
    }
}
