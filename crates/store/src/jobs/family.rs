//! Parents and children.

use towpath_domain::JobId;

use super::Job;
use crate::error::Result;
use crate::tx::{Conn, Tx};

/// Children of a job in the order they were recorded, at most `limit`.
///
/// # Errors
/// As every statement.
pub async fn children(tx: &mut Tx<'_>, parent: JobId, open_only: bool, limit: i64) -> Result<Vec<Job>> {
    let text = if open_only {
        "SELECT * FROM job WHERE parent_id = $1 AND finished_at IS NULL ORDER BY id LIMIT $2 + 0"
    } else {
        "SELECT * FROM job WHERE parent_id = $1 ORDER BY id LIMIT $2 + 0"
    };
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(parent)
        .bind(limit)
        .fetch_all(conn)
        .await)?)
}

/// Counts the open children of a parent anew and writes the count into its row. Returns it.
///
/// # Errors
/// As every statement.
pub async fn count_children(tx: &mut Tx<'_>, parent: JobId) -> Result<i64> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar(
            "UPDATE job SET open_children = (SELECT count(*) FROM job c WHERE c.parent_id = $1 AND c.finished_at IS NULL)
             WHERE id = $1 RETURNING open_children",
        )
        .bind(parent)
        .fetch_one(conn)
        .await
    })?)
}

/// Tells a locked parent that one child is over.
///
/// # Errors
/// As every statement.
pub async fn child_over(tx: &mut Tx<'_>, parent: JobId, badly: bool) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query(
            "UPDATE job SET open_children = open_children - 1, bad_children = bad_children + $2
             WHERE id = $1 AND finished_at IS NULL",
        )
        .bind(parent)
        .bind(i64::from(badly))
        .execute(conn)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Begins what [`let_go`] undoes. Only PostgreSQL needs it: on SQLite nobody can come in between.
///
/// # Errors
/// As every statement.
pub async fn mark(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SAVEPOINT family").execute(conn).await?;
    }
    Ok(())
}

/// Lets go of the locks taken since [`mark`].
///
/// # Errors
/// As every statement.
pub async fn let_go(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("ROLLBACK TO SAVEPOINT family").execute(conn).await?;
    }
    Ok(())
}

/// Whether an open job that is not among `known` has one of `known` as its parent. Only asked of locked jobs, whose
/// families cannot grow any more, and always `false` on SQLite, where they could not in between either.
///
/// # Errors
/// As every statement.
pub async fn grew(tx: &mut Tx<'_>, known: &[JobId]) -> Result<bool> {
    match tx.conn() {
        Conn::Sqlite(_) => Ok(false),
        Conn::Postgres(conn) => {
            let ids: Vec<_> = known.iter().map(|id| id.0).collect();
            Ok(sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM job WHERE parent_id = ANY($1) AND finished_at IS NULL AND id <> ALL($1))",
            )
            .bind(ids)
            .fetch_one(conn)
            .await?)
        }
    }
}
