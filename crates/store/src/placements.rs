//! Placements: where deployments run.

use towpath_domain::{DeploymentId, RevisionId, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// How a deployment that serves is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum PlacementState {
    /// It answers at its address.
    Serving,
    /// It is being replaced or started again.
    Switching,
    /// It does not start; it is retried.
    Down,
}

impl PlacementState {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Switching => "switching",
            Self::Down => "down",
        }
    }
}

/// Where a deployment runs.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Placement {
    pub deployment_id: DeploymentId,
    pub tenant_id: TenantId,
    /// The revision it serves.
    pub revision_id: RevisionId,
    /// The artifact of that revision.
    pub artifact: String,
    /// How it is doing.
    pub state: PlacementState,
    /// `host:port`, while it serves.
    pub address: Option<String>,
    /// How often it was started again after it had ended by itself.
    pub restarts: i64,
    /// Why it does not start.
    pub error: Option<String>,
    pub updated_at: Timestamp,
    /// The database that it had when it served last; any may be its own where this is not known.
    pub database_id: Option<String>,
}

/// The placement of a deployment, once a revision was deployed.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> Result<Option<Placement>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(deployment_placement),
        " FROM deployment_placement WHERE tenant_id = $1 AND deployment_id = $2"
    ))
    .bind(tenant)
    .bind(deployment)
    .fetch_optional(conn)
    .await)?)
}

/// Those of several deployments: what lists show beside them.
pub async fn many(tx: &mut Tx<'_>, tenant: TenantId, ids: &[DeploymentId]) -> Result<Vec<Placement>> {
    let mut query = Query::new(
        tx,
        concat!(
            "SELECT ",
            columns!(deployment_placement),
            " FROM deployment_placement WHERE tenant_id = "
        ),
    );
    query.bind(Arg::Uuid(tenant.0)).push(" AND ");
    query.any_of("deployment_id", ids.iter().map(|id| Arg::Uuid(id.0)));
    query.fetch_all(tx).await
}

/// Every placement of a deployment that is not being torn down, for the process that keeps them.
pub async fn all(tx: &mut Tx<'_>) -> Result<Vec<Placement>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(deployment_placement, deployment_placement),
        " FROM deployment_placement
         JOIN deployment ON deployment.id = deployment_placement.deployment_id
         WHERE deployment.status <> 'AWAITING_DELETE' ORDER BY deployment_placement.deployment_id"
    ))
    .fetch_all(conn)
    .await)?)
}

/// A revision serves at this address from now on, on this database.
pub async fn put(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    revision: RevisionId,
    artifact: &str,
    address: &str,
    database: &str,
) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| {
        sqlx::query(
        "INSERT INTO deployment_placement
             (deployment_id, tenant_id, revision_id, artifact, state, address, updated_at, database_id)
         VALUES ($1, $2, $3, $4, 'serving', $5, $6, $7)
         ON CONFLICT (deployment_id) DO UPDATE
         SET revision_id = $3, artifact = $4, state = 'serving', address = $5, restarts = 0, error = NULL, updated_at = $6,
             database_id = $7"
    )
    .bind(deployment)
    .bind(tenant)
    .bind(revision)
    .bind(artifact)
    .bind(address)
    .bind(now)
    .bind(database)
    .execute(conn)
    .await
    .map(drop)
    })?;
    Ok(())
}

/// The running revision is being replaced or restarted: requests wait. False if nothing was deployed yet.
pub async fn switching(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement SET state = 'switching', address = NULL, updated_at = $3
         WHERE tenant_id = $1 AND deployment_id = $2"
    )
    .bind(tenant)
    .bind(deployment)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Everything is started again: no address of an earlier life counts.
pub async fn begin(tx: &mut Tx<'_>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement SET state = 'switching', address = NULL, updated_at = $1 WHERE state = 'serving'"
    )
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The same revision serves again, on this database. `again` counts a restart. False if another revision serves by now.
pub async fn serving(
    tx: &mut Tx<'_>,
    placement: &Placement,
    address: &str,
    again: bool,
    database: &str,
) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement
         SET state = 'serving', address = $4, restarts = restarts + $5, error = NULL, updated_at = $6, database_id = $7
         WHERE tenant_id = $1 AND deployment_id = $2 AND revision_id = $3"
    )
    .bind(placement.tenant_id)
    .bind(placement.deployment_id)
    .bind(placement.revision_id)
    .bind(address)
    .bind(i64::from(again))
    .bind(now)
    .bind(database)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// The agent server exited and is not restarted immediately. `why` is set if the delay is so long that requests need
/// not wait. Counts as a restart. No effect if another revision serves by now, or it was recorded before.
pub async fn ended(tx: &mut Tx<'_>, placement: &Placement, why: Option<&str>) -> Result<()> {
    let now = tx.now();
    let state = match why {
        Some(_) => PlacementState::Down,
        None => PlacementState::Switching,
    };
    on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement
         SET state = $4, address = NULL, restarts = restarts + 1, error = $5, updated_at = $6
         WHERE tenant_id = $1 AND deployment_id = $2 AND revision_id = $3 AND state = 'serving'"
    )
    .bind(placement.tenant_id)
    .bind(placement.deployment_id)
    .bind(placement.revision_id)
    .bind(state)
    .bind(why)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// It does not start.
pub async fn down(tx: &mut Tx<'_>, placement: &Placement, error: &str) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement SET state = 'down', address = NULL, error = $4, updated_at = $5
         WHERE tenant_id = $1 AND deployment_id = $2 AND revision_id = $3"
    )
    .bind(placement.tenant_id)
    .bind(placement.deployment_id)
    .bind(placement.revision_id)
    .bind(error.replace('\0', ""))
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// As [`accept_database`], for all deployments.
pub async fn accept_databases(tx: &mut Tx<'_>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement SET database_id = NULL, updated_at = $1"
    )
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Lets a deployment start on any existing database or an empty one; its previous database is no longer required. False
/// if nothing was deployed yet.
pub async fn accept_database(tx: &mut Tx<'_>, deployment: DeploymentId) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE deployment_placement SET database_id = NULL, updated_at = $2 WHERE deployment_id = $1"
    )
    .bind(deployment)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}
