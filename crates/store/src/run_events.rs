//! The log of streamed events of runs: batches of frames, for readers that resume or missed some.
//!
//! Readers use the position of a batch, which is the commit order on its thread. Frame ids do not give that order: a
//! run's worker uses its own clock, while another process may log the end of another run.

use std::collections::{BTreeMap, HashSet};

use sqlx::FromRow;
use towpath_domain::agent::{EventId, Frame, frame};
use towpath_domain::{RunId, TenantId, ThreadId, Timestamp};
use uuid::Uuid;

use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::{Conn, Dialect, Tx};

/// Batches whose sizes are looked at for one page.
const PAGE_ROWS: i64 = 200;
/// Batches that are searched for a frame: it is in the first or second one, unless it was never logged.
const SEARCHED: usize = 4;

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
    /// Where it is in the log of its thread.
    pub log_position: i64,
    /// The run; absent for events of the thread itself.
    pub run_id: Option<RunId>,
    /// Frames behind each other: see [`towpath_domain::agent::frame`].
    pub frames: String,
}

/// A part of a log.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its batches, in the order of their positions.
    pub batches: Vec<Batch>,
    /// Whether others follow.
    pub more: bool,
}

/// A frame in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePosition {
    /// Where its batch is.
    pub log_position: i64,
    /// Its run; absent for events of the thread itself.
    pub run: Option<RunId>,
    /// The fence of its attempt.
    pub attempt: i64,
    /// Its number within the attempt.
    pub number: i64,
}

/// Where a reader continues that has seen a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Batches after this position contain everything that the reader may not have seen, and possibly some that it has.
    pub after: i64,
    /// The frame itself, where the log has it.
    pub found: Option<FramePosition>,
}

/// Logs frames.
pub async fn append(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, new: &NewBatch<'_>) -> Result<()> {
    append_all(tx, tenant, thread, std::slice::from_ref(new)).await
}

/// Appends batches of consecutive frames. Other writers of the thread wait until the transaction is over, so call it
/// after everything that takes a lock.
pub async fn append_all(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, all: &[NewBatch<'_>]) -> Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    lock(tx, thread).await?;
    for new in all {
        insert(tx, tenant, thread, new).await?;
    }
    Ok(())
}

/// Locks the log of the thread until the transaction is over, so that positions become visible in order.
async fn lock(tx: &mut Tx<'_>, thread: ThreadId) -> Result<()> {
    // SQLite has one writer.
    if tx.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    // Two threads with one key wait for each other, and nothing worse.
    let (_, key) = thread.0.as_u64_pair();
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(key.cast_signed())
            .execute(conn)
            .await
            .map(drop)?;
    }
    Ok(())
}

async fn insert(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, new: &NewBatch<'_>) -> Result<()> {
    let (now, position) = (tx.now(), tx.now_param());
    // The clock all processes share, in microseconds; ahead of that while the log grows faster.
    let text = sql!(tx,
        sqlite: "INSERT INTO run_event (thread_id, last_ms, last_seq, id, tenant_id, run_id, attempt, first, last, frames,
                                        created_at, expires_at, log_position)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
                         max((SELECT coalesce(max(log_position), 0) + 1 FROM run_event WHERE thread_id = $1), $13))",
        postgres: "INSERT INTO run_event (thread_id, last_ms, last_seq, id, tenant_id, run_id, attempt, first, last, frames,
                                          created_at, expires_at, log_position)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
                           greatest((SELECT coalesce(max(log_position), 0) + 1 FROM run_event WHERE thread_id = $1),
                                    CAST(extract(epoch FROM towpath_now($13)) * 1000000 AS bigint)))");
    on!(tx, |conn| sqlx::query(text)
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
        .bind(position)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The next batches of a thread, or of one of its runs, after a position: about `bytes` of frames, and at least one
/// batch.
pub async fn read(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    thread: ThreadId,
    run: Option<RunId>,
    after: i64,
    bytes: i64,
) -> Result<Page> {
    let mut query = Query::new(
        tx,
        "SELECT log_position, CAST(octet_length(frames) AS bigint) AS bytes FROM run_event WHERE thread_id = ",
    );
    narrow(&mut query, tenant, thread, run);
    query.push(" AND log_position > ").bind(Arg::Int(after));
    query.push(" ORDER BY log_position").limit(PAGE_ROWS);
    let sizes: Vec<(i64, i64)> = query.fetch_all(tx).await?;
    let (mut total, mut last) = (0_i64, None);
    for &(position, size) in &sizes {
        if last.is_some() && total + size > bytes {
            break;
        }
        total += size;
        last = Some(position);
    }
    let Some(last) = last else {
        return Ok(Page::default());
    };
    let mut query = Query::new(
        tx,
        "SELECT log_position, run_id, frames FROM run_event WHERE thread_id = ",
    );
    narrow(&mut query, tenant, thread, run);
    query.push(" AND log_position > ").bind(Arg::Int(after));
    query.push(" AND log_position <= ").bind(Arg::Int(last));
    query.push(" ORDER BY log_position");
    Ok(Page {
        batches: query.fetch_all(tx).await?,
        more: sizes.len() as i64 == PAGE_ROWS || sizes.last().is_some_and(|&(position, _)| position > last),
    })
}

/// Where a reader continues that has seen the frame of this id, and what came before it.
pub async fn resume(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    thread: ThreadId,
    run: Option<RunId>,
    seen: EventId,
) -> Result<ResumePoint> {
    // Ids of one run rise, so its first batch that goes so far holds the frame, if any does.
    let mut query = Query::new(
        tx,
        "SELECT min(log_position) AS first FROM run_event WHERE thread_id = ",
    );
    narrow(&mut query, tenant, thread, run);
    query
        .push(" AND (last_ms, last_seq) >= (")
        .bind(Arg::Int(seen.ms))
        .push(", ")
        .bind(Arg::Int(seen.seq))
        .push(")");
    query.push(" GROUP BY run_id ORDER BY 1");
    let positions: Vec<(i64,)> = query.fetch_all(tx).await?;
    let Some(&(first,)) = positions.first() else {
        // It is not logged yet, or never will be. What ended a run from outside may bear a smaller id.
        let after = match run {
            Some(_) => last_position(tx, tenant, thread, run).await? - 1,
            None => last_position(tx, tenant, thread, None).await?,
        };
        return Ok(ResumePoint { after, found: None });
    };
    for &(position,) in positions.iter().take(SEARCHED) {
        for batch in read(tx, tenant, thread, run, position - 1, 0).await?.batches {
            if let Some(found) = search(&batch, seen) {
                let after = if run.is_some() { position } else { first } - 1;
                return Ok(ResumePoint {
                    after,
                    found: Some(found),
                });
            }
        }
    }
    Ok(ResumePoint {
        after: first - 1,
        found: None,
    })
}

fn search(batch: &Batch, id: EventId) -> Option<FramePosition> {
    let frame = frame::split(&batch.frames)
        .filter_map(Frame::decode)
        .find(|frame| frame.id == id)?;
    Some(FramePosition {
        log_position: batch.log_position,
        run: frame.run,
        attempt: frame.attempt,
        number: frame.number,
    })
}

/// The position of the last batch of a thread, or of one run of it; 0 when there is none.
pub async fn last_position(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, run: Option<RunId>) -> Result<i64> {
    let mut query = Query::new(
        tx,
        "SELECT coalesce(max(log_position), 0) AS last FROM run_event WHERE thread_id = ",
    );
    narrow(&mut query, tenant, thread, run);
    query.count(tx).await
}

/// Attempt and number of the last frame of a run that was logged by its worker.
pub async fn last_frame(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, run: RunId) -> Result<Option<(i64, i64)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT attempt, last FROM run_event WHERE thread_id = $1 AND tenant_id = $2 AND run_id = $3
         ORDER BY log_position DESC LIMIT 1"
    )
    .bind(thread)
    .bind(tenant)
    .bind(run)
    .fetch_optional(conn)
    .await)?)
}

/// The run of a thread that was logged last. Ends from outside count only if no worker logged anything.
pub async fn last_logged_run(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> Result<Option<RunId>> {
    for least_attempt in [1_i64, 0] {
        let run: Option<RunId> = on!(tx, |conn| sqlx::query_scalar(
            "SELECT run_id FROM run_event
             WHERE thread_id = $1 AND tenant_id = $2 AND run_id IS NOT NULL AND attempt >= $3
             ORDER BY log_position DESC LIMIT 1"
        )
        .bind(thread)
        .bind(tenant)
        .bind(least_attempt)
        .fetch_optional(conn)
        .await)?;
        if run.is_some() {
            return Ok(run);
        }
    }
    Ok(None)
}

fn narrow(query: &mut Query, tenant: TenantId, thread: ThreadId, run: Option<RunId>) {
    query.bind(Arg::Uuid(thread.0));
    query.push(" AND tenant_id = ").bind(Arg::Uuid(tenant.0));
    if let Some(run) = run {
        query.push(" AND run_id = ").bind(Arg::Uuid(run.0));
    }
}

/// The id of the last frame logged for a thread.
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

pub async fn delete_thread_log(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> Result<()> {
    // In this order: a sweep that removes events of the thread at the same time is waited for.
    for text in [
        "DELETE FROM run_event WHERE thread_id = $1 AND tenant_id = $2",
        "DELETE FROM run_event_removal WHERE thread_id = $1 AND tenant_id = $2",
    ] {
        on!(tx, |conn| sqlx::query(text)
            .bind(thread)
            .bind(tenant)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// A batch that was removed.
#[derive(FromRow)]
struct RemovedBatch {
    thread_id: ThreadId,
    run_id: Option<RunId>,
    attempt: i64,
    last_ms: i64,
    last_seq: i64,
}

/// Deletes at most `limit` batches that have expired; returns how many. The last event of each thread is recorded.
pub async fn prune(tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "DELETE FROM run_event WHERE (thread_id, last_ms, last_seq, id) IN
                 (SELECT thread_id, last_ms, last_seq, id FROM run_event WHERE expires_at < $1 LIMIT $2 + 0)
                 RETURNING thread_id, run_id, attempt, last_ms, last_seq",
        // Several sweeps may be at it.
        postgres: "DELETE FROM run_event WHERE ctid = ANY (ARRAY
                   (SELECT ctid FROM run_event WHERE expires_at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
                   RETURNING thread_id, run_id, attempt, last_ms, last_seq");
    let removed: Vec<RemovedBatch> = on!(tx, |conn| sqlx::query_as(text)
        .bind(now)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let mut last: BTreeMap<ThreadId, EventId> = BTreeMap::new();
    // The end of a run that no worker began is no event for readers of another run.
    let begun: HashSet<RunId> = removed
        .iter()
        .filter(|batch| batch.attempt > 0)
        .filter_map(|batch| batch.run_id)
        .collect();
    for batch in removed
        .iter()
        .filter(|batch| batch.run_id.is_some_and(|run| begun.contains(&run)))
    {
        let id = EventId {
            ms: batch.last_ms,
            seq: batch.last_seq,
        };
        let known = last.entry(batch.thread_id).or_insert(id);
        *known = id.max(*known);
    }
    record_removal(tx, &last).await?;
    Ok(removed.len() as u64)
}

/// Records the last removed events of threads that still exist. Temporary threads have no readers that resume later.
async fn record_removal(tx: &mut Tx<'_>, last: &BTreeMap<ThreadId, EventId>) -> Result<()> {
    if last.is_empty() {
        return Ok(());
    }
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let rows: Vec<_> = last
                .iter()
                .map(|(thread, id)| (thread.0.simple().to_string(), id.ms, id.seq))
                .collect();
            let rows = serde_json::to_string(&rows).unwrap_or_default();
            sqlx::query(
                "INSERT INTO run_event_removal (thread_id, tenant_id, last_ms, last_seq)
                 SELECT t.id, t.tenant_id, removed.value ->> 1, removed.value ->> 2
                 FROM json_each($1) AS removed CROSS JOIN thread AS t
                 WHERE t.id = unhex(removed.value ->> 0) AND NOT t.temporary
                 ON CONFLICT (thread_id) DO UPDATE SET last_ms = excluded.last_ms, last_seq = excluded.last_seq
                 WHERE (run_event_removal.last_ms, run_event_removal.last_seq) < (excluded.last_ms, excluded.last_seq)",
            )
            .bind(rows)
            .execute(conn)
            .await?;
        }
        Conn::Postgres(conn) => {
            let threads: Vec<Uuid> = last.keys().map(|thread| thread.0).collect();
            let (ms, seqs): (Vec<i64>, Vec<i64>) = last.values().map(|id| (id.ms, id.seq)).unzip();
            // LATERAL and OFFSET: one primary key lookup per thread. Ordered: several sweeps may be at it.
            sqlx::query(
                "INSERT INTO run_event_removal (thread_id, tenant_id, last_ms, last_seq)
                 SELECT kept.id, kept.tenant_id, removed.ms, removed.seq
                 FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS removed (thread_id, ms, seq), LATERAL
                 (SELECT t.id, t.tenant_id FROM thread AS t
                  WHERE t.id = removed.thread_id AND NOT t.temporary OFFSET 0) AS kept
                 ORDER BY kept.id
                 ON CONFLICT (thread_id) DO UPDATE SET last_ms = EXCLUDED.last_ms, last_seq = EXCLUDED.last_seq
                 WHERE (run_event_removal.last_ms, run_event_removal.last_seq) < (EXCLUDED.last_ms, EXCLUDED.last_seq)",
            )
            .bind(threads)
            .bind(ms)
            .bind(seqs)
            .execute(conn)
            .await?;
        }
    }
    Ok(())
}

/// Id of the last event of a run that was removed from the log of a thread.
pub async fn last_removed(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> Result<Option<EventId>> {
    let last: Option<(i64, i64)> = on!(tx, |conn| sqlx::query_as(
        "SELECT last_ms, last_seq FROM run_event_removal WHERE thread_id = $1 AND tenant_id = $2"
    )
    .bind(thread)
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(last.map(|(ms, seq)| EventId { ms, seq }))
}
