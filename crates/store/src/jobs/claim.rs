//! Claiming: tenants in turn, then priority, then age.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;
use sqlx::{FromRow, SqliteConnection};
use towpath_domain::{JobId, TenantId, Timestamp, WorkerId};

use crate::error::{Error, Result};
use crate::jobs::bulk::{self, Fenced};
use crate::tx::{Conn, Tx};

/// A job as its new holder gets it.
#[derive(Clone, Debug, FromRow)]
#[expect(missing_docs, reason = "the columns are explained once, in the migration")]
pub struct Claimed {
    pub id: JobId,
    pub tenant_id: TenantId,
    pub kind: String,
    pub pool: String,
    pub priority: i64,
    pub run_at: Timestamp,
    pub deadline_at: Option<Timestamp>,
    pub input: String,
    pub cursor: Option<String>,
    pub lane: Option<String>,
    pub parent_id: Option<JobId>,
    pub open_children: i64,
    pub attempt: i64,
    pub failures: i64,
    pub fence: i64,
    pub cancel_at: Option<Timestamp>,
    pub traceparent: Option<String>,
    pub created_at: Timestamp,
}

/// Which jobs are claimed, for PostgreSQL: `picked`. SKIP LOCKED, so that claimers pass one another.
///
/// Tenants that have something ready are found by a skip scan over `job_ready`: one index probe each, however long
/// the backlog is, and no more of them than jobs are wanted. (A window function over the backlog took 300 ms at
/// 500,000 rows where this takes 0.2.)
macro_rules! postgres_picks {
    () => {
        "above AS (
             (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $2 AND tenant_id > $6
              ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $2
                     AND j.tenant_id > above.tenant_id ORDER BY j.tenant_id LIMIT 1)
             FROM above WHERE above.tenant_id IS NOT NULL
         ),
         below AS (
             (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $2 AND tenant_id <= $6
              ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $2
                     AND j.tenant_id > below.tenant_id AND j.tenant_id <= $6 ORDER BY j.tenant_id LIMIT 1)
             FROM below WHERE below.tenant_id IS NOT NULL
         ),
         turn AS MATERIALIZED (
             SELECT tenant_id FROM (SELECT tenant_id FROM above WHERE tenant_id IS NOT NULL
                                    UNION ALL SELECT tenant_id FROM below WHERE tenant_id IS NOT NULL) t LIMIT $5
         ),
         picked AS MATERIALIZED (
             SELECT j.id FROM turn, LATERAL (
                 SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool = $2 AND i.tenant_id = turn.tenant_id
                 ORDER BY i.priority DESC, i.run_at, i.id
                 LIMIT greatest(1, $5 / (SELECT count(*) FROM turn)) FOR UPDATE SKIP LOCKED
             ) j
             WHERE NOT EXISTS (SELECT 1 FROM pool WHERE name = $2 AND paused)
             LIMIT $5
         )"
    };
}

/// The claim itself, for PostgreSQL. An array, not a join: see `postgres.rs`. The clock is asked in a subselect, once and
/// not per row.
macro_rules! postgres_claims {
    () => {
        "UPDATE job SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = $3,
                        lease_until = (SELECT towpath_now($1)) + $4 * interval '1 millisecond',
                        started_at = coalesce(started_at, (SELECT towpath_now($1)))
         WHERE id = ANY (ARRAY (SELECT id FROM picked))
         RETURNING id, tenant_id, kind, pool, priority, run_at, deadline_at, input, cursor, lane, parent_id,
                   open_children, attempt, failures, fence, cancel_at, traceparent, created_at"
    };
}

const POSTGRES_CLAIM: &str = concat!("WITH RECURSIVE ", postgres_picks!(), postgres_claims!());

/// [`complete`](super::complete) and [`claim`] in one statement. Both see the table as it was before: neither can touch
/// what the other does, a job is running or ready. Those that could not be completed come as rows of their own.
const POSTGRES_TURN: &str = concat!(
    "WITH RECURSIVE ",
    postgres_picks!(),
    ",
     locked AS MATERIALIZED (
         SELECT id, fence FROM job WHERE id = ANY($7) AND state = 'running' AND cancel_at IS NULL
         ORDER BY id FOR UPDATE
     ),
     held AS MATERIALIZED (SELECT * FROM unnest($7::uuid[], $8::bigint[]) AS held(id, fence)),
     done AS (
         UPDATE job SET state = 'succeeded', finished_at = $9, worker_id = NULL, lease_until = NULL
         WHERE id = ANY (ARRAY (SELECT id FROM locked JOIN held USING (id, fence)))
         RETURNING id, fence
     ),
     claimed AS (",
    postgres_claims!(),
    ")
     SELECT false AS missed, * FROM claimed
     UNION ALL
     SELECT true, id, id, '', '', 0, 'epoch'::timestamptz, NULL, '', NULL, NULL, NULL, 0, 0, 0, fence, NULL, NULL,
            'epoch'::timestamptz
     FROM held WHERE (id, fence) NOT IN (SELECT id, fence FROM done)"
);

/// What is claimed, for SQLite: one row of two lists, the jobs and their ids, both JSON. Rows that come one after
/// another from the library's thread each wake the task that reads them, which takes longer than claiming them.
///
/// The `+ 0` at each LIMIT is explained at [`Query::limit`](crate::query::Query::limit). One writer, so nobody else can take
/// the rows before they are marked. No LATERAL: a correlated IN does the same.
const SQLITE_PICKS: &str = "WITH RECURSIVE
 above(tenant_id) AS (
     SELECT * FROM (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $1 AND tenant_id > $3
                    ORDER BY tenant_id LIMIT 1)
     UNION ALL
     SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $1
             AND j.tenant_id > above.tenant_id ORDER BY j.tenant_id LIMIT 1)
     FROM above WHERE above.tenant_id IS NOT NULL LIMIT $2 + 1
 ),
 below(tenant_id) AS (
     SELECT * FROM (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $1 AND tenant_id <= $3
                    ORDER BY tenant_id LIMIT 1)
     UNION ALL
     SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $1
             AND j.tenant_id > below.tenant_id AND j.tenant_id <= $3 ORDER BY j.tenant_id LIMIT 1)
     FROM below WHERE below.tenant_id IS NOT NULL LIMIT $2 + 1
 ),
 turn AS MATERIALIZED (
     SELECT tenant_id FROM (SELECT tenant_id, 0 AS round FROM above UNION ALL SELECT tenant_id, 1 FROM below)
     WHERE tenant_id IS NOT NULL ORDER BY round, tenant_id LIMIT $2 + 0
 ),
 picked AS MATERIALIZED (
     SELECT j.id FROM turn CROSS JOIN job j
     WHERE j.id IN (SELECT i.id FROM job i WHERE i.state = 'ready' AND i.pool = $1
                    AND i.tenant_id = turn.tenant_id ORDER BY i.priority DESC, i.run_at, i.id
                    LIMIT max(1, $2 / (SELECT count(*) FROM turn)))
     LIMIT $2 + 0
 )
 SELECT json_group_array(json_array(hex(id), hex(tenant_id), kind, pool, priority, run_at, deadline_at, input, cursor,
                                    lane, iif(parent_id IS NULL, NULL, hex(parent_id)), open_children, attempt + 1,
                                    failures, fence + 1, cancel_at, traceparent, created_at)),
        json_group_array(hex(id))
 FROM job WHERE id IN (SELECT id FROM picked) AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $1 AND paused)";

const SQLITE_CLAIMS: &str =
    "UPDATE job SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = $3,
            lease_until = $1 + $4 * 1000, started_at = coalesce(started_at, $1)
 WHERE id IN (SELECT unhex(value) FROM json_each($2))";

/// A job as [`SQLITE_PICKS`] lists it. Times are microseconds.
#[derive(Deserialize)]
struct Picked(
    JobId,
    TenantId,
    String,
    String,
    i64,
    i64,
    Option<i64>,
    String,
    Option<String>,
    Option<String>,
    Option<JobId>,
    i64,
    i64,
    i64,
    i64,
    Option<i64>,
    Option<String>,
    i64,
);

impl From<Picked> for Claimed {
    fn from(picked: Picked) -> Self {
        Self {
            id: picked.0,
            tenant_id: picked.1,
            kind: picked.2,
            pool: picked.3,
            priority: picked.4,
            run_at: Timestamp::from_micros(picked.5),
            deadline_at: picked.6.map(Timestamp::from_micros),
            input: picked.7,
            cursor: picked.8,
            lane: picked.9,
            parent_id: picked.10,
            open_children: picked.11,
            attempt: picked.12,
            failures: picked.13,
            fence: picked.14,
            cancel_at: picked.15.map(Timestamp::from_micros),
            traceparent: picked.16,
            created_at: Timestamp::from_micros(picked.17),
        }
    }
}

/// Claims at most `n` ready jobs of `pool` for `worker`, tenants in turn beginning after `after`.
///
/// Each tenant gets an equal share; what a share leaves free is for the caller to ask for again.
///
/// # Errors
/// As every statement.
pub async fn claim(
    tx: &mut Tx<'_>,
    pool: &str,
    worker: WorkerId,
    lease: Duration,
    n: i64,
    after: TenantId,
) -> Result<Vec<Claimed>> {
    let now = tx.now_param();
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let claimed = match tx.conn() {
        Conn::Sqlite(conn) => claim_sqlite(conn, now, pool, worker, lease, n, after).await?,
        Conn::Postgres(conn) => {
            sqlx::query_as(POSTGRES_CLAIM)
                .bind(now)
                .bind(pool)
                .bind(worker)
                .bind(lease)
                .bind(n)
                .bind(after)
                .fetch_all(conn)
                .await?
        }
    };
    Ok(in_order(claimed))
}

/// What a [`turn`] did.
#[derive(Debug)]
pub struct Turned {
    /// Jobs that were not completed: they moved on, or were asked to stop.
    pub missed: Vec<Fenced>,
    /// Jobs that were claimed.
    pub claimed: Vec<Claimed>,
}

/// [`complete`](super::complete) and [`claim`] in one transaction: what a worker with a backlog does all day. On PostgreSQL
/// one statement.
///
/// # Errors
/// As every statement.
pub async fn turn(
    tx: &mut Tx<'_>,
    held: &[Fenced],
    pool: &str,
    worker: WorkerId,
    lease: Duration,
    n: i64,
    after: TenantId,
) -> Result<Turned> {
    let now = tx.now();
    match tx.conn() {
        Conn::Sqlite(_) => {
            let hit: HashSet<Fenced> = bulk::complete(tx, held).await?.into_iter().collect();
            Ok(Turned {
                missed: held.iter().filter(|job| !hit.contains(job)).copied().collect(),
                claimed: claim(tx, pool, worker, lease, n, after).await?,
            })
        }
        Conn::Postgres(conn) => {
            let (ids, fences) = bulk::as_arrays(held);
            let rows: Vec<TurnRow> = sqlx::query_as(POSTGRES_TURN)
                .bind(None::<Timestamp>)
                .bind(pool)
                .bind(worker)
                .bind(i64::try_from(lease.as_millis()).unwrap_or(i64::MAX))
                .bind(n)
                .bind(after)
                .bind(ids)
                .bind(fences)
                .bind(now)
                .fetch_all(conn)
                .await?;
            let (missed, claimed): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.missed);
            Ok(Turned {
                missed: missed
                    .into_iter()
                    .map(|row| Fenced {
                        id: row.job.id,
                        fence: row.job.fence,
                    })
                    .collect(),
                claimed: in_order(claimed.into_iter().map(|row| row.job).collect()),
            })
        }
    }
}

#[derive(FromRow)]
struct TurnRow {
    missed: bool,
    #[sqlx(flatten)]
    job: Claimed,
}

async fn claim_sqlite(
    conn: &mut SqliteConnection,
    now: Option<Timestamp>,
    pool: &str,
    worker: WorkerId,
    lease: i64,
    n: i64,
    after: TenantId,
) -> Result<Vec<Claimed>> {
    let (picked, ids): (String, String) = sqlx::query_as(SQLITE_PICKS)
        .bind(pool)
        .bind(n)
        .bind(after)
        .fetch_one(&mut *conn)
        .await?;
    let picked: Vec<Picked> =
        serde_json::from_str(&picked).map_err(|_| Error::corrupt("job", "id", "one that is ready"))?;
    if !picked.is_empty() {
        sqlx::query(SQLITE_CLAIMS)
            .bind(now)
            .bind(ids)
            .bind(worker)
            .bind(lease)
            .execute(conn)
            .await?;
    }
    Ok(picked.into_iter().map(Claimed::from).collect())
}

/// Neither RETURNING nor a JSON list has an order of its own.
fn in_order(mut claimed: Vec<Claimed>) -> Vec<Claimed> {
    claimed.sort_unstable_by(|a, b| (b.priority, a.run_at, a.id).cmp(&(a.priority, b.run_at, b.id)));
    claimed
}
