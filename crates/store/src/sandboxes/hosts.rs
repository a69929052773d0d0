//! The host lease: which process of an installation runs sandboxes.
//!
//! The lease is a single row that its holder renews. A process with the same folder of sandboxes takes it over
//! immediately: the lock on that folder proves that the previous process is dead. Any other process waits until the
//! lease has expired.

use std::time::Duration;

use uuid::Uuid;

use crate::error::Result;
use crate::leases::{FAR_FUTURE, millis};
use crate::tx::{Conn, Tx};

/// A process that is to hold the machine of boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLease {
    /// Of the folder that its boxes are in.
    pub host_id: Uuid,
    /// The machine's name, for people.
    pub host: String,
    /// Of this life of the process.
    pub process_id: Uuid,
}

/// Takes the row, or renews it. False while another process has it.
pub async fn acquire(tx: &mut Tx<'_>, claim: &HostLease, lease: Duration) -> Result<bool> {
    let known = tx.now_param();
    let taken: Option<Uuid> = match tx.conn() {
        // One process is all there is.
        Conn::Sqlite(conn) => {
            sqlx::query_scalar(
                "INSERT INTO sandbox_host (id, host_id, host, life, alive_until) VALUES (1, $1, $2, $3, $4)
                 ON CONFLICT (id) DO UPDATE SET host_id = excluded.host_id, host = excluded.host, life = excluded.life
                 RETURNING life",
            )
            .bind(claim.host_id)
            .bind(&claim.host)
            .bind(claim.process_id)
            .bind(FAR_FUTURE)
            .fetch_optional(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_scalar(
                "INSERT INTO sandbox_host (id, host_id, host, life, alive_until)
                 VALUES (1, $1, $2, $3, towpath_now($4) + $5 * interval '1 millisecond')
                 ON CONFLICT (id) DO UPDATE SET host_id = excluded.host_id, host = excluded.host, life = excluded.life,
                     alive_until = excluded.alive_until
                 WHERE sandbox_host.host_id = excluded.host_id OR sandbox_host.alive_until < towpath_now($4)
                 RETURNING life",
            )
            .bind(claim.host_id)
            .bind(&claim.host)
            .bind(claim.process_id)
            .bind(known)
            .bind(millis(lease))
            .fetch_optional(conn)
            .await?
        }
    };
    Ok(taken.is_some())
}

/// The machine that has it, for people.
pub async fn holder(tx: &mut Tx<'_>) -> Result<Option<String>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT host FROM sandbox_host WHERE id = 1"
    )
    .fetch_optional(conn)
    .await)?)
}

/// Releases it.
pub async fn release(tx: &mut Tx<'_>, life: Uuid) -> Result<()> {
    on!(tx, |conn| sqlx::query("DELETE FROM sandbox_host WHERE life = $1")
        .bind(life)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}
