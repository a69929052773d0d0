//! Several stateless runs at once.

use axum::extract::State;
use http::HeaderMap;
use towpath_domain::agent::RunRequest;

use super::begin::PreparedRun;
use super::model::{Run, RunCreate};
use crate::agent::answer::Json;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::ListBody;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default().routes(routes!(create))
}

/// Runs recorded in one transaction: more would keep others waiting.
const MOST: usize = 1000;

/// Refuses too many runs, and none.
pub(in crate::agent) fn check_count(runs: usize) -> Result<(), AgentError> {
    if (1..=MOST).contains(&runs) {
        Ok(())
    } else {
        Err(AgentError::invalid(format!("Request body: expected 1 to {MOST} runs")))
    }
}

/// Start several runs, each on a thread of its own: all of them, or none.
#[utoipa::path(post, path = "/runs/batch", tag = "runs", request_body = Vec<RunCreate>,
    responses((status = 200, description = "The runs are recorded", body = Vec<Run>),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn create(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    ListBody(requests): ListBody<RunRequest>,
) -> Result<Json<Vec<Run>>, AgentError> {
    check_count(requests.len())?;
    let mut ready = Vec::with_capacity(requests.len());
    for request in requests {
        ready.push(PreparedRun::prepare(&app, &headers, request, None).await?);
    }
    let made = app
        .store
        .write(async |tx| {
            let mut made = Vec::with_capacity(ready.len());
            for one in ready {
                made.push(one.record(&app, tx).await?);
            }
            Ok(made)
        })
        .await?;
    Ok(Json(made.into_iter().map(Run::try_from).collect::<Result<_, _>>()?))
}
