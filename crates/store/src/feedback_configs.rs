//! Feedback configs: how the scores of each feedback key are interpreted, per workspace.

use serde_json::value::RawValue;
use towpath_domain::{FeedbackConfigId, Rejection, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Configurations of one workspace.
const MAX_CONFIGS: i64 = 10_000;

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct FeedbackConfig {
    pub tenant_id: TenantId,
    pub feedback_key: String,
    pub id: FeedbackConfigId,
    /// A JSON object, as sent.
    pub config: String,
    /// Whether a lower score is the better one.
    pub is_lower_score_better: bool,
    pub modified_at: Timestamp,
}

/// Creates the config of a key. An identical one is returned as stored.
///
/// # Errors
/// [`Error::Rejected`] if the key has a different one, or the workspace has too many.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    key: &str,
    config: &RawValue,
    is_lower_score_better: Option<bool>,
) -> Result<FeedbackConfig> {
    if let Some(stored) = find(tx, tenant, key).await? {
        return check_same(stored, config, is_lower_score_better);
    }
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM feedback_config WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    if count >= MAX_CONFIGS {
        let text =
            format!("the workspace already has the maximum of {MAX_CONFIGS} feedback configs; delete some first");
        return Err(Rejection::rule("", text).into());
    }
    let now = tx.now();
    let made: Option<FeedbackConfig> = on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO feedback_config (tenant_id, feedback_key, id, config, is_lower_score_better, modified_at)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING ",
        columns!(feedback_config)
    ))
    .bind(tenant)
    .bind(key)
    .bind(FeedbackConfigId::new())
    .bind(config.get())
    .bind(is_lower_score_better.unwrap_or(false))
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    match made {
        Some(made) => Ok(made),
        // On PostgreSQL another process made it between the two statements, and has committed by now.
        None => {
            let stored = find(tx, tenant, key).await?.ok_or(Error::NotFound)?;
            check_same(stored, config, is_lower_score_better)
        }
    }
}

fn check_same(
    stored: FeedbackConfig,
    config: &RawValue,
    is_lower_score_better: Option<bool>,
) -> Result<FeedbackConfig> {
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let direction = is_lower_score_better.is_none_or(|direction| direction == stored.is_lower_score_better);
    if direction && value(&stored.config) == value(config.get()) {
        return Ok(stored);
    }
    let text = "A different feedback config already exists for this key; update it";
    Err(Rejection::rule("feedback_key", text).into())
}

/// The configuration of a key.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, key: &str) -> Result<Option<FeedbackConfig>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(feedback_config),
        " FROM feedback_config WHERE tenant_id = $1 AND feedback_key = $2"
    ))
    .bind(tenant)
    .bind(key)
    .fetch_optional(conn)
    .await)?)
}

/// Configurations by key; with `part` in the key, case-insensitive.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    keys: &[String],
    part: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<FeedbackConfig>> {
    let longest = towpath_domain::feedback::LONGEST_KEY;
    if part.is_some_and(|part| part.contains('\0') || part.chars().count() > longest)
        || keys.iter().any(|key| key.contains('\0'))
    {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        concat!(
            "SELECT ",
            columns!(feedback_config),
            " FROM feedback_config WHERE tenant_id = "
        ),
    );
    query.bind(Arg::Uuid(tenant.0));
    if !keys.is_empty() {
        query
            .push(" AND ")
            .any_of("feedback_key", keys.iter().cloned().map(Arg::Text));
    }
    if let Some(part) = part {
        query.push(" AND ").has_part("feedback_key", part);
    }
    query.push(" ORDER BY feedback_key").page(limit, offset);
    query.fetch_all(tx).await
}

/// Changes the configuration of a key; `None` leaves what is there.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    key: &str,
    config: Option<&RawValue>,
    is_lower_score_better: Option<bool>,
) -> Result<FeedbackConfig> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE feedback_config SET config = COALESCE($3, config),
                is_lower_score_better = COALESCE($4, is_lower_score_better), modified_at = $5
         WHERE tenant_id = $1 AND feedback_key = $2 RETURNING ",
        columns!(feedback_config)
    ))
    .bind(tenant)
    .bind(key)
    .bind(config.map(RawValue::get))
    .bind(is_lower_score_better)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a configuration by its key or by its id. Feedback under the key stays.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, key: Option<&str>, id: Option<FeedbackConfigId>) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM feedback_config WHERE tenant_id = $1 AND (feedback_key = $2 OR id = $3)"
    )
    .bind(tenant)
    .bind(key)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}
