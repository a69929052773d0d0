//! Sandbox usage and limits of a workspace.

use axum::extract::State;
use serde::Serialize;
use towpath_store::sandboxes::{boxes, network, snapshots, volumes};

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Json;

/// An amount and its limit.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxAmount)]
pub struct QuotaUsage {
    used: i64,
    /// 0 means no limit.
    limit: i64,
}

/// Usage and limits of a workspace.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = SandboxUsage)]
pub struct Usage {
    sandboxes: QuotaUsage,
    snapshots: QuotaUsage,
    volumes: QuotaUsage,
    volume_bytes: QuotaUsage,
    /// Bytes that the existing sandboxes sent through their proxies.
    network_sent_bytes: i64,
    network_received_bytes: i64,
}

/// Get usage and limits of the workspace.
#[utoipa::path(get, path = "/v2/sandboxes/usage", tag = "sandbox-usage",
    responses((status = 200, description = "Usage and limits", body = Usage), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant) -> Result<Json<Usage>, ApiError> {
    let (sandboxes, kept, (count, bytes), (sent, received)) = app
        .store
        .read(async |tx| {
            let sandboxes = boxes::count(tx, tenant.id).await?;
            let kept = snapshots::count(tx, tenant.id).await?;
            let volumes = volumes::usage(tx, tenant.id).await?;
            Ok((sandboxes, kept, volumes, network::usage(tx, tenant.id).await?))
        })
        .await?;
    let most = app.settings.sandbox_quota;
    let amount = |used, limit| QuotaUsage { used, limit };
    Ok(Json(Usage {
        sandboxes: amount(sandboxes, most.boxes),
        snapshots: amount(kept, most.snapshots),
        volumes: amount(count, most.volumes),
        volume_bytes: amount(bytes, most.volume_bytes),
        network_sent_bytes: sent,
        network_received_bytes: received,
    }))
}
