//! How far sweeps that walk through a table have come, and whose turn it is to sweep. They belong to no workspace.

use std::time::Duration;

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

/// Takes a turn of a sweep that one process at a time is enough for, until `span` is over by the clock of the database: a host
/// whose clock is ahead must not take it for longer. False while the turn is another's. What a turn does must be right twice: it
/// may last longer than the turn.
///
/// # Errors
/// Only what the database says.
pub async fn take_turn(tx: &mut Tx<'_>, name: &str, span: Duration) -> Result<bool> {
    let now = crate::jobs::db_now(tx).await?;
    // Microseconds, which have sixteen digits until the year 2286: texts of one length compare like numbers.
    let text = |at: towpath_domain::Timestamp| format!("{:016}", at.micros());
    let taken = on!(tx, |conn| sqlx::query(
        "INSERT INTO sweep_cursor (name, position) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET position = excluded.position WHERE sweep_cursor.position < $3",
    )
    .bind(name)
    .bind(text(now.plus(span)))
    .bind(text(now))
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(taken == 1)
}
