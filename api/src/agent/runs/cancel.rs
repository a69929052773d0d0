//! Cancelling one run, for a request or because its reader went away.

use towpath_domain::RunId;
use towpath_domain::agent::CancelAction;
use towpath_store::runs::{self, OpenRun};
use towpath_workflows::run_agent;

use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Cancels a run when it is dropped before it was disarmed: when its reader went away. While the process drains it does
/// nothing, since a reader cannot be told then from one whose connection was cut.
pub(crate) struct CancelOnDrop(Option<(AgentApp, RunId)>);

impl CancelOnDrop {
    /// Armed when `wanted`.
    pub fn new(app: &AgentApp, run: RunId, wanted: bool) -> Option<Self> {
        wanted.then(|| Self(Some((app.clone(), run))))
    }

    /// The run may go on.
    pub fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some((app, run)) = self.0.take() else { return };
        // It is this process that leaves: its readers come back to another one, and the run goes on there.
        if app.draining.is_cancelled() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            match cancel_run(&app, run, CancelAction::Interrupt).await {
                Ok(true) => tracing::info!(run.id = %run, "cancelled, its reader went away"),
                Ok(false) => {}
                Err(error) => tracing::warn!(run.id = %run, error = %error, "cannot cancel a run whose reader left"),
            }
        });
    }
}

/// Cancels a run; answers whether it was not over yet.
pub(in crate::agent) async fn cancel_run(app: &AgentApp, id: RunId, action: CancelAction) -> Result<bool, AgentError> {
    Ok(app
        .store
        .write(async |tx| {
            let run = match runs::get(tx, app.tenant, id).await {
                Err(towpath_store::Error::NotFound) => return Ok(false),
                run => run?,
            };
            if run.status.is_final() {
                return Ok(false);
            }
            let open = OpenRun {
                id,
                thread_id: run.thread_id,
                job_id: run.job_id,
            };
            run_agent::cancel(tx, app.tenant, &[open], action).await?;
            Ok(true)
        })
        .await?)
}
