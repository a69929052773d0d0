//! Changing boxes.

use towpath_domain::sandbox::{BoxConfig, Lifetime};
use towpath_domain::{BoxId, TemplateId, TenantId};

use super::SandboxBox;
use super::lifecycle::update_due;
use crate::sandboxes::to_json;
use crate::{Result, Tx};

/// The new values of a box.
#[derive(Clone, Copy, Debug)]
pub struct BoxUpdate<'a> {
    pub name: &'a str,
    /// The configuration of its next start.
    pub config: &'a BoxConfig,
    /// Its times.
    pub lifetime: Lifetime,
    /// The key that changes it.
    pub updated_by: &'a str,
}

/// Changes a sandbox that the caller has locked.
///
/// # Errors
/// [`crate::Error::Conflict`] if the name is taken, [`crate::Error::NotFound`] also for another tenant's.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, change: BoxUpdate<'_>) -> Result<SandboxBox> {
    let now = tx.now();
    let config = to_json(change.config, "sandbox_box", "config", &id)?;
    let mut row: SandboxBox = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_box SET name = $3, config = $4, idle_ttl_seconds = $5, ttl_seconds = $6,
                delete_after_stop_seconds = $7, updated_by = $8, updated_at = $9
         WHERE tenant_id = $1 AND id = $2 AND status <> 'deleting' RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(tenant)
    .bind(id)
    .bind(change.name)
    .bind(config)
    .bind(change.lifetime.idle_ttl_seconds)
    .bind(change.lifetime.ttl_seconds)
    .bind(change.lifetime.delete_after_stop_seconds)
    .bind(change.updated_by)
    .bind(now)
    .fetch_one(conn)
    .await)?;
    row.due_at = update_due(tx, &row).await?;
    Ok(row)
}

/// Gives a running sandbox from the pool of this template to a caller, under a name. `None` if the pool is empty.
///
/// # Errors
/// [`crate::Error::Conflict`] if the name is taken.
pub async fn claim_pooled(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    template: TemplateId,
    change: BoxUpdate<'_>,
    request: &[u8],
) -> Result<Option<SandboxBox>> {
    let now = tx.now();
    let config = to_json(change.config, "sandbox_box", "config", &template)?;
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
    let mut row: Option<SandboxBox> = on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(template)
        .bind(change.name)
        .bind(&config)
        .bind(change.lifetime.idle_ttl_seconds)
        .bind(change.lifetime.ttl_seconds)
        .bind(change.lifetime.delete_after_stop_seconds)
        .bind(change.updated_by)
        .bind(now)
        .bind(request)
        .fetch_optional(conn)
        .await)?;
    if let Some(row) = &mut row {
        row.due_at = update_due(tx, row).await?;
    }
    Ok(row)
}
