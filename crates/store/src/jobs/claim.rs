//! Claims: tenants in turn, then priority, then age, starting after the [`ClaimPosition`]s.

use std::collections::HashSet;

use futures::TryStreamExt as _;
use serde::Deserialize;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Row as _, SqliteConnection};
use towpath_domain::{JobId, TenantId, Timestamp, WorkerId};

use crate::error::{Error, Result};
use crate::jobs::bulk::{self, JobFence, sqlite_completed, sqlite_completes};
use crate::jobs::family;
use crate::tx::{Conn, Tx};

/// A job as its new holder gets it.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
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
    pub bad_children: i64,
    /// When it was claimed, by the clock that deadlines are compared by.
    pub claimed_at: Timestamp,
}

impl ClaimedJob {
    /// Reads the columns of [`postgres_claims`] by position and unchecked: looking each up by name took a fifteenth of
    /// a worker's time, comparing types a twelfth.
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get_unchecked(0)?,
            tenant_id: row.try_get_unchecked(1)?,
            kind: row.try_get_unchecked(2)?,
            pool: row.try_get_unchecked(3)?,
            priority: row.try_get_unchecked(4)?,
            run_at: row.try_get_unchecked(5)?,
            deadline_at: row.try_get_unchecked(6)?,
            input: row.try_get_unchecked(7)?,
            cursor: row.try_get_unchecked(8)?,
            lane: row.try_get_unchecked(9)?,
            parent_id: row.try_get_unchecked(10)?,
            open_children: row.try_get_unchecked(11)?,
            attempt: row.try_get_unchecked(12)?,
            failures: row.try_get_unchecked(13)?,
            fence: row.try_get_unchecked(14)?,
            cancel_at: row.try_get_unchecked(15)?,
            traceparent: row.try_get_unchecked(16)?,
            created_at: row.try_get_unchecked(17)?,
            bad_children: row.try_get_unchecked(18)?,
            claimed_at: row.try_get_unchecked(19)?,
        })
    }
}

/// How far a claimer got with the jobs of a tenant at one priority.
///
/// For PostgreSQL: a claimed job stays in the index of ready jobs until the table is vacuumed, at the earliest a minute
/// later, and longer under an old transaction. A scan for the first ready job passes all those dead entries: after
/// 20,000 jobs a claim of 64 read 360 index pages instead of 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimPosition {
    pub tenant_id: TenantId,
    pub priority: i64,
    pub run_at: Timestamp,
    pub id: JobId,
}

impl From<&ClaimedJob> for ClaimPosition {
    fn from(job: &ClaimedJob) -> Self {
        Self {
            tenant_id: job.tenant_id,
            priority: job.priority,
            run_at: job.run_at,
            id: job.id,
        }
    }
}

/// Who claims, what, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest<'a> {
    pub pool: &'a str,
    /// For whom.
    pub worker: WorkerId,
    /// The most to be claimed.
    pub limit: i64,
    /// Tenants take turns; this one was the last.
    pub last_tenant: TenantId,
    /// If not empty: only jobs of these tenants at this priority after this position, in this order. SQLite ignores
    /// them.
    pub positions: &'a [ClaimPosition],
    /// If given: those of these jobs that are ready, whoever's turn it is. Their number is at most `limit`.
    pub named: Option<&'a [JobId]>,
}

impl<'a> ClaimRequest<'a> {
    /// Claims from the front, tenants in any order.
    #[must_use]
    pub fn new(pool: &'a str, worker: WorkerId, n: i64) -> Self {
        Self {
            pool,
            worker,
            limit: n,
            last_tenant: TenantId::nil(),
            positions: &[],
            named: None,
        }
    }

    /// A PostgreSQL statement with the common beginning: `named` if jobs are named, else `front`, or `behind` if there
    /// are positions.
    fn query(
        &self,
        front: &'static str,
        behind: &'static str,
        named: &'static str,
    ) -> Query<'a, sqlx::Postgres, PgArguments> {
        let text = match self.named {
            Some(_) => named,
            None if self.positions.is_empty() => front,
            None => behind,
        };
        let query = sqlx::query(text)
            .bind(None::<Timestamp>)
            .bind(self.pool)
            .bind(self.worker)
            .bind(self.limit);
        if let Some(named) = self.named {
            return query.bind(named.iter().map(|id| id.0).collect::<Vec<_>>());
        }
        if self.positions.is_empty() {
            return query.bind(self.last_tenant);
        }
        query
            .bind(self.positions.iter().map(|mark| mark.tenant_id.0).collect::<Vec<_>>())
            .bind(self.positions.iter().map(|mark| mark.priority).collect::<Vec<_>>())
            .bind(self.positions.iter().map(|mark| mark.run_at).collect::<Vec<_>>())
            .bind(self.positions.iter().map(|mark| mark.id.0).collect::<Vec<_>>())
    }
}

/// Tenants with ready jobs in their turn, on PostgreSQL, as `turn`; the parameters of the pool, the limit and the last
/// tenant.
///
/// They are found by a skip scan over `job_ready`: one index probe each, regardless of the backlog, and no more tenants
/// than jobs wanted. (A window function over the backlog took 300 ms at 500,000 rows; this takes 0.2 ms.)
macro_rules! postgres_turns {
    ($pool:literal, $limit:literal, $last:literal) => {
        concat!(
            "above AS (
             (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = ",
            $pool,
            " AND tenant_id > ",
            $last,
            "
              ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = ",
            $pool,
            "
                     AND j.tenant_id > above.tenant_id ORDER BY j.tenant_id LIMIT 1)
             FROM above WHERE above.tenant_id IS NOT NULL
         ),
         below AS (
             (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = ",
            $pool,
            " AND tenant_id <= ",
            $last,
            "
              ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = ",
            $pool,
            "
                     AND j.tenant_id > below.tenant_id AND j.tenant_id <= ",
            $last,
            " ORDER BY j.tenant_id LIMIT 1)
             FROM below WHERE below.tenant_id IS NOT NULL
         ),
         turn AS MATERIALIZED (
             SELECT tenant_id FROM (SELECT tenant_id FROM above WHERE tenant_id IS NOT NULL
                                    UNION ALL SELECT tenant_id FROM below WHERE tenant_id IS NOT NULL) t LIMIT ",
            $limit,
            "
         )\n"
        )
    };
}
pub(super) use postgres_turns;

/// Picks the jobs to claim on PostgreSQL as `picked`. SKIP LOCKED lets claimers pass one another.
macro_rules! postgres_picks {
    () => {
        concat!(
            postgres_turns!("$2", "$4", "$5"),
            ",
         picked AS MATERIALIZED (
             SELECT j.row FROM turn, LATERAL (
                 SELECT i.ctid AS row FROM job i WHERE i.state = 'ready' AND i.pool = $2 AND i.tenant_id = turn.tenant_id
                 ORDER BY i.priority DESC, i.run_at, i.id
                 LIMIT greatest(1, $4 / (SELECT count(*) FROM turn)) FOR UPDATE SKIP LOCKED
             ) j
             WHERE NOT EXISTS (SELECT 1 FROM pool WHERE name = $2 AND paused)
             LIMIT $4
         )"
        )
    };
}

/// As [`postgres_picks`], only these jobs. By their ids: the concatenation keeps PostgreSQL from reading the index of
/// ready jobs instead, which by old statistics is empty.
macro_rules! postgres_picks_named {
    () => {
        "picked AS MATERIALIZED (
             SELECT i.ctid AS row FROM job i WHERE i.id = ANY($5) AND i.state || '' = 'ready' AND i.pool = $2
               AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $2 AND paused)
             LIMIT $4 FOR UPDATE SKIP LOCKED
         )"
    };
}

/// The claim itself, for PostgreSQL. An array, not a join: see `postgres.rs`. The clock is read in a subselect, once
/// and not per row.
///
/// Rows are identified by their physical position, which saves an id lookup. A row that was changed between the start
/// of the statement and its lock has moved and is left for the next claim.
macro_rules! postgres_claims {
    () => {
        "UPDATE job SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = $3,
                        started_at = coalesce(started_at, (SELECT towpath_now($1)))
         WHERE ctid = ANY (ARRAY (SELECT row FROM picked))
         RETURNING id, tenant_id, kind, pool, priority, run_at, deadline_at, input, cursor, lane, parent_id,
                   open_children, attempt, failures, fence, cancel_at, traceparent, created_at, bad_children,
                   (SELECT towpath_now($1)), false"
    };
}

/// The last column of [`postgres_claims`]: none of these, but one that could not be completed.
const NOT_COMPLETED: usize = 20;

/// As [`postgres_picks`], only behind the [`ClaimPosition`]s of some tenants.
macro_rules! postgres_picks_behind {
    () => {
        "picked AS MATERIALIZED (
             SELECT j.row
             FROM unnest($5::uuid[], $6::bigint[], $7::timestamptz[], $8::uuid[]) AS mark(tenant_id, priority, run_at, id),
             LATERAL (
                 SELECT i.ctid AS row FROM job i WHERE i.state = 'ready' AND i.pool = $2 AND i.tenant_id = mark.tenant_id
                                          AND i.priority = mark.priority AND (i.run_at, i.id) > (mark.run_at, mark.id)
                 ORDER BY i.run_at, i.id
                 LIMIT greatest(1, $4 / cardinality($5)) FOR UPDATE SKIP LOCKED
             ) j
             WHERE NOT EXISTS (SELECT 1 FROM pool WHERE name = $2 AND paused)
             LIMIT $4
         )"
    };
}

/// [`complete`](super::complete) and [`claim`] in one statement. Both see the table as it was before and cannot affect
/// each other: a job is either running or ready. Jobs that could not be completed are returned as separate rows.
///
/// Parameters: how jobs are picked, the parameters with ids and fences of the jobs to complete, and their time.
macro_rules! postgres_complete_and_claim {
    ($picks:ident, $ids:literal, $fences:literal, $now:literal) => {
        concat!(
            "WITH RECURSIVE ",
            $picks!(),
            ",
             locked AS MATERIALIZED (
                 SELECT id, fence FROM job WHERE id = ANY(",
            $ids,
            ") AND worker_id IS NOT NULL AND cancel_at IS NULL
                 ORDER BY id FOR UPDATE
             ),
             held AS MATERIALIZED (SELECT * FROM unnest(",
            $ids,
            "::uuid[], ",
            $fences,
            "::bigint[]) AS held(id, fence)),
             done AS (
                 UPDATE job SET state = 'succeeded', finished_at = ",
            $now,
            ", worker_id = NULL, lease_until = NULL
                 WHERE id = ANY (ARRAY (SELECT id FROM locked JOIN held USING (id, fence)))
                 RETURNING id, fence
             ),
             claimed AS (",
            postgres_claims!(),
            ")
             SELECT * FROM claimed
             UNION ALL
             SELECT id, id, '', '', 0, 'epoch'::timestamptz, NULL, '', NULL, NULL, NULL, 0, 0, 0, fence, NULL, NULL,
                    'epoch'::timestamptz, 0, 'epoch'::timestamptz, true
             FROM held
             WHERE (SELECT count(*) FROM done) < (SELECT count(*) FROM held)
               AND (id, fence) NOT IN (SELECT id, fence FROM done)"
        )
    };
}

/// One suspect, for PostgreSQL. Suspects stay `scheduled` until they are claimed, so that no other claim finds them.
/// The sum prevents the use of the index of all due jobs by `run_at` alone.
const POSTGRES_CLAIM_SUSPECTS: &str = concat!(
    "WITH picked AS MATERIALIZED (
         SELECT i.ctid AS row FROM job i
         WHERE i.state = 'scheduled' AND i.lost_leases >= 2 AND i.pool = $2
           AND i.run_at + interval '0' <= (SELECT towpath_now($1))
           AND (i.lane IS NULL OR i.lane_held) AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $2 AND paused)
         ORDER BY i.run_at, i.id LIMIT $4 FOR UPDATE SKIP LOCKED
     )",
    postgres_claims!()
);
const POSTGRES_CLAIM: &str = concat!("WITH RECURSIVE ", postgres_picks!(), postgres_claims!());
const POSTGRES_CLAIM_BEHIND: &str = concat!("WITH ", postgres_picks_behind!(), postgres_claims!());
const POSTGRES_CLAIM_NAMED: &str = concat!("WITH ", postgres_picks_named!(), postgres_claims!());
const POSTGRES_COMPLETE_AND_CLAIM_NAMED: &str = postgres_complete_and_claim!(postgres_picks_named, "$6", "$7", "$8");
const POSTGRES_COMPLETE_AND_CLAIM: &str = postgres_complete_and_claim!(postgres_picks, "$6", "$7", "$8");
const POSTGRES_COMPLETE_AND_CLAIM_BEHIND: &str =
    postgres_complete_and_claim!(postgres_picks_behind, "$9", "$10", "$11");

/// As [`postgres_turns`], for SQLite. Without tenants if the pool is paused.
///
/// For the `+ 0` at each LIMIT see [`Query::limit`](crate::query::Query::limit).
macro_rules! sqlite_turns {
    ($pool:literal, $limit:literal, $last:literal) => {
        concat!(
            "above(tenant_id) AS (
             SELECT * FROM (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = ",
            $pool,
            " AND tenant_id > ",
            $last,
            "
                            ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = ",
            $pool,
            "
                     AND j.tenant_id > above.tenant_id ORDER BY j.tenant_id LIMIT 1)
             FROM above WHERE above.tenant_id IS NOT NULL LIMIT ",
            $limit,
            " + 1
         ),
         below(tenant_id) AS (
             SELECT * FROM (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = ",
            $pool,
            " AND tenant_id <= ",
            $last,
            "
                            ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = ",
            $pool,
            "
                     AND j.tenant_id > below.tenant_id AND j.tenant_id <= ",
            $last,
            " ORDER BY j.tenant_id LIMIT 1)
             FROM below WHERE below.tenant_id IS NOT NULL LIMIT ",
            $limit,
            " + 1
         ),
         turn AS MATERIALIZED (
             SELECT tenant_id FROM (SELECT tenant_id, 0 AS round FROM above UNION ALL SELECT tenant_id, 1 FROM below)
             WHERE tenant_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pool WHERE name = ",
            $pool,
            " AND paused)
             ORDER BY round, tenant_id LIMIT ",
            $limit,
            " + 0
         )\n"
        )
    };
}
pub(super) use sqlite_turns;

/// Inserts the rows of the jobs to claim into [`SQLITE_PICKED`].
///
/// With a single writer no other caller can take the rows before they are marked. A correlated IN replaces LATERAL. By
/// `rowid`, which the index contains; an id would need two lookups.
macro_rules! sqlite_picks {
    () => {
        concat!(
            "INSERT INTO temp.picked
         WITH RECURSIVE
         ",
            sqlite_turns!("$3", "$4", "$5"),
            "SELECT j.rowid FROM turn CROSS JOIN job j
         WHERE j.rowid IN (SELECT i.rowid FROM job i WHERE i.state = 'ready' AND i.pool = $3
                           AND i.tenant_id = turn.tenant_id ORDER BY i.priority DESC, i.run_at, i.id
                           LIMIT max(1, $4 / (SELECT count(*) FROM turn)))
         LIMIT $4 + 0;\n"
        )
    };
}

/// As [`postgres_picks_named`], for SQLite.
macro_rules! sqlite_picks_named {
    () => {
        "INSERT INTO temp.picked
         SELECT rowid FROM job
         WHERE id IN (SELECT unhex(value) FROM json_each($5)) AND +state = 'ready' AND +pool = $3
           AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $3 AND paused)
         LIMIT $4 + 0;\n"
    };
}

/// The rows picked by a claim, in a temporary table of the writer. Picking them again for listing and marking took an
/// eighth longer with one tenant, and a third longer with many.
///
/// Empty between claims, so that an empty claim changes nothing: the writer uses that to tell whether the disk was
/// written.
pub(crate) const SQLITE_PICKED: &str = "CREATE TEMP TABLE picked (row INTEGER PRIMARY KEY)";

/// [`complete`](super::complete) of jobs without lanes and [`claim`], for SQLite, as one library call: the round trip
/// to its thread takes longer than most statements.
///
/// The claimed jobs are returned as a single row with a JSON list: separate rows would each wake the reading task,
/// which takes longer than the claim. Then the same jobs are marked. The row also lists which jobs were completed, if
/// not all were.
macro_rules! sqlite_complete_and_claim {
    ($picks:ident) => {
        concat!(
            $picks!(),
            sqlite_completes!(),
            ";\n
             SELECT json_group_array(json_array(
                 hex(id), hex(tenant_id), kind, pool, priority, run_at, deadline_at, input, cursor, lane,
                 iif(parent_id IS NULL, NULL, hex(parent_id)), open_children, attempt + 1, failures, fence + 1,
                 cancel_at, traceparent, created_at, bad_children)),
                 iif(changes() = json_array_length($1), NULL, (",
            sqlite_completed!(),
            "))
             FROM job WHERE rowid IN (SELECT row FROM temp.picked);
             UPDATE job SET state = 'running', attempt = attempt + 1, fence = fence + 1, worker_id = $6,
                            lease_until = $2, started_at = coalesce(started_at, $2)
             WHERE rowid IN (SELECT row FROM temp.picked);
             DELETE FROM temp.picked"
        )
    };
}

const SQLITE_COMPLETE_AND_CLAIM: &str = sqlite_complete_and_claim!(sqlite_picks);

/// The same where it is a transaction by itself.
const SQLITE_COMPLETE_AND_CLAIM_STANDALONE: &str = concat!(
    "BEGIN IMMEDIATE;\n",
    sqlite_complete_and_claim!(sqlite_picks),
    ";\nCOMMIT"
);

const SQLITE_COMPLETE_AND_CLAIM_NAMED: &str = sqlite_complete_and_claim!(sqlite_picks_named);

/// The same where it is a transaction by itself.
const SQLITE_COMPLETE_AND_CLAIM_NAMED_STANDALONE: &str = concat!(
    "BEGIN IMMEDIATE;\n",
    sqlite_complete_and_claim!(sqlite_picks_named),
    ";\nCOMMIT"
);

/// As [`POSTGRES_CLAIM_SUSPECTS`], for SQLite.
macro_rules! sqlite_picks_alone {
    () => {
        "INSERT INTO temp.picked
         SELECT rowid FROM job
         WHERE state = 'scheduled' AND lost_leases >= 2 AND pool = $3 AND run_at <= $2 AND (lane IS NULL OR lane_held)
           AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $3 AND paused)
         ORDER BY run_at, id LIMIT $4 + 0;\n"
    };
}

const SQLITE_CLAIM_SUSPECTS: &str = sqlite_complete_and_claim!(sqlite_picks_alone);

/// A job as [`SQLITE_COMPLETE_AND_CLAIM`] lists it. Times are microseconds.
#[derive(Deserialize)]
struct PickedJob(
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
    i64,
);

impl PickedJob {
    fn claimed(self, now: Timestamp) -> ClaimedJob {
        let picked = self;
        ClaimedJob {
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
            bad_children: picked.18,
            claimed_at: now,
        }
    }
}

/// Claims ready jobs: of those that are named, else the next ones.
///
/// Each tenant gets an equal share; if a share is not used up, the caller asks again.
pub async fn claim(tx: &mut Tx<'_>, claimer: &ClaimRequest<'_>) -> Result<Vec<ClaimedJob>> {
    let now = tx.now();
    let text = sqlite_claim_text(tx, claimer);
    let claimed = match tx.conn() {
        Conn::Sqlite(conn) => complete_and_claim_sqlite(conn, text, now, &[], claimer).await?.claimed,
        Conn::Postgres(conn) => {
            let rows = claimer
                .query(POSTGRES_CLAIM, POSTGRES_CLAIM_BEHIND, POSTGRES_CLAIM_NAMED)
                .fetch_all(conn)
                .await?;
            rows.iter().map(ClaimedJob::read).collect::<Result<_, _>>()?
        }
    };
    Ok(sort_claimed(claimed))
}

/// Claims suspects, longest due first, for a caller that performs one at a time. They, or a neighbour, may have killed
/// their workers. Call it in a transaction.
pub async fn claim_suspects(tx: &mut Tx<'_>, claimer: &ClaimRequest<'_>) -> Result<Vec<ClaimedJob>> {
    let now = tx.now();
    let claimed = match tx.conn() {
        Conn::Sqlite(conn) => {
            complete_and_claim_sqlite(conn, SQLITE_CLAIM_SUSPECTS, now, &[], claimer)
                .await?
                .claimed
        }
        Conn::Postgres(conn) => {
            let rows = sqlx::query(POSTGRES_CLAIM_SUSPECTS)
                .bind(None::<Timestamp>)
                .bind(claimer.pool)
                .bind(claimer.worker)
                .bind(claimer.limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(ClaimedJob::read).collect::<Result<_, _>>()?
        }
    };
    Ok(sort_claimed(claimed))
}

/// The result of [`complete_and_claim`].
#[derive(Debug)]
pub struct ClaimOutcome {
    /// Jobs that were not completed: they moved on, or were asked to stop.
    pub not_completed: Vec<JobFence>,
    /// Jobs that were claimed.
    pub claimed: Vec<ClaimedJob>,
}

/// [`complete`](super::complete) and [`claim`] in one transaction, the hot path of a worker with a backlog. On
/// PostgreSQL one statement if there are no lanes.
pub async fn complete_and_claim(
    tx: &mut Tx<'_>,
    held: &[JobFence],
    lanes: &[String],
    claimer: &ClaimRequest<'_>,
) -> Result<ClaimOutcome> {
    if !lanes.is_empty() {
        // The claim comes second, so that it finds the jobs that got a slot.
        let done = bulk::complete(tx, held, lanes).await?;
        return Ok(ClaimOutcome {
            not_completed: not_completed(held, done),
            claimed: claim(tx, claimer).await?,
        });
    }
    let now = tx.now();
    let text = sqlite_claim_text(tx, claimer);
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let turned = complete_and_claim_sqlite(conn, text, now, held, claimer).await?;
            Ok(ClaimOutcome {
                not_completed: not_completed(held, turned.completed),
                claimed: sort_claimed(turned.claimed),
            })
        }
        Conn::Postgres(conn) => {
            let (ids, fences) = bulk::as_arrays(held);
            let rows = claimer
                .query(
                    POSTGRES_COMPLETE_AND_CLAIM,
                    POSTGRES_COMPLETE_AND_CLAIM_BEHIND,
                    POSTGRES_COMPLETE_AND_CLAIM_NAMED,
                )
                .bind(ids)
                .bind(fences)
                .bind(now)
                .fetch_all(conn)
                .await?;
            let (mut missed, mut claimed) = (Vec::new(), Vec::with_capacity(rows.len()));
            for row in &rows {
                let job = ClaimedJob::read(row)?;
                if row.try_get(NOT_COMPLETED)? {
                    missed.push(JobFence {
                        id: job.id,
                        fence: job.fence,
                    });
                } else {
                    claimed.push(job);
                }
            }
            Ok(ClaimOutcome {
                not_completed: missed,
                claimed: sort_claimed(claimed),
            })
        }
    }
}

fn not_completed(held: &[JobFence], done: Vec<JobFence>) -> Vec<JobFence> {
    if done.len() == held.len() {
        return Vec::new();
    }
    let done: HashSet<JobFence> = done.into_iter().collect();
    held.iter().filter(|job| !done.contains(job)).copied().collect()
}

/// What [`SQLITE_COMPLETE_AND_CLAIM`] did.
struct SqliteClaimOutcome {
    /// Those that were to end and did.
    completed: Vec<JobFence>,
    claimed: Vec<ClaimedJob>,
}

/// The SQLite text of a claim: with its own BEGIN and COMMIT unless a transaction is open.
const fn sqlite_claim_text(tx: &Tx<'_>, claimer: &ClaimRequest<'_>) -> &'static str {
    match (claimer.named, tx.is_single_statement()) {
        (None, true) => SQLITE_COMPLETE_AND_CLAIM_STANDALONE,
        (None, false) => SQLITE_COMPLETE_AND_CLAIM,
        (Some(_), true) => SQLITE_COMPLETE_AND_CLAIM_NAMED_STANDALONE,
        (Some(_), false) => SQLITE_COMPLETE_AND_CLAIM_NAMED,
    }
}

async fn complete_and_claim_sqlite(
    conn: &mut SqliteConnection,
    text: &'static str,
    now: Timestamp,
    held: &[JobFence],
    claimer: &ClaimRequest<'_>,
) -> Result<SqliteClaimOutcome> {
    let query = sqlx::query_as::<_, (String, Option<String>)>(text)
        .bind(bulk::as_json(held))
        .bind(now)
        .bind(claimer.pool)
        .bind(claimer.limit);
    let query = match claimer.named {
        Some(named) => query.bind(family::id_list(named)),
        None => query.bind(claimer.last_tenant),
    };
    let mut rows = query.bind(claimer.worker).fetch(conn);
    let unreadable = || Error::corrupt("job", "id", "one that is ready");
    let (picked, done) = rows.try_next().await?.ok_or_else(unreadable)?;
    // Read while the library marks and commits; the result that follows the row tells whether that succeeded.
    let picked: Result<Vec<PickedJob>, _> = serde_json::from_str(&picked);
    let claimed = picked.map(|picked| picked.into_iter().map(|picked| picked.claimed(now)).collect());
    let done = match done {
        None => Some(held.to_vec()),
        Some(some) => bulk::from_json(&some),
    };
    while rows.try_next().await?.is_some() {}
    Ok(SqliteClaimOutcome {
        completed: done.ok_or_else(unreadable)?,
        claimed: claimed.map_err(|_| unreadable())?,
    })
}

/// Neither RETURNING nor a JSON list has an order of its own.
fn sort_claimed(mut claimed: Vec<ClaimedJob>) -> Vec<ClaimedJob> {
    claimed.sort_unstable_by(|a, b| (b.priority, a.run_at, a.id).cmp(&(a.priority, b.run_at, b.id)));
    claimed
}
