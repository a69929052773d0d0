//! The clock of a database that `towpath bench soak` moves from day to day.

use sqlx::FromRow;

use crate::error::Result;
use crate::tx::{Conn, Tx};

/// How far the days of a database have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow)]
pub struct Calendar {
    /// Days that are over.
    pub days: i64,
    /// How far the clock is ahead of the machine's, in microseconds.
    pub offset_us: i64,
}

/// Reads the calendar, which is kept in a table of its own.
pub async fn calendar(tx: &mut Tx<'_>) -> Result<Calendar> {
    let found: Option<Calendar> = on!(tx, |conn| {
        sqlx::query(
            "CREATE TABLE IF NOT EXISTS baseline_soak (one BIGINT PRIMARY KEY, days BIGINT NOT NULL, offset_us BIGINT NOT NULL)",
        )
        .execute(&mut *conn)
        .await?;
        sqlx::query_as("SELECT days, offset_us FROM baseline_soak")
            .fetch_optional(conn)
            .await
    })?;
    Ok(found.unwrap_or_default())
}

/// Writes the calendar and moves the database's clock. On SQLite the clock is that of the process, which the caller
/// moves after the commit.
pub async fn move_clock(tx: &mut Tx<'_>, to: Calendar) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        // A constant, unlike in the schema: reading a table would add to the block count of every statement.
        let text = format!(
            "CREATE OR REPLACE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
                 LANGUAGE sql STABLE PARALLEL SAFE
                 AS $$ SELECT coalesce(known, clock_timestamp() + interval '{} microseconds') $$",
            to.offset_us
        );
        sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .execute(conn)
            .await?;
    }
    on!(tx, |conn| {
        sqlx::query(
            "INSERT INTO baseline_soak (one, days, offset_us) VALUES (1, $1, $2)
             ON CONFLICT (one) DO UPDATE SET days = excluded.days, offset_us = excluded.offset_us",
        )
        .bind(to.days)
        .bind(to.offset_us)
        .execute(conn)
        .await
        .map(drop)
    })?;
    Ok(())
}
