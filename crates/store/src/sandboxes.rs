//! Boxes and what belongs to them.

pub mod boxes;
pub mod network;
pub mod nodes;
pub mod pools;
pub mod registries;
pub mod snapshots;
pub mod templates;
pub mod tokens;
pub mod volumes;

use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_domain::TenantId;

use crate::tx::{Conn, Tx};
use crate::{Error, Result};

/// Tells the locks of workspaces from other advisory locks.
const WORKSPACE_LOCKS: u64 = 0x7361_6e64_626f_7865;

/// Locks the sandbox quota of a workspace until the transaction is over: counts stay valid, and of two identical
/// concurrent requests the second sees the first. Take it before lanes and rows.
pub async fn lock_quota(tx: &mut Tx<'_>, tenant: TenantId) -> Result<()> {
    // SQLite has one writer. Two workspaces with one key wait for each other, and nothing worse.
    if let Conn::Postgres(conn) = tx.conn() {
        let (first, second) = tenant.0.as_u64_pair();
        let key = first ^ second ^ WORKSPACE_LOCKS;
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(key.cast_signed())
            .execute(conn)
            .await
            .map(drop)?;
    }
    Ok(())
}

fn to_json<T: Serialize>(value: &T, table: &'static str, column: &'static str, row: &impl ToString) -> Result<String> {
    serde_json::to_string(value).map_err(|_| Error::corrupt(table, column, row.to_string()))
}

fn from_json<T: DeserializeOwned>(
    text: &str,
    table: &'static str,
    column: &'static str,
    row: &impl ToString,
) -> Result<T> {
    serde_json::from_str(text).map_err(|_| Error::corrupt(table, column, row.to_string()))
}
