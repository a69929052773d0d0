//! Deployments of all workspaces, for operators: where each is, nothing of what is secret in it.

use sqlx::FromRow;
use towpath_domain::deployment::{DeploymentStatus, RevisionStatus, Source};
use towpath_domain::{DeploymentId, RevisionId, TenantId, Timestamp};

use crate::error::Result;
use crate::placements::PlacementState;
use crate::tx::Tx;

/// A deployment in the view of operators.
#[derive(Clone, Debug, FromRow)]
pub struct Overview {
    pub id: DeploymentId,
    pub tenant_id: TenantId,
    pub name: String,
    pub source: Source,
    pub status: DeploymentStatus,
    /// The revision that has the traffic.
    pub active_revision_id: Option<RevisionId>,
    /// The newest revision.
    pub latest_revision_id: Option<RevisionId>,
    /// Its number.
    pub latest_seq: Option<i64>,
    pub latest_status: Option<RevisionStatus>,
    /// The number of the revision that has the traffic.
    pub active_seq: Option<i64>,
    /// How what is deployed is doing.
    pub placement: Option<PlacementState>,
    /// Why it does not serve.
    pub placement_error: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Deployments older than `before` (ids are in the order of time), newest first.
pub async fn list(tx: &mut Tx<'_>, before: Option<DeploymentId>, limit: i64) -> Result<Vec<Overview>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT d.id, d.tenant_id, d.name, d.source, d.status, d.active_revision_id, d.latest_revision_id,
                    l.seq AS latest_seq, l.status AS latest_status, a.seq AS active_seq, d.created_at, d.updated_at,
                    p.state AS placement, p.error AS placement_error
             FROM deployment d
             LEFT JOIN revision l ON l.id = d.latest_revision_id
             LEFT JOIN revision a ON a.id = d.active_revision_id
             LEFT JOIN deployment_placement p ON p.deployment_id = d.id
             WHERE $1 IS NULL OR d.id < $1
             ORDER BY d.id DESC LIMIT $2 + 0",
        )
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?)
}

/// The owner of a deployment.
pub async fn owner(tx: &mut Tx<'_>, id: DeploymentId) -> Result<Option<TenantId>> {
    let row: Option<(TenantId,)> = on!(tx, |conn| {
        sqlx::query_as("SELECT tenant_id FROM deployment WHERE id = $1")
            .bind(id)
            .fetch_optional(conn)
            .await
    })?;
    Ok(row.map(|row| row.0))
}

/// Whose a revision is, and of which deployment.
pub async fn owner_of_revision(tx: &mut Tx<'_>, id: RevisionId) -> Result<Option<(TenantId, DeploymentId)>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT tenant_id, deployment_id FROM revision WHERE id = $1")
            .bind(id)
            .fetch_optional(conn)
            .await
    })?)
}
