//! Data sent with trace runs: feedback as rows, and attachments as rows that name their objects.

mod attachments;
pub mod waste;

use std::borrow::Cow;

use serde::Serialize;
use towpath_domain::json::{self, Object};
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

pub use self::attachments::{Attachment, attach, attach_all, attachments, attachments_of, detach};
use crate::bulk::{self, storable};
use crate::query::{Arg, Query};
use crate::segments::id_list;
use crate::{Error, Result, Tx, wal_segments};

/// A judgement on a trace run.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Feedback {
    pub tenant_id: TenantId,
    /// The feedback.
    pub id: Uuid,
    /// What it judges; a whole project if there is none.
    pub run_id: Option<TraceRunId>,
    /// Under which name.
    pub key: String,
    /// All of it, JSON as sent.
    pub body: String,
    /// Its position in the order of acceptance.
    pub seq: i64,
    pub created_at: Timestamp,
    /// When its body was last changed by hand.
    pub modified_at: Option<Timestamp>,
    /// Whether it was deleted. The row stays, so that a late flush does not restore it.
    pub deleted: bool,
}

impl Feedback {
    /// The project that it names.
    #[must_use]
    pub fn project(&self) -> Option<ProjectId> {
        let [project] = json::members(&self.body, ["session_id"])?;
        json::decode(project?)?.parse().ok()
    }
}

/// What happens to feedback that is there already, in [`put`] and [`put_all`].
macro_rules! later_feedback_counts {
    () => {
        " ON CONFLICT (tenant_id, id) DO UPDATE
          SET run_id = excluded.run_id, key = excluded.key, body = excluded.body, seq = excluded.seq,
              source = excluded.source, modified_at = NULL, deleted = false
          WHERE excluded.seq > feedback.seq"
    };
}

/// Stores feedback; what was accepted later wins, regardless of the order of the calls. The row's own `created_at` is
/// ignored.
pub async fn put(tx: &mut Tx<'_>, feedback: &Feedback) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(concat!(
        "INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at, source)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        later_feedback_counts!()
    ))
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

/// Feedback in a list.
#[derive(Serialize)]
struct FeedbackRow<'a> {
    tenant_id: TenantId,
    id: Uuid,
    run_id: Option<TraceRunId>,
    key: Cow<'a, str>,
    body: Cow<'a, str>,
    seq: i64,
    source: Option<String>,
}

/// As [`put`] for each, in few statements.
pub async fn put_all(tx: &mut Tx<'_>, feedback: &[Feedback]) -> Result<()> {
    let rows = bulk::latest(feedback, |row| (row.tenant_id, row.id), |row| row.seq);
    let (large, small): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.body.len() > bulk::LARGE);
    for row in large {
        put(tx, row).await?;
    }
    let now = tx.now();
    let text = sql!(tx,
    // Both pass lists as JSON text and differ only in parsing rows.
    sqlite: concat!(
        "INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at, source)
             SELECT unhex(value ->> 'tenant_id', '-'), unhex(value ->> 'id', '-'), unhex(value ->> 'run_id', '-'),
                    value ->> 'key', value ->> 'body', value ->> 'seq', $2, value ->> 'source'
             FROM json_each($1) WHERE true",
        later_feedback_counts!()
    ),
    postgres: concat!(
        "INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at, source)
             SELECT tenant_id, id, run_id, key, body, seq, $2, source
             FROM json_to_recordset($1::json) AS listed(tenant_id uuid, id uuid, run_id uuid, key text, body text,
                                                        seq bigint, source text)",
        later_feedback_counts!()
    ));
    let listed = small.into_iter().map(|row| FeedbackRow {
        tenant_id: row.tenant_id,
        id: row.id,
        run_id: row.run_id,
        key: storable(&row.key),
        body: storable(&row.body),
        seq: row.seq,
        source: source(&row.body),
    });
    for list in bulk::lists(listed.collect()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// `feedback_source.type` of a body, as PostgreSQL can keep it.
#[must_use]
pub fn source(body: &str) -> Option<String> {
    let [source] = json::members(body, ["feedback_source"])?;
    let [kind] = json::members(source?, ["type"])?;
    Some(storable(&json::decode(kind?)?).into_owned())
}

/// Feedback on one trace run, in order of acceptance.
pub async fn of_run(tx: &mut Tx<'_>, tenant: TenantId, run: TraceRunId) -> Result<Vec<Feedback>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(feedback),
        " FROM feedback WHERE tenant_id = $1 AND run_id = $2 ORDER BY seq, id"
    ))
    .bind(tenant)
    .bind(run)
    .fetch_all(conn)
    .await)?)
}

/// Feedback on any of `runs`, also deleted feedback, in order of acceptance.
pub async fn of_runs(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<Feedback>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: concat!("SELECT ", columns!(feedback), " FROM feedback WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) ORDER BY seq, id"),
        postgres: concat!("SELECT ", columns!(feedback), " FROM feedback WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json)) ORDER BY seq, id"));
    let ids = id_list(runs.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Feedback on a whole project, including deleted feedback: at most `limit`, latest accepted.
pub async fn of_project(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId, limit: i64) -> Result<Vec<Feedback>> {
    let id = project.0.hyphenated().to_string();
    let found: Vec<Feedback> = on!(tx, |conn| {
        sqlx::query_as(concat!(
        "SELECT ",
        columns!(feedback),
        " FROM feedback WHERE tenant_id = $1 AND run_id IS NULL AND lower(body) LIKE $2 ORDER BY seq DESC, id LIMIT $3 + 0"
    ))
    .bind(tenant)
    .bind(format!("%{id}%"))
    .bind(limit)
    .fetch_all(conn)
    .await
    })?;
    // The id may be elsewhere in the body, too.
    Ok(found.into_iter().filter(|row| row.project() == Some(project)).collect())
}

/// Trace runs on which feedback was ever given, at most `limit` of them.
pub async fn runs_with_feedback(tx: &mut Tx<'_>, tenant: TenantId, limit: usize) -> Result<Vec<TraceRunId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT DISTINCT run_id FROM feedback WHERE tenant_id = $1 AND run_id IS NOT NULL LIMIT $2"
    )
    .bind(tenant)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(conn)
    .await)?)
}

/// One, also if it was deleted.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid) -> Result<Option<Feedback>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(feedback),
        " FROM feedback WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

/// The existing ones of these ids, also deleted feedback.
pub async fn find_all(tx: &mut Tx<'_>, tenant: TenantId, ids: &[Uuid]) -> Result<Vec<Feedback>> {
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: concat!("SELECT ", columns!(feedback), " FROM feedback WHERE tenant_id = $1
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))"),
        postgres: concat!("SELECT ", columns!(feedback), " FROM feedback WHERE tenant_id = $1
                   AND id IN (SELECT value::uuid FROM json_array_elements_text($2::json))"));
    let ids = id_list(ids.iter().copied());
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Which feedback is listed. Empty lists ask for nothing.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Under one of these names.
    pub keys: Vec<String>,
    /// From one of these sources.
    pub sources: Vec<String>,
}

/// Feedback of a workspace, what was accepted last first.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    wanted: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<Feedback>> {
    let mut query = Query::new(
        tx,
        concat!(
            "SELECT ",
            columns!(feedback),
            " FROM feedback WHERE NOT deleted AND tenant_id = "
        ),
    );
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

/// Updates feedback: the members of `changed` replace those of the same names. `open` is the feedback in an open WAL
/// segment, if it is there; a later flush no longer changes it. Concurrent updates are serialized.
///
/// # Errors
/// [`Error::NotFound`] if there is no such feedback or it was deleted; [`Error::Corrupt`] if the stored body cannot be
/// read, which is then left unchanged; [`Error::Stale`] if `open` was read from a WAL segment that is deleted by now.
pub async fn update_body(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: Uuid,
    open: Option<&Feedback>,
    changed: &Object<'_>,
) -> Result<Feedback> {
    let mut row = lock(tx, tenant, id, open).await?;
    let body = Object::parse(&row.body).map_err(|_| Error::corrupt("feedback", "body", id))?;
    let merged = body.merge(changed.clone()).to_string();
    row.body = merged;
    row.modified_at = Some(tx.now());
    change(tx, &row).await?;
    Ok(row)
}

/// Deletes feedback. For `open` see [`update_body`].
///
/// # Errors
/// [`Error::NotFound`] if there is no such feedback or it was deleted before.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid, open: Option<&Feedback>) -> Result<()> {
    let mut row = lock(tx, tenant, id, open).await?;
    row.deleted = true;
    change(tx, &row).await
}

/// The row as it is now. It stays so until the transaction ends.
async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid, open: Option<&Feedback>) -> Result<Feedback> {
    if let Some(open) = open {
        // Unflushed feedback has no row to lock. The number it was read with may still change, so it gets a permanent
        // one.
        let seq = wal_segments::permanent_seq(tx, tenant, open.seq).await?;
        put(tx, &Feedback { seq, ..open.clone() }).await?;
    }
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: concat!("SELECT ", columns!(feedback), " FROM feedback WHERE tenant_id = $1 AND id = $2 AND NOT deleted"),
        postgres: concat!("SELECT ", columns!(feedback), " FROM feedback WHERE tenant_id = $1 AND id = $2 AND NOT deleted FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// Stores `feedback` after an update or a deletion. A late flush does not change it, since its data were accepted
/// earlier.
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

/// Deletes feedback of a workspace, unless it was sent again since, which gave it another `seq`.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId, given: &[Feedback]) -> Result<u64> {
    // A `seq` is one item of a workspace, so none of these rows has that of another.
    let text = sql!(tx,
        sqlite: "DELETE FROM feedback WHERE tenant_id = $1
                   AND id IN (SELECT unhex(value ->> 0, '-') FROM json_each($2))
                   AND seq IN (SELECT value ->> 1 FROM json_each($2))",
        postgres: "DELETE FROM feedback WHERE tenant_id = $1
                     AND id = ANY (ARRAY (SELECT (value ->> 0)::uuid FROM json_array_elements($2::json)))
                     AND seq = ANY (ARRAY (SELECT (value ->> 1)::bigint FROM json_array_elements($2::json)))");
    let mut forgotten = 0;
    for list in bulk::lists(given.iter().map(|row| (row.id, row.seq)).collect()) {
        forgotten += on!(tx, |conn| sqlx::query(text)
            .bind(tenant)
            .bind(list)
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?;
    }
    Ok(forgotten)
}
