//! How far sweeps that walk through a table have come. They belong to no workspace.

use crate::{Result, Tx};

/// Where a sweep stands, as it said.
///
/// # Errors
/// Only what the database says.
pub async fn get(tx: &mut Tx<'_>, name: &str) -> Result<Option<String>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT position FROM sweep_cursor WHERE name = $1"
    )
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

/// Notes where a sweep stands, as JSON.
///
/// # Errors
/// Only what the database says.
pub async fn set(tx: &mut Tx<'_>, name: &str, position: &str) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO sweep_cursor (name, position) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET position = excluded.position",
    )
    .bind(name)
    .bind(position)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
