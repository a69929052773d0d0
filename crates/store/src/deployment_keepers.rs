//! The keeper lease: which process of an installation runs deployments.
//!
//! The lease is a single row that its holder renews. A process with the same folder of deployments takes it over
//! immediately: the lock on that folder proves that the previous process is dead. Any other process waits until the
//! lease has expired. On SQLite there is only one process, so it always gets the lease, which never expires.

use std::time::Duration;

use uuid::Uuid;

use crate::error::Result;
use crate::leases::{FAR_FUTURE, millis};
use crate::tx::{Conn, Tx};

/// A process that asks for the keeper lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of the folder that its deployments are in.
    pub host_id: Uuid,
    /// The machine's name, for people.
    pub host: String,
    /// Its number there, for people.
    pub pid: i64,
    /// Of this life of the process.
    pub life: Uuid,
}

/// Who runs deployments.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Keeper {
    /// Of the folder that its deployments are in.
    pub host_id: Uuid,
    /// The machine's name.
    pub host: String,
    /// The process's number there.
    pub pid: i64,
    /// Of this life of the process.
    pub life: Uuid,
    /// Whether it has not expired.
    pub is_alive: bool,
}

/// Takes the keeper lease. False while another process holds it.
pub async fn take(tx: &mut Tx<'_>, claim: &Claim, lease: Duration) -> Result<bool> {
    let known = tx.now_param();
    let taken: Option<Uuid> = match tx.conn() {
        Conn::Sqlite(conn) => sqlx::query_scalar(
            "INSERT INTO deployment_keeper (id, host_id, host, pid, life, alive_until) VALUES (1, $1, $2, $3, $4, $5)
             ON CONFLICT (id) DO UPDATE SET host_id = excluded.host_id, host = excluded.host, pid = excluded.pid,
                 life = excluded.life, alive_until = excluded.alive_until
             RETURNING life",
        )
        .bind(claim.host_id)
        .bind(&claim.host)
        .bind(claim.pid)
        .bind(claim.life)
        .bind(FAR_FUTURE)
        .fetch_optional(conn)
        .await?,
        Conn::Postgres(conn) => {
            sqlx::query_scalar(
                "INSERT INTO deployment_keeper (id, host_id, host, pid, life, alive_until)
             VALUES (1, $1, $2, $3, $4, towpath_now($5) + $6 * interval '1 millisecond')
             ON CONFLICT (id) DO UPDATE SET host_id = excluded.host_id, host = excluded.host, pid = excluded.pid,
                 life = excluded.life, alive_until = excluded.alive_until
             WHERE deployment_keeper.host_id = excluded.host_id OR deployment_keeper.alive_until < towpath_now($5)
             RETURNING life",
            )
            .bind(claim.host_id)
            .bind(&claim.host)
            .bind(claim.pid)
            .bind(claim.life)
            .bind(known)
            .bind(millis(lease))
            .fetch_optional(conn)
            .await?
        }
    };
    Ok(taken.is_some())
}

/// Extends the lease. Returns whether this process still holds it. On SQLite it only checks: a write would need its own
/// commit.
pub async fn renew(tx: &mut Tx<'_>, life: Uuid, lease: Duration) -> Result<bool> {
    let known = tx.now_param();
    let renewed: Option<Uuid> = match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_scalar("SELECT life FROM deployment_keeper WHERE life = $1")
                .bind(life)
                .fetch_optional(conn)
                .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_scalar(
                "UPDATE deployment_keeper SET alive_until = towpath_now($2) + $3 * interval '1 millisecond'
                 WHERE life = $1 RETURNING life",
            )
            .bind(life)
            .bind(known)
            .bind(millis(lease))
            .fetch_optional(conn)
            .await?
        }
    };
    Ok(renewed.is_some())
}

/// Releases the lease once no deployment runs any more.
pub async fn end(tx: &mut Tx<'_>, life: Uuid) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("DELETE FROM deployment_keeper WHERE life = $1")
            .bind(life)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// No one has it, in a database that was restored.
pub async fn forget(tx: &mut Tx<'_>) -> Result<()> {
    on!(tx, |conn| sqlx::query("DELETE FROM deployment_keeper")
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Who has it, or had it last and did not give it back.
pub async fn current(tx: &mut Tx<'_>) -> Result<Option<Keeper>> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: "SELECT host_id, host, pid, life, alive_until >= $1 AS is_alive FROM deployment_keeper WHERE id = 1",
        postgres: "SELECT host_id, host, pid, life, alive_until >= towpath_now($1) AS is_alive FROM deployment_keeper
                   WHERE id = 1");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(known)
        .fetch_optional(conn)
        .await)?)
}
