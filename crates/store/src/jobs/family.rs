//! Parents and children, and operations on many of them: each is one statement.

use towpath_domain::JobId;

use super::bulk::{self, JobFence};
use super::sweep::Candidate;
use super::{BatchedJob, Job, NewJob, history};
use crate::error::{Error, Result};
use crate::tx::{Conn, Tx};

/// Children of a job in the order of recording, at most `limit`, with those in the history, where they may be once
/// their parent is over.
pub async fn children(tx: &mut Tx<'_>, parent: JobId, limit: i64) -> Result<Vec<Job>> {
    let mut found: Vec<Job> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(job),
        " FROM job WHERE parent_id = $1 ORDER BY id LIMIT $2 + 0"
    ))
    .bind(parent)
    .bind(limit)
    .fetch_all(conn)
    .await)?;
    found.extend(history::children(tx, parent, limit).await?);
    found.sort_unstable_by_key(|job| job.id);
    // One may have left between the two.
    found.dedup_by_key(|job| job.id);
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(found)
}

/// Children of a job that are not over, in the order of recording, at most `limit`.
pub async fn unfinished_children(tx: &mut Tx<'_>, parent: JobId, limit: i64) -> Result<Vec<Job>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(job),
        " FROM job WHERE parent_id = $1 AND finished_at IS NULL ORDER BY id LIMIT $2 + 0"
    ))
    .bind(parent)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Open children of these jobs in the order they were recorded, at most `limit`.
pub async fn open_children(tx: &mut Tx<'_>, parents: &[JobId], limit: i64) -> Result<Vec<Candidate>> {
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_as(
                "SELECT job.id, job.lane, job.run_at AS at FROM json_each($1) parent CROSS JOIN job
                 WHERE job.parent_id = unhex(parent.value) AND job.finished_at IS NULL ORDER BY job.id LIMIT $2 + 0",
            )
            .bind(id_list(parents))
            .bind(limit)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_as(
                "SELECT id, lane, run_at AS at FROM job WHERE parent_id = ANY($1) AND finished_at IS NULL ORDER BY id LIMIT $2 + 0",
            )
            .bind(id_array(parents))
            .bind(limit)
            .fetch_all(conn)
            .await?
        }
    })
}

/// The lanes and parents of jobs. Unknown ids are skipped.
pub async fn lanes_and_parents(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<Vec<(JobId, Option<String>, Option<JobId>)>> {
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            sqlx::query_as(
                "SELECT job.id, job.lane, job.parent_id FROM json_each($1) wanted CROSS JOIN job
                 WHERE job.id = unhex(wanted.value)",
            )
            .bind(id_list(ids))
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            sqlx::query_as("SELECT id, lane, parent_id FROM job WHERE id = ANY($1)")
                .bind(id_array(ids))
                .fetch_all(conn)
                .await?
        }
    })
}

/// Records jobs that are alike but for what `each` says; `like` has the rest.
pub async fn insert_all(tx: &mut Tx<'_>, like: &NewJob<'_>, each: &[BatchedJob]) -> Result<()> {
    let now = tx.now();
    let rows: Vec<_> = each
        .iter()
        .map(|job| {
            let id = job.id.0.simple().to_string();
            (
                id,
                job.state.as_str(),
                &job.input,
                &job.lane,
                job.lane_seq,
                job.lane_held,
            )
        })
        .collect();
    let rows = serde_json::to_string(&rows).map_err(|_| Error::corrupt("job", "input", like.id))?;
    // Lists travel as JSON text in both; only the way back to ids and numbers differs.
    let text = sql!(tx,
        sqlite: "INSERT INTO job (id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, lane, lane_seq,
                                  lane_held, keep_place, parent_id, traceparent, created_at)
                 SELECT unhex(value ->> 0), $2, $3, $4, $5, value ->> 1, $6, $7, value ->> 2, value ->> 3, value ->> 4,
                        value ->> 5, $8, $9, $10, $11
                 FROM json_each($1)",
        postgres: "INSERT INTO job (id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, lane, lane_seq,
                                    lane_held, keep_place, parent_id, traceparent, created_at)
                   SELECT (value ->> 0)::uuid, $2, $3, $4, $5, value ->> 1, $6, $7, value ->> 2, value ->> 3,
                          (value ->> 4)::bigint, (value ->> 5)::boolean, $8, $9, $10, $11
                   FROM json_array_elements($1::json)");
    on!(tx, |conn| {
        sqlx::query(text)
            .bind(&rows)
            .bind(like.tenant_id)
            .bind(like.kind)
            .bind(like.pool)
            .bind(like.priority)
            .bind(like.run_at)
            .bind(like.deadline_at)
            .bind(like.keep_place)
            .bind(like.parent_id)
            .bind(&like.traceparent)
            .bind(now)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Marks running jobs as asked to stop.
pub async fn mark_cancel_all(tx: &mut Tx<'_>, ids: &[JobId]) -> Result<()> {
    let now = tx.now();
    match tx.conn() {
        Conn::Sqlite(conn) => sqlx::query(
            "UPDATE job SET cancel_at = coalesce(cancel_at, $2) WHERE id IN (SELECT unhex(value) FROM json_each($1))",
        )
        .bind(id_list(ids))
        .bind(now)
        .execute(conn)
        .await
        .map(drop)?,
        Conn::Postgres(conn) => {
            sqlx::query("UPDATE job SET cancel_at = coalesce(cancel_at, $2) WHERE id = ANY($1)")
                .bind(id_array(ids))
                .bind(now)
                .execute(conn)
                .await
                .map(drop)?;
        }
    }
    Ok(())
}

/// Makes jobs without a worker `cancelled`. The caller has locked them.
///
/// # Errors
/// [`Error::Stale`] if one of them is not at the fence with which the caller locked it.
pub async fn cancel_all(tx: &mut Tx<'_>, held: &[JobFence]) -> Result<()> {
    let now = tx.now();
    let done = match tx.conn() {
        Conn::Sqlite(conn) => sqlx::query(
            "UPDATE job SET state = 'cancelled', finished_at = $2, lane_held = 0, dead = 0, cancel_at = NULL
             FROM (SELECT unhex(value ->> 0) AS id, value ->> 1 AS fence FROM json_each($1)) held
             WHERE job.id = held.id AND job.fence = held.fence",
        )
        .bind(bulk::as_json(held))
        .bind(now)
        .execute(conn)
        .await?
        .rows_affected(),
        Conn::Postgres(conn) => {
            let (ids, fences) = bulk::as_arrays(held);
            sqlx::query(
                "UPDATE job SET state = 'cancelled', finished_at = $3, lane_held = false, dead = false, cancel_at = NULL
                 FROM unnest($1::uuid[], $2::bigint[]) AS held(id, fence)
                 WHERE job.id = ANY($1) AND job.id = held.id AND job.fence = held.fence",
            )
            .bind(ids)
            .bind(fences)
            .bind(now)
            .execute(conn)
            .await?
            .rows_affected()
        }
    };
    if usize::try_from(done).is_ok_and(|done| done == held.len()) {
        Ok(())
    } else {
        Err(Error::Stale)
    }
}

/// Counts the open children of a parent again and writes the count into its row. Returns it.
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

/// Tells a locked parent how many children ended and how many of them not successfully. A finished parent counts too:
/// whether it can be retried depends on its open children.
pub async fn count_ended_children(tx: &mut Tx<'_>, parent: JobId, over: i64, badly: i64) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("UPDATE job SET open_children = open_children - $2, bad_children = bad_children + $3 WHERE id = $1")
            .bind(parent)
            .bind(over)
            .bind(badly)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Opens a savepoint that [`rollback_to_savepoint`] or [`release_savepoint`] ends. Only PostgreSQL needs it: SQLite has
/// no concurrent writers.
pub async fn savepoint(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SAVEPOINT family").execute(conn).await?;
    }
    Ok(())
}

/// Releases the locks taken since [`savepoint`].
pub async fn rollback_to_savepoint(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("ROLLBACK TO SAVEPOINT family").execute(conn).await?;
    }
    Ok(())
}

/// Keeps the locks taken since [`savepoint`]. Otherwise savepoints would nest, and each slows every later write of the
/// transaction.
pub async fn release_savepoint(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("RELEASE SAVEPOINT family").execute(conn).await?;
    }
    Ok(())
}

/// Whether an open job outside `known` has one of `known` as its parent. Call it with locked jobs, whose families
/// cannot grow. Always `false` on SQLite, which has no concurrent writers.
pub async fn has_new_children(tx: &mut Tx<'_>, known: &[JobId]) -> Result<bool> {
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

/// `["hex id", …]` for `json_each`: SQLite has no arrays.
pub(super) fn id_list(ids: &[JobId]) -> String {
    let ids: Vec<_> = ids.iter().map(|id| id.0.simple().to_string()).collect();
    serde_json::to_string(&ids).expect("texts are always JSON")
}

/// The same for PostgreSQL.
fn id_array(ids: &[JobId]) -> Vec<sqlx::types::Uuid> {
    ids.iter().map(|id| id.0).collect()
}
