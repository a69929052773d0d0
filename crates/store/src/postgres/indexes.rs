//! Indexes and constraints of large tables, built concurrently.
//!
//! A migration is one transaction, and building an index in one blocks writes to its table. These are built after the
//! migrations, by one process at a time. They only affect speed, and features that would be too slow without them wait.
//! If one cannot be built now, because of a backup or another long transaction, the scheduler and the next start retry.

use sqlx::{AssertSqlSafe, Executor as _, PgConnection};

use super::{MIGRATING, Postgres};
use crate::error::Result;

/// Name and text of each. Those on `job` serve `store/src/leases.rs`, `jobs/lost.rs`, `jobs/list.rs` and
/// `jobs/history.rs`; the others `schedules.rs`, `run_events.rs`, `revision_logs.rs`, `datasets.rs`,
/// `model_prices.rs` and `sandboxes/nodes.rs`.
const WANTED: [(&str, &str); 10] = [
    (
        "job_worker",
        "CREATE INDEX CONCURRENTLY job_worker ON job (worker_id, pool) WHERE state = 'running'",
    ),
    (
        "job_suspect",
        "CREATE INDEX CONCURRENTLY job_suspect ON job (pool, run_at) WHERE state = 'scheduled' AND lost_leases >= 2",
    ),
    (
        "job_lane_over",
        "CREATE INDEX CONCURRENTLY job_lane_over ON job (lane, id) WHERE lane IS NOT NULL AND finished_at IS NOT NULL",
    ),
    (
        "job_over",
        "CREATE INDEX CONCURRENTLY job_over ON job (finished_at, id) WHERE finished_at IS NOT NULL AND NOT dead",
    ),
    (
        "schedule_ended",
        "CREATE INDEX CONCURRENTLY schedule_ended ON schedule (ended_at) WHERE ended_at IS NOT NULL",
    ),
    (
        "run_event_position",
        "CREATE INDEX CONCURRENTLY run_event_position ON run_event (thread_id, log_position)",
    ),
    (
        "revision_log_deploy",
        "CREATE INDEX CONCURRENTLY revision_log_deploy ON revision_log (id) WHERE kind = 'deploy'",
    ),
    (
        "project_dataset",
        "CREATE INDEX CONCURRENTLY project_dataset ON project (tenant_id, reference_dataset_id)
         WHERE reference_dataset_id IS NOT NULL",
    ),
    (
        "segment_of_prices",
        "CREATE INDEX CONCURRENTLY segment_of_prices ON segment (tenant_id, price_version, id) WHERE state = 'live'",
    ),
    (
        "sandbox_box_of_host",
        "CREATE INDEX CONCURRENTLY sandbox_box_of_host ON sandbox_box (host_id, id)",
    ),
];

/// Those that the wanted ones have replaced.
const REPLACED: [&str; 1] = ["job_lease"];

/// Constraints that a migration added as NOT VALID: validating the whole table under its lock would block everyone.
const UNCHECKED: [&str; 1] = ["job_lease_until_check"];

/// Names the lock under which they are made.
const LOCK: i64 = 0x746f_7770_6978;

/// Making one waits for every transaction that began before. A short one is over by then.
const PATIENCE: &str = "SET lock_timeout = '15s'";

impl Postgres {
    /// Makes those that are still missing. Returns how many statements are left.
    pub(crate) async fn make_indexes(&self) -> Result<i64> {
        let mut line = self.pool.acquire().await?;
        if missing(line.conn()).await?.is_empty() {
            line.release();
            return Ok(0);
        }
        line.conn().execute(MIGRATING).await?;
        make(line.conn()).await?;
        let left = missing(line.conn()).await?;
        // Not kept: the lock and the settings go with it.
        line.close().await;
        Ok(i64::try_from(left.len()).unwrap_or(i64::MAX))
    }
}

/// Makes those that are not there.
pub(crate) async fn make(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    if missing(conn).await?.is_empty() {
        return Ok(());
    }
    // Not waited for: the caller that waits here would hold up the caller that makes them.
    let ours: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
        .bind(LOCK)
        .fetch_one(&mut *conn)
        .await?;
    if !ours {
        return Ok(());
    }
    conn.execute(PATIENCE).await?;
    for statement in missing(conn).await? {
        if let Err(error) = conn.execute(AssertSqlSafe(statement.clone())).await {
            let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
            if !matches!(code.as_deref(), Some("55P03" | "40P01")) {
                return Err(error);
            }
            tracing::warn!(statement, "the database is too busy; retrying");
            return Ok(());
        }
    }
    Ok(())
}

/// What is still to be done, in order. An index that was not finished is there, and is of no use.
async fn missing(conn: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let there: Vec<(String, bool)> = sqlx::query_as(
        "SELECT i.relname::text, x.indisvalid FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
         WHERE i.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())",
    )
    .fetch_all(&mut *conn)
    .await?;
    let state = |name: &str| there.iter().find(|(index, _)| index == name).map(|(_, valid)| *valid);
    let mut statements = Vec::new();
    for (name, text) in WANTED {
        match state(name) {
            Some(true) => continue,
            Some(false) => statements.push(format!("DROP INDEX CONCURRENTLY {name}")),
            None => {}
        }
        statements.push(text.to_owned());
    }
    let gone = REPLACED.iter().filter(|name| state(name).is_some());
    statements.extend(gone.map(|name| format!("DROP INDEX CONCURRENTLY {name}")));
    let unchecked: Vec<(String, String)> = sqlx::query_as(
        "SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint
         WHERE NOT convalidated AND contype = 'c' AND conrelid = to_regclass('job') AND conname::text = ANY($1)",
    )
    .bind(&UNCHECKED[..])
    .fetch_all(conn)
    .await?;
    let validated = unchecked.into_iter();
    statements.extend(validated.map(|(table, name)| format!("ALTER TABLE {table} VALIDATE CONSTRAINT {name}")));
    Ok(statements)
}
