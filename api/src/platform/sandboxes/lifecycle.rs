//! Starting and stopping boxes by hand.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use towpath_domain::sandbox::BoxStatus;
use towpath_store::sandboxes::boxes;
use towpath_workflows::{box_start, box_stop};

use super::model::{Sandbox, missing};
use super::wake::{machine, wait};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path};

/// How long a request waits until a box has stopped.
const PATIENCE: Duration = Duration::from_secs(30);

/// Start a sandbox that is stopped or failed. Poll its status until it is `ready`.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/start", tag = "sandboxes",
    params(("name" = String, Path, description = "Its name or its id")),
    responses((status = 202, description = "It runs, or is being started", body = Sandbox),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "This process has no sandboxes"), ApiError))]
pub async fn start(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Response, ApiError> {
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    machine(&app)?;
    let begun = app
        .store
        .write(async |tx| box_start::again(tx, tenant.id, row.id).await)
        .await;
    let row = begun.map_err(missing("Sandbox", &name))?.unwrap_or(row);
    Ok((StatusCode::ACCEPTED, Json(Sandbox::read(&app, row).await?)).into_response())
}

/// Stop a sandbox. Its commands end; its files stay, and a request starts it again.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/{name}/stop", tag = "sandboxes",
    params(("name" = String, Path, description = "Its name or its id")),
    responses((status = 204, description = "It has stopped"),
              (status = 400, description = "It has failed, and does not run"),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 408, description = "It has not stopped in time; it goes on being stopped"),
              (status = 501, description = "This process has no sandboxes"), ApiError))]
pub async fn stop(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    machine(&app)?;
    match row.status {
        BoxStatus::Stopped => return Ok(StatusCode::NO_CONTENT),
        BoxStatus::Failed => {
            let text = format!("sandbox '{}' has failed, and does not run", row.name);
            return Err(ApiError::named(StatusCode::BAD_REQUEST, "InvalidState", text));
        }
        _ => {}
    }
    let generation = row.generation;
    app.store
        .write(async |tx| box_stop::start(tx, tenant.id, row.id, generation).await)
        .await?;
    let (_, is_over) = wait(&app, row, PATIENCE, |row| {
        row.generation != generation || !row.status.is_live()
    })
    .await?;
    if is_over {
        return Ok(StatusCode::NO_CONTENT);
    }
    let text = format!("sandbox '{name}' has not stopped in time; it goes on being stopped");
    Err(ApiError::named(StatusCode::REQUEST_TIMEOUT, "Timeout", text))
}
