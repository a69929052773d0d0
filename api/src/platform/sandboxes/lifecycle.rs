//! Starts and stops sandboxes.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use towpath_domain::sandbox::BoxStatus;
use towpath_store::sandboxes::boxes;
use towpath_workflows::{start_box, stop_box};

use super::model::{Sandbox, missing};
use super::readiness::{require_node, require_node_of, wait_for};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};

/// How long a request waits until a sandbox has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Start a stopped or failed sandbox. Poll its status until it is `ready`.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/start", tag = "sandboxes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 202, description = "Running or starting", body = Sandbox),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn start(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Response, ApiError> {
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    require_node_of(&app, &row).await?;
    let begun = app
        .store
        .write(async |tx| start_box::restart(tx, tenant.id, row.id).await)
        .await;
    let row = begun.map_err(missing("Sandbox", &name))?.unwrap_or(row);
    Ok((StatusCode::ACCEPTED, Json(Sandbox::load(&app, row).await?)).into_response())
}

/// Stop a sandbox. Its commands end and its files remain; a later request starts it again.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/stop", tag = "sandboxes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 204, description = "Stopped"),
              (status = 400, description = "The sandbox has failed and is not running"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 408, description = "It has not stopped in time; it is still stopping"),
              (status = 501, description = "Sandboxes are not enabled in this process"), ApiError))]
pub async fn stop(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    require_node(&app).await?;
    match row.status {
        BoxStatus::Stopped => return Ok(StatusCode::NO_CONTENT),
        BoxStatus::Failed => {
            let text = format!("sandbox '{}' has failed and is not running", row.name);
            return Err(ApiError::with_name(StatusCode::BAD_REQUEST, "InvalidState", text));
        }
        _ => {}
    }
    let generation = row.generation;
    app.store
        .write(async |tx| stop_box::start(tx, tenant.id, row.id, generation).await)
        .await?;
    let (_, is_over) = wait_for(&app, row, STOP_TIMEOUT, |row| {
        row.generation != generation || !row.status.is_live()
    })
    .await?;
    if is_over {
        return Ok(StatusCode::NO_CONTENT);
    }
    let text = format!("sandbox '{name}' has not stopped in time; it is still stopping");
    Err(ApiError::with_name(StatusCode::REQUEST_TIMEOUT, "Timeout", text))
}
