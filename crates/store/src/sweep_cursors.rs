//! Positions of sweeps that scan a table, and which process sweeps. They belong to no workspace.

use std::time::Duration;

use crate::{Result, Tx};

/// Where a sweep is, as it said.
pub async fn get(tx: &mut Tx<'_>, name: &str) -> Result<Option<String>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT position FROM sweep_cursor WHERE name = $1"
    )
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

/// Notes where a sweep is, as JSON.
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

/// Claims a sweep for this process until `span` is over by the database's clock, since a host's clock may be ahead.
/// False while another process has the claim. Sweeps must tolerate running twice: one may outlast its claim.
pub async fn claim_interval(tx: &mut Tx<'_>, name: &str, span: Duration) -> Result<bool> {
    let now = crate::jobs::db_now(tx).await?;
    // Microseconds have sixteen digits until the year 2286, so texts compare like numbers.
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
