//! Files that came with trace runs.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use towpath_domain::{TenantId, Timestamp, TraceRunId};

use super::waste;
use crate::bulk::{self, storable};
use crate::segments::id_list;
use crate::{Result, Tx};

/// A file that came with a trace run.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Attachment {
    pub tenant_id: TenantId,
    pub run_id: TraceRunId,
    /// Its name, unique in the trace run.
    pub name: String,
    /// As sent by the client.
    pub content_type: String,
    /// Its object.
    pub path: String,
    /// Size of the object.
    pub bytes: i64,
    /// Its position in the order of acceptance.
    pub seq: i64,
    pub created_at: Timestamp,
}

/// Stores the location of an attachment; for the same name, the later one wins. The row's own `created_at` is ignored.
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
        // Both pass lists as JSON text and differ only in parsing rows.
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

/// Deletes attachments of a workspace, unless they were sent again since, which gave them another `seq`. Their objects
/// become [waste].
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
pub async fn attachments_of(tx: &mut Tx<'_>, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<Attachment>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
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
