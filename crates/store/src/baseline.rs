//! Baselines for benchmarks of the engine: the same work, hand-written.
//!
//! `towpath bench engine` runs them in the same run on the same machine. Plain commits are one INSERT each. The
//! hand-written queue is a table, a `SKIP LOCKED` claim that raises a fence, and an acknowledgement that compares it:
//! no tenants, lanes, leases, steps or ends. `towpath bench ingest` uses [`CopyWriters`], and `towpath bench soak` a
//! [`Probe`].

mod calendar;
mod copy;
mod probe;
mod statements;

use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};
use towpath_domain::TenantId;

use crate::error::{Error, Result};
use crate::tx::{Conn, Tx};
pub use calendar::{Calendar, calendar, move_clock};
pub use copy::{CopyResult, CopyWriters};
pub use probe::{Outcomes, Pages, Probe, Processes, Rows, Size};
pub use statements::{Cost, Costs};

/// A connection of its own with the tables of the comparison.
pub struct Baseline(BaselineConnection);

enum BaselineConnection {
    Sqlite(Box<SqliteConnection>),
    Postgres(Box<PgConnection>),
}

impl Baseline {
    /// Opens a second file next to a SQLite database, or a connection to a PostgreSQL database, and creates the tables.
    pub async fn open(uri: &str) -> Result<Self> {
        let own = if let Some(path) = uri.strip_prefix("sqlite://") {
            let options = SqliteConnectOptions::new()
                .filename(format!("{path}.baseline"))
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full);
            BaselineConnection::Sqlite(Box::new(SqliteConnection::connect_with(&options).await?))
        } else {
            BaselineConnection::Postgres(Box::new(PgConnection::connect(uri).await?))
        };
        let mut baseline = Self(own);
        baseline.execute("DROP TABLE IF EXISTS baseline_commit").await?;
        baseline.execute("DROP TABLE IF EXISTS baseline_job").await?;
        baseline
            .execute("CREATE TABLE baseline_commit (id BIGINT PRIMARY KEY, payload TEXT NOT NULL)")
            .await?;
        baseline
            .execute(
                "CREATE TABLE baseline_job (id BIGINT PRIMARY KEY, state TEXT NOT NULL, fence BIGINT NOT NULL DEFAULT 0,
                                            payload TEXT NOT NULL)",
            )
            .await?;
        baseline
            .execute("CREATE INDEX baseline_ready ON baseline_job (id) WHERE state = 'ready'")
            .await?;
        Ok(baseline)
    }

    async fn execute(&mut self, text: &'static str) -> Result<()> {
        match &mut self.0 {
            BaselineConnection::Sqlite(conn) => conn.execute(text).await.map(drop)?,
            BaselineConnection::Postgres(conn) => conn.execute(text).await.map(drop)?,
        }
        Ok(())
    }

    /// Commits `n` single rows one after another and returns how long it took.
    pub async fn commits(&mut self, n: i64) -> Result<Duration> {
        self.execute("DELETE FROM baseline_commit").await?;
        let text = "INSERT INTO baseline_commit (id, payload) VALUES ($1, $2)";
        let started = Instant::now();
        for id in 0..n {
            match &mut self.0 {
                BaselineConnection::Sqlite(conn) => sqlx::query(text)
                    .bind(id)
                    .bind("{}")
                    .execute(&mut **conn)
                    .await
                    .map(drop)?,
                BaselineConnection::Postgres(conn) => sqlx::query(text)
                    .bind(id)
                    .bind("{}")
                    .execute(&mut **conn)
                    .await
                    .map(drop)?,
            }
        }
        Ok(started.elapsed())
    }

    /// Drains a backlog of `jobs` with `slots` in hand at a time, and returns how long it took.
    pub async fn drain(&mut self, jobs: i64, slots: i64) -> Result<Duration> {
        self.execute("DELETE FROM baseline_job").await?;
        let fill = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < $1)
                    INSERT INTO baseline_job (id, state, payload) SELECT id, 'ready', '{\"n\": 1}' FROM n";
        match &mut self.0 {
            BaselineConnection::Sqlite(conn) => sqlx::query(fill).bind(jobs).execute(&mut **conn).await.map(drop)?,
            BaselineConnection::Postgres(conn) => {
                sqlx::query(fill).bind(jobs).execute(&mut **conn).await?;
                conn.execute("ANALYZE baseline_job").await?;
            }
        }
        let started = Instant::now();
        let mut done = 0;
        while done < jobs {
            let claimed = self.claim(slots).await?;
            if claimed.is_empty() {
                return Err(Error::Open("the hand-written queue lost jobs".to_owned()));
            }
            done += self.acknowledge(&claimed).await?;
        }
        Ok(started.elapsed())
    }

    async fn claim(&mut self, n: i64) -> Result<Vec<(i64, i64)>> {
        Ok(match &mut self.0 {
            BaselineConnection::Sqlite(conn) => {
                sqlx::query_as(
                    "UPDATE baseline_job SET state = 'running', fence = fence + 1
                     WHERE id IN (SELECT id FROM baseline_job WHERE state = 'ready' ORDER BY id LIMIT $1)
                     RETURNING id, fence",
                )
                .bind(n)
                .fetch_all(&mut **conn)
                .await?
            }
            BaselineConnection::Postgres(conn) => {
                sqlx::query_as(
                    "UPDATE baseline_job SET state = 'running', fence = fence + 1
                     WHERE id IN (SELECT id FROM baseline_job WHERE state = 'ready' ORDER BY id LIMIT $1
                                  FOR UPDATE SKIP LOCKED)
                     RETURNING id, fence",
                )
                .bind(n)
                .fetch_all(&mut **conn)
                .await?
            }
        })
    }

    async fn acknowledge(&mut self, claimed: &[(i64, i64)]) -> Result<i64> {
        let hit = match &mut self.0 {
            BaselineConnection::Sqlite(conn) => {
                let pairs: Vec<String> = claimed.iter().map(|(id, fence)| format!("[{id},{fence}]")).collect();
                sqlx::query(
                    "UPDATE baseline_job SET state = 'done'
                     FROM (SELECT value ->> 0 AS id, value ->> 1 AS fence FROM json_each($1)) held
                     WHERE baseline_job.id = held.id AND baseline_job.fence = held.fence",
                )
                .bind(format!("[{}]", pairs.join(",")))
                .execute(&mut **conn)
                .await?
                .rows_affected()
            }
            BaselineConnection::Postgres(conn) => {
                let (ids, fences): (Vec<i64>, Vec<i64>) = claimed.iter().copied().unzip();
                sqlx::query(
                    "UPDATE baseline_job SET state = 'done' FROM unnest($1::bigint[], $2::bigint[]) AS held(id, fence)
                     WHERE baseline_job.id = held.id AND baseline_job.fence = held.fence AND state = 'running'",
                )
                .bind(ids)
                .bind(fences)
                .execute(&mut **conn)
                .await?
                .rows_affected()
            }
        };
        Ok(i64::try_from(hit).unwrap_or(i64::MAX))
    }
}

/// Records `n` ready jobs of a kind, one statement per tenant, spread over `tenants`, to measure against a long
/// backlog. Their ids grow like those of real jobs, which are adjacent in table and index.
pub async fn backlog(tx: &mut Tx<'_>, kind: &str, pool: &str, n: i64, tenants: &[TenantId]) -> Result<()> {
    take_time(tx).await?;
    let now = tx.now();
    let share = n / i64::try_from(tenants.len().max(1)).unwrap_or(1);
    let mut first = 0;
    for tenant in tenants {
        let text = sql!(tx,
            sqlite:
            "WITH RECURSIVE n(n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < $1 + $2)
             INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at)
             SELECT unhex(printf('%012x70008%015x', $6 / 1000, n)), $3, $4, $5, 'ready', $6, '{}', $6 FROM n",
            postgres:
            "INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at)
             SELECT (lpad(to_hex((extract(epoch FROM $6) * 1000)::bigint), 12, '0') || '70008'
                     || lpad(to_hex(n), 15, '0'))::uuid, $3, $4, $5, 'ready', $6, '{}', $6
             FROM generate_series($1::bigint, $1 + $2 - 1) n");
        on!(tx, |conn| sqlx::query(text)
            .bind(first)
            .bind(share)
            .bind(*tenant)
            .bind(kind)
            .bind(pool)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
        first += share;
    }
    Ok(())
}

/// Raises the statement timeout for this transaction: its statements touch all rows of a table.
async fn take_time(tx: &mut Tx<'_>) -> Result<()> {
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SET LOCAL statement_timeout = 0").execute(conn).await?;
    }
    Ok(())
}

/// Empties the engine's tables, and lets the database tidy up before the next measurement.
pub async fn clear(tx: &mut Tx<'_>) -> Result<()> {
    take_time(tx).await?;
    on!(tx, |conn| {
        sqlx::query("DELETE FROM step").execute(&mut *conn).await?;
        sqlx::query("DELETE FROM lane").execute(&mut *conn).await?;
        sqlx::query("DELETE FROM job_history").execute(&mut *conn).await?;
        sqlx::query("DELETE FROM job").execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Unfinished jobs.
pub async fn open_jobs(tx: &mut Tx<'_>) -> Result<i64> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT count(*) FROM job WHERE finished_at IS NULL")
            .fetch_one(conn)
            .await
    })?)
}

/// Jobs that succeeded at their first attempt.
pub async fn performed_once(tx: &mut Tx<'_>) -> Result<i64> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT count(*) FROM job WHERE state = 'succeeded' AND attempt = 1")
            .fetch_one(conn)
            .await
    })?)
}

/// Milliseconds from the recording of each job to its first claim.
pub async fn pick_ups(tx: &mut Tx<'_>) -> Result<Vec<f64>> {
    let text = sql!(tx,
        sqlite: "SELECT (started_at - created_at) / 1000.0 FROM job WHERE started_at IS NOT NULL",
        postgres: "SELECT (extract(epoch FROM started_at - created_at) * 1000)::float8 FROM job
                   WHERE started_at IS NOT NULL");
    Ok(on!(tx, |conn| sqlx::query_scalar(text).fetch_all(conn).await)?)
}

/// Vacuums and analyses the engine's tables, as a running server does now and then.
pub async fn tidy(uri: &str) -> Result<()> {
    if uri.starts_with("postgres") {
        let mut conn = PgConnection::connect(uri).await?;
        conn.execute("VACUUM ANALYZE job").await?;
        conn.execute("VACUUM ANALYZE step").await?;
        conn.execute("VACUUM ANALYZE lane").await?;
    }
    Ok(())
}

/// Creates a database on a PostgreSQL server and returns its address.
pub async fn make_database(server: &str, name: &str) -> Result<String> {
    let mut conn = PgConnection::connect(server).await?;
    conn.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .await?;
    Ok(address(server, name))
}

/// Finds a database that an earlier `towpath bench soak` kept, or makes it. Returns its address.
pub async fn find_or_make_database(server: &str, name: &str) -> Result<String> {
    let mut conn = PgConnection::connect(server).await?;
    let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(&mut conn)
        .await?;
    if !there {
        return make_database(server, name).await;
    }
    let uri = address(server, name);
    let mut conn = PgConnection::connect(&uri).await?;
    let ours: bool = sqlx::query_scalar(
        "SELECT to_regclass('baseline_soak') IS NOT NULL
             OR NOT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema())",
    )
    .fetch_one(&mut conn)
    .await?;
    if ours {
        Ok(uri)
    } else {
        Err(Error::Open(format!(
            "the database {name} has tables that this benchmark did not create; it would move the clock and delete the \
             old jobs; name another one"
        )))
    }
}

/// The address of a database on a PostgreSQL server.
fn address(server: &str, name: &str) -> String {
    let (before, query) = server
        .split_once('?')
        .map_or((server, None), |(before, query)| (before, Some(query)));
    let host = before
        .strip_prefix("postgres://")
        .or_else(|| before.strip_prefix("postgresql://"))
        .unwrap_or(before);
    let host = host.split('/').next().unwrap_or_default();
    query.map_or_else(
        || format!("postgres://{host}/{name}"),
        |query| format!("postgres://{host}/{name}?{query}"),
    )
}

/// Drops a database that [`make_database`] made.
pub async fn drop_database(server: &str, name: &str) -> Result<()> {
    let mut conn = PgConnection::connect(server).await?;
    conn.execute(sqlx::AssertSqlSafe(format!(
        "DROP DATABASE IF EXISTS {name} WITH (FORCE)"
    )))
    .await?;
    Ok(())
}
