//! Lanes: how many jobs with one key may run, and in which order.
//!
//! Lock a lane in a separate statement and before any job row. A statement that locks *and* reads sees the blocked jobs
//! as of before its wait, which breaks the order.
//!
//! On PostgreSQL there are three lock modes. Changes to a lane take NO KEY UPDATE, one at a time. [`ensure`] takes KEY
//! SHARE, which only keeps the lane from being deleted. Deletion takes UPDATE, which excludes both.

use sqlx::FromRow;
use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, TenantId, Timestamp};

use crate::error::Result;
use crate::tx::{Conn, Tx};

/// A lane, locked by this transaction.
#[derive(Clone, Debug, FromRow)]
pub struct Lane {
    /// What it is about, `thread:…`.
    pub key: String,
    /// The number of slots.
    pub places: i64,
    /// How many do.
    pub held: i64,
    /// The number the next job to enter gets.
    pub next_seq: i64,
}

/// A promoted job. A suspect stays `scheduled` with its slot, since it is claimed alone.
#[derive(Clone, Debug, FromRow)]
pub struct PromotedJob {
    pub id: JobId,
    pub tenant_id: TenantId,
    /// The pool that should wake.
    pub pool: String,
    pub priority: i64,
    pub run_at: Timestamp,
}

impl From<PromotedJob> for ReadyJob {
    fn from(job: PromotedJob) -> Self {
        Self {
            pool: job.pool,
            tenant: job.tenant_id,
            priority: job.priority,
            run_at: job.run_at,
            id: job.id,
        }
    }
}

/// Makes the lane if it is not there, and locks it.
pub async fn lock(tx: &mut Tx<'_>, key: &str, places: i64) -> Result<Lane> {
    if let Some(lane) = lock_existing(tx, key).await? {
        return Ok(lane);
    }
    // An update that changes nothing: the lane may have been created concurrently, and DO NOTHING would not lock it.
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "INSERT INTO lane (key, places) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET held = lane.held
             RETURNING key, places, held, next_seq",
        )
        .bind(key)
        .bind(places)
        .fetch_one(conn)
        .await
    })?)
}

/// Locks the lane if it is there.
pub async fn lock_existing(tx: &mut Tx<'_>, key: &str) -> Result<Option<Lane>> {
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(lane), " FROM lane WHERE key = $1"),
        postgres: concat!("SELECT ", columns!(lane), " FROM lane WHERE key = $1 FOR NO KEY UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(key)
        .fetch_optional(conn)
        .await)?)
}

/// Creates the lane if it is missing and protects it from deletion until this transaction ends, for a job that enters
/// it later. Does not wait for changes to the lane.
pub async fn ensure(tx: &mut Tx<'_>, key: &str, places: i64) -> Result<()> {
    let text = sql!(tx,
        // SQLite has one writer, so no other caller can delete it.
        sqlite: "SELECT 1 FROM lane WHERE key = $1",
        postgres: "SELECT 1 FROM lane WHERE key = $1 FOR KEY SHARE");
    loop {
        let there = on!(tx, |conn| sqlx::query(text)
            .bind(key)
            .fetch_optional(conn)
            .await
            .map(|row| row.is_some()))?;
        if there {
            return Ok(());
        }
        let made = on!(tx, |conn| sqlx::query(
            "INSERT INTO lane (key, places) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING"
        )
        .bind(key)
        .bind(places)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
        if made == 1 {
            return Ok(());
        }
        // Another process made it in between, and has committed by now.
    }
}

/// Locks the lane if it is there, for those who do not look at it. On SQLite the writer is alone.
pub async fn lock_unread(tx: &mut Tx<'_>, key: &str) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SELECT 1 FROM lane WHERE key = $1 FOR NO KEY UPDATE")
            .bind(key)
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Creates missing lanes and locks all of them, in a constant number of statements. `wanted` has sorted keys, and the
/// slots of new lanes.
pub async fn lock_all(tx: &mut Tx<'_>, wanted: &[(String, i64)]) -> Result<Vec<Lane>> {
    // As in `lock`, an update that changes nothing. Rows are locked in insertion order, sorted bytewise by key: locking
    // existing rows first would break the order of callers that lock one by one.
    Ok(match tx.conn() {
        Conn::Sqlite(conn) => {
            let wanted = serde_json::to_string(wanted).expect("texts and numbers are always JSON");
            sqlx::query_as(
                "INSERT INTO lane (key, places) SELECT value ->> 0, value ->> 1 FROM json_each($1) WHERE true
                 ON CONFLICT (key) DO UPDATE SET held = lane.held RETURNING key, places, held, next_seq",
            )
            .bind(wanted)
            .fetch_all(conn)
            .await?
        }
        Conn::Postgres(conn) => {
            let (keys, places): (Vec<_>, Vec<_>) = wanted.iter().cloned().unzip();
            sqlx::query_as(
                "INSERT INTO lane (key, places)
                 SELECT key, places FROM unnest($1::text[], $2::bigint[]) AS wanted(key, places) ORDER BY key COLLATE \"C\"
                 ON CONFLICT (key) DO UPDATE SET held = lane.held RETURNING key, places, held, next_seq",
            )
            .bind(keys)
            .bind(places)
            .fetch_all(conn)
            .await?
        }
    })
}

/// Writes locked lanes back.
pub async fn save_all(tx: &mut Tx<'_>, lanes: &[Lane]) -> Result<()> {
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let rows = lanes
                .iter()
                .map(|lane| (&lane.key, lane.places, lane.held, lane.next_seq));
            let rows = serde_json::to_string(&rows.collect::<Vec<_>>()).expect("texts and numbers are always JSON");
            sqlx::query(
                "UPDATE lane SET places = saved.places, held = saved.held, next_seq = saved.next_seq
                 FROM (SELECT value ->> 0 AS key, value ->> 1 AS places, value ->> 2 AS held, value ->> 3 AS next_seq
                       FROM json_each($1)) saved
                 WHERE lane.key = saved.key",
            )
            .bind(rows)
            .execute(conn)
            .await?;
        }
        Conn::Postgres(conn) => {
            let keys: Vec<_> = lanes.iter().map(|lane| lane.key.clone()).collect();
            let number = |of: fn(&Lane) -> i64| lanes.iter().map(of).collect::<Vec<_>>();
            sqlx::query(
                "UPDATE lane SET places = saved.places, held = saved.held, next_seq = saved.next_seq
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS saved(key, places, held, next_seq)
                 WHERE lane.key = ANY($1) AND lane.key = saved.key",
            )
            .bind(keys)
            .bind(number(|lane| lane.places))
            .bind(number(|lane| lane.held))
            .bind(number(|lane| lane.next_seq))
            .execute(conn)
            .await?;
        }
    }
    Ok(())
}

/// Releases slots of a locked lane and gives free slots to the jobs that have waited longest, which are returned.
pub async fn leave(tx: &mut Tx<'_>, key: &str, places: i64) -> Result<Vec<PromotedJob>> {
    // `changes()` is how many jobs the previous statement promoted. A missing lane has no slots.
    let text = sql!(tx,
        sqlite: "UPDATE lane SET held = held - $2 WHERE key = $1;
                 UPDATE job SET state = CASE WHEN lost_leases < 2 THEN 'ready' ELSE 'scheduled' END, lane_held = 1
                 WHERE id IN (SELECT id FROM job WHERE lane = $1 AND finished_at IS NULL AND state = 'blocked'
                              ORDER BY lane_seq, id
                              LIMIT coalesce((SELECT max(places - held, 0) FROM lane WHERE key = $1), 0))
                 RETURNING id, tenant_id, pool, priority, run_at;
                 UPDATE lane SET held = held + changes() WHERE key = $1 AND changes() > 0",
        // An array, not a join: see `postgres.rs`.
        postgres: "WITH promoted AS (
                       UPDATE job SET state = CASE WHEN lost_leases < 2 THEN 'ready' ELSE 'scheduled' END, lane_held = true
                       WHERE id = ANY (ARRAY (
                           SELECT id FROM job WHERE lane = $1 AND finished_at IS NULL AND state = 'blocked'
                           ORDER BY lane_seq, id
                           LIMIT coalesce((SELECT greatest(places - held + $2, 0) FROM lane WHERE key = $1), 0)))
                       RETURNING id, tenant_id, pool, priority, run_at
                   ),
                   counted AS (
                       UPDATE lane SET held = held - $2 + (SELECT count(*) FROM promoted) WHERE key = $1
                   )
                   SELECT id, tenant_id, pool, priority, run_at FROM promoted");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(key)
        .bind(places)
        .fetch_all(conn)
        .await)?)
}

/// Reads a lane without locking it.
pub async fn get(tx: &mut Tx<'_>, key: &str) -> Result<Option<Lane>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(lane),
        " FROM lane WHERE key = $1"
    ))
    .bind(key)
    .fetch_optional(conn)
    .await)?)
}

/// Writes a locked lane back.
pub async fn save(tx: &mut Tx<'_>, lane: &Lane) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query("UPDATE lane SET places = $2, held = $3, next_seq = $4 WHERE key = $1")
            .bind(&lane.key)
            .bind(lane.places)
            .bind(lane.held)
            .bind(lane.next_seq)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Gives free slots of a locked lane to the jobs that have waited longest. Does not update the lane row.
pub async fn promote(tx: &mut Tx<'_>, lane: &mut Lane) -> Result<Vec<PromotedJob>> {
    let free = lane.places - lane.held;
    if free <= 0 {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        sqlite: "UPDATE job SET state = CASE WHEN lost_leases < 2 THEN 'ready' ELSE 'scheduled' END, lane_held = 1
                 WHERE id IN (SELECT id FROM job WHERE lane = $1 AND finished_at IS NULL AND state = 'blocked'
                              ORDER BY lane_seq, id LIMIT $2 + 0)
                 RETURNING id, tenant_id, pool, priority, run_at",
        // An array, not a join: see `postgres.rs`.
        postgres: "UPDATE job SET state = CASE WHEN lost_leases < 2 THEN 'ready' ELSE 'scheduled' END, lane_held = true
                   WHERE id = ANY (ARRAY (SELECT id FROM job WHERE lane = $1 AND finished_at IS NULL
                                          AND state = 'blocked' ORDER BY lane_seq, id LIMIT $2))
                   RETURNING id, tenant_id, pool, priority, run_at");
    let promoted: Vec<PromotedJob> = on!(tx, |conn| sqlx::query_as(text)
        .bind(&lane.key)
        .bind(free)
        .fetch_all(conn)
        .await)?;
    lane.held += i64::try_from(promoted.len()).unwrap_or(i64::MAX);
    Ok(promoted)
}

/// Deletes those of the first `limit` lanes without open jobs. Numbers may restart afterwards, since nothing is left to
/// compare.
pub async fn prune(tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    Ok(prune_behind(tx, "", limit).await?.deleted)
}

/// The result of one step of a scan of the lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneStep {
    /// Lanes that are gone.
    pub deleted: u64,
    /// The last scanned lane; absent when there is none behind it.
    pub last: Option<String>,
}

/// A lane, and whether it looks as if no one needs it.
#[derive(FromRow)]
struct LaneCandidate {
    key: String,
    idle: bool,
}

/// As [`prune`], for the lanes after `after` in key order, so that lanes that stay do not block others.
pub async fn prune_behind(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<PruneStep> {
    // A subquery of one row, not EXISTS, for which PostgreSQL may read all open jobs.
    let seen: Vec<LaneCandidate> = on!(tx, |conn| {
        sqlx::query_as(
            "SELECT key, held = 0 AND (SELECT j.id FROM job j WHERE j.lane = lane.key AND j.finished_at IS NULL
                                       LIMIT 1) IS NULL AS idle
             FROM lane WHERE key > $1 ORDER BY key LIMIT $2 + 0",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?;
    let is_last = i64::try_from(seen.len()).is_ok_and(|seen| seen < limit);
    let last = seen.last().filter(|_| !is_last).map(|lane| lane.key.clone());
    let idle: Vec<String> = seen.into_iter().filter(|lane| lane.idle).map(|lane| lane.key).collect();
    let gone = if idle.is_empty() {
        0
    } else {
        delete_idle(tx, idle).await?
    };
    Ok(PruneStep { deleted: gone, last })
}

/// Deletes those of these lanes that are unused once locked; checked again in a separate statement.
async fn delete_idle(tx: &mut Tx<'_>, keys: Vec<String>) -> Result<u64> {
    match tx.conn() {
        // The writer is alone, so nothing has changed since.
        Conn::Sqlite(conn) => {
            let keys = serde_json::to_string(&keys).expect("texts are always JSON");
            Ok(
                sqlx::query("DELETE FROM lane WHERE key IN (SELECT value FROM json_each($1))")
                    .bind(keys)
                    .execute(conn)
                    .await?
                    .rows_affected(),
            )
        }
        Conn::Postgres(conn) => {
            let locked: Vec<String> = sqlx::query_scalar(
                "SELECT key FROM lane WHERE key = ANY($1) AND held = 0 ORDER BY key FOR UPDATE SKIP LOCKED",
            )
            .bind(keys)
            .fetch_all(&mut *conn)
            .await?;
            Ok(sqlx::query(
                "DELETE FROM lane WHERE key = ANY($1) AND held = 0
                 AND (SELECT j.id FROM job j WHERE j.lane = lane.key AND j.finished_at IS NULL LIMIT 1) IS NULL",
            )
            .bind(locked)
            .execute(conn)
            .await?
            .rows_affected())
        }
    }
}

/// How many lanes there are behind `after`; `most` means at least that many.
pub async fn count_behind(tx: &mut Tx<'_>, after: &str, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM lane WHERE key > $1 LIMIT $2 + 0) found"
    )
    .bind(after)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}
