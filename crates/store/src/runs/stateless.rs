//! Runs on threads of their own that go with them: recorded, and deleted, many at a time.

use std::fmt::Write as _;
use std::sync::LazyLock;

use towpath_domain::{TenantId, ThreadId};

use super::NewRun;
use crate::error::Result;
use crate::jobs::NewJob;
use crate::threads::NewThread;
use crate::tx::{Conn, Dialect, Tx};

/// A run with its thread and its job, none of which is there yet.
#[derive(Clone, Debug)]
pub struct NewStatelessRun<'a> {
    /// The job, without lane, parent or deadline.
    pub job: &'a NewJob<'a>,
    pub thread: NewThread<'a>,
    /// The run, which no cron fired.
    pub run: NewRun<'a>,
}

/// Rows per statement: each number needs its own prepared text, so there are few.
const SIZES: [usize; 4] = [8, 4, 2, 1];

/// Parameters of one run, behind those all runs share.
const OWN: usize = 21;
const SHARED: usize = 2;

static SQLITE: LazyLock<[String; 4]> = LazyLock::new(|| SIZES.map(|rows| texts(rows).join("; ")));
static POSTGRES: LazyLock<[String; 4]> = LazyLock::new(|| {
    SIZES.map(|rows| {
        let [job, thread, run] = texts(rows);
        // References are checked when the whole statement has ended.
        format!("WITH job_rows AS ({job}), thread_rows AS ({thread}) {run}")
    })
});

/// What inserts so many jobs, threads and runs.
fn texts(rows: usize) -> [String; 3] {
    [
        (
            "INSERT INTO job (id, tenant_id, kind, pool, priority, state, run_at, input, lane_held, keep_place, traceparent,
                              created_at) VALUES ",
            "({1}, $1, {2}, {3}, {4}, {5}, {6}, {7}, false, {8}, {9}, $2)",
        ),
        (
            "INSERT INTO thread (id, tenant_id, status, metadata, config, temporary, ttl_strategy, ttl_minutes, expires_at,
                                 created_at, updated_at, state_updated_at) VALUES ",
            "({10}, $1, {11}, {12}, {13}, true, {14}, {15}, {16}, $2, $2, $2)",
        ),
        (
            "INSERT INTO run (id, tenant_id, thread_id, assistant_id, job_id, metadata, kwargs, multitask_strategy,
                              created_at, updated_at) VALUES ",
            "({17}, $1, {10}, {18}, {1}, {19}, {20}, {21}, {6}, $2)",
        ),
    ]
    .map(|(head, row)| {
        let mut text = head.to_owned();
        for nth in 0..rows {
            text.push_str(if nth == 0 { "" } else { ", " });
            text.push_str(&numbered(row, SHARED + nth * OWN));
        }
        text
    })
}

/// `{n}` as the parameter that is `n` after the first `before`.
fn numbered(row: &str, before: usize) -> String {
    let mut parts = row.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once('}').unwrap_or_default();
        let number: usize = number.parse().unwrap_or_default();
        let _ = write!(text, "${}{rest}", before + number);
    }
    text
}

/// Records them: all, or none.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, all: &[NewStatelessRun<'_>]) -> Result<()> {
    let mut rest = all;
    while let Some(at) = SIZES.iter().position(|&size| size <= rest.len()) {
        let (now, following) = rest.split_at(SIZES[at]);
        let text: &'static str = match tx.dialect() {
            Dialect::Sqlite => &SQLITE[at],
            Dialect::Postgres => &POSTGRES[at],
        };
        record(tx, tenant, text, now).await?;
        rest = following;
    }
    Ok(())
}

async fn record(tx: &mut Tx<'_>, tenant: TenantId, text: &'static str, all: &[NewStatelessRun<'_>]) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| {
        let mut query = sqlx::query(text).bind(tenant).bind(now);
        for NewStatelessRun { job, thread, run } in all {
            query = query
                .bind(job.id)
                .bind(job.kind)
                .bind(job.pool)
                .bind(job.priority)
                .bind(job.state)
                .bind(job.run_at)
                .bind(&job.input)
                .bind(job.keep_place)
                .bind(&job.traceparent)
                .bind(thread.id)
                .bind(thread.status)
                .bind(thread.metadata)
                .bind(thread.config)
                .bind(thread.ttl.map(|ttl| ttl.strategy))
                .bind(thread.ttl.map(|ttl| ttl.minutes))
                .bind(thread.ttl.map(|ttl| ttl.expires(now)))
                .bind(run.id)
                .bind(run.assistant)
                .bind(run.metadata)
                .bind(run.kwargs)
                .bind(run.strategy);
        }
        query.execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Deletes threads that never had a checkpoint, with their runs.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, threads: &[ThreadId]) -> Result<()> {
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let ids: Vec<String> = threads.iter().map(|id| id.0.simple().to_string()).collect();
            sqlx::query("DELETE FROM thread WHERE tenant_id = $1 AND id IN (SELECT unhex(value) FROM json_each($2))")
                .bind(tenant)
                .bind(serde_json::to_string(&ids).unwrap_or_default())
                .execute(conn)
                .await
                .map(drop)?;
        }
        Conn::Postgres(conn) => {
            sqlx::query("DELETE FROM thread WHERE tenant_id = $1 AND id = ANY ($2)")
                .bind(tenant)
                .bind(threads)
                .execute(conn)
                .await
                .map(drop)?;
        }
    }
    Ok(())
}
