//! Searching threads.

use serde_json::Value;
use sqlx::FromRow;
use towpath_domain::agent::ThreadStatus;
use towpath_domain::{TenantId, ThreadId, Timestamp};

use crate::error::Result;
use crate::query::{Arg, Query};
use crate::tx::Tx;

/// Which threads.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub ids: Option<Vec<ThreadId>>,
    /// Their metadata contain this object; `$and` and `$or` are lists of such filters.
    pub metadata: Option<Value>,
    /// Their values contain this object.
    pub values: Option<Value>,
    pub status: Option<ThreadStatus>,
}

/// A page of threads.
#[derive(Clone, Debug)]
pub struct Search {
    pub filter: Filter,
    /// In which order.
    pub sort_by: SortBy,
    /// Which way.
    pub ascending: bool,
    pub limit: i64,
    pub offset: i64,
    /// Whether values and interrupts are read; they can be large.
    pub with_values: bool,
}

/// The sort key of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Their ids.
    ThreadId,
    Status,
    /// Creation time.
    CreatedAt,
    /// When they changed last.
    #[default]
    UpdatedAt,
    /// When their values changed last.
    StateUpdatedAt,
}

impl SortBy {
    const fn column(self) -> &'static str {
        match self {
            Self::ThreadId => "id",
            Self::Status => "status",
            Self::CreatedAt => "created_at",
            Self::UpdatedAt => "updated_at",
            Self::StateUpdatedAt => "state_updated_at",
        }
    }
}

/// A thread that was found.
#[derive(Clone, Debug, FromRow)]
pub struct ThreadRow {
    pub id: ThreadId,
    pub status: ThreadStatus,
    pub metadata: String,
    pub config: String,
    pub current_values: Option<String>,
    pub interrupts: String,
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state_updated_at: Timestamp,
}

/// A page of threads. Temporary ones are no one's to find.
pub async fn search(tx: &mut Tx<'_>, tenant: TenantId, wanted: &Search) -> Result<Vec<ThreadRow>> {
    let values = if wanted.with_values {
        "current_values, interrupts"
    } else {
        "NULL AS current_values, '{}' AS interrupts"
    };
    let mut query = Query::new(
        tx,
        "SELECT id, status, metadata, config, error, created_at, updated_at, state_updated_at, ",
    );
    query.push(values).push(" FROM thread");
    narrow(&mut query, tenant, &wanted.filter)?;
    let way = if wanted.ascending { " ASC" } else { " DESC" };
    query.push(" ORDER BY ").push(wanted.sort_by.column()).push(way);
    query.push(", id").push(way).page(wanted.limit, wanted.offset);
    query.fetch_all(tx).await
}

/// How many threads there are.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId, filter: &Filter) -> Result<i64> {
    let mut query = Query::new(tx, "SELECT count(*) FROM thread");
    narrow(&mut query, tenant, filter)?;
    query.count(tx).await
}

fn narrow(query: &mut Query, tenant: TenantId, filter: &Filter) -> Result<()> {
    query.push(" WHERE tenant_id = ").bind(Arg::Uuid(tenant.0));
    query.push(" AND NOT temporary");
    if let Some(ids) = &filter.ids {
        query.push(" AND id").among(ids.iter().map(|id| id.0));
    }
    if let Some(status) = filter.status {
        let status = match status {
            ThreadStatus::Idle => "idle",
            ThreadStatus::Busy => "busy",
            ThreadStatus::Interrupted => "interrupted",
            ThreadStatus::Error => "error",
        };
        query.push(" AND status = ").bind(Arg::Text(status.to_owned()));
    }
    if let Some(metadata) = filter.metadata.as_ref().filter(|filter| !is_empty(filter)) {
        query.push(" AND ").matches("metadata", "metadata", metadata)?;
    }
    if let Some(values) = filter.values.as_ref().filter(|filter| !is_empty(filter)) {
        query.push(" AND ").contains("current_values", "values", values)?;
    }
    Ok(())
}

fn is_empty(filter: &Value) -> bool {
    filter.as_object().is_some_and(serde_json::Map::is_empty)
}
