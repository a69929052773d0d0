//! The log of what runs streamed: batches of frames, for readers that resume or missed some.

use sqlx::FromRow;
use towpath_domain::agent::EventId;
use towpath_domain::{RunId, TenantId, ThreadId, Timestamp};
use uuid::Uuid;

use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::Tx;

/// Frames that follow each other.
#[derive(Clone, Debug)]
pub struct NewBatch<'a> {
    /// The run; absent for events of the thread itself.
    pub run: Option<RunId>,
    /// Which attempt of it, by its fence.
    pub attempt: i64,
    /// Number of the first frame within the attempt.
    pub first: i64,
    /// Number of the last frame.
    pub last: i64,
    /// Id of the last frame.
    pub last_id: EventId,
    /// Frames behind each other: see [`towpath_domain::agent::frame`].
    pub frames: &'a str,
    /// When it may go, if that is known already.
    pub expires_at: Option<Timestamp>,
}

/// Frames as they were logged.
#[derive(Clone, Debug, FromRow)]
pub struct Batch {
    /// The run; absent for events of the thread itself.
    pub run_id: Option<RunId>,
    /// Which attempt of it.
    pub attempt: i64,
    /// Frames behind each other: see [`towpath_domain::agent::frame`].
    pub frames: String,
    /// Milliseconds of the last id.
    pub last_ms: i64,
    /// Number within them.
    pub last_seq: i64,
}

/// Logs frames.
///
/// # Errors
/// As every statement.
pub async fn append(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, new: &NewBatch<'_>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO run_event (thread_id, last_ms, last_seq, id, tenant_id, run_id, attempt, first, last, frames,
                                created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
    )
    .bind(thread)
    .bind(new.last_id.ms)
    .bind(new.last_id.seq)
    .bind(Uuid::now_v7())
    .bind(tenant)
    .bind(new.run)
    .bind(new.attempt)
    .bind(new.first)
    .bind(new.last)
    .bind(new.frames)
    .bind(now)
    .bind(new.expires_at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Batches of a thread, or of one run of it, that hold frames after `after`, oldest first.
///
/// # Errors
/// As every statement.
pub async fn read(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    thread: ThreadId,
    run: Option<RunId>,
    after: EventId,
    limit: i64,
) -> Result<Vec<Batch>> {
    let mut query = Query::new(
        tx,
        "SELECT run_id, attempt, frames, last_ms, last_seq FROM run_event WHERE thread_id = ",
    );
    query.bind(Arg::Uuid(thread.0)).push(" AND (last_ms, last_seq) > (");
    query
        .bind(Arg::Int(after.ms))
        .push(", ")
        .bind(Arg::Int(after.seq))
        .push(")");
    query.push(" AND tenant_id = ").bind(Arg::Uuid(tenant.0));
    if let Some(run) = run {
        query.push(" AND run_id = ").bind(Arg::Uuid(run.0));
    }
    query.push(" ORDER BY last_ms, last_seq, id").limit(limit);
    query.fetch_all(tx).await
}

/// The id of the last frame logged for a thread.
///
/// # Errors
/// As every statement.
pub async fn last_id(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> Result<Option<EventId>> {
    let last: Option<(i64, i64)> = on!(tx, |conn| sqlx::query_as(
        "SELECT last_ms, last_seq FROM run_event WHERE thread_id = $1 AND tenant_id = $2
         ORDER BY thread_id DESC, last_ms DESC, last_seq DESC LIMIT 1"
    )
    .bind(thread)
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(last.map(|(ms, seq)| EventId { ms, seq }))
}

/// Says until when the frames of a run that is over are kept.
///
/// # Errors
/// As every statement.
pub async fn expire(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, run: RunId, at: Timestamp) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE run_event SET expires_at = $4
         WHERE thread_id = $1 AND run_id = $2 AND tenant_id = $3 AND expires_at IS NULL"
    )
    .bind(thread)
    .bind(run)
    .bind(tenant)
    .bind(at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes at most `limit` batches whose time is over; answers how many.
///
/// # Errors
/// As every statement.
pub async fn prune(tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "DELETE FROM run_event WHERE (thread_id, last_ms, last_seq, id) IN
                 (SELECT thread_id, last_ms, last_seq, id FROM run_event WHERE expires_at < $1 LIMIT $2 + 0)",
        // Several sweeps may be at it.
        postgres: "DELETE FROM run_event WHERE ctid = ANY (ARRAY
                   (SELECT ctid FROM run_event WHERE expires_at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))");
    Ok(on!(tx, |conn| sqlx::query(text)
        .bind(now)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?)
}
