//! Ready jobs by their ids, for the queues in Redis.

use sqlx::FromRow;
use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, TenantId, Timestamp};

use super::claim::{postgres_turns, sqlite_turns};
use crate::error::Result;
use crate::tx::Tx;

/// A ready job as statements return it.
#[derive(FromRow)]
pub(super) struct ReadyRow {
    id: JobId,
    tenant_id: TenantId,
    pool: String,
    priority: i64,
    run_at: Timestamp,
}

impl From<ReadyRow> for ReadyJob {
    fn from(row: ReadyRow) -> Self {
        Self {
            pool: row.pool,
            tenant: row.tenant_id,
            priority: row.priority,
            run_at: row.run_at,
            id: row.id,
        }
    }
}

const POSTGRES: &str = concat!(
    "WITH RECURSIVE ",
    postgres_turns!("$1", "$2", "$3"),
    "SELECT j.id, j.tenant_id, j.pool, j.priority, j.run_at FROM turn, LATERAL (
         SELECT i.id, i.tenant_id, i.pool, i.priority, i.run_at FROM job i
         WHERE i.state = 'ready' AND i.pool = $1 AND i.tenant_id = turn.tenant_id
         ORDER BY i.priority DESC, i.run_at, i.id LIMIT greatest(1, $2 / (SELECT count(*) FROM turn))
     ) j
     WHERE NOT EXISTS (SELECT 1 FROM pool WHERE name = $1 AND paused)
     LIMIT $2"
);

const SQLITE: &str = concat!(
    "WITH RECURSIVE ",
    sqlite_turns!("$1", "$2", "$3"),
    "SELECT j.id, j.tenant_id, j.pool, j.priority, j.run_at FROM turn CROSS JOIN job j
     WHERE j.rowid IN (SELECT i.rowid FROM job i WHERE i.state = 'ready' AND i.pool = $1
                       AND i.tenant_id = turn.tenant_id ORDER BY i.priority DESC, i.run_at, i.id
                       LIMIT max(1, $2 / (SELECT count(*) FROM turn)))
     LIMIT $2 + 0"
);

/// The ready jobs of a pool that are next: tenants in turn, beginning behind `last_tenant`, with an equal share each;
/// of a tenant those that [`claim`](super::claim) would take. None of a paused pool. Takes no locks.
pub async fn ready_jobs(tx: &mut Tx<'_>, pool: &str, last_tenant: TenantId, limit: i64) -> Result<Vec<ReadyJob>> {
    let text = sql!(tx, sqlite: SQLITE, postgres: POSTGRES);
    let rows: Vec<ReadyRow> = on!(tx, |conn| sqlx::query_as(text)
        .bind(pool)
        .bind(limit)
        .bind(last_tenant)
        .fetch_all(conn)
        .await)?;
    Ok(rows.into_iter().map(ReadyJob::from).collect())
}
