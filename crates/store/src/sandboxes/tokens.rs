//! Links into sandboxes for callers without a key. A token has 256 random bits and is found by its SHA-256: a stolen
//! database opens nothing.

use towpath_domain::sandbox::TokenKind;
use towpath_domain::{BoxId, TenantId, Timestamp};

use crate::access::{KeyHash, new_secret};
use crate::{Error, Result, Tx};

/// Tokens of one box.
const MAX_TOKENS: i64 = 1000;

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct BoxToken {
    /// Owner of the box.
    pub tenant_id: TenantId,
    pub box_id: BoxId,
    /// A port or a file.
    pub kind: TokenKind,
    pub port: Option<i64>,
    /// The file.
    pub path: Option<String>,
    /// `Content-Type` of the file.
    pub content_type: Option<String>,
    /// `attachment` or `inline`.
    pub content_disposition: Option<String>,
    pub created_at: Timestamp,
    /// Until when it opens something; as long as the box is there, if there is none.
    pub expires_at: Option<Timestamp>,
}

/// A token to make.
#[derive(Clone, Copy, Debug)]
pub struct NewToken<'a> {
    pub box_id: BoxId,
    /// A port or a file.
    pub kind: TokenKind,
    pub port: Option<u16>,
    /// The file.
    pub path: Option<&'a str>,
    /// `Content-Type` of the file.
    pub content_type: Option<&'a str>,
    /// `attachment` or `inline`.
    pub content_disposition: Option<&'a str>,
    /// Until when it opens something.
    pub expires_at: Option<Timestamp>,
}

/// Creates a token; its text. The oldest goes where a box has a thousand.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewToken<'_>) -> Result<String> {
    let (token, now) = (new_secret(), tx.now());
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_token WHERE hash IN
             (SELECT hash FROM sandbox_token WHERE box_id = $1 ORDER BY created_at DESC LIMIT 1000 OFFSET $2 + 0)"
    )
    .bind(new.box_id)
    .bind(MAX_TOKENS - 1)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| {
        sqlx::query(
        "INSERT INTO sandbox_token (hash, tenant_id, box_id, kind, port, path, content_type, content_disposition, created_at,
                                    expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
    )
    .bind(&KeyHash::of(token.as_bytes()).bytes()[..])
    .bind(tenant)
    .bind(new.box_id)
    .bind(new.kind)
    .bind(new.port.map(i64::from))
    .bind(new.path)
    .bind(new.content_type)
    .bind(new.content_disposition)
    .bind(now)
    .bind(new.expires_at)
    .execute(conn)
    .await
    .map(drop)
    })?;
    Ok(token)
}

/// Resolves a valid token.
pub async fn find(tx: &mut Tx<'_>, token: &str) -> Result<BoxToken> {
    let now = tx.now();
    // A hash is looked up, so how long that takes says nothing about the tokens there are.
    let row: Option<BoxToken> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_token),
        " FROM sandbox_token WHERE hash = $1 AND (expires_at IS NULL OR expires_at > $2)"
    ))
    .bind(&KeyHash::of(token.as_bytes()).bytes()[..])
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    row.ok_or(Error::NotFound)
}

/// Tokens of ports of a box, the newest first.
pub async fn service_tokens(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId) -> Result<Vec<BoxToken>> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_token),
        " FROM sandbox_token
         WHERE tenant_id = $1 AND box_id = $2 AND kind = 'service' AND (expires_at IS NULL OR expires_at > $3)
         ORDER BY created_at DESC LIMIT 1000"
    ))
    .bind(tenant)
    .bind(id)
    .bind(now)
    .fetch_all(conn)
    .await)?)
}

/// Revokes the tokens of a port, or of all ports, of a box.
pub async fn revoke_services(tx: &mut Tx<'_>, tenant: TenantId, id: BoxId, port: Option<u16>) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_token
         WHERE tenant_id = $1 AND box_id = $2 AND kind = 'service' AND (port = $3 OR $3 IS NULL)"
    )
    .bind(tenant)
    .bind(id)
    .bind(port.map(i64::from))
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes at most `limit` tokens of all workspaces that have expired and returns how many.
pub async fn prune(tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_token WHERE hash IN
             (SELECT hash FROM sandbox_token WHERE expires_at < $1 ORDER BY expires_at LIMIT $2 + 0)"
    )
    .bind(now)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}
