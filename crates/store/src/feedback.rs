//! What came with trace runs beside them: feedback as rows, attachments as rows that name their objects.

use towpath_domain::json::{self, Object};
use towpath_domain::{TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::query::{Arg, Query};
use crate::segments::id_list;
use crate::{Error, Result, Tx};

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
    /// When its body was last changed by hand.
    pub modified_at: Option<Timestamp>,
    /// Whether it was taken back. The row stays, so that a fold that is behind does not bring it back.
    pub deleted: bool,
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
        "INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at, source)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (tenant_id, id) DO UPDATE
         SET run_id = excluded.run_id, key = excluded.key, body = excluded.body, seq = excluded.seq,
             source = excluded.source, modified_at = NULL, deleted = false
         WHERE excluded.seq > feedback.seq",
    )
    .bind(feedback.tenant_id)
    .bind(feedback.id)
    .bind(feedback.run_id)
    .bind(&feedback.key)
    .bind(&feedback.body)
    .bind(feedback.seq)
    .bind(now)
    .bind(source(&feedback.body))
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// `feedback_source.type` of a body, as PostgreSQL can keep it.
#[must_use]
pub fn source(body: &str) -> Option<String> {
    let [source] = json::members(body, ["feedback_source"])?;
    let [kind] = json::members(source?, ["type"])?;
    Some(json::decode(kind?)?.replace('\0', "\u{fffd}"))
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

/// Feedback on any of `runs`, also what was taken back, in order of acceptance.
///
/// # Errors
/// Only what the database says.
pub async fn of_runs(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<Feedback>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
        sqlite: "SELECT * FROM feedback WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) ORDER BY seq, id",
        postgres: "SELECT * FROM feedback WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json)) ORDER BY seq, id");
    let ids = id_list(runs.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Trace runs on which feedback was ever given, at most `limit` of them.
///
/// # Errors
/// Only what the database says.
pub async fn judged(tx: &mut Tx<'_>, tenant: TenantId, limit: usize) -> Result<Vec<TraceRunId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT DISTINCT run_id FROM feedback WHERE tenant_id = $1 AND run_id IS NOT NULL LIMIT $2"
    )
    .bind(tenant)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(conn)
    .await)?)
}

/// One, also if it was taken back.
///
/// # Errors
/// Only what the database says.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid) -> Result<Option<Feedback>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM feedback WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

/// Which feedback is listed. Empty lists ask for nothing.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Under one of these names.
    pub keys: Vec<String>,
    /// From one of these sources.
    pub sources: Vec<String>,
}

/// Feedback of a workspace, what was accepted last first.
///
/// # Errors
/// Only what the database says.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    wanted: &Wanted,
    limit: i64,
    offset: i64,
) -> Result<Vec<Feedback>> {
    let mut query = Query::new(tx, "SELECT * FROM feedback WHERE NOT deleted AND tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    if !wanted.keys.is_empty() {
        query
            .push(" AND ")
            .any_of("key", wanted.keys.iter().cloned().map(Arg::Text));
    }
    if !wanted.sources.is_empty() {
        query
            .push(" AND ")
            .any_of("source", wanted.sources.iter().cloned().map(Arg::Text));
    }
    query.push(" ORDER BY seq DESC, id").page(limit, offset);
    query.fetch_all(tx).await
}

/// Changes feedback by hand: the members of `changed` take the place of those of the same names, and all others stay as
/// they are. `open` is the feedback as it lies in an open unit, if it does; a fold that is behind changes nothing of it
/// any more. Changes at the same time are made one after the other.
///
/// # Errors
/// [`Error::NotFound`] where there is no such feedback, or it was taken back; [`Error::Corrupt`] where what is stored
/// cannot be read, which then stays as it is.
pub async fn amend(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: Uuid,
    open: Option<&Feedback>,
    changed: &Object<'_>,
) -> Result<Feedback> {
    let mut row = lock(tx, tenant, id, open).await?;
    let body = Object::parse(&row.body).map_err(|_| Error::corrupt("feedback", "body", id))?;
    let merged = body.merged(changed.clone()).to_string();
    row.body = merged;
    row.modified_at = Some(tx.now());
    change(tx, &row).await?;
    Ok(row)
}

/// Takes feedback back. `open` is as with [`amend`].
///
/// # Errors
/// [`Error::NotFound`] where there is no such feedback, or it was taken back before.
pub async fn take_back(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid, open: Option<&Feedback>) -> Result<()> {
    let mut row = lock(tx, tenant, id, open).await?;
    row.deleted = true;
    change(tx, &row).await
}

/// The row as it is now. It stays so until the transaction ends.
async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid, open: Option<&Feedback>) -> Result<Feedback> {
    if let Some(open) = open {
        // What is not folded has no row that could be locked.
        put(tx, open).await?;
    }
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT * FROM feedback WHERE tenant_id = $1 AND id = $2 AND NOT deleted",
        postgres: "SELECT * FROM feedback WHERE tenant_id = $1 AND id = $2 AND NOT deleted FOR UPDATE");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// Stores `feedback` as it is after a change by hand, or as taken back. A fold that is behind changes nothing of it,
/// since what it brings was accepted no later.
///
/// # Errors
/// Only what the database says.
pub async fn change(tx: &mut Tx<'_>, feedback: &Feedback) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at, modified_at, deleted, source)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9)
         ON CONFLICT (tenant_id, id) DO UPDATE
         SET run_id = excluded.run_id, key = excluded.key, body = excluded.body, seq = excluded.seq,
             source = excluded.source, modified_at = excluded.modified_at, deleted = excluded.deleted
         WHERE excluded.seq >= feedback.seq",
    )
    .bind(feedback.tenant_id)
    .bind(feedback.id)
    .bind(feedback.run_id)
    .bind(&feedback.key)
    .bind(&feedback.body)
    .bind(feedback.seq)
    .bind(now)
    .bind(feedback.deleted)
    .bind(source(&feedback.body))
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
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

/// Attachments of any of `runs`.
///
/// # Errors
/// Only what the database says.
pub async fn attachments_of(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<Attachment>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
        sqlite: "SELECT * FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) ORDER BY run_id, name",
        postgres: "SELECT * FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json)) ORDER BY run_id, name");
    let ids = id_list(runs.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Forgets all feedback on `runs`, and that files came with them.
///
/// # Errors
/// Only what the database says.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<()> {
    let ids = id_list(runs.iter().map(|id| id.0));
    let given = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
        sqlite: "DELETE FROM feedback WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))",
        postgres: "DELETE FROM feedback WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json))");
    let files = sql!(tx,
        sqlite: "DELETE FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))",
        postgres: "DELETE FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json))");
    for text in [given, files] {
        on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(&ids)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}
