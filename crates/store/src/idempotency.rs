//! Idempotency keys: the answer of a request is stored in the transaction that did the work.
//!
//! A client that lost the answer sends the same request with the same `Idempotency-Key` and gets the first answer. Only
//! committed work is remembered: a refused request is evaluated again.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use towpath_domain::{TenantId, Timestamp};

use crate::{Result, Tx};

/// How long an answer is kept.
pub const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// A request that carries a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotentRequest {
    key: String,
    request: [u8; 32],
}

impl IdempotentRequest {
    /// `operation` is method and route; together with the body it identifies the request.
    #[must_use]
    pub fn new(key: String, operation: &str, body: &[u8]) -> Self {
        let mut digest = Sha256::new();
        digest.update(operation.as_bytes());
        // Neither a method nor a route holds one, so nothing can move from one side to the other.
        digest.update([0]);
        digest.update(body);
        Self {
            key,
            request: digest.finalize().into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Nothing: do the work.
    New,
    /// The work was done; this was answered, JSON.
    Answered(String),
    /// The key belongs to another request.
    OtherRequest,
}

#[derive(sqlx::FromRow)]
struct Row {
    request: Vec<u8>,
    answer: Option<String>,
}

/// The state of the key, without claiming it.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, keyed: &IdempotentRequest) -> Result<KeyState> {
    let after = tx.now().minus(RETENTION);
    let row: Option<Row> = on!(tx, |conn| sqlx::query_as(
        "SELECT request, answer FROM idempotency WHERE tenant_id = $1 AND key = $2 AND created_at > $3",
    )
    .bind(tenant)
    .bind(&keyed.key)
    .bind(after)
    .fetch_optional(conn)
    .await)?;
    Ok(match row {
        None => KeyState::New,
        Some(row) if row.request != keyed.request => KeyState::OtherRequest,
        // Without an answer only to the transaction that is about to set it.
        Some(row) => row.answer.map_or(KeyState::New, KeyState::Answered),
    })
}

/// Claims the key if it is free. On PostgreSQL a second request with the same key waits here until the first has
/// committed, and then gets its answer.
pub async fn claim(tx: &mut Tx<'_>, tenant: TenantId, keyed: &IdempotentRequest) -> Result<KeyState> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "DELETE FROM idempotency WHERE tenant_id = $1 AND key = $2 AND created_at <= $3"
    )
    .bind(tenant)
    .bind(&keyed.key)
    .bind(now.minus(RETENTION))
    .execute(conn)
    .await
    .map(drop))?;
    let taken = on!(tx, |conn| {
        sqlx::query(
        "INSERT INTO idempotency (tenant_id, key, request, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
    )
    .bind(tenant)
    .bind(&keyed.key)
    .bind(&keyed.request[..])
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    })?;
    if taken == 1 {
        return Ok(KeyState::New);
    }
    find(tx, tenant, keyed).await
}

/// Keeps what is going to be answered, in the transaction that took the key and did the work.
pub async fn keep(tx: &mut Tx<'_>, tenant: TenantId, keyed: &IdempotentRequest, answer: &str) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE idempotency SET answer = $3 WHERE tenant_id = $1 AND key = $2"
    )
    .bind(tenant)
    .bind(&keyed.key)
    .bind(answer)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes at most `limit` answers of all tenants that were given before `before`; how many.
pub async fn prune(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM idempotency WHERE (tenant_id, key) IN
             (SELECT tenant_id, key FROM idempotency WHERE created_at < $1 ORDER BY created_at LIMIT $2 + 0)",
    )
    .bind(before)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// How many answers of all tenants were given before `before`; `most` means at least that many.
pub async fn count_before(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM idempotency WHERE created_at < $1 LIMIT $2 + 0) found",
    )
    .bind(before)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}
