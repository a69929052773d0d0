//! Export runs: one per day partition of an export. Their files are in [`super::files`].

use towpath_domain::export::{ExportStatus, Partition};
use towpath_domain::{ExportId, ExportRunId, JobId, TenantId, Timestamp};

use super::files::ExportFile;
use crate::{Error, Result, Tx};

mod many;

pub use many::{NewRun, cancel_all, cancel_open, fail_all_to, insert_all, to_be_cleaned};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ExportRun {
    pub id: ExportRunId,
    pub tenant_id: TenantId,
    /// The export it is a part of.
    pub export_id: ExportId,
    /// The job that performs it.
    pub job_id: JobId,
    pub status: ExportStatus,
    /// Inclusive.
    pub start_time: Timestamp,
    /// Exclusive.
    pub end_time: Timestamp,
    /// The folder of its files, as a key below the bucket.
    pub prefix: String,
    /// Failed attempts so far.
    pub retry_number: i64,
    /// JSON object: `retry_n` to what went wrong.
    pub errors: String,
    /// Rows in its files, the one being written included.
    pub rows_written: i64,
    /// Bytes of its files, the one being written included.
    pub bytes_written: i64,
    /// Finished files.
    pub files_written: i64,
    /// JSON: the last row that is in a finished file.
    pub latest_cursor: Option<String>,
    /// JSON: the file that is about to be visible.
    pub pending_upload: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl ExportRun {
    /// The piece of time it covers.
    #[must_use]
    pub const fn partition(&self) -> Partition {
        Partition {
            start: self.start_time,
            end: self.end_time,
        }
    }
}

/// How far an export run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows written, also into the file that is not finished.
    pub rows: i64,
    /// Bytes written, also into the file that is not finished.
    pub bytes: i64,
    /// Finished files.
    pub files: i64,
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, export: ExportId, id: ExportRunId) -> Result<ExportRun> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(export_run),
        " FROM export_run WHERE tenant_id = $1 AND export_id = $2 AND id = $3"
    ))
    .bind(tenant)
    .bind(export)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The runs of an export, the latest partition first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, export: ExportId) -> Result<Vec<ExportRun>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(export_run),
        " FROM export_run WHERE tenant_id = $1 AND export_id = $2 ORDER BY start_time DESC"
    ))
    .bind(tenant)
    .bind(export)
    .fetch_all(conn)
    .await)?)
}

/// The runs of every export that was spawned from a schedule, the latest partition first.
pub async fn list_spawned(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    source: ExportId,
    limit: i64,
    offset: i64,
) -> Result<Vec<ExportRun>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(r, export_run),
        " FROM export e JOIN export_run r ON r.export_id = e.id
         WHERE e.tenant_id = $1 AND e.source_bulk_export_id = $2
         ORDER BY r.start_time DESC, r.id LIMIT $3 + 0 OFFSET $4"
    ))
    .bind(tenant)
    .bind(source)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// `CREATED` → `RUNNING`, also for a further attempt, whose number it records. Rows of unfinished files no longer
/// count. False if the run has reached a final state.
pub async fn running(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, retry_number: i64) -> Result<bool> {
    settle_progress(tx, tenant, id).await?;
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET status = 'RUNNING', retry_number = $3, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status IN ('CREATED', 'RUNNING')"
    )
    .bind(tenant)
    .bind(id)
    .bind(retry_number)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Records how far a running run is. Nothing happens to a run in a final state.
pub async fn progress(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, progress: Progress) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET rows_written = $3, bytes_written = $4, files_written = $5, updated_at = $6
         WHERE tenant_id = $1 AND id = $2 AND status = 'RUNNING'"
    )
    .bind(tenant)
    .bind(id)
    .bind(progress.rows)
    .bind(progress.bytes)
    .bind(progress.files)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Records the file that is about to become visible (JSON).
///
/// # Errors
/// [`Error::Stale`] if the run is not running.
pub async fn pending(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, upload: &str) -> Result<()> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET pending_upload = $3, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status = 'RUNNING'"
    )
    .bind(tenant)
    .bind(id)
    .bind(upload)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed == 1 { Ok(()) } else { Err(Error::Stale) }
}

/// Records that the pending file at `path` is abandoned, along with the uploads under its name.
///
/// # Errors
/// [`Error::Stale`] if the run is not running.
pub async fn pending_given_up(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, path: &str) -> Result<()> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET pending_upload = NULL, updated_at = $3
         WHERE tenant_id = $1 AND id = $2 AND status = 'RUNNING'"
    )
    .bind(tenant)
    .bind(id)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed != 1 {
        return Err(Error::Stale);
    }
    forget_uploads(tx, id, path).await
}

/// Uploads in parts under one name are over.
async fn forget_uploads(tx: &mut Tx<'_>, id: ExportRunId, path: &str) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM export_upload WHERE export_run_id = $1 AND path = $2"
    )
    .bind(id)
    .bind(path)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Records a finished file and the cursor after it (JSON), and clears the pending file. Idempotent.
///
/// # Errors
/// [`Error::Stale`] if the run is not running.
pub async fn file_done(tx: &mut Tx<'_>, tenant: TenantId, file: &ExportFile, cursor: &str) -> Result<()> {
    let now = tx.now();
    let id = file.export_run_id;
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET latest_cursor = $3, pending_upload = NULL, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status = 'RUNNING'"
    )
    .bind(tenant)
    .bind(id)
    .bind(cursor)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed != 1 {
        return Err(Error::Stale);
    }
    on!(tx, |conn| sqlx::query(
        "INSERT INTO export_file (export_run_id, seq, path, rows, bytes) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (export_run_id, seq) DO UPDATE SET path = excluded.path, rows = excluded.rows,
                                                        bytes = excluded.bytes"
    )
    .bind(id)
    .bind(file.seq)
    .bind(&file.path)
    .bind(file.rows)
    .bind(file.bytes)
    .execute(conn)
    .await
    .map(drop))?;
    forget_uploads(tx, id, &file.path).await?;
    settle_progress(tx, tenant, id).await
}

/// Brings a run to a final state, with the totals of its finished files. `last_error` is recorded unless the failed
/// attempt already has. True if this call made the change.
pub async fn finish(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: ExportRunId,
    status: ExportStatus,
    last_error: Option<&str>,
) -> Result<bool> {
    if let Some(error) = last_error {
        note_last(tx, tenant, id, error).await?;
    }
    settle_progress(tx, tenant, id).await?;
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET status = $3, pending_upload = NULL, finished_at = $4, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status IN ('CREATED', 'RUNNING')"
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

/// Records why attempt `n` (from 0) of a run failed.
pub async fn attempt_failed(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, n: u32, error: &str) -> Result<()> {
    let Some((mut errors, _)) = errors(tx, tenant, id).await? else {
        return Ok(());
    };
    errors.insert(format!("retry_{n}"), error.into());
    save_errors(tx, tenant, id, errors).await
}

/// The end of a job may come without a failed attempt: a deadline, too many lost leases.
async fn note_last(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, error: &str) -> Result<()> {
    let Some((mut errors, retry_number)) = errors(tx, tenant, id).await? else {
        return Ok(());
    };
    if errors.values().any(|known| known == error) {
        return Ok(());
    }
    errors
        .entry(format!("retry_{retry_number}"))
        .or_insert_with(|| error.into());
    save_errors(tx, tenant, id, errors).await
}

type Errors = serde_json::Map<String, serde_json::Value>;

/// The errors of a run that is not final, and how often it was retried.
async fn errors(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId) -> Result<Option<(Errors, i64)>> {
    let row: Option<(String, i64)> = on!(tx, |conn| sqlx::query_as(
        "SELECT errors, retry_number FROM export_run WHERE tenant_id = $1 AND id = $2 AND finished_at IS NULL"
    )
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    let Some((text, retry_number)) = row else {
        return Ok(None);
    };
    let errors = serde_json::from_str(&text).map_err(|_| Error::corrupt("export_run", "errors", id))?;
    Ok(Some((errors, retry_number)))
}

async fn save_errors(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId, errors: Errors) -> Result<()> {
    let now = tx.now();
    let text = serde_json::Value::Object(errors).to_string();
    on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET errors = $3, updated_at = $4 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(text)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Counts what is in finished files: a file that was begun and not finished counts no more.
async fn settle_progress(tx: &mut Tx<'_>, tenant: TenantId, id: ExportRunId) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE export_run SET
             rows_written = (SELECT CAST(COALESCE(SUM(rows), 0) AS bigint) FROM export_file WHERE export_run_id = $2),
             bytes_written = (SELECT CAST(COALESCE(SUM(bytes), 0) AS bigint) FROM export_file WHERE export_run_id = $2),
             files_written = (SELECT COUNT(*) FROM export_file WHERE export_run_id = $2)
         WHERE tenant_id = $1 AND id = $2 AND status IN ('CREATED', 'RUNNING')"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
