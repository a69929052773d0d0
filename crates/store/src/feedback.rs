//! What came with trace runs beside them: feedback as rows, attachments as rows that name their objects.

pub mod waste;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use towpath_domain::json::{self, Object};
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::bulk::{self, storable};
use crate::query::{Arg, Query};
use crate::segments::id_list;
use crate::{Error, Result, Tx, units};

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

impl Feedback {
    /// The project that it names.
    #[must_use]
    pub fn project(&self) -> Option<ProjectId> {
        let [project] = json::members(&self.body, ["session_id"])?;
        json::decode(project?)?.parse().ok()
    }
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

/// What happens to feedback that is there already, in [`put`] and [`put_all`].
macro_rules! later_feedback_counts {
    () => {
        " ON CONFLICT (tenant_id, id) DO UPDATE
          SET run_id = excluded.run_id, key = excluded.key, body = excluded.body, seq = excluded.seq,
              source = excluded.source, modified_at = NULL, deleted = false
          WHERE excluded.seq > feedback.seq"
    };
}

/// Stores feedback; what was accepted later replaces what was accepted before, in whatever order they are stored.
/// The row's own `created_at` is not looked at.
///
/// # Errors
/// Only what the database says.
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
///
/// # Errors
/// Only what the database says.
pub async fn put_all(tx: &mut Tx<'_>, feedback: &[Feedback]) -> Result<()> {
    let rows = bulk::latest(feedback, |row| (row.tenant_id, row.id), |row| row.seq);
    let (large, small): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.body.len() > bulk::LARGE);
    for row in large {
        put(tx, row).await?;
    }
    let now = tx.now();
    let text = sql!(tx,
    // Lists travel as JSON text in both; only the way back to rows differs.
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
///
/// # Errors
/// Only what the database says.
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

/// Feedback on a whole project, also what was taken back, at most `limit` of what was accepted last.
///
/// # Errors
/// Only what the database says.
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
    // The id may stand elsewhere in the body, too.
    Ok(found.into_iter().filter(|row| row.project() == Some(project)).collect())
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

/// Those of these ids that are there, also what was taken back.
///
/// # Errors
/// Only what the database says.
pub async fn find_all(tx: &mut Tx<'_>, tenant: TenantId, ids: &[Uuid]) -> Result<Vec<Feedback>> {
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to ids differs.
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

/// Changes feedback by hand: the members of `changed` take the place of those of the same names, and all others stay as
/// they are. `open` is the feedback as it lies in an open unit, if it does; a fold that is behind changes nothing of it
/// any more. Changes at the same time are made one after the other.
///
/// # Errors
/// [`Error::NotFound`] where there is no such feedback, or it was taken back; [`Error::Corrupt`] where what is stored
/// cannot be read, which then stays as it is; [`Error::Stale`] where `open` was read from a unit that is forgotten by now.
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
        // What is not folded has no row that could be locked. Read from a unit that no fold has taken, it has a number that
        // would go before all that comes later.
        let seq = units::lasting_seq(tx, tenant, open.seq).await?;
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
    attach_all(tx, std::slice::from_ref(attachment)).await
}

/// An attachment in a list.
#[derive(Serialize)]
struct AttachmentRow<'a> {
    tenant_id: TenantId,
    run_id: TraceRunId,
    name: Cow<'a, str>,
    content_type: Cow<'a, str>,
    path: &'a str,
    bytes: i64,
    seq: i64,
}

/// As [`attach`] for each, in few statements. Objects that no row names afterwards are [waste].
///
/// # Errors
/// Only what the database says.
pub async fn attach_all(tx: &mut Tx<'_>, attachments: &[Attachment]) -> Result<()> {
    let rows = bulk::latest(
        attachments,
        |row| (row.tenant_id, row.run_id, storable(&row.name)),
        |row| row.seq,
    );
    let kept: HashSet<&str> = rows.iter().map(|row| row.path.as_str()).collect();
    let lost = attachments.iter().filter(|row| !kept.contains(row.path.as_str()));
    let mut wasted: Vec<Attachment> = lost.cloned().collect();
    let now = tx.now();
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to rows differs.
        sqlite: "INSERT INTO attachment (tenant_id, run_id, name, content_type, path, bytes, seq, created_at)
                 SELECT unhex(value ->> 'tenant_id', '-'), unhex(value ->> 'run_id', '-'), value ->> 'name',
                        value ->> 'content_type', value ->> 'path', value ->> 'bytes', value ->> 'seq', $2
                 FROM json_each($1) WHERE true
                 ON CONFLICT (tenant_id, run_id, name) DO UPDATE
                 SET content_type = excluded.content_type, path = excluded.path, bytes = excluded.bytes,
                     seq = excluded.seq, created_at = excluded.created_at
                 WHERE excluded.seq > attachment.seq",
        postgres: "INSERT INTO attachment (tenant_id, run_id, name, content_type, path, bytes, seq, created_at)
                   SELECT tenant_id, run_id, name, content_type, path, bytes, seq, $2
                   FROM json_to_recordset($1::json) AS listed(tenant_id uuid, run_id uuid, name text,
                                                              content_type text, path text, bytes bigint, seq bigint)
                   ON CONFLICT (tenant_id, run_id, name) DO UPDATE
                   SET content_type = excluded.content_type, path = excluded.path, bytes = excluded.bytes,
                       seq = excluded.seq, created_at = excluded.created_at
                   WHERE excluded.seq > attachment.seq");
    let by_key: HashMap<_, &Attachment> = rows
        .iter()
        .map(|row| ((row.tenant_id, row.run_id, storable(&row.name)), *row))
        .collect();
    let listed = rows.iter().map(|row| AttachmentRow {
        tenant_id: row.tenant_id,
        run_id: row.run_id,
        name: storable(&row.name),
        content_type: storable(&row.content_type),
        path: &row.path,
        bytes: row.bytes,
        seq: row.seq,
    });
    for list in bulk::lists(listed.collect()) {
        for known in stored(tx, &list).await? {
            let key = (known.tenant_id, known.run_id, Cow::from(known.name.as_str()));
            let Some(new) = by_key.get(&key).filter(|new| new.path != known.path) else {
                continue;
            };
            if new.seq > known.seq {
                wasted.push(known);
            } else {
                wasted.push((*new).clone());
            }
        }
        on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
    waste::add(tx, &wasted).await
}

/// Attachments that are stored already under the keys of a list.
async fn stored(tx: &mut Tx<'_>, list: &str) -> Result<Vec<Attachment>> {
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(a, attachment), " FROM json_each($1) listed CROSS JOIN attachment a
                 WHERE a.tenant_id = unhex(listed.value ->> 'tenant_id', '-')
                   AND a.run_id = unhex(listed.value ->> 'run_id', '-') AND a.name = listed.value ->> 'name'"),
        postgres: concat!("SELECT ", columns!(a, attachment), " FROM json_to_recordset($1::json) AS listed(tenant_id uuid, run_id uuid, name text)
                   CROSS JOIN LATERAL (SELECT ", columns!(attachment), " FROM attachment
                                       WHERE tenant_id = listed.tenant_id AND run_id = listed.run_id
                                         AND name = listed.name LIMIT 1) a"));
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(list).fetch_all(conn).await)?)
}

/// Forgets attachments of a workspace, each as far as it is still the file that was looked at: one that was sent again
/// since has another `seq` and stays. The objects of those that go are [waste].
///
/// # Errors
/// Only what the database says.
pub async fn detach(tx: &mut Tx<'_>, tenant: TenantId, files: &[Attachment]) -> Result<u64> {
    // A `seq` is one item of a workspace, so none of these rows has that of another.
    let text = sql!(tx,
        sqlite: concat!("DELETE FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(value ->> 'run_id', '-') FROM json_each($2))
                   AND seq IN (SELECT value ->> 'seq' FROM json_each($2)) RETURNING ", columns!(attachment)),
        postgres: concat!("DELETE FROM attachment WHERE tenant_id = $1
                     AND run_id = ANY (ARRAY (SELECT (value ->> 'run_id')::uuid FROM json_array_elements($2::json)))
                     AND seq = ANY (ARRAY (SELECT (value ->> 'seq')::bigint FROM json_array_elements($2::json)))
                   RETURNING ", columns!(attachment)));
    let mut detached = 0;
    let listed = files.iter().map(|file| FileKey {
        run_id: file.run_id,
        seq: file.seq,
    });
    for list in bulk::lists(listed.collect()) {
        let gone: Vec<Attachment> = on!(tx, |conn| sqlx::query_as(text)
            .bind(tenant)
            .bind(list)
            .fetch_all(conn)
            .await)?;
        detached += gone.len() as u64;
        waste::add(tx, &gone).await?;
    }
    Ok(detached)
}

/// An attachment in a list, by what tells it from others of its workspace.
#[derive(Serialize)]
struct FileKey {
    run_id: TraceRunId,
    seq: i64,
}

/// Attachments of one trace run by name.
///
/// # Errors
/// Only what the database says.
pub async fn attachments(tx: &mut Tx<'_>, tenant: TenantId, run: TraceRunId) -> Result<Vec<Attachment>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(attachment),
        " FROM attachment WHERE tenant_id = $1 AND run_id = $2 ORDER BY name"
    ))
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
        sqlite: concat!("SELECT ", columns!(attachment), " FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2)) ORDER BY run_id, name"),
        postgres: concat!("SELECT ", columns!(attachment), " FROM attachment WHERE tenant_id = $1
                   AND run_id IN (SELECT value::uuid FROM json_array_elements_text($2::json)) ORDER BY run_id, name"));
    let ids = id_list(runs.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Forgets feedback of a workspace, each as far as it is still what was looked at: what was given again since has another
/// `seq` and stays.
///
/// # Errors
/// Only what the database says.
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
