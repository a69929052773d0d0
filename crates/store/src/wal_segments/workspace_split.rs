//! WAL segments of several workspaces. Builds before the second migration register an object as one WAL segment of the
//! nil workspace, with its workspaces in a separate table. The migration has split existing ones; such a build may
//! still be running.

use towpath_domain::{Shard, TenantId};

use crate::tx::Conn;
use crate::{Result, Tx};

/// Objects of one call.
const BATCH: i64 = 200;

/// Splits WAL segments that earlier builds registered since the migration by workspace, and returns the number of
/// objects.
pub async fn split(tx: &mut Tx<'_>) -> Result<usize> {
    let Conn::Postgres(conn) = tx.conn() else {
        // One process has the file, and it migrates before it works.
        return Ok(0);
    };
    let nil = TenantId::nil();
    let paths: Vec<String> = sqlx::query_scalar(
        "SELECT path FROM wal_unit WHERE state = 'open' AND shard = $1 AND tenant_id = $2 AND byte_offset = 0
         ORDER BY seq LIMIT $3 FOR UPDATE",
    )
    .bind(Shard::of(nil))
    .bind(nil)
    .bind(BATCH)
    .fetch_all(&mut *conn)
    .await?;
    if paths.is_empty() {
        return Ok(0);
    }
    // As the migration does it. The first workspace keeps the row.
    for text in [
        "INSERT INTO wal_unit (id, path, bytes, operations, state, created_at, tenant_id, shard)
         SELECT gen_random_uuid(), u.path, u.bytes, u.operations, 'open', u.created_at, p.tenant_id,
                get_byte(uuid_send(p.tenant_id), 15) & 15
         FROM wal_unit u JOIN (SELECT DISTINCT unit_id, tenant_id FROM wal_unit_project) p ON p.unit_id = u.id
         WHERE u.path = ANY($1) AND u.tenant_id = $2 AND p.tenant_id > (
             SELECT f.tenant_id FROM wal_unit_project f WHERE f.unit_id = u.id ORDER BY f.tenant_id LIMIT 1)",
        "UPDATE wal_unit SET (tenant_id, shard) = (
             SELECT f.tenant_id, get_byte(uuid_send(f.tenant_id), 15) & 15
             FROM wal_unit_project f WHERE f.unit_id = wal_unit.id ORDER BY f.tenant_id LIMIT 1)
         WHERE path = ANY($1) AND tenant_id = $2
         AND EXISTS (SELECT 1 FROM wal_unit_project f WHERE f.unit_id = wal_unit.id)",
        "INSERT INTO wal_unit_name (unit_id, name, project_id)
         SELECT n.id, p.name, p.id
         FROM wal_unit u JOIN wal_unit_project t ON t.unit_id = u.id
         JOIN wal_unit n ON n.path = u.path AND n.tenant_id = t.tenant_id
         JOIN project p ON p.tenant_id = t.tenant_id AND p.id = t.project_id
         WHERE u.path = ANY($1) AND n.tenant_id <> $2
         ON CONFLICT DO NOTHING",
    ] {
        sqlx::query(text).bind(&paths).bind(nil).execute(&mut *conn).await?;
    }
    Ok(paths.len())
}
