//! Feedback links, through which a caller without a key gives feedback on one trace run under one key.
//!
//! The last part of a link is its token: a random UUID, as the official clients expect. It is found by its SHA-256 and
//! also stored sealed, so that its owner can list the link; a stolen database opens none.

use std::time::Duration;

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use towpath_domain::{FeedbackTokenId, TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::access::KeyHash;
use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Result, Tx};

/// How long an expired link is remembered, so that late callers get a clear error.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct FeedbackToken {
    /// Id of the row.
    pub id: FeedbackTokenId,
    pub tenant_id: TenantId,
    /// Sealed; open it with [`FeedbackToken::token`].
    pub token: Vec<u8>,
    pub run_id: TraceRunId,
    /// Under which name.
    pub key: String,
    /// The id of the feedback, so that repeated use updates one row; if absent, each use creates another.
    pub feedback_id: Option<Uuid>,
    /// The feedback config of the key, JSON.
    pub config: Option<String>,
    pub created_at: Timestamp,
    /// From when on it takes nothing.
    pub expires_at: Timestamp,
}

impl FeedbackToken {
    /// Its token, opened.
    pub fn token(&self, sealer: &Sealer) -> Result<Uuid, OpenError> {
        let token = sealer.open(seal_context(self.tenant_id, self.id), &self.token)?;
        Uuid::from_slice(&token).map_err(|_| OpenError::Malformed)
    }
}

const fn seal_context(tenant: TenantId, id: FeedbackTokenId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "feedback_token",
        column: "token",
        row: id.0,
    }
}

/// A new link.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub run: TraceRunId,
    /// Under which name.
    pub key: String,
    /// The id of what is given.
    pub feedback: Option<Uuid>,
    /// The feedback config of the key, JSON.
    pub config: Option<String>,
    /// From when on it takes nothing.
    pub expires_at: Timestamp,
}

/// Creates a link; its token.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, sealer: &Sealer, new: &NewToken) -> Result<Uuid> {
    let (id, token, now) = (FeedbackTokenId::new(), random(), tx.now());
    let sealed = sealer.seal(seal_context(tenant, id), token.as_bytes());
    on!(tx, |conn| {
        sqlx::query(
        "INSERT INTO feedback_token (id, tenant_id, hash, token, run_id, key, feedback_id, config, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
    )
    .bind(id)
    .bind(tenant)
    .bind(&hash(token)[..])
    .bind(&sealed)
    .bind(new.run)
    .bind(&new.key)
    .bind(new.feedback)
    .bind(&new.config)
    .bind(now)
    .bind(new.expires_at)
    .execute(conn)
    .await
    .map(drop)
    })?;
    Ok(token)
}

/// The link with this token, also if it ended. A caller that knows the token needs no workspace.
pub async fn find(tx: &mut Tx<'_>, token: Uuid) -> Result<FeedbackToken> {
    // A hash is looked up, so how long that takes says nothing about the tokens there are.
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(feedback_token),
        " FROM feedback_token WHERE hash = $1"
    ))
    .bind(&hash(token)[..])
    .fetch_one(conn)
    .await)?)
}

/// Links to one trace run that take feedback at `now`, in the order in which they were made.
pub async fn of_run(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    run: TraceRunId,
    now: Timestamp,
    limit: i64,
    offset: i64,
) -> Result<Vec<FeedbackToken>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(feedback_token),
        " FROM feedback_token WHERE tenant_id = $1 AND run_id = $2 AND expires_at > $3
         ORDER BY id LIMIT $4 OFFSET $5"
    ))
    .bind(tenant)
    .bind(run)
    .bind(now)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// Deletes at most `limit` links of all workspaces that ended before `before`; how many.
pub async fn prune(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM feedback_token WHERE id IN
             (SELECT id FROM feedback_token WHERE expires_at < $1 ORDER BY expires_at LIMIT $2 + 0)",
    )
    .bind(before)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// How many links of all workspaces ended before `before`; `most` means at least that many.
pub async fn count_before(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM feedback_token WHERE expires_at < $1 LIMIT $2 + 0) found",
    )
    .bind(before)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}

fn hash(token: Uuid) -> [u8; 32] {
    KeyHash::of(token.as_bytes()).bytes()
}

/// 122 random bits.
fn random() -> Uuid {
    let mut bytes = [0_u8; 16];
    // A system without randomness must not continue with a guessable token.
    OsRng.try_fill_bytes(&mut bytes).expect("the system gives randomness");
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
