//! Sessions that were ended early. A session is a sealed token that is not stored, so only its end is.

use towpath_domain::Timestamp;

use crate::access::KeyHash;
use crate::{Result, Tx};

/// Records until `expires_at` that a session was ended, and deletes expired records. Idempotent.
pub async fn insert(tx: &mut Tx<'_>, token: &KeyHash, expires_at: Timestamp) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "DELETE FROM ended_session WHERE expires_at < $1"
    )
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "INSERT INTO ended_session (token, expires_at) VALUES ($1, $2) ON CONFLICT (token) DO NOTHING"
    )
    .bind(&token.bytes()[..])
    .bind(expires_at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Whether a session was ended.
pub async fn contains(tx: &mut Tx<'_>, token: &KeyHash) -> Result<bool> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM ended_session WHERE token = $1)"
    )
    .bind(&token.bytes()[..])
    .fetch_one(conn)
    .await)?)
}
