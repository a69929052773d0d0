//! What came with trace runs beside them: feedback as rows, attachments as rows that name their objects.

use towpath_domain::{TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::{Result, Tx};

/// A judgement on a trace run.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Feedback {
    /// Its workspace.
    pub tenant_id: TenantId,
    /// The feedback.
    pub id: Uuid,
    /// What it judges; a whole project where there is none.
    pub run_id: Option<TraceRunId>,
    /// Under which name.
    pub key: String,
    /// All of it, JSON as sent.
    pub body: String,
    /// Its place in the order of acceptance.
    pub seq: i64,
    /// When it was stored.
    pub created_at: Timestamp,
}

/// A file that came with a trace run.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Attachment {
    /// Its workspace.
    pub tenant_id: TenantId,
    /// The trace run.
    pub run_id: TraceRunId,
    /// Its name, unique in the trace run.
    pub name: String,
    /// As the client said.
    pub content_type: String,
    /// Its object.
    pub path: String,
    /// Size of the object.
    pub bytes: i64,
    /// Its place in the order of acceptance.
    pub seq: i64,
    /// When it was stored.
    pub created_at: Timestamp,
}

/// Stores feedback; what was accepted later replaces what was accepted before, in whatever order they are stored.
/// The row's own `created_at` is not looked at.
///
/// # Errors
/// Only what the database says.
pub async fn put(tx: &mut Tx<'_>, feedback: &Feedback) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (tenant_id, id) DO UPDATE
         SET run_id = excluded.run_id, key = excluded.key, body = excluded.body, seq = excluded.seq
         WHERE excluded.seq > feedback.seq",
    )
    .bind(feedback.tenant_id)
    .bind(feedback.id)
    .bind(feedback.run_id)
    .bind(&feedback.key)
    .bind(&feedback.body)
    .bind(feedback.seq)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Feedback on one trace run, in order of acceptance.
///
/// # Errors
/// Only what the database says.
pub async fn of_run(tx: &mut Tx<'_>, tenant: TenantId, run: TraceRunId) -> Result<Vec<Feedback>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM feedback WHERE tenant_id = $1 AND run_id = $2 ORDER BY seq, id"
    )
    .bind(tenant)
    .bind(run)
    .fetch_all(conn)
    .await)?)
}

/// Stores where an attachment lies; of two of the same name the later one counts. The row's own `created_at` is not
/// looked at.
///
/// # Errors
/// Only what the database says.
pub async fn attach(tx: &mut Tx<'_>, attachment: &Attachment) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO attachment (tenant_id, run_id, name, content_type, path, bytes, seq, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (tenant_id, run_id, name) DO UPDATE
         SET content_type = excluded.content_type, path = excluded.path, bytes = excluded.bytes, seq = excluded.seq
         WHERE excluded.seq > attachment.seq",
    )
    .bind(attachment.tenant_id)
    .bind(attachment.run_id)
    .bind(&attachment.name)
    .bind(&attachment.content_type)
    .bind(&attachment.path)
    .bind(attachment.bytes)
    .bind(attachment.seq)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Attachments of one trace run by name.
///
/// # Errors
/// Only what the database says.
pub async fn attachments(tx: &mut Tx<'_>, tenant: TenantId, run: TraceRunId) -> Result<Vec<Attachment>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM attachment WHERE tenant_id = $1 AND run_id = $2 ORDER BY name"
    )
    .bind(tenant)
    .bind(run)
    .fetch_all(conn)
    .await)?)
}
