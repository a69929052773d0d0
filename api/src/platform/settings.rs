//! `/settings`: the workspace of a key, which tracing clients read for links.

use axum::extract::State;
use serde::Serialize;
use towpath_domain::{TenantId, Timestamp};
use towpath_store::access;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Json;

/// A workspace.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = WorkspaceSettings)]
pub struct Settings {
    #[schema(value_type = Uuid)]
    id: TenantId,
    display_name: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Always null: workspaces have no public name.
    tenant_handle: Option<String>,
}

/// Get the workspace of this request.
#[utoipa::path(get, path = "/settings", tag = "settings",
    responses((status = 200, description = "The workspace", body = Settings), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant) -> Result<Json<Settings>, ApiError> {
    let workspace = app
        .store
        .read(async |tx| access::workspace(tx, tenant.id).await)
        .await?;
    let workspace = workspace.ok_or_else(|| ApiError::not_found("workspace"))?;
    Ok(Json(Settings {
        id: workspace.id,
        display_name: workspace.name,
        created_at: workspace.created_at,
        tenant_handle: None,
    }))
}
