//! Tracing projects of all workspaces, for operators: how much is in each and since when.

use sqlx::FromRow;
use towpath_domain::{ProjectId, TenantId, Timestamp};

use super::Project;
use crate::error::Result;
use crate::query::Query;
use crate::tx::Tx;

/// A project in the view of operators.
#[derive(Clone, Debug, FromRow)]
pub struct Overview {
    pub id: ProjectId,
    pub tenant_id: TenantId,
    pub name: String,
    /// When it began.
    pub start_time: Timestamp,
    /// Rows in segments. A trace run with later changes may be counted more than once until its day is compacted;
    /// unflushed rows are not counted.
    pub rows: i64,
    /// UTC days on which any started.
    pub days: i64,
    /// Start of the first that is in a segment.
    pub first_run: Option<Timestamp>,
    /// Start of the last one.
    pub last_run: Option<Timestamp>,
}

/// Projects whose name contains `part`, case-insensitive, those with the latest trace runs first.
pub async fn list(tx: &mut Tx<'_>, part: &str, limit: i64, offset: i64) -> Result<Vec<Overview>> {
    if part.contains('\0') || super::longer_than_a_name(part) {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        "SELECT p.id, p.tenant_id, p.name, p.start_time, CAST(coalesce(sum(s.rows), 0) AS bigint) AS rows,
                count(DISTINCT s.day) AS days, min(s.min_sort_time) AS first_run, max(s.max_sort_time) AS last_run
         FROM project p LEFT JOIN segment_part s ON s.tenant_id = p.tenant_id AND s.project_id = p.id
         WHERE ",
    );
    query
        .has_part("p.name", part)
        .push(
            " GROUP BY p.id, p.tenant_id, p.name, p.start_time
             ORDER BY coalesce(max(s.max_sort_time), p.start_time) DESC, p.id, p.tenant_id",
        )
        .page(limit, offset);
    query.fetch_all(tx).await
}

/// Projects of that id, optionally in one workspace. At most two, which is enough to see that the id is ambiguous.
pub async fn any(tx: &mut Tx<'_>, id: ProjectId, workspace: Option<TenantId>) -> Result<Vec<Project>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            columns!(project),
            " FROM project WHERE id = $1 AND tenant_id = coalesce($2, tenant_id) LIMIT 2"
        ))
        .bind(id)
        .bind(workspace)
        .fetch_all(conn)
        .await
    })?)
}
