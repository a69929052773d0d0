//! Which process holds the machine of boxes: one of an installation does.
//!
//! It has the one row of a table, and renews it. A process with the same folder of boxes takes the row at once: the lock of
//! that folder proves that the process before is dead. Another one has to wait until the row has passed its time.

use std::time::Duration;

use uuid::Uuid;

use crate::error::Result;
use crate::leases::{NEVER, millis};
use crate::tx::{Conn, Tx};

/// A process that is to hold the machine of boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of the folder that its boxes lie in.
    pub host_id: Uuid,
    /// The machine's name, for people.
    pub host: String,
    /// Of this life of the process.
    pub life: Uuid,
}

/// Takes the row, or renews it. False while another process has it.
///
/// # Errors
/// As every statement.
pub async fn take(tx: &mut Tx<'_>, claim: &Claim, lease: Duration) -> Result<bool> {
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
            .bind(claim.life)
            .bind(NEVER)
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
            .bind(claim.life)
            .bind(known)
            .bind(millis(lease))
            .fetch_optional(conn)
            .await?
        }
    };
    Ok(taken.is_some())
}

/// The machine that has it, for people.
///
/// # Errors
/// As every statement.
pub async fn current(tx: &mut Tx<'_>) -> Result<Option<String>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT host FROM sandbox_host WHERE id = 1"
    )
    .fetch_optional(conn)
    .await)?)
}

/// Gives it back.
///
/// # Errors
/// As every statement.
pub async fn end(tx: &mut Tx<'_>, life: Uuid) -> Result<()> {
    on!(tx, |conn| sqlx::query("DELETE FROM sandbox_host WHERE life = $1")
        .bind(life)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}
