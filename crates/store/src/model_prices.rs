//! Prices of models that workspaces set themselves, and the version of each workspace's prices.
//!
//! Every change raises the version. Segments say by which version the costs in them were computed.

use towpath_domain::{ModelPriceId, ProjectId, Rejection, TenantId, Timestamp};

use crate::{Error, Result, Tx};

/// Prices of one workspace. All of them are in memory where traces are written or read.
const MAX_PRICES: i64 = 500;

/// A price of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ModelPrice {
    pub id: ModelPriceId,
    pub tenant_id: TenantId,
    pub name: String,
    pub provider: Option<String>,
    /// A regular expression.
    pub match_pattern: String,
    /// A JSON list of texts; absent is the default one.
    pub match_path: Option<String>,
    /// Applies to runs that start at or after this time.
    pub start_time: Option<Timestamp>,
    /// A decimal number in dollars per token.
    pub prompt_cost: String,
    /// A decimal number in dollars per token.
    pub completion_cost: String,
    /// A JSON object: kinds of tokens with decimal numbers as strings.
    pub prompt_cost_details: String,
    /// A JSON object: kinds of tokens with decimal numbers as strings.
    pub completion_cost_details: String,
    pub created_at: Timestamp,
    pub modified_at: Timestamp,
}

/// What a client sets of a price.
#[derive(Clone, Debug)]
pub struct NewModelPrice {
    pub name: String,
    pub provider: Option<String>,
    pub match_pattern: String,
    pub match_path: Option<String>,
    pub start_time: Option<Timestamp>,
    pub prompt_cost: String,
    pub completion_cost: String,
    pub prompt_cost_details: String,
    pub completion_cost_details: String,
}

/// Adds a price.
///
/// # Errors
/// [`Error::Rejected`] if the workspace has too many.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, new: &NewModelPrice) -> Result<ModelPrice> {
    // First, because it locks the prices of the workspace.
    bump(tx, tenant).await?;
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM model_price WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    if count >= MAX_PRICES {
        let text = format!("the workspace already has the maximum of {MAX_PRICES} model prices; delete some first");
        return Err(Rejection::rule("", text).into());
    }
    let now = tx.now();
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
        "INSERT INTO model_price (id, tenant_id, name, provider, match_pattern, match_path, start_time, prompt_cost,
                                  completion_cost, prompt_cost_details, completion_cost_details, created_at, modified_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12) RETURNING ",
        columns!(model_price)
    ))
    .bind(ModelPriceId::new())
    .bind(tenant)
    .bind(&new.name)
    .bind(&new.provider)
    .bind(&new.match_pattern)
    .bind(&new.match_path)
    .bind(new.start_time)
    .bind(&new.prompt_cost)
    .bind(&new.completion_cost)
    .bind(&new.prompt_cost_details)
    .bind(&new.completion_cost_details)
    .bind(now)
    .fetch_one(conn)
    .await
    })?)
}

/// Replaces a price.
///
/// # Errors
/// [`Error::NotFound`]
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: ModelPriceId, new: &NewModelPrice) -> Result<ModelPrice> {
    bump(tx, tenant).await?;
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE model_price SET name = $3, provider = $4, match_pattern = $5, match_path = $6, start_time = $7,
                prompt_cost = $8, completion_cost = $9, prompt_cost_details = $10, completion_cost_details = $11,
                modified_at = $12
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(model_price)
    ))
    .bind(tenant)
    .bind(id)
    .bind(&new.name)
    .bind(&new.provider)
    .bind(&new.match_pattern)
    .bind(&new.match_path)
    .bind(new.start_time)
    .bind(&new.prompt_cost)
    .bind(&new.completion_cost)
    .bind(&new.prompt_cost_details)
    .bind(&new.completion_cost_details)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a price.
///
/// # Errors
/// [`Error::NotFound`]
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: ModelPriceId) -> Result<()> {
    bump(tx, tenant).await?;
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM model_price WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}

/// Prices of a workspace, newest first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<ModelPrice>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(model_price),
        " FROM model_price WHERE tenant_id = $1 ORDER BY created_at DESC, id DESC"
    ))
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// The version of a workspace's prices; 0 if they were never changed.
pub async fn version(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    let version: Option<i64> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT version FROM model_price_version WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(version.unwrap_or(0))
}

/// Raises the version of a workspace's prices, so that all of its costs are computed again. Locks it until the commit.
pub async fn bump(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "INSERT INTO model_price_version (tenant_id, version, failed_version, changed_at) VALUES ($1, 1, 0, $2)
         ON CONFLICT (tenant_id) DO UPDATE SET version = model_price_version.version + 1, changed_at = $2
         RETURNING version",
    )
    .bind(tenant)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Notes that the costs could not be computed again by this version, so that only the next one is tried.
pub async fn repricing_failed(tx: &mut Tx<'_>, tenant: TenantId, version: i64) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE model_price_version SET failed_version = $2 WHERE tenant_id = $1 AND failed_version < $2"
    )
    .bind(tenant)
    .bind(version)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Workspaces with costs that were computed by earlier prices, after one in order of ids.
pub async fn outdated_workspaces(tx: &mut Tx<'_>, after: TenantId, limit: i64) -> Result<Vec<TenantId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT v.tenant_id FROM model_price_version v
         WHERE v.tenant_id > $1 AND v.failed_version < v.version
           AND EXISTS (SELECT 1 FROM segment s
                       WHERE s.tenant_id = v.tenant_id AND s.state = 'live' AND s.price_version < v.version)
         ORDER BY v.tenant_id LIMIT $2 + 0",
    )
    .bind(after)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// A project and a day with costs that were computed by earlier prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, sqlx::FromRow)]
pub struct OutdatedDay {
    pub project_id: ProjectId,
    /// The UTC day.
    pub day: chrono::NaiveDate,
}

/// Days in some segments of a workspace with costs of earlier versions, those of the earliest first, at most `limit`
/// days of at most `segments` segments.
pub async fn outdated_days(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    version: i64,
    segments: i64,
    limit: i64,
) -> Result<Vec<OutdatedDay>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT DISTINCT p.project_id, p.day
         FROM (SELECT id FROM segment WHERE tenant_id = $1 AND state = 'live' AND price_version < $2
               ORDER BY price_version, id LIMIT $3 + 0) s
         JOIN segment_part p ON p.segment_id = s.id
         ORDER BY p.project_id, p.day LIMIT $4 + 0",
    )
    .bind(tenant)
    .bind(version)
    .bind(segments)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}
