//! Waits until sandboxes are running or stopped.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use towpath_domain::sandbox::BoxStatus;
use towpath_domain::{BoxId, TenantId};
use towpath_sandbox::{BoxAgent, Error};
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::{self as store};
use towpath_workflows::sandbox_host::{SandboxHost, UseGuard};
use towpath_workflows::start_box;

use crate::app::App;
use crate::errors::{ApiError, chain};
use crate::metric;

/// How long a request waits for a sandbox to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checks for changes by another process.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of connections of a sandbox.
const MAX_CONNECTIONS: usize = 256;

/// A running sandbox.
pub(crate) struct RunningBox {
    pub agent: BoxAgent,
    /// Keeps it from stopping as idle.
    pub in_use: UseGuard,
    pub host: Arc<SandboxHost>,
}

/// The sandbox host of this process, if it has one.
pub(crate) fn local_host(app: &App) -> Result<&Arc<SandboxHost>, ApiError> {
    app.sandbox_host
        .as_ref()
        .filter(|boxes| !boxes.is_lost())
        .ok_or_else(|| {
            let text = "this process does not run sandboxes: send the request to a process with sandboxes.enabled";
            ApiError::with_name(StatusCode::NOT_IMPLEMENTED, "Unsupported", text)
        })
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
    let machine = local_host(app)?;
    if machine.connections(id) >= MAX_CONNECTIONS {
        let text = format!("the sandbox has reached its limit of {MAX_CONNECTIONS} connections");
        return Err(ApiError::too_many(text, Duration::from_secs(1)));
    }
    let in_use = machine.begin_use(id);
    let began = Instant::now();
    let deadline = began + START_TIMEOUT;
    let mut changes = machine.changes();
    loop {
        match row.status {
            BoxStatus::Ready => match machine.agent(&row).await {
                Ok(Some(agent)) => {
                    metrics::histogram!(metric::BOX_HELD).record(began.elapsed());
                    return Ok(RunningBox {
                        agent,
                        in_use,
                        host: Arc::clone(machine),
                    });
                }
                // Its processes were killed, or the host was restarted.
                Ok(None) => {
                    let why = Some("its processes ended");
                    app.store
                        .write(async |tx| boxes::mark_stopped(tx, tenant, id, row.generation, why).await)
                        .await?;
                }
                Err(error) => return Err(agent_error(&error)),
            },
            BoxStatus::Stopped => {
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
                let look = deadline.min(Instant::now() + POLL_INTERVAL);
                let _ = timeout_at(look, changes.changed()).await;
            }
            BoxStatus::Deleting => return Err(ApiError::not_found("sandbox")),
        }
        row = get_box(app, tenant, id).await?;
    }
}

/// The agent of a running sandbox, for read-only views: it is neither started nor kept from stopping as idle.
pub(crate) async fn running_agent(app: &App, row: &SandboxBox) -> Result<Option<BoxAgent>, ApiError> {
    if row.status != BoxStatus::Ready {
        return Ok(None);
    }
    let agent = local_host(app)?.agent(row).await;
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
        let look = deadline.min(Instant::now() + POLL_INTERVAL);
        match &mut changes {
            Some(changes) => drop(timeout_at(look, changes.changed()).await),
            None => tokio::time::sleep_until(look).await,
        }
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
            // The next request gets a new handle from the host.
            self.host.remove_handle(id);
        }
        agent_error(error)
    }
}
