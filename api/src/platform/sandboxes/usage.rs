//! What a workspace has of boxes, and what it may have.

use axum::extract::State;
use serde::Serialize;
use towpath_store::sandboxes::{boxes, snapshots, volumes};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Json;

/// An amount and its limit.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxAmount)]
pub struct Amount {
    used: i64,
    /// 0 is none.
    limit: i64,
}

/// What a workspace has, and what it may have.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxUsage)]
pub struct Usage {
    sandboxes: Amount,
    snapshots: Amount,
    volumes: Amount,
    volume_bytes: Amount,
}

/// What the workspace has, and what it may have.
#[utoipa::path(get, path = "/v2/sandboxes/usage", tag = "sandbox-usage",
    responses((status = 200, description = "Amounts and limits", body = Usage), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant) -> Result<Json<Usage>, ApiError> {
    let (sandboxes, kept, (count, bytes)) = app
        .store
        .read(async |tx| {
            let sandboxes = boxes::count(tx, tenant.id).await?;
            let kept = snapshots::count(tx, tenant.id).await?;
            Ok((sandboxes, kept, volumes::usage(tx, tenant.id).await?))
        })
        .await?;
    let most = app.settings.sandboxes;
    let amount = |used, limit| Amount { used, limit };
    Ok(Json(Usage {
        sandboxes: amount(sandboxes, most.boxes),
        snapshots: amount(kept, most.snapshots),
        volumes: amount(count, most.volumes),
        volume_bytes: amount(bytes, most.volume_bytes),
    }))
}
