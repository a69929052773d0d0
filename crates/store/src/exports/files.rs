//! Files of export runs, and unfinished multipart uploads.

use towpath_domain::{ExportId, ExportRunId, TenantId};

use crate::{Result, Tx};

/// A finished file of an export run.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ExportFile {
    pub export_run_id: ExportRunId,
    /// Position in its run, from 0.
    pub seq: i64,
    /// Key below the bucket.
    pub path: String,
    pub rows: i64,
    /// Its size in bytes.
    pub bytes: i64,
}

/// A multipart upload that was begun.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Upload {
    /// Key it will have.
    pub path: String,
    /// What the destination calls it.
    pub upload_id: String,
}

/// The finished files of all runs of an export, in the order of time.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, export: ExportId) -> Result<Vec<ExportFile>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(f, export_file),
        " FROM export_run r JOIN export_file f ON f.export_run_id = r.id
         WHERE r.tenant_id = $1 AND r.export_id = $2 ORDER BY r.start_time, f.seq"
    ))
    .bind(tenant)
    .bind(export)
    .fetch_all(conn)
    .await)?)
}

/// The finished files of one run.
pub async fn of_run(tx: &mut Tx<'_>, run: ExportRunId) -> Result<Vec<ExportFile>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(export_file),
        " FROM export_file WHERE export_run_id = $1 ORDER BY seq"
    ))
    .bind(run)
    .fetch_all(conn)
    .await)?)
}

/// Records the start of a multipart upload, so that it can be aborted if it is never finished.
pub async fn upload_begun(tx: &mut Tx<'_>, id: ExportRunId, path: &str, upload_id: &str) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO export_upload (export_run_id, path, upload_id, created_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT DO NOTHING"
    )
    .bind(id)
    .bind(path)
    .bind(upload_id)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Records that a multipart upload is gone.
pub async fn upload_gone(tx: &mut Tx<'_>, id: ExportRunId, upload: &Upload) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM export_upload WHERE export_run_id = $1 AND path = $2 AND upload_id = $3"
    )
    .bind(id)
    .bind(&upload.path)
    .bind(&upload.upload_id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Multipart uploads of a run that may still be open.
pub async fn uploads(tx: &mut Tx<'_>, id: ExportRunId) -> Result<Vec<Upload>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT path, upload_id FROM export_upload WHERE export_run_id = $1 ORDER BY path, upload_id"
    )
    .bind(id)
    .fetch_all(conn)
    .await)?)
}
