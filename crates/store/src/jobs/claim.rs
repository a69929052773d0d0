//! Claiming: tenants in turn, then priority, then age. Behind [`Mark`]s, as far as these go.

use std::collections::HashSet;

use futures::TryStreamExt as _;
use serde::Deserialize;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Row as _, SqliteConnection};
use towpath_domain::{JobId, TenantId, Timestamp, WorkerId};

use crate::error::{Error, Result};
use crate::jobs::bulk::{self, Fenced, sqlite_completed, sqlite_completes};
use crate::tx::{Conn, Tx};

/// A job as its new holder gets it.
#[derive(Clone, Debug)]
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
    pub bad_children: i64,
    /// When it was claimed, by the clock that deadlines are compared by.
    pub claimed_at: Timestamp,
}

impl Claimed {
    /// Reads the columns that [`postgres_claims`] returns, by their places and unchecked: looking each up by its name, as the
    /// library does by itself, was a fifteenth of what a worker did beside waiting for the database, comparing its type a twelfth.
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

/// Up to where a claimer got with the jobs of a tenant: of this priority, to this one.
///
/// For PostgreSQL. What is claimed stays in the index of ready jobs until the table is vacuumed, a minute or more later;
/// while a transaction anywhere is older than that, longer. So whoever looks for the first ready job walks past all that
/// were: at the end of 20,000 jobs a claim of 64 read 360 pages of the index for that, where 6 are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns are explained once, in the migration")]
pub struct Mark {
    pub tenant_id: TenantId,
    pub priority: i64,
    pub run_at: Timestamp,
    pub id: JobId,
}

impl From<&Claimed> for Mark {
    fn from(job: &Claimed) -> Self {
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
pub struct Claimer<'a> {
    /// From which pool.
    pub pool: &'a str,
    /// For whom.
    pub worker: WorkerId,
    /// The most to be claimed.
    pub n: i64,
    /// Tenants take turns; this one was the last.
    pub after: TenantId,
    /// If there are any: only jobs of these tenants, of this priority, behind this one; in this order. SQLite has no use for
    /// them and claims as if there were none.
    pub marks: &'a [Mark],
}

impl<'a> Claimer<'a> {
    /// Claims from the front, tenants in any order.
    #[must_use]
    pub fn new(pool: &'a str, worker: WorkerId, n: i64) -> Self {
        Self {
            pool,
            worker,
            n,
            after: TenantId::nil(),
            marks: &[],
        }
    }

    /// A statement for PostgreSQL with what all of them begin with: `front`, or `behind` if there are marks.
    fn query(&self, front: &'static str, behind: &'static str) -> Query<'a, sqlx::Postgres, PgArguments> {
        let text = if self.marks.is_empty() { front } else { behind };
        let query = sqlx::query(text)
            .bind(None::<Timestamp>)
            .bind(self.pool)
            .bind(self.worker)
            .bind(self.n);
        if self.marks.is_empty() {
            return query.bind(self.after);
        }
        query
            .bind(self.marks.iter().map(|mark| mark.tenant_id.0).collect::<Vec<_>>())
            .bind(self.marks.iter().map(|mark| mark.priority).collect::<Vec<_>>())
            .bind(self.marks.iter().map(|mark| mark.run_at).collect::<Vec<_>>())
            .bind(self.marks.iter().map(|mark| mark.id.0).collect::<Vec<_>>())
    }
}

/// Which jobs are claimed, for PostgreSQL: `picked`. SKIP LOCKED, so that claimers pass one another.
///
/// Tenants that have something ready are found by a skip scan over `job_ready`: one index probe each, however long
/// the backlog is, and no more of them than jobs are wanted. (A window function over the backlog took 300 ms at
/// 500,000 rows where this takes 0.2.)
macro_rules! postgres_picks {
    () => {
        "above AS (
             (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $2 AND tenant_id > $5
              ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $2
                     AND j.tenant_id > above.tenant_id ORDER BY j.tenant_id LIMIT 1)
             FROM above WHERE above.tenant_id IS NOT NULL
         ),
         below AS (
             (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $2 AND tenant_id <= $5
              ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $2
                     AND j.tenant_id > below.tenant_id AND j.tenant_id <= $5 ORDER BY j.tenant_id LIMIT 1)
             FROM below WHERE below.tenant_id IS NOT NULL
         ),
         turn AS MATERIALIZED (
             SELECT tenant_id FROM (SELECT tenant_id FROM above WHERE tenant_id IS NOT NULL
                                    UNION ALL SELECT tenant_id FROM below WHERE tenant_id IS NOT NULL) t LIMIT $4
         ),
         picked AS MATERIALIZED (
             SELECT j.row FROM turn, LATERAL (
                 SELECT i.ctid AS row FROM job i WHERE i.state = 'ready' AND i.pool = $2 AND i.tenant_id = turn.tenant_id
                 ORDER BY i.priority DESC, i.run_at, i.id
                 LIMIT greatest(1, $4 / (SELECT count(*) FROM turn)) FOR UPDATE SKIP LOCKED
             ) j
             WHERE NOT EXISTS (SELECT 1 FROM pool WHERE name = $2 AND paused)
             LIMIT $4
         )"
    };
}

/// The claim itself, for PostgreSQL. An array, not a join: see `postgres.rs`. The clock is asked in a subselect, once and
/// not per row.
///
/// The rows are known by their places in the table, which spares looking their ids up. One that somebody else changed between
/// the beginning of the statement and its lock has another place by then: it is left for the next claim.
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
const MISSED: usize = 20;

/// As [`postgres_picks`], only behind the [`Mark`]s of some tenants.
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

/// [`complete`](super::complete) and [`claim`] in one statement. Both see the table as it was before: neither can touch
/// what the other does, a job is running or ready. Those that could not be completed come as rows of their own.
///
/// Takes how the jobs are picked, and which parameters the ids and the fences of those that end are, and their time.
macro_rules! postgres_turn {
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

/// One job that lost two leases, for PostgreSQL. They stay `scheduled` until they are claimed, so that no other claim finds them.
/// By a sum: `run_at` alone could be looked up in the index of all that is due.
const POSTGRES_CLAIM_ALONE: &str = concat!(
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
const POSTGRES_TURN: &str = postgres_turn!(postgres_picks, "$6", "$7", "$8");
const POSTGRES_TURN_BEHIND: &str = postgres_turn!(postgres_picks_behind, "$9", "$10", "$11");

/// Puts the rows of the jobs that are claimed into [`SQLITE_PICKED`].
///
/// The `+ 0` at each LIMIT is explained at [`Query::limit`](crate::query::Query::limit). One writer, so nobody else can take
/// the rows before they are marked. No LATERAL: a correlated IN does the same. By `rowid`, which the index knows: by id each
/// would be looked up in two trees.
macro_rules! sqlite_picks {
    () => {
        "INSERT INTO temp.picked
         WITH RECURSIVE
         above(tenant_id) AS (
             SELECT * FROM (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $3 AND tenant_id > $5
                            ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $3
                     AND j.tenant_id > above.tenant_id ORDER BY j.tenant_id LIMIT 1)
             FROM above WHERE above.tenant_id IS NOT NULL LIMIT $4 + 1
         ),
         below(tenant_id) AS (
             SELECT * FROM (SELECT tenant_id FROM job WHERE state = 'ready' AND pool = $3 AND tenant_id <= $5
                            ORDER BY tenant_id LIMIT 1)
             UNION ALL
             SELECT (SELECT j.tenant_id FROM job j WHERE j.state = 'ready' AND j.pool = $3
                     AND j.tenant_id > below.tenant_id AND j.tenant_id <= $5 ORDER BY j.tenant_id LIMIT 1)
             FROM below WHERE below.tenant_id IS NOT NULL LIMIT $4 + 1
         ),
         turn AS MATERIALIZED (
             SELECT tenant_id FROM (SELECT tenant_id, 0 AS round FROM above UNION ALL SELECT tenant_id, 1 FROM below)
             WHERE tenant_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $3 AND paused)
             ORDER BY round, tenant_id LIMIT $4 + 0
         )
         SELECT j.rowid FROM turn CROSS JOIN job j
         WHERE j.rowid IN (SELECT i.rowid FROM job i WHERE i.state = 'ready' AND i.pool = $3
                           AND i.tenant_id = turn.tenant_id ORDER BY i.priority DESC, i.run_at, i.id
                           LIMIT max(1, $4 / (SELECT count(*) FROM turn)))
         LIMIT $4 + 0;\n"
    };
}

/// Where a turn keeps the rows it picked; the writer has it from the beginning. In memory: picking them anew for each
/// statement made listing and marking them take an eighth longer with one tenant, a third with many.
///
/// Empty between turns, so that one that claims nothing changes nothing: the writer tells by that whether the disk took
/// something.
pub(crate) const SQLITE_PICKED: &str = "CREATE TEMP TABLE picked (row INTEGER PRIMARY KEY)";

/// [`complete`](super::complete) of jobs in no lane and [`claim`], for SQLite, as one call to the library: going to its
/// thread and back takes longer than most statements.
///
/// What is claimed comes as one row, a JSON list of the jobs as they will be: rows that come one after another each wake
/// the task that reads them, which takes longer than claiming them. Then the same jobs are marked. Beside the list is which
/// jobs ended, where some did not.
macro_rules! sqlite_turn {
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

const SQLITE_TURN: &str = sqlite_turn!(sqlite_picks);

/// The same where it is a transaction by itself.
const SQLITE_TURN_ALONE: &str = concat!("BEGIN IMMEDIATE;\n", sqlite_turn!(sqlite_picks), ";\nCOMMIT");

/// As [`POSTGRES_CLAIM_ALONE`], for SQLite.
macro_rules! sqlite_picks_alone {
    () => {
        "INSERT INTO temp.picked
         SELECT rowid FROM job
         WHERE state = 'scheduled' AND lost_leases >= 2 AND pool = $3 AND run_at <= $2 AND (lane IS NULL OR lane_held)
           AND NOT EXISTS (SELECT 1 FROM pool WHERE name = $3 AND paused)
         ORDER BY run_at, id LIMIT $4 + 0;\n"
    };
}

const SQLITE_CLAIM_ALONE: &str = sqlite_turn!(sqlite_picks_alone);

/// A job as [`SQLITE_TURN`] lists it. Times are microseconds.
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
    i64,
);

impl Picked {
    fn claimed(self, now: Timestamp) -> Claimed {
        let picked = self;
        Claimed {
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

/// Claims ready jobs.
///
/// Each tenant gets an equal share; what a share leaves free is for the caller to ask for again.
///
/// # Errors
/// As every statement.
pub async fn claim(tx: &mut Tx<'_>, claimer: &Claimer<'_>) -> Result<Vec<Claimed>> {
    let now = tx.now();
    let text = sqlite_turn_text(tx);
    let claimed = match tx.conn() {
        Conn::Sqlite(conn) => turn_sqlite(conn, text, now, &[], claimer).await?.claimed,
        Conn::Postgres(conn) => {
            let rows = claimer
                .query(POSTGRES_CLAIM, POSTGRES_CLAIM_BEHIND)
                .fetch_all(conn)
                .await?;
            rows.iter().map(Claimed::read).collect::<Result<_, _>>()?
        }
    };
    Ok(in_order(claimed))
}

/// Claims jobs that lost two leases in a row, the longest due first, for whoever performs them one at a time. Their workers may
/// have died of them, or of a neighbour. To be called in a transaction.
///
/// # Errors
/// As every statement.
pub async fn claim_alone(tx: &mut Tx<'_>, claimer: &Claimer<'_>) -> Result<Vec<Claimed>> {
    let now = tx.now();
    let claimed = match tx.conn() {
        Conn::Sqlite(conn) => turn_sqlite(conn, SQLITE_CLAIM_ALONE, now, &[], claimer).await?.claimed,
        Conn::Postgres(conn) => {
            let rows = sqlx::query(POSTGRES_CLAIM_ALONE)
                .bind(None::<Timestamp>)
                .bind(claimer.pool)
                .bind(claimer.worker)
                .bind(claimer.n)
                .fetch_all(conn)
                .await?;
            rows.iter().map(Claimed::read).collect::<Result<_, _>>()?
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
/// one statement where there are no lanes.
///
/// # Errors
/// As every statement.
pub async fn turn(tx: &mut Tx<'_>, held: &[Fenced], lanes: &[String], claimer: &Claimer<'_>) -> Result<Turned> {
    if !lanes.is_empty() {
        // The claim comes second, so that it finds those that got a place.
        let done = bulk::complete(tx, held, lanes).await?;
        return Ok(Turned {
            missed: missed(held, done),
            claimed: claim(tx, claimer).await?,
        });
    }
    let now = tx.now();
    let text = sqlite_turn_text(tx);
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let turned = turn_sqlite(conn, text, now, held, claimer).await?;
            Ok(Turned {
                missed: missed(held, turned.done),
                claimed: in_order(turned.claimed),
            })
        }
        Conn::Postgres(conn) => {
            let (ids, fences) = bulk::as_arrays(held);
            let rows = claimer
                .query(POSTGRES_TURN, POSTGRES_TURN_BEHIND)
                .bind(ids)
                .bind(fences)
                .bind(now)
                .fetch_all(conn)
                .await?;
            let (mut missed, mut claimed) = (Vec::new(), Vec::with_capacity(rows.len()));
            for row in &rows {
                let job = Claimed::read(row)?;
                if row.try_get(MISSED)? {
                    missed.push(Fenced {
                        id: job.id,
                        fence: job.fence,
                    });
                } else {
                    claimed.push(job);
                }
            }
            Ok(Turned {
                missed,
                claimed: in_order(claimed),
            })
        }
    }
}

fn missed(held: &[Fenced], done: Vec<Fenced>) -> Vec<Fenced> {
    if done.len() == held.len() {
        return Vec::new();
    }
    let done: HashSet<Fenced> = done.into_iter().collect();
    held.iter().filter(|job| !done.contains(job)).copied().collect()
}

/// What [`SQLITE_TURN`] did.
struct TurnedSqlite {
    /// Those that were to end and did.
    done: Vec<Fenced>,
    claimed: Vec<Claimed>,
}

/// How a turn is written on SQLite: with its own BEGIN and COMMIT where nobody else has begun a transaction.
const fn sqlite_turn_text(tx: &Tx<'_>) -> &'static str {
    if tx.is_alone() { SQLITE_TURN_ALONE } else { SQLITE_TURN }
}

async fn turn_sqlite(
    conn: &mut SqliteConnection,
    text: &'static str,
    now: Timestamp,
    held: &[Fenced],
    claimer: &Claimer<'_>,
) -> Result<TurnedSqlite> {
    let mut rows = sqlx::query_as::<_, (String, Option<String>)>(text)
        .bind(bulk::as_json(held))
        .bind(now)
        .bind(claimer.pool)
        .bind(claimer.n)
        .bind(claimer.after)
        .bind(claimer.worker)
        .fetch(conn);
    let unreadable = || Error::corrupt("job", "id", "one that is ready");
    let (picked, done) = rows.try_next().await?.ok_or_else(unreadable)?;
    // Read while the library marks them and commits; whether that went well is for what comes after the row to say.
    let picked: Result<Vec<Picked>, _> = serde_json::from_str(&picked);
    let claimed = picked.map(|picked| picked.into_iter().map(|picked| picked.claimed(now)).collect());
    let done = match done {
        None => Some(held.to_vec()),
        Some(some) => bulk::from_json(&some),
    };
    while rows.try_next().await?.is_some() {}
    Ok(TurnedSqlite {
        done: done.ok_or_else(unreadable)?,
        claimed: claimed.map_err(|_| unreadable())?,
    })
}

/// Neither RETURNING nor a JSON list has an order of its own.
fn in_order(mut claimed: Vec<Claimed>) -> Vec<Claimed> {
    claimed.sort_unstable_by(|a, b| (b.priority, a.run_at, a.id).cmp(&(a.priority, b.run_at, b.id)));
    claimed
}
