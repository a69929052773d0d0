//! Accepted trace data that could not be flushed: kept, counted as missing, and flushed again at an operator's request.
//!
//! An entry is a frame of a WAL segment, or a whole WAL segment whose object is missing.

use towpath_domain::{ProjectId, QuarantineId, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// Why something is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum Kind {
    /// Its bytes are not those that were accepted.
    Damaged,
    /// It is as it was accepted, and cannot be merged or stored.
    Rejected,
    /// Its object is not in the object store.
    Missing,
}

impl Kind {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Rejected => "rejected",
            Self::Missing => "missing",
        }
    }
}

/// Something in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Entry {
    /// The entry.
    pub id: QuarantineId,
    pub tenant_id: TenantId,
    /// Why it is here.
    pub kind: Kind,
    /// The reason, for operators. Contains nothing that the client sent.
    pub reason: String,
    /// The object that holds its frames, in the format of a WAL segment.
    pub path: String,
    /// The first byte of its frames there.
    pub byte_offset: i64,
    /// Length of its frames in bytes.
    pub bytes: i64,
    /// Size of its bodies after decoding in bytes; 0 where that is not known.
    pub decoded_bytes: i64,
    /// Operations, feedback and attachments that are missing.
    pub items: i64,
    /// JSON object from the names of projects in it to what they meant when it was accepted.
    pub names: String,
    /// JSON list of the projects that it may touch; `None` is any of the workspace.
    pub projects: Option<String>,
    /// The first start of a trace run that it may touch; `None` where that is not known.
    pub first_start: Option<Timestamp>,
    /// The last start of a trace run that it may touch; `None` where that is not known.
    pub last_start: Option<Timestamp>,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it was quarantined.
    pub created_at: Timestamp,
}

impl Entry {
    /// The cursor after this entry.
    #[must_use]
    pub const fn cursor(&self) -> Cursor {
        Cursor {
            tenant_id: self.tenant_id,
            created_at: self.created_at,
            id: self.id,
        }
    }
}

/// A position in the list of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The workspace of the last entry seen.
    pub tenant_id: TenantId,
    /// When that entry was quarantined.
    pub created_at: Timestamp,
    /// That entry.
    pub id: QuarantineId,
}

/// The quarantine usage of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Usage {
    pub tenant_id: TenantId,
    pub entries: i64,
    /// Operations, feedback and attachments in them.
    pub items: i64,
    /// Bytes of their frames.
    pub bytes: i64,
}

/// How much a workspace may have in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub entries: i64,
    /// Bytes of their frames.
    pub bytes: i64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            entries: 10_000,
            bytes: 1 << 30,
        }
    }
}

/// Entries that one statement inserts.
const INSERTED: usize = 500;

/// Adds entries to the quarantine. Existing ones stay unchanged, since a flush may be repeated.
pub async fn put_all(tx: &mut Tx<'_>, entries: &[Entry]) -> Result<()> {
    let now = tx.now();
    for entries in entries.chunks(INSERTED) {
        let mut insert = Query::new(
            tx,
            "INSERT INTO quarantine (id, tenant_id, kind, reason, path, byte_offset, bytes, decoded_bytes, items, names,
                                     projects, first_start, last_start, accepted_at, created_at) VALUES ",
        );
        insert.rows(entries.iter().map(|entry| {
            [
                Arg::Uuid(entry.id.0),
                Arg::Uuid(entry.tenant_id.0),
                Arg::Text(entry.kind.as_str().to_owned()),
                Arg::Text(entry.reason.replace('\0', "\u{fffd}")),
                Arg::Text(entry.path.clone()),
                Arg::Int(entry.byte_offset),
                Arg::Int(entry.bytes),
                Arg::Int(entry.decoded_bytes),
                Arg::Int(entry.items),
                Arg::Text(entry.names.clone()),
                Arg::MaybeText(entry.projects.clone()),
                Arg::MaybeTime(entry.first_start),
                Arg::MaybeTime(entry.last_start),
                Arg::Time(entry.accepted_at),
                Arg::Time(now),
            ]
        }));
        insert.push(" ON CONFLICT (id) DO NOTHING");
        insert.execute(tx).await?;
    }
    Ok(())
}

pub async fn get(tx: &mut Tx<'_>, id: QuarantineId) -> Result<Entry> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(quarantine),
        " FROM quarantine WHERE id = $1"
    ))
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Entries of one workspace or of all, the newest first within a workspace.
pub async fn list(tx: &mut Tx<'_>, tenant: Option<TenantId>, limit: i64, offset: i64) -> Result<Vec<Entry>> {
    let mut query = Query::new(tx, concat!("SELECT ", columns!(quarantine), " FROM quarantine"));
    if let Some(tenant) = tenant {
        query.push(" WHERE tenant_id = ").bind(Arg::Uuid(tenant.0));
    }
    query
        .push(" ORDER BY tenant_id, created_at DESC, id")
        .page(limit, offset);
    query.fetch_all(tx).await
}

/// As [`list`], from the entry behind `after` on.
pub async fn list_after(
    tx: &mut Tx<'_>,
    tenant: Option<TenantId>,
    after: Option<Cursor>,
    limit: i64,
) -> Result<Vec<Entry>> {
    let mut query = Query::new(tx, concat!("SELECT ", columns!(quarantine), " FROM quarantine"));
    let mut joint = " WHERE ";
    if let Some(tenant) = tenant {
        query.push(joint).push("tenant_id = ").bind(Arg::Uuid(tenant.0));
        joint = " AND ";
    }
    if let Some(after) = after {
        let (tenant, created_at) = (Arg::Uuid(after.tenant_id.0), Arg::Time(after.created_at));
        // The first condition follows from the rest; with it the index is read from there on.
        query.push(joint).push("tenant_id >= ").bind(tenant.clone());
        query.push(" AND (tenant_id > ").bind(tenant.clone());
        query.push(" OR (tenant_id = ").bind(tenant);
        query.push(" AND (created_at < ").bind(created_at.clone());
        query.push(" OR (created_at = ").bind(created_at);
        query.push(" AND id > ").bind(Arg::Uuid(after.id.0)).push("))))");
    }
    query.push(" ORDER BY tenant_id, created_at DESC, id").limit(limit);
    query.fetch_all(tx).await
}

/// Entries whose objects were not there, by id from behind `after` on.
pub async fn missing_objects(tx: &mut Tx<'_>, after: QuarantineId, limit: i64) -> Result<Vec<Entry>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(quarantine),
        " FROM quarantine WHERE kind = 'missing' AND id > $1 ORDER BY id LIMIT $2 + 0"
    ),)
    .bind(after)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// The quarantine usage of each workspace with entries.
pub async fn usage(tx: &mut Tx<'_>) -> Result<Vec<Usage>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
        // SUM of bigint is numeric on PostgreSQL.
        "SELECT tenant_id, COUNT(*) AS entries, CAST(SUM(items) AS bigint) AS items, CAST(SUM(bytes) AS bigint) AS bytes
         FROM quarantine GROUP BY tenant_id ORDER BY tenant_id",
    )
    .fetch_all(conn)
    .await
    })?)
}

/// The quarantine usage of a workspace.
pub async fn usage_of(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Usage> {
    let (entries, items, bytes) = on!(tx, |conn| sqlx::query_as(
        "SELECT COUNT(*), CAST(COALESCE(SUM(items), 0) AS bigint), CAST(COALESCE(SUM(bytes), 0) AS bigint)
         FROM quarantine WHERE tenant_id = $1",
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    Ok(Usage {
        tenant_id: tenant,
        entries,
        items,
        bytes,
    })
}

/// The number of quarantined operations, feedback and attachments that may belong to `project` and to starts from
/// `from` until before `until`.
pub async fn missing(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    from: Timestamp,
    until: Timestamp,
) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT CAST(COALESCE(SUM(items), 0) AS bigint) FROM quarantine
         WHERE tenant_id = $1 AND (projects IS NULL OR projects LIKE $2)
           AND (last_start IS NULL OR last_start >= $3) AND (first_start IS NULL OR first_start < $4)",
    )
    .bind(tenant)
    .bind(format!("%\"{project}\"%"))
    .bind(from)
    .bind(until)
    .fetch_one(conn)
    .await)?)
}

/// Takes an entry out. Returns whether it was there.
pub async fn remove(tx: &mut Tx<'_>, id: QuarantineId) -> Result<bool> {
    Ok(on!(tx, |conn| sqlx::query("DELETE FROM quarantine WHERE id = $1")
        .bind(id)
        .execute(conn)
        .await
        .map(|done| done.rows_affected() > 0))?)
}

/// Removes an entry and returns it.
///
/// # Errors
/// [`Error::NotFound`](crate::Error::NotFound), also if another process was faster.
pub async fn take(tx: &mut Tx<'_>, id: QuarantineId) -> Result<Entry> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "DELETE FROM quarantine WHERE id = $1 RETURNING ",
        columns!(quarantine)
    ))
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Removes and returns the oldest entries of a workspace beyond its quota.
pub async fn trim(tx: &mut Tx<'_>, tenant: TenantId, quota: Quota) -> Result<Vec<Entry>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "DELETE FROM quarantine WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER newest AS place, SUM(bytes) OVER newest AS held FROM quarantine
                 WHERE tenant_id = $1 WINDOW newest AS (ORDER BY created_at DESC, id)) kept
             WHERE place > $2 OR held > $3)
         RETURNING ",
        columns!(quarantine)
    ),)
    .bind(tenant)
    .bind(quota.entries)
    .bind(quota.bytes)
    .fetch_all(conn)
    .await)?)
}

/// Which of these objects an entry names.
pub async fn named(tx: &mut Tx<'_>, paths: &[String]) -> Result<Vec<String>> {
    let mut query = Query::new(tx, "SELECT path FROM quarantine WHERE ");
    query.any_of("path", paths.iter().cloned().map(Arg::Text));
    let rows: Vec<(String,)> = query.fetch_all(tx).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Which of these objects an entry or a WAL segment of the write-ahead log names.
pub async fn needed(tx: &mut Tx<'_>, paths: &[String]) -> Result<Vec<String>> {
    // One statement: a retry moves a name from one table to the other, and must not be missed in between.
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back differs.
        sqlite: "SELECT path FROM quarantine WHERE path IN (SELECT value FROM json_each($1))
                 UNION SELECT path FROM wal_unit WHERE path IN (SELECT value FROM json_each($1))",
        postgres: "SELECT path FROM quarantine WHERE path = ANY (ARRAY (SELECT json_array_elements_text($1::json)))
                   UNION SELECT path FROM wal_unit WHERE path = ANY (ARRAY (SELECT json_array_elements_text($1::json)))");
    let paths = serde_json::to_string(paths).expect("a list of texts is always JSON");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(paths)
        .fetch_all(conn)
        .await)?)
}
