//! Crons: recurring runs. The engine's schedule `schedule_id` decides when one fires; `next_run_date` is informational.

use serde_json::{Map, Value};
use sqlx::FromRow;
use towpath_domain::{AssistantId, CronId, ScheduleId, TenantId, ThreadId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Cron {
    pub id: CronId,
    pub tenant_id: TenantId,
    pub assistant_id: AssistantId,
    /// The thread it runs on; without one each run gets its own.
    pub thread_id: Option<ThreadId>,
    /// The engine's schedule that fires it; absent while it does not fire.
    pub schedule_id: Option<ScheduleId>,
    /// Who made it, where callers have names.
    pub user_id: Option<String>,
    /// Five fields.
    pub schedule: String,
    /// IANA name; absent means UTC.
    pub timezone: Option<String>,
    /// It does not fire after this.
    pub end_time: Option<Timestamp>,
    /// JSON object: the run's request.
    pub payload: String,
    /// JSON object of the client's.
    pub metadata: String,
    /// When it fires next.
    pub next_run_date: Option<Timestamp>,
    /// `delete` or `keep`: what becomes of the thread that a run without one was given.
    pub on_run_completed: Option<String>,
    /// Whether it fires.
    pub enabled: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// JSON object: the identity of its creator, from custom auth. Absent without custom auth, and in crons of earlier
    /// versions.
    pub caller: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub assistant_id: Option<AssistantId>,
    pub thread_id: Option<ThreadId>,
    /// That fire, or do not.
    pub enabled: Option<bool>,
    /// Whose metadata contains this; `$and` and `$or` are lists of such filters.
    pub metadata: Map<String, Value>,
}

/// The sort order of a list; ties are sorted by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    Id,
    Assistant,
    Thread,
    NextRunDate,
    EndTime,
    #[default]
    Created,
    Updated,
}

impl Order {
    const fn text(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Assistant => "assistant_id",
            Self::Thread => "thread_id",
            Self::NextRunDate => "next_run_date",
            Self::EndTime => "end_time",
            Self::Created => "created_at",
            Self::Updated => "updated_at",
        }
    }
}

/// Records a cron.
pub async fn insert(tx: &mut Tx<'_>, cron: &Cron) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO cron (id, tenant_id, assistant_id, thread_id, schedule_id, user_id, schedule, timezone, end_time,
                           payload, metadata, next_run_date, on_run_completed, enabled, created_at, updated_at, caller)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    )
    .bind(cron.id)
    .bind(cron.tenant_id)
    .bind(cron.assistant_id)
    .bind(cron.thread_id)
    .bind(cron.schedule_id)
    .bind(&cron.user_id)
    .bind(&cron.schedule)
    .bind(&cron.timezone)
    .bind(cron.end_time)
    .bind(&cron.payload)
    .bind(&cron.metadata)
    .bind(cron.next_run_date)
    .bind(&cron.on_run_completed)
    .bind(cron.enabled)
    .bind(cron.created_at)
    .bind(cron.updated_at)
    .bind(&cron.caller)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Writes everything of a cron that may change. Its caller stays.
pub async fn replace(tx: &mut Tx<'_>, cron: &Cron) -> Result<()> {
    let changed = on!(tx, |conn| {
        sqlx::query(
        "UPDATE cron SET schedule_id = $3, schedule = $4, timezone = $5, end_time = $6, payload = $7, metadata = $8,
                next_run_date = $9, on_run_completed = $10, enabled = $11, updated_at = $12
         WHERE tenant_id = $1 AND id = $2",
    )
    .bind(cron.tenant_id)
    .bind(cron.id)
    .bind(cron.schedule_id)
    .bind(&cron.schedule)
    .bind(&cron.timezone)
    .bind(cron.end_time)
    .bind(&cron.payload)
    .bind(&cron.metadata)
    .bind(cron.next_run_date)
    .bind(&cron.on_run_completed)
    .bind(cron.enabled)
    .bind(cron.updated_at)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    })?;
    if changed == 0 { Err(Error::NotFound) } else { Ok(()) }
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: CronId) -> Result<Cron> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(cron),
        " FROM cron WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// One cron, locked until the transaction ends.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: CronId) -> Result<Cron> {
    // SQLite has one writer, so no other caller can change it.
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(cron), " FROM cron WHERE tenant_id = $1 AND id = $2"),
        postgres: concat!("SELECT ", columns!(cron), " FROM cron WHERE tenant_id = $1 AND id = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// A part of those that match. Those without the field that sorts come last.
pub async fn search(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    which: &Filter,
    order: Order,
    ascending: bool,
    limit: i64,
    offset: i64,
) -> Result<Vec<Cron>> {
    let mut query = Query::new(tx, concat!("SELECT ", columns!(cron), " FROM cron WHERE tenant_id = "));
    query.bind(Arg::Uuid(tenant.0));
    narrow(&mut query, which)?;
    let way = if ascending { "" } else { " DESC" };
    query.push(" ORDER BY ").push(order.text()).push(way);
    query.push(" NULLS LAST, id").push(way);
    query.page(limit, offset);
    query.fetch_all(tx).await
}

pub async fn count(tx: &mut Tx<'_>, tenant: TenantId, which: &Filter) -> Result<i64> {
    let mut query = Query::new(tx, "SELECT count(*) FROM cron WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    narrow(&mut query, which)?;
    query.count(tx).await
}

fn narrow(query: &mut Query, which: &Filter) -> Result<()> {
    if let Some(assistant) = which.assistant_id {
        query.push(" AND assistant_id = ").bind(Arg::Uuid(assistant.0));
    }
    if let Some(thread) = which.thread_id {
        query.push(" AND thread_id = ").bind(Arg::Uuid(thread.0));
    }
    if let Some(enabled) = which.enabled {
        query.push(if enabled { " AND enabled" } else { " AND NOT enabled" });
    }
    if !which.metadata.is_empty() {
        query
            .push(" AND ")
            .matches("metadata", "metadata", &Value::Object(which.metadata.clone()))?;
    }
    Ok(())
}

/// Removes a cron.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: CronId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM cron WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}

/// Writes when a cron fires next, and by which schedule; both absent when it does no more.
pub async fn set_next(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: CronId,
    next: Option<Timestamp>,
    schedule: Option<ScheduleId>,
) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE cron SET next_run_date = $3, schedule_id = $4 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(next)
    .bind(schedule)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
