//! Push notification configs of Agent2Agent tasks.

use sqlx::FromRow;
use towpath_domain::agent::a2a::Dialect;
use towpath_domain::{RunId, Secret, TenantId, Timestamp};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::tx::Tx;

/// The maximum number of addresses of one task.
pub const MAX_CONFIGS: i64 = 10;

#[derive(Clone, FromRow)]
pub struct PushConfig {
    /// Of the row.
    pub id: Uuid,
    /// The run that began the task.
    pub task_id: RunId,
    /// The client's id for it.
    pub name: String,
    pub url: String,
    token: Option<String>,
    /// The authentication scheme, such as `Bearer`.
    pub scheme: Option<String>,
    credentials: Option<String>,
    /// The protocol version of its notifications.
    pub dialect: Dialect,
    /// When it was first given.
    pub created_at: Timestamp,
}

impl PushConfig {
    /// The token by which the receiver recognises calls.
    #[must_use]
    pub fn token(&self) -> Option<Secret> {
        self.token.as_deref().map(Secret::new)
    }

    /// The credentials for the receiver.
    #[must_use]
    pub fn credentials(&self) -> Option<Secret> {
        self.credentials.as_deref().map(Secret::new)
    }
}

impl std::fmt::Debug for PushConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushConfig")
            .field("id", &self.id)
            .field("task_id", &self.task_id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An address to record.
#[derive(Clone, Debug)]
pub struct NewPushConfig {
    /// The client's id for it.
    pub name: String,
    pub url: String,
    /// The token by which the receiver recognises calls.
    pub token: Option<Secret>,
    /// The authentication scheme.
    pub scheme: Option<String>,
    /// The credentials for the receiver.
    pub credentials: Option<Secret>,
    /// The protocol version of its notifications.
    pub dialect: Dialect,
}

/// Records an address or replaces the one of this name. Returns false and writes nothing if the task already has
/// [`MAX_CONFIGS`] others.
pub async fn put(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, new: &NewPushConfig) -> Result<bool> {
    // Two that come at once are counted one after the other.
    let text = sql!(tx,
        sqlite: "SELECT id FROM a2a_task WHERE tenant_id = $1 AND id = $2",
        postgres: "SELECT id FROM a2a_task WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE");
    let locked: Option<RunId> = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(task)
        .fetch_optional(conn)
        .await)?;
    locked.ok_or(Error::NotFound)?;
    let others: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM a2a_push_config WHERE tenant_id = $1 AND task_id = $2 AND name <> $3"
    )
    .bind(tenant)
    .bind(task)
    .bind(&new.name)
    .fetch_one(conn)
    .await)?;
    if others >= MAX_CONFIGS {
        return Ok(false);
    }
    let now = tx.now();
    on!(tx, |conn| {
        sqlx::query(
        "INSERT INTO a2a_push_config (id, tenant_id, task_id, name, url, token, scheme, credentials, dialect, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (task_id, name) DO UPDATE SET url = excluded.url, token = excluded.token, scheme = excluded.scheme,
             credentials = excluded.credentials, dialect = excluded.dialect"
    )
    .bind(Uuid::now_v7())
    .bind(tenant)
    .bind(task)
    .bind(&new.name)
    .bind(&new.url)
    .bind(new.token.as_ref().map(Secret::reveal))
    .bind(&new.scheme)
    .bind(new.credentials.as_ref().map(Secret::reveal))
    .bind(new.dialect)
    .bind(now)
    .execute(conn)
    .await
    .map(drop)
    })?;
    Ok(true)
}

/// Addresses of a task, in the order in which they were given.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, task: RunId) -> Result<Vec<PushConfig>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(a2a_push_config),
        " FROM a2a_push_config WHERE tenant_id = $1 AND task_id = $2 ORDER BY created_at, name"
    ))
    .bind(tenant)
    .bind(task)
    .fetch_all(conn)
    .await)?)
}

/// One address, by the client's id for it.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, name: &str) -> Result<PushConfig> {
    let all = list(tx, tenant, task).await?;
    all.into_iter().find(|one| one.name == name).ok_or(Error::NotFound)
}

/// One address, by the id of its row.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid) -> Result<PushConfig> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(a2a_push_config),
        " FROM a2a_push_config WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Deletes an address. True when it was there.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, task: RunId, name: &str) -> Result<bool> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM a2a_push_config WHERE tenant_id = $1 AND task_id = $2 AND name = $3"
    )
    .bind(tenant)
    .bind(task)
    .bind(name)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(gone > 0)
}
