//! Stopping runs.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use towpath_domain::agent::{CancelAction, RunStatus};
use towpath_domain::{RunId, ThreadId};
use towpath_store::runs;
use towpath_workflows::run_agent;

use super::cancel::cancel_run;
use super::on_thread::run_of;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body, Flag, Path, Query};
use crate::agent::live::Reader;
use crate::agent::sse::prefix;
use crate::agent::{sse, wait};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(cancel))
        .routes(routes!(cancel_without_thread))
        .routes(routes!(cancel_many))
}

/// How a run is stopped.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CancelRunQuery {
    /// Whether to wait until it has stopped.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    wait: Flag,
    /// `interrupt` keeps what it did, `rollback` takes it back.
    action: Option<String>,
}

impl CancelRunQuery {
    fn action(&self) -> CancelAction {
        CancelAction::parse(self.action.as_deref().unwrap_or_default())
    }
}

/// Cancel a run.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/{run_id}/cancel", tag = "runs",
    params(("thread_id" = Uuid, Path, description = "The thread"), ("run_id" = Uuid, Path, description = "The run"),
           CancelRunQuery),
    responses((status = 202, description = "Cancellation requested"),
              (status = 200, description = "Stopped; the final state", body = Object),
              (status = 404, description = "No such run, or it has already ended"), AgentError))]
pub(crate) async fn cancel(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path((thread, run)): Path<(ThreadId, RunId)>,
    Query(how): Query<CancelRunQuery>,
) -> Result<Response, AgentError> {
    run_of(&app, Some(thread), run).await?;
    cancel_one(&app, &headers, thread, run, &how).await
}

/// Cancel a run.
#[utoipa::path(post, path = "/runs/{run_id}/cancel", tag = "runs",
    params(("run_id" = Uuid, Path, description = "The run"), CancelRunQuery),
    responses((status = 202, description = "Cancellation requested"),
              (status = 200, description = "Stopped; the final state", body = Object),
              (status = 404, description = "No such run, or it has already ended"), AgentError))]
pub(crate) async fn cancel_without_thread(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(run): Path<RunId>,
    Query(how): Query<CancelRunQuery>,
) -> Result<Response, AgentError> {
    let found = run_of(&app, None, run).await?;
    cancel_one(&app, &headers, found.thread_id, run, &how).await
}

async fn cancel_one(
    app: &AgentApp,
    headers: &HeaderMap,
    thread: ThreadId,
    run: RunId,
    how: &CancelRunQuery,
) -> Result<Response, AgentError> {
    let waited = how.wait == Flag(true);
    // Before it is told: the end may come at once.
    let reader = match waited {
        true => Some(Reader::of_published_frames(app, thread, run).await?),
        false => None,
    };
    if !cancel_run(app, run, how.action()).await? {
        return Err(nothing());
    }
    let Some(reader) = reader else {
        return Ok(StatusCode::ACCEPTED.into_response());
    };
    let headers = sse::locations(&prefix(app, headers), Some(thread), run, Some("join"));
    Ok(wait::respond(app, (thread, run), reader, headers, None))
}

/// Which runs to stop: by where they stand, or by their ids.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct RunsCancel {
    /// pending, running or all.
    status: Option<CancelStatus>,
    #[schema(value_type = Option<Uuid>)]
    thread_id: Option<ThreadId>,
    #[schema(value_type = Option<Vec<Uuid>>)]
    run_ids: Option<Vec<RunId>>,
}

/// Where runs stand that are to be stopped.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CancelStatus {
    Pending,
    Running,
    All,
}

/// How runs are stopped.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CancelRunsQuery {
    /// `interrupt` keeps what they did, `rollback` takes it back.
    action: Option<String>,
}

/// Cancel several runs.
#[utoipa::path(post, path = "/runs/cancel", tag = "runs", request_body = RunsCancel, params(CancelRunsQuery),
    responses((status = 204, description = "Cancellation requested"),
              (status = 404, description = "None of them can be stopped"), AgentError))]
pub(crate) async fn cancel_many(
    State(app): State<AgentApp>,
    Query(how): Query<CancelRunsQuery>,
    Body(which): Body<RunsCancel>,
) -> Result<StatusCode, AgentError> {
    let action = CancelAction::parse(how.action.as_deref().unwrap_or_default());
    let tenant = app.tenant;
    let open = match (which.status, which.thread_id, which.run_ids) {
        (Some(standing), None, None) => {
            let status = match standing {
                CancelStatus::Pending => Some(RunStatus::Pending),
                CancelStatus::Running => Some(RunStatus::Running),
                CancelStatus::All => None,
            };
            app.store
                .write(async |tx| {
                    let open = runs::open_with_status(tx, tenant, status).await?;
                    run_agent::cancel(tx, tenant, &open, action).await?;
                    Ok(open)
                })
                .await?
        }
        (None, Some(thread), Some(ids)) => {
            app.store
                .write(async |tx| {
                    let mut open = runs::open(tx, tenant, Some(thread), None).await?;
                    open.retain(|run| ids.contains(&run.id));
                    run_agent::cancel(tx, tenant, &open, action).await?;
                    Ok(open)
                })
                .await?
        }
        _ => {
            return Err(AgentError::invalid(
                "Request body: expected either status, or thread_id together with run_ids",
            ));
        }
    };
    if open.is_empty() {
        return Err(match which.status {
            Some(_) => AgentError::missing("No runs found to cancel."),
            None => nothing(),
        });
    }
    Ok(StatusCode::NO_CONTENT)
}

fn nothing() -> AgentError {
    AgentError::missing(
        "No matching runs to cancel. Please verify the thread ID and run IDs are correct, and the runs haven't \
         already finished.",
    )
}
