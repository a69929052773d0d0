//! Schedules: `next_at` is the truth, and moves only by compare-and-set.

use sqlx::FromRow;
use towpath_domain::{JobId, ScheduleId, TenantId, Timestamp};

use crate::error::Result;
use crate::tx::Tx;

/// Something that spawns work again and again.
#[derive(Clone, Debug, FromRow)]
pub struct Schedule {
    pub id: ScheduleId,
    pub tenant_id: TenantId,
    /// Kind of the spawn job.
    pub kind: String,
    /// Pool of the spawn job.
    pub pool: String,
    /// Input of the spawn job, JSON.
    pub input: String,
    /// The instant the next spawn stands for.
    pub next_at: Timestamp,
    /// Spawns nothing while set.
    pub paused: bool,
    /// The job recorded for `next_at`.
    pub spawn_job: Option<JobId>,
    pub created_at: Timestamp,
    /// Set once it spawns no more.
    pub ended_at: Option<Timestamp>,
}

/// Records a schedule.
pub async fn insert(tx: &mut Tx<'_>, schedule: &Schedule) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query(
            "INSERT INTO schedule (id, tenant_id, kind, pool, input, next_at, paused, spawn_job, created_at, ended_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(schedule.id)
        .bind(schedule.tenant_id)
        .bind(&schedule.kind)
        .bind(&schedule.pool)
        .bind(&schedule.input)
        .bind(schedule.next_at)
        .bind(schedule.paused)
        .bind(schedule.spawn_job)
        .bind(schedule.created_at)
        .bind(schedule.ended_at)
        .execute(conn)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Reads a schedule.
pub async fn get(tx: &mut Tx<'_>, id: ScheduleId) -> Result<Option<Schedule>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(schedule),
        " FROM schedule WHERE id = $1"
    ))
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

/// Moves `next_at` from the instant the caller saw to the next one, and names the job recorded for it. Returns whether
/// the caller moved it; if not, or if the schedule is paused, the transaction must spawn nothing.
pub async fn advance(
    tx: &mut Tx<'_>,
    id: ScheduleId,
    seen: Timestamp,
    next: Timestamp,
    spawn_job: Option<JobId>,
) -> Result<bool> {
    Ok(on!(tx, |conn| {
        sqlx::query(
            "UPDATE schedule SET next_at = $3, spawn_job = $4
             WHERE id = $1 AND next_at = $2 AND ended_at IS NULL AND NOT paused",
        )
        .bind(id)
        .bind(seen)
        .bind(next)
        .bind(spawn_job)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    })? == 1)
}

/// Names the job recorded for the schedule's current instant, if that is still `seen` and the named job is still
/// `before`. If it returns false, another process was faster and the transaction must record nothing.
pub async fn set_spawn(
    tx: &mut Tx<'_>,
    id: ScheduleId,
    seen: Timestamp,
    before: Option<JobId>,
    spawn_job: JobId,
) -> Result<bool> {
    Ok(on!(tx, |conn| {
        sqlx::query(
            "UPDATE schedule SET spawn_job = $4
             WHERE id = $1 AND next_at = $2 AND spawn_job IS NOT DISTINCT FROM $3 AND ended_at IS NULL AND NOT paused",
        )
        .bind(id)
        .bind(seen)
        .bind(before)
        .bind(spawn_job)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    })? == 1)
}

/// Schedules that have not ended, newest first, at most `limit` of those created before `before`.
pub async fn list(tx: &mut Tx<'_>, before: Option<ScheduleId>, limit: i64) -> Result<Vec<Schedule>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            columns!(schedule),
            " FROM schedule WHERE ended_at IS NULL AND ($1 IS NULL OR id < $1) ORDER BY id DESC LIMIT $2 + 0"
        ))
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?)
}

/// Pauses a schedule and clears its spawn job, which the caller has cancelled; a new one is recorded after a resume.
/// Returns whether there is such a schedule that has not ended.
pub async fn pause(tx: &mut Tx<'_>, id: ScheduleId) -> Result<bool> {
    set_paused(tx, id, true).await
}

/// Resumes a schedule. Returns whether there is such a schedule that has not ended.
pub async fn resume(tx: &mut Tx<'_>, id: ScheduleId) -> Result<bool> {
    set_paused(tx, id, false).await
}

async fn set_paused(tx: &mut Tx<'_>, id: ScheduleId, paused: bool) -> Result<bool> {
    Ok(on!(tx, |conn| {
        sqlx::query(
            "UPDATE schedule SET paused = $2, spawn_job = CASE WHEN $2 THEN NULL ELSE spawn_job END
             WHERE id = $1 AND ended_at IS NULL",
        )
        .bind(id)
        .bind(paused)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    })? == 1)
}

/// Ends a schedule.
pub async fn end(tx: &mut Tx<'_>, id: ScheduleId) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| {
        sqlx::query("UPDATE schedule SET ended_at = coalesce(ended_at, $2) WHERE id = $1")
            .bind(id)
            .bind(now)
            .execute(conn)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Deletes at most `limit` schedules that ended before `before` and returns how many. What they spawned is in business
/// tables, and leftover spawn jobs are deleted by then.
pub async fn prune(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    Ok(on!(tx, |conn| {
        sqlx::query(
            "DELETE FROM schedule WHERE id IN (
                 SELECT id FROM schedule WHERE ended_at < $1 ORDER BY ended_at LIMIT $2 + 0)",
        )
        .bind(before)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
    })?)
}

/// How many schedules ended before `before`; `most` means at least that many.
pub async fn count_before(tx: &mut Tx<'_>, before: Timestamp, most: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM schedule WHERE ended_at < $1 LIMIT $2 + 0) found"
    )
    .bind(before)
    .bind(most)
    .fetch_one(conn)
    .await)?)
}

/// Active schedules without a spawn job: it was never recorded, it is gone, or it ended before `rested` without
/// advancing them. One that ended later is skipped: a spawn that fails immediately must not be repeated in a tight
/// loop.
pub async fn active_without_spawn(tx: &mut Tx<'_>, rested: Timestamp, limit: i64) -> Result<Vec<Schedule>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            columns!(s, schedule),
            " FROM schedule s LEFT JOIN job j ON j.id = s.spawn_job
             WHERE s.ended_at IS NULL AND NOT s.paused AND (j.id IS NULL OR j.finished_at < $1)
             ORDER BY s.next_at LIMIT $2 + 0"
        ))
        .bind(rested)
        .bind(limit)
        .fetch_all(conn)
        .await
    })?)
}
