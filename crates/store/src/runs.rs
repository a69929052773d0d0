//! Runs of the agent server. Whether an unfinished run is executing follows from its job, so its start needs no write.

mod orphaned;
pub mod stateless;

use serde_json::Value;
use sqlx::FromRow;
use towpath_domain::agent::{CancelAction, MultitaskStrategy, RunStatus};
use towpath_domain::{AssistantId, CronId, JobId, RunId, TenantId, ThreadId, Timestamp};

use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::Tx;

pub use orphaned::orphaned;

/// A run as it is.
#[derive(Clone, Debug, FromRow)]
pub struct Run {
    pub id: RunId,
    pub thread_id: ThreadId,
    pub assistant_id: AssistantId,
    /// The job that performs it.
    pub job_id: JobId,
    pub status: RunStatus,
    /// JSON object.
    pub metadata: String,
    /// JSON object: [`towpath_domain::agent::Kwargs`].
    pub kwargs: String,
    /// How it affected unfinished runs.
    pub multitask_strategy: MultitaskStrategy,
    /// How the last cancel wants it stopped.
    pub cancel_action: Option<CancelAction>,
    /// When it was asked for; of a delayed run: when it is due.
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// When a worker took it first.
    pub started_at: Option<Timestamp>,
    pub attempt: i64,
}

const COLUMNS: &str = "SELECT run.id, run.tenant_id, run.thread_id, run.assistant_id, run.job_id,
    CASE WHEN run.status = 'pending' AND job.state = 'running' THEN 'running' ELSE run.status END AS status,
    run.metadata, run.kwargs, run.multitask_strategy, run.cancel_action, run.created_at, run.updated_at,
    run.finished_at,
    coalesce(job.started_at, (SELECT past.started_at FROM job_history past WHERE past.id = run.job_id)) AS started_at,
    coalesce(job.attempt, (SELECT past.attempt FROM job_history past WHERE past.id = run.job_id), 0) AS attempt
    FROM run LEFT JOIN job ON job.id = run.job_id ";

/// A run about to be recorded.
#[derive(Clone, Debug)]
pub struct NewRun<'a> {
    pub id: RunId,
    pub thread: ThreadId,
    pub assistant: AssistantId,
    /// The job that performs it.
    pub job: JobId,
    /// The cron that fired it, and the instant it stands for.
    pub cron: Option<(CronId, Timestamp)>,
    /// JSON object.
    pub metadata: &'a str,
    /// JSON object.
    pub kwargs: &'a str,
    /// How it affects unfinished runs.
    pub strategy: MultitaskStrategy,
    /// When it is due.
    pub created_at: Timestamp,
}

/// Records a run as pending.
///
/// # Errors
/// [`Error::Conflict`](crate::Error::Conflict) if the cron has already fired for that instant.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewRun<'_>) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO run (id, tenant_id, thread_id, assistant_id, job_id, cron_id, cron_at, metadata, kwargs,
                          multitask_strategy, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
    )
    .bind(new.id)
    .bind(tenant)
    .bind(new.thread)
    .bind(new.assistant)
    .bind(new.job)
    .bind(new.cron.map(|cron| cron.0))
    .bind(new.cron.map(|cron| cron.1))
    .bind(new.metadata)
    .bind(new.kwargs)
    .bind(new.strategy)
    .bind(new.created_at)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: RunId) -> Result<Run> {
    let mut query = Query::new(tx, COLUMNS);
    query.push("WHERE run.tenant_id = ").bind(Arg::Uuid(tenant.0));
    query.push(" AND run.id = ").bind(Arg::Uuid(id.0));
    let found: Vec<Run> = query.fetch_all(tx).await?;
    found.into_iter().next().ok_or(crate::Error::NotFound)
}

/// The existing ones of these runs, in any order, no matter which caller's they are.
pub async fn get_each(tx: &mut Tx<'_>, ids: &[RunId]) -> Result<Vec<(TenantId, Run)>> {
    let mut query = Query::new(tx, COLUMNS);
    query.push("WHERE run.id").among(ids.iter().map(|id| id.0));
    let rows: Vec<TenantRun> = query.fetch_all(tx).await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.run)).collect())
}

#[derive(FromRow)]
struct TenantRun {
    tenant_id: TenantId,
    #[sqlx(flatten)]
    run: Run,
}

/// Which runs of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Only those that stand there.
    pub status: Option<RunStatus>,
    pub limit: i64,
    pub offset: i64,
}

/// Runs of a thread, newest first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, page: Page) -> Result<Vec<Run>> {
    let mut query = Query::new(tx, COLUMNS);
    query.push("WHERE run.tenant_id = ").bind(Arg::Uuid(tenant.0));
    query.push(" AND run.thread_id = ").bind(Arg::Uuid(thread.0));
    push_status_condition(&mut query, page.status);
    query
        .push(" ORDER BY run.created_at DESC, run.id DESC")
        .page(page.limit, page.offset);
    query.fetch_all(tx).await
}

/// Which runs of a workspace.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub thread: Option<ThreadId>,
    pub assistant: Option<AssistantId>,
    /// Standing there.
    pub status: Option<RunStatus>,
    /// Their metadata contain this object; `$and` and `$or` are lists of such filters.
    pub metadata: Option<Value>,
}

/// Runs of a workspace, newest first.
pub async fn search(tx: &mut Tx<'_>, tenant: TenantId, filter: &Filter, limit: i64, offset: i64) -> Result<Vec<Run>> {
    let mut query = Query::new(tx, COLUMNS);
    query.push("WHERE run.tenant_id = ").bind(Arg::Uuid(tenant.0));
    if let Some(thread) = filter.thread {
        query.push(" AND run.thread_id = ").bind(Arg::Uuid(thread.0));
    }
    if let Some(assistant) = filter.assistant {
        query.push(" AND run.assistant_id = ").bind(Arg::Uuid(assistant.0));
    }
    push_status_condition(&mut query, filter.status);
    if let Some(metadata) = &filter.metadata {
        query.push(" AND ");
        query.matches("run.metadata", "metadata", metadata)?;
    }
    query
        .push(" ORDER BY run.created_at DESC, run.id DESC")
        .page(limit, offset);
    query.fetch_all(tx).await
}

fn push_status_condition(query: &mut Query, status: Option<RunStatus>) {
    match status {
        None => {}
        Some(RunStatus::Running) => {
            query.push(" AND run.status = 'pending' AND job.state = 'running'");
        }
        Some(RunStatus::Pending) => {
            query.push(" AND run.status = 'pending' AND coalesce(job.state, '') <> 'running'");
        }
        Some(over) => {
            query
                .push(" AND run.status = ")
                .bind(Arg::Text(over.as_str().to_owned()));
        }
    }
}

/// The job of a run in any workspace, for operators.
pub async fn job_of(tx: &mut Tx<'_>, id: RunId) -> Result<Option<JobId>> {
    Ok(on!(tx, |conn| {
        sqlx::query_scalar("SELECT job_id FROM run WHERE id = $1")
            .bind(id)
            .fetch_optional(conn)
            .await
    })?)
}

/// An unfinished run.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct OpenRun {
    pub id: RunId,
    pub thread_id: ThreadId,
    /// The job that performs it.
    pub job_id: JobId,
}

/// Unfinished runs, oldest first: of a thread, of an assistant, or all of a workspace.
pub async fn open(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    thread: Option<ThreadId>,
    assistant: Option<AssistantId>,
) -> Result<Vec<OpenRun>> {
    let mut query = Query::new(tx, "SELECT id, thread_id, job_id FROM run WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0)).push(" AND status = 'pending'");
    if let Some(thread) = thread {
        query.push(" AND thread_id = ").bind(Arg::Uuid(thread.0));
    }
    if let Some(assistant) = assistant {
        query.push(" AND assistant_id = ").bind(Arg::Uuid(assistant.0));
    }
    query.push(" ORDER BY created_at, id");
    query.fetch_all(tx).await
}

/// Runs of these threads that are not over, oldest first.
pub async fn open_on(tx: &mut Tx<'_>, tenant: TenantId, threads: &[ThreadId]) -> Result<Vec<OpenRun>> {
    let mut query = Query::new(tx, "SELECT id, thread_id, job_id FROM run WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND status = 'pending' AND thread_id");
    query.among(threads.iter().map(|thread| thread.0));
    query.push(" ORDER BY created_at, id");
    query.fetch_all(tx).await
}

/// Unfinished runs with these metadata, oldest first.
///
/// # Errors
/// `Rejected` for metadata that are too large.
pub async fn open_with_metadata(tx: &mut Tx<'_>, tenant: TenantId, metadata: &Value) -> Result<Vec<OpenRun>> {
    let mut query = Query::new(tx, "SELECT id, thread_id, job_id FROM run WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0)).push(" AND status = 'pending' AND ");
    query.contains("metadata", "metadata", metadata)?;
    query.push(" ORDER BY created_at, id");
    query.fetch_all(tx).await
}

/// Runs that stand there and are not over, oldest first.
pub async fn open_with_status(tx: &mut Tx<'_>, tenant: TenantId, status: Option<RunStatus>) -> Result<Vec<OpenRun>> {
    let mut query = Query::new(
        tx,
        "SELECT run.id, run.thread_id, run.job_id FROM run LEFT JOIN job ON job.id = run.job_id WHERE run.tenant_id = ",
    );
    query.bind(Arg::Uuid(tenant.0)).push(" AND run.status = 'pending'");
    push_status_condition(&mut query, status);
    query.push(" ORDER BY run.created_at, run.id");
    query.fetch_all(tx).await
}

/// Whether a run of the thread is not over.
pub async fn any_open(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId) -> Result<bool> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM run WHERE tenant_id = $1 AND thread_id = $2 AND status = 'pending')"
    )
    .bind(tenant)
    .bind(thread)
    .fetch_one(conn)
    .await)?)
}

/// Records how runs are to be stopped. Of two cancels the later one counts.
pub async fn set_cancel_all(tx: &mut Tx<'_>, tenant: TenantId, ids: &[RunId], action: CancelAction) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE run SET cancel_action = $3, updated_at = $4 WHERE tenant_id = $1 AND status = 'pending'
                   AND id IN (SELECT unhex(value) FROM json_each($2))",
        // An array, because join plans read the table; and no index of open runs, which would be compared with all of
        // it.
        postgres: "UPDATE run SET cancel_action = $3, updated_at = $4 WHERE tenant_id = $1 AND status || '' = 'pending'
                     AND id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json)))");
    let ids: Vec<String> = ids.iter().map(|id| id.0.simple().to_string()).collect();
    let ids = serde_json::to_string(&ids).expect("texts are always JSON");
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(ids)
        .bind(action)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Brings a run to a final state. True if this call made the change; a final state never changes again.
pub async fn finish(tx: &mut Tx<'_>, tenant: TenantId, id: RunId, status: RunStatus) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE run SET status = $3, updated_at = $4, finished_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status = 'pending'"
    )
    .bind(tenant)
    .bind(id)
    .bind(status)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Deletes a run. True when it was there.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: RunId) -> Result<bool> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM run WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(gone == 1)
}
