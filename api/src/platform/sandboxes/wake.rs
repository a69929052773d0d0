//! Boxes that a request waits for: until they run, or have stopped.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use towpath_domain::sandbox::BoxStatus;
use towpath_domain::{BoxId, TenantId};
use towpath_sandbox::{BoxAgent, Error};
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::{self as store};
use towpath_workflows::box_start;
use towpath_workflows::boxes::{Boxes, InUse};

use crate::app::App;
use crate::errors::{ApiError, chain};

/// How long a request for a box waits until that runs.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it waits for a change that another process may make before it looks again.
const LOOK: Duration = Duration::from_millis(500);
/// Connections of one box.
const CONNECTIONS: usize = 256;

/// A box that runs.
pub(crate) struct Awake {
    /// Talks to it.
    pub agent: BoxAgent,
    /// Keeps it from stopping as idle.
    pub in_use: InUse,
    /// The machine that it is on.
    pub machine: Arc<Boxes>,
}

/// The machine of boxes.
///
/// # Errors
/// This process does not hold it.
pub(crate) fn machine(app: &App) -> Result<&Arc<Boxes>, ApiError> {
    app.boxes.as_ref().filter(|boxes| !boxes.is_lost()).ok_or_else(|| {
        let text =
            "this process does not hold the machine of sandboxes: set sandboxes.enabled where it is to, and ask there";
        ApiError::named(StatusCode::NOT_IMPLEMENTED, "Unsupported", text)
    })
}

/// A box of this workspace that is not being removed.
///
/// # Errors
/// 404.
pub(crate) async fn known(app: &App, tenant: TenantId, id: BoxId) -> Result<SandboxBox, ApiError> {
    let gone = || ApiError::not_found("sandbox");
    let found = app.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
    match found {
        Ok(row) if row.status == BoxStatus::Deleting || row.pool_id.is_some() => Err(gone()),
        Err(store::Error::NotFound) => Err(gone()),
        found => Ok(found?),
    }
}

/// A box that runs: one that is stopped is started, and the request waits for that.
///
/// # Errors
/// There is no such box, or it does not come to run.
pub(crate) async fn awake(app: &App, tenant: TenantId, id: BoxId) -> Result<Awake, ApiError> {
    let mut row = known(app, tenant, id).await?;
    let machine = machine(app)?;
    if machine.connections(id) >= CONNECTIONS {
        let text = format!("the sandbox has {CONNECTIONS} connections, which is as many as it may");
        return Err(ApiError::too_many(text, Duration::from_secs(1)));
    }
    let in_use = machine.begin_use(id);
    let deadline = Instant::now() + PATIENCE;
    let mut changes = machine.changes();
    loop {
        match row.status {
            BoxStatus::Ready => match machine.agent(&row).await {
                Ok(Some(agent)) => {
                    return Ok(Awake {
                        agent,
                        in_use,
                        machine: Arc::clone(machine),
                    });
                }
                // Its processes were killed, or the machine was started anew.
                Ok(None) => {
                    let why = Some("its processes ended");
                    app.store
                        .write(async |tx| boxes::stopped(tx, tenant, id, row.generation, why).await)
                        .await?;
                }
                Err(error) => return Err(failed(&error)),
            },
            BoxStatus::Stopped => {
                app.store
                    .write(async |tx| box_start::again(tx, tenant, id).await)
                    .await?;
            }
            BoxStatus::Failed => {
                let why = row.status_message.as_deref().unwrap_or("it could not be started");
                let text = format!("the sandbox does not run: {why}; POST /boxes/{{name}}/start tries again");
                return Err(ApiError::named(StatusCode::BAD_REQUEST, "NotReady", text));
            }
            BoxStatus::Provisioning => {
                if Instant::now() >= deadline {
                    let text = "the sandbox is still being started";
                    return Err(ApiError::unavailable(text, Duration::from_secs(1)));
                }
                let look = deadline.min(Instant::now() + LOOK);
                let _ = timeout_at(look, changes.changed()).await;
            }
            BoxStatus::Deleting => return Err(ApiError::not_found("sandbox")),
        }
        row = known(app, tenant, id).await?;
    }
}

/// Waits until a box of this workspace is as `is_enough` says. The last row that was seen, in either case.
///
/// # Errors
/// It is gone, or the database does not answer.
pub(crate) async fn wait(
    app: &App,
    row: SandboxBox,
    patience: Duration,
    is_enough: impl Fn(&SandboxBox) -> bool,
) -> Result<(SandboxBox, bool), ApiError> {
    let deadline = Instant::now() + patience;
    let mut changes = app.boxes.as_ref().map(|boxes| boxes.changes());
    let mut row = row;
    loop {
        if is_enough(&row) {
            return Ok((row, true));
        }
        if Instant::now() >= deadline {
            return Ok((row, false));
        }
        let look = deadline.min(Instant::now() + LOOK);
        match &mut changes {
            Some(changes) => drop(timeout_at(look, changes.changed()).await),
            None => tokio::time::sleep_until(look).await,
        }
        row = known(app, row.tenant_id, row.id).await?;
    }
}

/// What the caller is told when something in a box failed.
pub(crate) fn failed(error: &Error) -> ApiError {
    let text = error.to_string();
    let (status, name) = match error {
        Error::Invalid(_) | Error::IsDirectory(_) => (StatusCode::BAD_REQUEST, "ValidationError"),
        Error::Unsupported(_) => (StatusCode::NOT_IMPLEMENTED, "Unsupported"),
        Error::Stale { .. } => (StatusCode::CONFLICT, "Conflict"),
        Error::NotRunning => {
            let text = "the sandbox has just ended; ask again to have it started";
            return ApiError::unavailable(text, Duration::from_secs(1));
        }
        Error::NotFound(_) => (StatusCode::NOT_FOUND, "FileNotFound"),
        Error::Denied(_) => (StatusCode::FORBIDDEN, "PermissionDenied"),
        Error::Range { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "ReadError"),
        Error::Busy(_) => return ApiError::too_many(text, Duration::from_secs(1)),
        Error::TimedOut(_) => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
        Error::Refused(_) | Error::Agent(_) => (StatusCode::BAD_GATEWAY, "ConnectionError"),
        Error::Io { .. } => {
            tracing::error!(error = %chain(error), "a sandbox's machine failed");
            (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
        }
    };
    ApiError::named(status, name, text)
}

impl Awake {
    /// What the caller is told when something in this box failed.
    pub(crate) fn failed(&self, id: BoxId, error: &Error) -> ApiError {
        if matches!(error, Error::NotRunning) {
            // The next request asks the machine again.
            self.machine.forget(id);
        }
        failed(error)
    }
}
