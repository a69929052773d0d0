//! Links by which somebody without a key judges one trace run under one name.
//!
//! A link's last part is its token: a random UUID, because the official clients read it as one. It is found by its
//! SHA-256, and kept sealed beside that, for those who made the link and list it: a stolen database opens none.

use std::time::Duration;

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use towpath_domain::{FeedbackTokenId, TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::access::KeyHash;
use crate::sealing::{OpenError, Place, Sealer};
use crate::{Result, Tx};

/// How long a link is remembered after its end, so that who comes late learns that it ended.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A link as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct FeedbackToken {
    /// Id of the row.
    pub id: FeedbackTokenId,
    /// Its workspace.
    pub tenant_id: TenantId,
    /// Sealed; open it with [`FeedbackToken::token`].
    pub token: Vec<u8>,
    /// What is judged.
    pub run_id: TraceRunId,
    /// Under which name.
    pub key: String,
    /// The id of what is given, so that it is one piece of feedback however often; another one each time where there is
    /// none.
    pub feedback_id: Option<Uuid>,
    /// How the key's scores are meant, JSON.
    pub config: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it takes nothing.
    pub expires_at: Timestamp,
}

impl FeedbackToken {
    /// Its token, opened.
    ///
    /// # Errors
    /// The record does not open: another key, or somebody moved it.
    pub fn token(&self, sealer: &Sealer) -> Result<Uuid, OpenError> {
        let token = sealer.open(place(self.tenant_id, self.id), &self.token)?;
        Uuid::from_slice(&token).map_err(|_| OpenError::Malformed)
    }
}

const fn place(tenant: TenantId, id: FeedbackTokenId) -> Place<'static> {
    Place {
        tenant,
        table: "feedback_token",
        column: "token",
        row: id.0,
    }
}

/// A link to be made.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What is judged.
    pub run: TraceRunId,
    /// Under which name.
    pub key: String,
    /// The id of what is given.
    pub feedback: Option<Uuid>,
    /// How the key's scores are meant, JSON.
    pub config: Option<String>,
    /// From when on it takes nothing.
    pub expires_at: Timestamp,
}

/// Makes a link; its token.
///
/// # Errors
/// Those of the database.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, sealer: &Sealer, new: &NewToken) -> Result<Uuid> {
    let (id, token, now) = (FeedbackTokenId::new(), random(), tx.now());
    let sealed = sealer.seal(place(tenant, id), token.as_bytes());
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

/// The link with this token, also if it ended. Whoever knows the token needs no workspace.
///
/// # Errors
/// [`crate::Error::NotFound`].
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
///
/// # Errors
/// Those of the database.
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

/// Forgets at most `limit` links of all workspaces that ended before `before`; how many.
///
/// # Errors
/// Those of the database.
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

/// How many links of all workspaces ended before `before`; `most` means so many or more.
///
/// # Errors
/// Those of the database.
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
    // A system without randomness must not go on with a guessable token.
    OsRng.try_fill_bytes(&mut bytes).expect("the system gives randomness");
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
