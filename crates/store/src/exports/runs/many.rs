//! Many export runs at once: as many statements for ten thousand as for one.

use towpath_domain::export::Partition;
use towpath_domain::{DestinationId, ExportId, ExportRunId, JobId, TenantId};

use crate::segments::id_list;
use crate::tx::Conn;
use crate::{Result, Tx};

/// The fields of an new export run.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: ExportRunId,
    /// The piece of time it covers.
    pub partition: Partition,
    /// The folder of its files.
    pub prefix: String,
    /// The job that performs it.
    pub job: JobId,
}

/// Records export runs as `CREATED`, in one statement.
///
/// # Errors
/// [`Error::Conflict`](crate::Error::Conflict) if the export already has a run with one of these starts.
pub async fn insert_all(tx: &mut Tx<'_>, tenant: TenantId, export: ExportId, new: &[NewRun]) -> Result<()> {
    let now = tx.now();
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let rows = new.iter().map(|run| {
                let Partition { start, end } = run.partition;
                let (id, job) = (run.id.0.simple().to_string(), run.job.0.simple().to_string());
                (id, job, start.micros(), end.micros(), &run.prefix)
            });
            let rows = serde_json::to_string(&rows.collect::<Vec<_>>()).expect("texts and numbers are always JSON");
            sqlx::query(
                "INSERT INTO export_run (id, tenant_id, export_id, job_id, status, start_time, end_time, prefix, created_at,
                                         updated_at)
                 SELECT unhex(value ->> 0), $2, $3, unhex(value ->> 1), 'CREATED', value ->> 2, value ->> 3, value ->> 4, $4, $4
                 FROM json_each($1)",
            )
            .bind(rows)
            .bind(tenant)
            .bind(export)
            .bind(now)
            .execute(conn)
            .await?;
        }
        Conn::Postgres(conn) => {
            let ids: Vec<_> = new.iter().map(|run| run.id.0).collect();
            let jobs: Vec<_> = new.iter().map(|run| run.job.0).collect();
            let starts: Vec<_> = new.iter().map(|run| run.partition.start).collect();
            let ends: Vec<_> = new.iter().map(|run| run.partition.end).collect();
            let prefixes: Vec<_> = new.iter().map(|run| run.prefix.clone()).collect();
            sqlx::query(
                "INSERT INTO export_run (id, tenant_id, export_id, job_id, status, start_time, end_time, prefix, created_at,
                                         updated_at)
                 SELECT run.id, $6, $7, run.job_id, 'CREATED', run.start_time, run.end_time, run.prefix, $8, $8
                 FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::timestamptz[], $5::text[])
                      AS run(id, job_id, start_time, end_time, prefix)",
            )
            .bind(ids)
            .bind(jobs)
            .bind(starts)
            .bind(ends)
            .bind(prefixes)
            .bind(tenant)
            .bind(export)
            .bind(now)
            .execute(conn)
            .await?;
        }
    }
    Ok(())
}

/// Those of these runs that may have left unwanted data at their destination: recorded uploads, or whatever a worker
/// did not come to record. Excludes destinations that no longer exist. Call it before their pins are released.
pub async fn to_be_cleaned(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    ids: &[ExportRunId],
) -> Result<Vec<(ExportId, ExportRunId)>> {
    let text = sql!(tx,
        sqlite: "SELECT r.export_id, r.id FROM json_each($2) wanted CROSS JOIN export_run r
                 JOIN export e ON e.id = r.export_id JOIN destination d ON d.id = e.destination_id
                 WHERE r.id = unhex(replace(wanted.value, '-', '')) AND r.tenant_id = $1
                   AND (EXISTS (SELECT 1 FROM export_upload u WHERE u.export_run_id = r.id)
                        OR (EXISTS (SELECT 1 FROM job j WHERE j.id = r.job_id AND j.fence > 0)
                            AND EXISTS (SELECT 1 FROM segment_pin h WHERE h.holder = r.id)))
                 ORDER BY r.id",
        postgres: "SELECT r.export_id, r.id FROM export_run r
                   JOIN export e ON e.id = r.export_id JOIN destination d ON d.id = e.destination_id
                   WHERE r.id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json)))
                     AND r.tenant_id = $1
                     AND (EXISTS (SELECT 1 FROM export_upload u WHERE u.export_run_id = r.id)
                          OR (EXISTS (SELECT 1 FROM job j WHERE j.id = r.job_id AND j.fence > 0)
                              AND EXISTS (SELECT 1 FROM segment_pin h WHERE h.holder = r.id)))
                   ORDER BY r.id");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id_list(ids.iter().map(|id| id.0)))
        .fetch_all(conn)
        .await)?)
}

/// Cancels the runs that are not final, with the totals of their finished files. One statement.
pub async fn cancel_all(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportRunId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE export_run SET status = 'CANCELLED', pending_upload = NULL, finished_at = $3, updated_at = $3,
                     rows_written = (SELECT coalesce(sum(f.rows), 0) FROM export_file f WHERE f.export_run_id = export_run.id),
                     bytes_written = (SELECT coalesce(sum(f.bytes), 0) FROM export_file f WHERE f.export_run_id = export_run.id),
                     files_written = (SELECT count(*) FROM export_file f WHERE f.export_run_id = export_run.id)
                 WHERE id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) AND tenant_id = $1
                   AND status IN ('CREATED', 'RUNNING')",
        postgres: "UPDATE export_run SET status = 'CANCELLED', pending_upload = NULL, finished_at = $3, updated_at = $3,
                       rows_written = (SELECT CAST(coalesce(sum(f.rows), 0) AS bigint) FROM export_file f
                                       WHERE f.export_run_id = export_run.id),
                       bytes_written = (SELECT CAST(coalesce(sum(f.bytes), 0) AS bigint) FROM export_file f
                                        WHERE f.export_run_id = export_run.id),
                       files_written = (SELECT count(*) FROM export_file f WHERE f.export_run_id = export_run.id)
                   WHERE id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json))) AND tenant_id = $1
                     AND status IN ('CREATED', 'RUNNING')");
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id_list(ids.iter().map(|id| id.0)))
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Cancels every run of these exports that is not final.
pub async fn cancel_open(tx: &mut Tx<'_>, tenant: TenantId, exports: &[ExportId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE export_run SET status = 'CANCELLED', pending_upload = NULL, finished_at = $3, updated_at = $3
                 WHERE export_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) AND tenant_id = $1
                   AND status IN ('CREATED', 'RUNNING')",
        postgres: "UPDATE export_run SET status = 'CANCELLED', pending_upload = NULL, finished_at = $3, updated_at = $3
                   WHERE export_id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json)))
                     AND tenant_id = $1 AND status IN ('CREATED', 'RUNNING')");
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(id_list(exports.iter().map(|id| id.0)))
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Fails the unfinished runs of all exports to a destination and records why. Their recorded uploads are dropped, since
/// nothing can abort them any more.
pub async fn fail_all_to(tx: &mut Tx<'_>, tenant: TenantId, destination: DestinationId, error: &str) -> Result<()> {
    let now = tx.now();
    // An attempt that failed has its own entry; then this is the next one.
    let text = sql!(tx,
        sqlite: "UPDATE export_run SET status = 'FAILED', pending_upload = NULL, finished_at = $4, updated_at = $4,
                     errors = json_set(errors, '$.retry_' || (retry_number
                                  + (json_type(errors, '$.retry_' || retry_number) IS NOT NULL)), $3),
                     rows_written = (SELECT coalesce(sum(f.rows), 0) FROM export_file f WHERE f.export_run_id = export_run.id),
                     bytes_written = (SELECT coalesce(sum(f.bytes), 0) FROM export_file f WHERE f.export_run_id = export_run.id),
                     files_written = (SELECT count(*) FROM export_file f WHERE f.export_run_id = export_run.id)
                 WHERE tenant_id = $1 AND status IN ('CREATED', 'RUNNING')
                   AND export_id IN (SELECT e.id FROM export e
                                     WHERE e.tenant_id = $1 AND e.destination_id = $2 AND e.finished_at IS NULL)",
        postgres: "UPDATE export_run SET status = 'FAILED', pending_upload = NULL, finished_at = $4, updated_at = $4,
                       errors = (errors::jsonb || jsonb_build_object('retry_' || (retry_number
                                    + CASE WHEN errors::jsonb -> ('retry_' || retry_number) IS NULL THEN 0 ELSE 1 END),
                                    $3::text))::text,
                       rows_written = (SELECT CAST(coalesce(sum(f.rows), 0) AS bigint) FROM export_file f
                                       WHERE f.export_run_id = export_run.id),
                       bytes_written = (SELECT CAST(coalesce(sum(f.bytes), 0) AS bigint) FROM export_file f
                                        WHERE f.export_run_id = export_run.id),
                       files_written = (SELECT count(*) FROM export_file f WHERE f.export_run_id = export_run.id)
                   WHERE tenant_id = $1 AND status IN ('CREATED', 'RUNNING')
                     AND export_id = ANY (ARRAY (SELECT e.id FROM export e
                                          WHERE e.tenant_id = $1 AND e.destination_id = $2 AND e.finished_at IS NULL))");
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(destination)
        .bind(error)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    // There are never more than the files being written.
    on!(tx, |conn| sqlx::query(
        "DELETE FROM export_upload WHERE export_run_id IN (
             SELECT u.export_run_id FROM export_upload u JOIN export_run r ON r.id = u.export_run_id
             JOIN export e ON e.id = r.export_id WHERE e.tenant_id = $1 AND e.destination_id = $2)"
    )
    .bind(tenant)
    .bind(destination)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
