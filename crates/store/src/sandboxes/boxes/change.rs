//! Changing boxes.

use towpath_domain::sandbox::{BoxConfig, Times};
use towpath_domain::{BoxId, TemplateId, TenantId};

use super::SandboxBox;
use super::life::update_due;
use crate::sandboxes::written;
use crate::{Result, Tx};

/// What a box is from now on.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Name.
    pub name: &'a str,
    /// What its next life is made with.
    pub config: &'a BoxConfig,
    /// Its times.
    pub times: Times,
    /// The key that changes it.
    pub updated_by: &'a str,
}

/// Changes a box, which the caller has locked.
///
/// # Errors
/// [`crate::Error::Conflict`] when the name is taken, [`crate::Error::NotFound`] also for another tenant's.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, change: Change<'_>) -> Result<SandboxBox> {
    let now = tx.now();
    let config = written(change.config, "sandbox_box", "config", &id)?;
    let row: SandboxBox = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_box SET name = $3, config = $4, idle_ttl_seconds = $5, ttl_seconds = $6,
                delete_after_stop_seconds = $7, updated_by = $8, updated_at = $9
         WHERE tenant_id = $1 AND id = $2 AND status <> 'deleting' RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(change.name)
    .bind(config)
    .bind(change.times.idle_ttl_seconds)
    .bind(change.times.ttl_seconds)
    .bind(change.times.delete_after_stop_seconds)
    .bind(change.updated_by)
    .bind(now)
    .fetch_one(conn)
    .await)?;
    update_due(tx, &row).await?;
    Ok(row)
}

/// Gives a box that runs and waits in a pool of this template to a caller, who names it. `None` where none waits.
///
/// # Errors
/// [`crate::Error::Conflict`] when the name is taken.
pub async fn claim_member(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    template: TemplateId,
    change: Change<'_>,
    request: &[u8],
) -> Result<Option<SandboxBox>> {
    let now = tx.now();
    let config = written(change.config, "sandbox_box", "config", &template)?;
    let text = sql!(tx,
        sqlite: concat!(
            "UPDATE sandbox_box SET name = $3, config = $4, idle_ttl_seconds = $5, ttl_seconds = $6,
                    delete_after_stop_seconds = $7, updated_by = $8, created_by = $8, active_at = $9, created_at = $9,
                    updated_at = $9, request = $10, pool_id = NULL
             WHERE id = (SELECT id FROM sandbox_box WHERE tenant_id = $1 AND template_id = $2 AND pool_id IS NOT NULL
                             AND status = 'ready' ORDER BY created_at, id LIMIT 1)
             RETURNING ", columns!(sandbox_box)),
        // Callers at the same time take different ones.
        postgres: concat!(
            "UPDATE sandbox_box SET name = $3, config = $4, idle_ttl_seconds = $5, ttl_seconds = $6,
                    delete_after_stop_seconds = $7, updated_by = $8, created_by = $8, active_at = $9, created_at = $9,
                    updated_at = $9, request = $10, pool_id = NULL
             WHERE id = (SELECT id FROM sandbox_box WHERE tenant_id = $1 AND template_id = $2 AND pool_id IS NOT NULL
                             AND status = 'ready' ORDER BY created_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
             RETURNING ", columns!(sandbox_box)));
    let row: Option<SandboxBox> = on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(template)
        .bind(change.name)
        .bind(&config)
        .bind(change.times.idle_ttl_seconds)
        .bind(change.times.ttl_seconds)
        .bind(change.times.delete_after_stop_seconds)
        .bind(change.updated_by)
        .bind(now)
        .bind(request)
        .fetch_optional(conn)
        .await)?;
    if let Some(row) = &row {
        update_due(tx, row).await?;
    }
    Ok(row)
}
