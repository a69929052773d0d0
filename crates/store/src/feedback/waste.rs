//! Objects of attachments that no row names any more, until they are removed; and the scan for attachments whose trace
//! run never came.

use serde::{Deserialize, Serialize};
use towpath_domain::{TenantId, Timestamp, TraceRunId};

use super::Attachment;
use crate::bulk::{self, storable};
use crate::{Result, Tx};

/// An object in a list.
#[derive(Serialize)]
struct WasteRow<'a> {
    path: &'a str,
    tenant_id: TenantId,
    run_id: TraceRunId,
    name: std::borrow::Cow<'a, str>,
}

/// Records that the objects of `files` are in no row any more.
pub(super) async fn add(tx: &mut Tx<'_>, files: &[Attachment]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing rows.
        sqlite: "INSERT INTO attachment_waste (path, tenant_id, run_id, name, since)
                 SELECT value ->> 'path', unhex(value ->> 'tenant_id', '-'), unhex(value ->> 'run_id', '-'),
                        value ->> 'name', $2
                 FROM json_each($1) WHERE true ON CONFLICT (path) DO NOTHING",
        postgres: "INSERT INTO attachment_waste (path, tenant_id, run_id, name, since)
                   SELECT path, tenant_id, run_id, name, $2
                   FROM json_to_recordset($1::json) AS listed(path text, tenant_id uuid, run_id uuid, name text)
                   ON CONFLICT (path) DO NOTHING");
    let listed = files.iter().map(|file| WasteRow {
        path: &file.path,
        tenant_id: file.tenant_id,
        run_id: file.run_id,
        name: storable(&file.name),
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

/// An object that no row named when it was noted.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Waste {
    /// The object.
    pub path: String,
    /// A row names it again. Processes of earlier builds reuse the object of a file that is sent again.
    pub named: bool,
}

/// Objects that no row has named since before `before`, longest first.
pub async fn before(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<Waste>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT w.path, EXISTS (SELECT 1 FROM attachment a WHERE a.tenant_id = w.tenant_id AND a.run_id = w.run_id
                                  AND a.name = w.name AND a.path = w.path) AS named
         FROM attachment_waste w WHERE w.since < $1 ORDER BY w.since, w.path LIMIT $2 + 0",
    )
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Deletes objects that are gone.
pub async fn forget(tx: &mut Tx<'_>, paths: &[&str]) -> Result<()> {
    let text = sql!(tx,
        sqlite: "DELETE FROM attachment_waste WHERE path IN (SELECT value FROM json_each($1))",
        postgres: "DELETE FROM attachment_waste
                   WHERE path = ANY (ARRAY (SELECT value FROM json_array_elements_text($1::json)))");
    for list in bulk::lists(paths.to_vec()) {
        on!(tx, |conn| sqlx::query(text).bind(list).execute(conn).await.map(drop))?;
    }
    Ok(())
}

/// Moves objects that could not be removed to the end of the queue.
pub async fn postpone(tx: &mut Tx<'_>, paths: &[&str]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE attachment_waste SET since = $2 WHERE path IN (SELECT value FROM json_each($1))",
        postgres: "UPDATE attachment_waste SET since = $2
                   WHERE path = ANY (ARRAY (SELECT value FROM json_array_elements_text($1::json)))");
    for list in bulk::lists(paths.to_vec()) {
        on!(tx, |conn| sqlx::query(text)
            .bind(list)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Where a walk through all attachments is, in the order in which they were stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Microseconds.
    stored_at: i64,
    tenant: TenantId,
    run: TraceRunId,
    name: String,
}

impl Position {
    /// Before all attachments.
    #[must_use]
    pub const fn start() -> Self {
        Self {
            stored_at: 0,
            tenant: TenantId::nil(),
            run: TraceRunId::nil(),
            name: String::new(),
        }
    }

    /// At an attachment.
    #[must_use]
    pub fn of(file: &Attachment) -> Self {
        Self {
            stored_at: file.created_at.micros(),
            tenant: file.tenant_id,
            run: file.run_id,
            name: file.name.clone(),
        }
    }
}

/// The next attachments behind `after` that were stored before `before`, of all workspaces.
pub async fn walk(tx: &mut Tx<'_>, after: &Position, before: Timestamp, limit: i64) -> Result<Vec<Attachment>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(attachment),
        " FROM attachment
         WHERE created_at < $5 AND (created_at, tenant_id, run_id, name) > ($1, $2, $3, $4)
         ORDER BY created_at, tenant_id, run_id, name LIMIT $6 + 0"
    ),)
    .bind(Timestamp::from_micros(after.stored_at))
    .bind(after.tenant)
    .bind(after.run)
    .bind(&after.name)
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}
