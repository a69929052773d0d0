//! Completion of jobs in lanes: each passes its slot to the job that has waited longest in its lane.
//!
//! As everywhere, lanes are locked first, sorted by key, in a separate statement: see `lanes.rs`.

use serde::Deserialize;
use sqlx::{FromRow, PgConnection, SqliteConnection};
use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, TenantId, Timestamp};

use super::bulk::{self, JobFence};
use crate::error::{Error, Result};

/// What [`sqlite`] and [`postgres`] did.
pub(super) struct LaneCompletion {
    /// Jobs that ended.
    pub(super) completed: Vec<JobFence>,
    /// Jobs that got a slot. A suspect among them stays `scheduled`.
    pub(super) promoted: Vec<ReadyJob>,
}

/// Releases the slots, completes the jobs, and lists which jobs get the slots: in this order, since each reads what the
/// next one changes. SQLite has no concurrent writers.
///
/// Numbers within a lane are unique, so walking from number to number finds as many jobs as there are free slots and
/// reads no more of the lane.
const SQLITE_COMPLETE_IN_LANES: &str = concat!(
    "UPDATE lane SET held = held - gone.places
     FROM (SELECT job.lane AS key, count(*) AS places
           FROM (SELECT unhex(value ->> 0) AS id, value ->> 1 AS fence FROM json_each($1)) held CROSS JOIN job
           WHERE job.id = held.id AND job.fence = held.fence AND job.state = 'running' AND job.cancel_at IS NULL
           AND job.lane_held GROUP BY job.lane) gone
     WHERE lane.key = gone.key;\n",
    bulk::sqlite_completes!(),
    ";\n
     WITH RECURSIVE next(lane, free, seq) AS (
         SELECT lane.key, lane.places - lane.held,
                (SELECT j.lane_seq FROM job j WHERE j.lane = lane.key AND j.finished_at IS NULL AND j.state = 'blocked'
                 ORDER BY j.lane_seq LIMIT 1)
         FROM lane WHERE lane.key IN (SELECT value FROM json_each($3)) AND lane.places > lane.held
         UNION ALL
         SELECT next.lane, next.free - 1,
                (SELECT j.lane_seq FROM job j WHERE j.lane = next.lane AND j.finished_at IS NULL AND j.state = 'blocked'
                 AND j.lane_seq > next.seq ORDER BY j.lane_seq LIMIT 1)
         FROM next WHERE next.free > 1 AND next.seq IS NOT NULL
     )
     SELECT changes(), json_group_array(json_array(hex(job.id), job.lane, job.pool, hex(job.tenant_id),
                                                   job.priority, job.run_at))
     FROM next CROSS JOIN job
     WHERE job.lane = next.lane AND job.lane_seq = next.seq AND job.finished_at IS NULL AND job.state = 'blocked'"
);

/// Gives slots to the jobs that [`SQLITE_COMPLETE_IN_LANES`] listed.
const SQLITE_PROMOTE: &str =
    "UPDATE job SET state = CASE WHEN lost_leases < 2 THEN 'ready' ELSE 'scheduled' END, lane_held = 1
     WHERE id IN (SELECT unhex(value ->> 0) FROM json_each($1));
     UPDATE lane SET held = held + taken.places
     FROM (SELECT value ->> 1 AS key, count(*) AS places FROM json_each($1) GROUP BY 1) taken
     WHERE lane.key = taken.key";

/// Sorted bytewise, like all lane locks.
const POSTGRES_LOCK: &str = "SELECT 1 FROM lane WHERE key = ANY($1) ORDER BY key COLLATE \"C\" FOR NO KEY UPDATE";

/// All of it, once the lanes are locked. Arrays, not joins: see `postgres.rs`.
const POSTGRES_LEAVE: &str = "WITH locked AS MATERIALIZED (
         SELECT id, fence, lane, lane_held FROM job WHERE id = ANY($1) AND worker_id IS NOT NULL AND cancel_at IS NULL
         ORDER BY id FOR UPDATE
     ),
     held AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS held(id, fence)),
     ours AS MATERIALIZED (SELECT id, fence, lane, lane_held FROM locked JOIN held USING (id, fence)),
     done AS (
         UPDATE job SET state = 'succeeded', finished_at = $3, worker_id = NULL, lease_until = NULL, lane_held = false
         WHERE id = ANY (ARRAY (SELECT id FROM ours))
         RETURNING id, fence
     ),
     free AS MATERIALIZED (
         SELECT key, places - held + (SELECT count(*) FROM ours WHERE ours.lane = lane.key AND ours.lane_held) AS places
         FROM lane WHERE key = ANY($4)
     ),
     next AS MATERIALIZED (
         SELECT j.id, free.key, j.tenant_id, j.pool, j.priority, j.run_at FROM free, LATERAL (
             SELECT i.id, i.tenant_id, i.pool, i.priority, i.run_at FROM job i
             WHERE i.lane = free.key AND i.finished_at IS NULL AND i.state = 'blocked'
             ORDER BY i.lane_seq, i.id LIMIT greatest(free.places, 0)
         ) j
     ),
     promoted AS (
         UPDATE job SET state = CASE WHEN lost_leases < 2 THEN 'ready' ELSE 'scheduled' END,
                        lane_held = true
         WHERE id = ANY (ARRAY (SELECT id FROM next))
     ),
     counted AS (
         UPDATE lane SET held = held - (SELECT count(*) FROM ours WHERE ours.lane = lane.key AND ours.lane_held)
                                     + (SELECT count(*) FROM next WHERE next.key = lane.key)
         WHERE key = ANY($4)
     )
     SELECT id, fence, NULL AS tenant_id, NULL AS pool, NULL AS priority, NULL AS run_at FROM done
     UNION ALL
     SELECT id, NULL, tenant_id, pool, priority, run_at FROM next";

/// A job that gets a slot, as [`SQLITE_COMPLETE_IN_LANES`] lists it: id, lane, pool, tenant, priority, due time in
/// microseconds.
#[derive(Deserialize)]
struct PromotedJob(JobId, serde::de::IgnoredAny, String, TenantId, i64, i64);

impl From<PromotedJob> for ReadyJob {
    fn from(job: PromotedJob) -> Self {
        Self {
            pool: job.2,
            tenant: job.3,
            priority: job.4,
            run_at: Timestamp::from_micros(job.5),
            id: job.0,
        }
    }
}

/// A completed job with its fence, or a job that gets a slot with the rest.
#[derive(FromRow)]
struct Row {
    id: JobId,
    fence: Option<i64>,
    tenant_id: Option<TenantId>,
    pool: Option<String>,
    priority: Option<i64>,
    run_at: Option<Timestamp>,
}

pub(super) async fn sqlite(
    conn: &mut SqliteConnection,
    now: Timestamp,
    held: &[JobFence],
    lanes: &[String],
) -> Result<LaneCompletion> {
    let lanes = serde_json::to_string(lanes).expect("texts are always JSON");
    let (done, next): (i64, String) = sqlx::query_as(SQLITE_COMPLETE_IN_LANES)
        .bind(bulk::as_json(held))
        .bind(now)
        .bind(lanes)
        .fetch_one(&mut *conn)
        .await?;
    let promoted: Vec<PromotedJob> =
        serde_json::from_str(&next).map_err(|_| Error::corrupt("job", "lane", "one that waits in it"))?;
    if !promoted.is_empty() {
        sqlx::query(SQLITE_PROMOTE).bind(next).execute(&mut *conn).await?;
    }
    Ok(LaneCompletion {
        completed: bulk::done_sqlite(conn, now, held, done).await?,
        promoted: promoted.into_iter().map(ReadyJob::from).collect(),
    })
}

pub(super) async fn postgres(
    conn: &mut PgConnection,
    now: Timestamp,
    held: &[JobFence],
    lanes: &[String],
) -> Result<LaneCompletion> {
    sqlx::query(POSTGRES_LOCK).bind(lanes).execute(&mut *conn).await?;
    let (ids, fences) = bulk::as_arrays(held);
    let rows: Vec<Row> = sqlx::query_as(POSTGRES_LEAVE)
        .bind(ids)
        .bind(fences)
        .bind(now)
        .bind(lanes)
        .fetch_all(conn)
        .await?;
    let mut left = LaneCompletion {
        completed: Vec::with_capacity(held.len()),
        promoted: Vec::new(),
    };
    for row in rows {
        match row {
            Row {
                id, fence: Some(fence), ..
            } => left.completed.push(JobFence { id, fence }),
            Row {
                id,
                tenant_id: Some(tenant),
                pool: Some(pool),
                priority: Some(priority),
                run_at: Some(run_at),
                ..
            } => left.promoted.push(ReadyJob {
                pool,
                tenant,
                priority,
                run_at,
                id,
            }),
            // Neither statement leaves these columns out.
            Row { id, .. } => return Err(Error::corrupt("job", "pool", id)),
        }
    }
    Ok(left)
}
