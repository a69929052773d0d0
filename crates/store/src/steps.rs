//! Journalled steps: written once, under (job, name), by the caller that holds the job's fence.

use sqlx::FromRow;
use towpath_domain::{JobId, Timestamp};

use crate::error::Result;
use crate::jobs::JobFence;
use crate::tx::{Conn, Tx};

/// A finished step.
#[derive(Clone, Debug, FromRow)]
pub struct Step {
    /// Its name within the job.
    pub name: String,
    /// What it answered, JSON.
    pub output: String,
}

/// A step about to be recorded.
#[derive(Clone, Debug)]
pub struct NewStep {
    /// The job and the fence of its holder.
    pub job: JobFence,
    /// Name within the job.
    pub name: String,
    /// Answer, JSON.
    pub output: String,
}

/// The steps a job has finished.
pub async fn list(tx: &mut Tx<'_>, job: JobId) -> Result<Vec<Step>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT name, output FROM step WHERE job_id = $1 ORDER BY at, name")
            .bind(job)
            .fetch_all(conn)
            .await
    })?)
}

/// A finished step, without its answer.
#[derive(Clone, Debug, FromRow)]
pub struct FinishedStep {
    /// Its name within the job.
    pub name: String,
    /// The fence of the attempt that finished it.
    pub fence: i64,
    /// When.
    pub at: Timestamp,
}

/// The steps a job has finished, in that order, at most `limit`.
pub async fn list_finished(tx: &mut Tx<'_>, job: JobId, limit: i64) -> Result<Vec<FinishedStep>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as("SELECT name, fence, at FROM step WHERE job_id = $1 ORDER BY at, name LIMIT $2 + 0")
            .bind(job)
            .bind(limit)
            .fetch_all(conn)
            .await
    })?)
}

/// Records one step in the fastest way. Returns `false` if the job is not held at the given fence, and also if the step
/// exists already or lost leases must be reset; [`record`] then tells which.
pub async fn record_one(tx: &mut Tx<'_>, step: &NewStep) -> Result<bool> {
    let now = tx.now();
    let text = sql!(tx,
        // One writer: what the SELECT reads is still so when the row is written.
        sqlite:
        "INSERT INTO step (job_id, name, output, fence, at)
         SELECT id, $3, $4, fence, $5 FROM job WHERE id = $1 AND fence = $2 AND state = 'running' AND lost_leases = 0
         ON CONFLICT (job_id, name) DO NOTHING",
        // The row comes from the *locked* job: FOR UPDATE evaluates the conditions again if the row changed meanwhile.
        postgres:
        "INSERT INTO step (job_id, name, output, fence, at)
         SELECT id, $3, $4, fence, $5 FROM
             (SELECT id, fence FROM job WHERE id = $1 AND fence = $2 AND worker_id IS NOT NULL AND lost_leases = 0
              FOR UPDATE) held
         ON CONFLICT (job_id, name) DO NOTHING");
    let written = on!(tx, |conn| {
        sqlx::query(text)
            .bind(step.job.id)
            .bind(step.job.fence)
            .bind(&step.name)
            .bind(&step.output)
            .bind(now)
            .execute(conn)
            .await
            .map(|done| done.rows_affected())
    })?;
    Ok(written > 0)
}

/// Records steps of many jobs. Returns the jobs that are still held at the given fence; steps of the others are not
/// written. A new step counts as progress and resets lost leases.
pub async fn record(tx: &mut Tx<'_>, steps: &[NewStep]) -> Result<Vec<JobFence>> {
    let now = tx.now();
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let mut held = Vec::with_capacity(steps.len());
            for step in steps {
                // One writer, so what is read here is still so when the step is written.
                let lost: Option<i64> = sqlx::query_scalar(
                    "SELECT lost_leases FROM job WHERE id = $1 AND fence = $2 AND state = 'running'",
                )
                .bind(step.job.id)
                .bind(step.job.fence)
                .fetch_optional(&mut *conn)
                .await?;
                let Some(lost) = lost else { continue };
                held.push(step.job);
                if lost > 0 {
                    sqlx::query("UPDATE job SET lost_leases = 0 WHERE id = $1")
                        .bind(step.job.id)
                        .execute(&mut *conn)
                        .await?;
                }
                sqlx::query(
                    "INSERT INTO step (job_id, name, output, fence, at) VALUES ($1, $2, $3, $4, $5)
                     ON CONFLICT (job_id, name) DO NOTHING",
                )
                .bind(step.job.id)
                .bind(&step.name)
                .bind(&step.output)
                .bind(step.job.fence)
                .bind(now)
                .execute(&mut *conn)
                .await?;
            }
            Ok(held)
        }
        Conn::Postgres(conn) => {
            let ids: Vec<_> = steps.iter().map(|step| step.job.id.0).collect();
            let fences: Vec<_> = steps.iter().map(|step| step.job.fence).collect();
            let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
            let outputs: Vec<_> = steps.iter().map(|step| step.output.as_str()).collect();
            // The rows come from the *locked* job rows: FOR UPDATE reads a changed row again, so a replaced holder
            // finds nothing.
            Ok(sqlx::query_as(
                "WITH wanted AS MATERIALIZED (
                     SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[]) AS w(id, fence, name, output)
                 ),
                 locked AS MATERIALIZED (
                     SELECT id, fence, lost_leases FROM job WHERE id = ANY($1) AND worker_id IS NOT NULL
                     ORDER BY id FOR UPDATE
                 ),
                 written AS (
                     INSERT INTO step (job_id, name, output, fence, at)
                     SELECT w.id, w.name, w.output, w.fence, $5 FROM wanted w JOIN locked USING (id, fence)
                     ON CONFLICT (job_id, name) DO NOTHING
                 ),
                 progressed AS (
                     UPDATE job SET lost_leases = 0
                     WHERE id = ANY (ARRAY (SELECT id FROM locked JOIN wanted USING (id, fence) WHERE lost_leases > 0))
                 )
                 SELECT DISTINCT id, fence FROM locked JOIN wanted USING (id, fence)",
            )
            .bind(ids)
            .bind(fences)
            .bind(names)
            .bind(outputs)
            .bind(now)
            .fetch_all(conn)
            .await?)
        }
    }
}
