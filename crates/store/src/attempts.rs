//! Attempts that did not end well.

use sqlx::FromRow;
use towpath_domain::{JobId, Timestamp, WorkerId};

use crate::error::Result;
use crate::tx::Tx;

/// One attempt of a job that did not end well.
#[derive(Clone, Debug, FromRow)]
pub struct Attempt {
    /// The fence it ran at.
    pub fence: i64,
    /// `failed`, `timed_out`, `lost` or `cancelled`.
    pub outcome: String,
    /// n of `retry_n`, for failures and time-outs.
    pub failure: Option<i64>,
    /// What went wrong, for the operator.
    pub error: String,
    /// Who held it.
    pub worker_id: Option<WorkerId>,
    pub at: Timestamp,
}

/// Records how an attempt ended. An attempt has one end: a second record of it is ignored.
pub async fn record(tx: &mut Tx<'_>, job: JobId, attempt: &Attempt) -> Result<()> {
    on!(tx, |conn| {
        sqlx::query(
            "INSERT INTO attempt (job_id, fence, outcome, failure, error, worker_id, at)
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (job_id, fence) DO NOTHING",
        )
        .bind(job)
        .bind(attempt.fence)
        .bind(&attempt.outcome)
        .bind(attempt.failure)
        .bind(&attempt.error)
        .bind(attempt.worker_id)
        .bind(attempt.at)
        .execute(conn)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// The attempts of a job that did not end well, oldest first.
pub async fn list(tx: &mut Tx<'_>, job: JobId) -> Result<Vec<Attempt>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
            "SELECT fence, outcome, failure, error, worker_id, at FROM attempt WHERE job_id = $1 ORDER BY fence",
        )
        .bind(job)
        .fetch_all(conn)
        .await
    })?)
}
