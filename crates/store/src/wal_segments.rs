//! WAL segments of the write-ahead log of trace ingest: what was accepted and is not flushed into segments yet.
//!
//! A WAL segment is what one workspace sent in one write of the log: a range of the write's object.
//!
//! ```text
//! open ──► folded ──► (row gone, then the object, once no row names it)
//!   └────► quarantined
//! ```
//!
//! `seq` is the order of registration. On PostgreSQL a WAL segment may become visible after a higher one was flushed,
//! so it is not the order of acceptance: that is `ordinal`, which a WAL segment gets when a flush takes it.

mod flushed;
mod workspace_split;

use towpath_domain::{JobId, ProjectId, Shard, TenantId, Timestamp, WalSegmentId};

use crate::segments::id_list;
use crate::{Error, Result, Tx};

pub use flushed::{
    FlushedWalSegment, Position, count_flushed, flushed_before, flushed_bytes_since, forget, is_object_referenced,
    referenced_objects,
};
pub use workspace_split::split;

#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum WalSegmentState {
    /// Accepted, not in a segment yet.
    Open,
    /// Its operations are in live segments (or pending); the object may go.
    Folded,
    /// It cannot be flushed, and is kept for inspection.
    Quarantined,
}

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct WalSegment {
    /// Order of registration over all WAL segments.
    pub seq: i64,
    pub id: WalSegmentId,
    pub tenant_id: TenantId,
    /// The shard of its workspace.
    pub shard: Shard,
    /// The object it is in.
    pub path: String,
    /// Offset of its frames in the object. 0 also for a whole object, which may contain frames of other workspaces.
    pub byte_offset: i64,
    /// How many bytes its frames take in the object.
    pub bytes: i64,
    /// Size of its bodies after decoding. 0 where that was not counted.
    pub decoded_bytes: i64,
    /// Operations on trace runs, feedback and attachments in it.
    pub operations: i64,
    /// Its position in the order of acceptance within the shard, once it has one.
    pub ordinal: Option<i64>,
    pub state: WalSegmentState,
    pub fold_job: Option<JobId>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it was flushed.
    pub folded_at: Option<Timestamp>,
    /// The number of its leading frames that are flushed or quarantined already. 0 unless it could not be flushed as a
    /// whole.
    pub frames_done: i64,
}

impl WalSegment {
    /// Its position in the order of acceptance of its workspace. A WAL segment without an ordinal comes after all
    /// others, in the order of registration. This is for reading only: a flush assigns the final ordinal.
    #[must_use]
    pub const fn order(&self) -> i64 {
        match self.ordinal {
            Some(ordinal) => ordinal,
            None => UNORDERED + self.seq,
        }
    }

    /// Decoded size of its bodies. An unknown size is assumed to be large, so that memory bounds hold.
    #[must_use]
    pub const fn decoded_size(&self) -> i64 {
        if self.decoded_bytes > 0 {
            self.decoded_bytes
        } else {
            self.bytes.saturating_mul(UNCOUNTED_RATIO)
        }
    }
}

/// The assumed ratio for bodies of unknown size. Trace runs compress about eightfold.
const UNCOUNTED_RATIO: i64 = 16;

/// Above every ordinal.
const UNORDERED: i64 = 1 << 42;

/// Bits of an item's number within its WAL segment.
const ITEM_BITS: u32 = 20;

/// Items of one WAL segment are numbered below this, see [`item_seq`].
pub const MAX_ITEMS: u32 = 1 << ITEM_BITS;

/// The position of the `index`-th item of a WAL segment in the order of acceptance of its workspace.
#[must_use]
pub const fn item_seq(order: i64, index: u32) -> i64 {
    (order << ITEM_BITS) | (index as i64)
}

/// A WAL segment about to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewWalSegment {
    pub id: WalSegmentId,
    pub tenant: TenantId,
    /// Where its frames begin in the object.
    pub byte_offset: i64,
    /// How many bytes they take.
    pub bytes: i64,
    /// Size of its bodies after decoding; 0 where that is not known.
    pub decoded_bytes: i64,
    /// Operations on trace runs, feedback and attachments in it.
    pub operations: i64,
}

/// The project of a name in a WAL segment.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct WalSegmentName {
    pub unit_id: WalSegmentId,
    /// The name as it was sent.
    pub name: String,
    /// The project that had this name when the WAL segment was registered.
    pub project_id: ProjectId,
}

/// Registers the WAL segments of an object that is on disk, and the projects that their names resolve to. Once this is
/// committed, their bodies count as accepted.
pub async fn register(tx: &mut Tx<'_>, path: &str, units: &[NewWalSegment], names: &[WalSegmentName]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to values differs.
        sqlite: "INSERT INTO wal_unit (id, path, bytes, operations, state, created_at, tenant_id, shard, byte_offset,
                                       decoded_bytes)
                 SELECT unhex(replace(value ->> 0, '-', '')), $2, value ->> 4, value ->> 6, 'open', $3,
                        unhex(replace(value ->> 1, '-', '')), value ->> 2, value ->> 3, value ->> 5
                 FROM json_each($1) ORDER BY key",
        postgres: "INSERT INTO wal_unit (id, path, bytes, operations, state, created_at, tenant_id, shard, byte_offset,
                                         decoded_bytes)
                   SELECT (value ->> 0)::uuid, $2::text, (value ->> 4)::bigint, (value ->> 6)::bigint, 'open',
                          $3::timestamptz, (value ->> 1)::uuid, (value ->> 2)::smallint, (value ->> 3)::bigint,
                          (value ->> 5)::bigint
                   FROM json_array_elements($1::json) WITH ORDINALITY AS given(value, nth) ORDER BY nth");
    let units = units.iter().map(|unit| {
        (
            unit.id,
            unit.tenant,
            Shard::of(unit.tenant),
            unit.byte_offset,
            unit.bytes,
            unit.decoded_bytes,
            unit.operations,
        )
    });
    let units = json(units);
    on!(tx, |conn| sqlx::query(text)
        .bind(units)
        .bind(path)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    if names.is_empty() {
        return Ok(());
    }
    let text = sql!(tx,
        sqlite: "INSERT INTO wal_unit_name (unit_id, name, project_id)
                 SELECT unhex(replace(value ->> 0, '-', '')), value ->> 1, unhex(replace(value ->> 2, '-', ''))
                 FROM json_each($1)",
        postgres: "INSERT INTO wal_unit_name (unit_id, name, project_id)
                   SELECT (value ->> 0)::uuid, value ->> 1, (value ->> 2)::uuid FROM json_array_elements($1::json)");
    let names = json(names.iter().map(|name| (name.unit_id, &name.name, name.project_id)));
    on!(tx, |conn| sqlx::query(text).bind(names).execute(conn).await.map(drop))?;
    Ok(())
}

/// The projects of the names in these WAL segments.
pub async fn names(tx: &mut Tx<'_>, units: &[WalSegmentId]) -> Result<Vec<WalSegmentName>> {
    let text = sql!(tx,
        sqlite: "SELECT unit_id, name, project_id FROM wal_unit_name
                 WHERE unit_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        // An array, because plans for joins read the table.
        postgres: "SELECT unit_id, name, project_id FROM wal_unit_name
                   WHERE unit_id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    let ids = id_list(units.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(ids).fetch_all(conn).await)?)
}

/// More WAL segments would be slow to list and mark in one transaction.
const MOST: i64 = 2048;

/// Open WAL segments of all workspaces in order of registration, up to `max_bytes` in total; at least one if there is
/// one.
pub async fn open(tx: &mut Tx<'_>, max_bytes: i64) -> Result<Vec<WalSegment>> {
    let mut units: Vec<WalSegment> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(wal_unit),
        " FROM wal_unit WHERE state = 'open' ORDER BY seq LIMIT $1 + 0"
    ),)
    .bind(MOST)
    .fetch_all(conn)
    .await)?;
    let bounds = Bounds {
        bytes: max_bytes,
        decoded_bytes: i64::MAX,
    };
    units.truncate(bounds.count_within(&units));
    Ok(units)
}

/// Open WAL segments of a workspace, in order of acceptance; readers need them in addition to the segments.
pub async fn open_of(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<WalSegment>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(wal_unit),
        " FROM wal_unit WHERE state = 'open' AND shard = $1 AND tenant_id = $2
         ORDER BY ordinal IS NULL, ordinal, seq"
    ),)
    .bind(Shard::of(tenant))
    .bind(tenant)
    .fetch_all(conn)
    .await)?)
}

/// The latest open WAL segment of a workspace: everything acknowledged so far is in it or before it.
pub async fn last_open(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<i64>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT MAX(seq) FROM wal_unit WHERE state = 'open' AND shard = $1 AND tenant_id = $2",
    )
    .bind(Shard::of(tenant))
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// How many WAL segments of a workspace are open of those registered up to `last_seq`.
pub async fn open_before(tx: &mut Tx<'_>, tenant: TenantId, last_seq: i64) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT COUNT(*) FROM wal_unit WHERE state = 'open' AND shard = $1 AND tenant_id = $2 AND seq <= $3",
    )
    .bind(Shard::of(tenant))
    .bind(tenant)
    .bind(last_seq)
    .fetch_one(conn)
    .await)?)
}

/// Whether a WAL segment of this shard is open.
pub async fn any_open(tx: &mut Tx<'_>, shard: Shard) -> Result<bool> {
    let found: Option<i64> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT seq FROM wal_unit WHERE state = 'open' AND shard = $1 LIMIT 1",
    )
    .bind(shard)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// Shards with a WAL segment that has been open since before this time.
pub async fn shards_open_since(tx: &mut Tx<'_>, before: Timestamp) -> Result<Vec<Shard>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT DISTINCT shard FROM wal_unit WHERE state = 'open' AND created_at < $1 ORDER BY shard",
    )
    .bind(before)
    .fetch_all(conn)
    .await)?)
}

/// How many WAL segments are open, and how many bytes they have together.
pub async fn backlog(tx: &mut Tx<'_>) -> Result<(i64, i64)> {
    Ok(on!(tx, |conn| sqlx::query_as(
        // SUM of bigint is numeric on PostgreSQL.
        "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS bigint) FROM wal_unit WHERE state = 'open'",
    )
    .fetch_one(conn)
    .await)?)
}

/// How much a flush takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes in the object store.
    pub bytes: i64,
    /// Bytes after decoding.
    pub decoded_bytes: i64,
}

impl Bounds {
    /// How many of the first of `units` are within the bounds; at least one if there is one.
    fn count_within(&self, units: &[WalSegment]) -> usize {
        let (mut bytes, mut decoded) = (0_i64, 0_i64);
        let fit = units.iter().take_while(|unit| {
            bytes = bytes.saturating_add(unit.bytes);
            decoded = decoded.saturating_add(unit.decoded_size());
            bytes <= self.bytes && decoded <= self.decoded_bytes
        });
        fit.count().max(1).min(units.len())
    }
}

/// The common first half of statements: open WAL segments of a shard, numbered within their workspaces in order of
/// acceptance.
macro_rules! turns {
    () => {
        concat!(
            "SELECT ",
            columns!(wal_unit),
            " FROM (
             SELECT ",
            columns!(wal_unit),
            ", row_number() OVER (PARTITION BY tenant_id ORDER BY ordinal IS NULL, ordinal, seq) AS turn
             FROM wal_unit WHERE state = 'open' AND shard = $1 AND (tenant_id <> $2 OR byte_offset > 0) "
        )
    };
}

/// The second half.
macro_rules! in_turn {
    () => {
        ") AS waiting ORDER BY turn, ordinal IS NULL, ordinal, seq LIMIT $3 + 0"
    };
}

/// Takes open WAL segments of a shard for a flush by `job`, replacing any previous taker, and assigns their ordinals.
/// Workspaces take turns, so that one backlog does not delay the others; within a workspace, the first ones come first.
/// Returns them in order of acceptance, skipping those of `left_out`.
///
/// Flushes of a shard are sequential: call it as the holder of the shard's lane.
pub async fn take(
    tx: &mut Tx<'_>,
    job: JobId,
    shard: Shard,
    bounds: Bounds,
    left_out: &[TenantId],
) -> Result<Vec<WalSegment>> {
    let next = lock_shard(tx, shard).await?;
    let text = sql!(tx,
        sqlite: concat!(turns!(), "AND tenant_id NOT IN (SELECT unhex(replace(value, '-', '')) FROM json_each($4))", in_turn!()),
        postgres: concat!(turns!(), "AND tenant_id <> ALL (ARRAY (SELECT value::uuid FROM json_array_elements_text($4::json)))",
                          in_turn!()));
    let left_out = id_list(left_out.iter().map(|tenant| tenant.0));
    let mut units: Vec<WalSegment> = on!(tx, |conn| sqlx::query_as(text)
        .bind(shard)
        // What earlier builds register of several workspaces waits until it is split.
        .bind(TenantId::nil())
        .bind(MOST)
        .bind(left_out)
        .fetch_all(conn)
        .await)?;
    units.truncate(bounds.count_within(&units));
    units.sort_unstable_by_key(WalSegment::order);
    for unit in &mut units {
        unit.fold_job = Some(job);
    }
    assign_ordinals(tx, shard, next, &mut units).await?;
    Ok(units)
}

/// Assigns ordinals from `next` on to those of `units` without one, and records the job that took them. The numbers of
/// the shard are locked, and the WAL segments in order of acceptance.
async fn assign_ordinals(tx: &mut Tx<'_>, shard: Shard, next: i64, units: &mut [WalSegment]) -> Result<()> {
    if units.is_empty() {
        return Ok(());
    }
    let mut after = next;
    for unit in units.iter_mut() {
        unit.ordinal.get_or_insert_with(|| {
            after += 1;
            after - 1
        });
    }
    if after > next {
        on!(tx, |conn| sqlx::query(
            "UPDATE fold_shard SET next_ordinal = $2 WHERE shard = $1"
        )
        .bind(shard)
        .bind(after)
        .execute(conn)
        .await
        .map(drop))?;
    }
    let text = sql!(tx,
        sqlite: "UPDATE wal_unit SET ordinal = placed.ordinal, fold_job = placed.job
                 FROM (SELECT unhex(replace(value ->> 0, '-', '')) AS id, value ->> 1 AS ordinal,
                              unhex(replace(value ->> 2, '-', '')) AS job FROM json_each($1)) placed
                 WHERE wal_unit.id = placed.id AND wal_unit.state = 'open'",
        // The rows are found by an array, because plans for joins read the table.
        postgres: "WITH placed AS MATERIALIZED (
                       SELECT (value ->> 0)::uuid AS id, (value ->> 1)::bigint AS ordinal, (value ->> 2)::uuid AS job
                       FROM json_array_elements($1::json)
                   )
                   UPDATE wal_unit SET ordinal = placed.ordinal, fold_job = placed.job FROM placed
                   WHERE wal_unit.id = placed.id AND wal_unit.id = ANY (ARRAY (SELECT id FROM placed))
                   AND wal_unit.state = 'open'");
    let placed = json(units.iter().map(|unit| (unit.id, unit.ordinal, unit.fold_job)));
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(placed)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    all(changed, units.len())
}

/// Releases WAL segments that `job` took but did not flush.
pub async fn release(tx: &mut Tx<'_>, job: JobId) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE wal_unit SET fold_job = NULL WHERE fold_job = $1 AND state = 'open'"
    )
    .bind(job)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Marks WAL segments as flushed. Must run in the transaction that makes their segments live.
///
/// # Errors
/// [`Error::Stale`] if one of them is not open any more: another process flushed it, and this work must be discarded.
pub async fn mark_flushed(tx: &mut Tx<'_>, job: JobId, units: &[WalSegmentId]) -> Result<()> {
    let now = tx.now();
    let text = sql!(tx,
        sqlite: "UPDATE wal_unit SET state = 'folded', folded_at = $2, fold_job = $3 WHERE state = 'open'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "UPDATE wal_unit SET state = 'folded', folded_at = $2, fold_job = $3 WHERE state = 'open'
                   AND id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    let ids = id_list(units.iter().map(|id| id.0));
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(ids)
        .bind(now)
        .bind(job)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    all(changed, units.len())
}

/// Records how many frames of an open WAL segment are done. Must run in the transaction that records their results.
///
/// # Errors
/// [`Error::Stale`] if it is not open any more, or another job took it.
pub async fn advance(tx: &mut Tx<'_>, job: JobId, unit: WalSegmentId, frames: i64) -> Result<()> {
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE wal_unit SET frames_done = $3 WHERE state = 'open' AND id = $1 AND fold_job = $2"
    )
    .bind(unit)
    .bind(job)
    .bind(frames)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    all(changed, 1)
}

/// Removes open WAL segments that were quarantined.
///
/// # Errors
/// [`Error::Stale`] if one of them is not open any more.
pub async fn remove(tx: &mut Tx<'_>, units: &[WalSegmentId]) -> Result<()> {
    if units.is_empty() {
        return Ok(());
    }
    let text = sql!(tx,
        sqlite: "DELETE FROM wal_unit WHERE state = 'open'
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        postgres: "DELETE FROM wal_unit WHERE state = 'open'
                   AND id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    let ids = id_list(units.iter().map(|id| id.0));
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(ids)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    all(changed, units.len())
}

/// The permanent position of an item in the order of acceptance. A position that is for reading only (see
/// [`WalSegment::order`]) becomes the one a flush would assign: the WAL segment gets its ordinal now, and so do all
/// open ones registered before it.
///
/// # Errors
/// [`Error::Stale`] if the WAL segment was deleted meanwhile: the item was read long ago.
pub async fn permanent_seq(tx: &mut Tx<'_>, tenant: TenantId, seq: i64) -> Result<i64> {
    let order = seq >> ITEM_BITS;
    if order < UNORDERED {
        return Ok(seq);
    }
    let (seq_of_unit, shard) = (order - UNORDERED, Shard::of(tenant));
    // A flush that is just taking the WAL segment has given it a place by the time the lock is ours.
    let next = lock_shard(tx, shard).await?;
    let mut units: Vec<WalSegment> = on!(tx, |conn| {
        sqlx::query_as(concat!(
            "SELECT ",
            columns!(wal_unit),
            " FROM wal_unit WHERE state = 'open' AND shard = $1 AND tenant_id = $2 AND ordinal IS NULL AND seq <= $3
         ORDER BY seq"
        ))
        .bind(shard)
        .bind(tenant)
        .bind(seq_of_unit)
        .fetch_all(conn)
        .await
    })?;
    assign_ordinals(tx, shard, next, &mut units).await?;
    let ordinal: Option<Option<i64>> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT ordinal FROM wal_unit WHERE seq = $1 AND tenant_id = $2"
    )
    .bind(seq_of_unit)
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    let ordinal = ordinal.flatten().ok_or(Error::Stale)?;
    let index = seq & (i64::from(MAX_ITEMS) - 1);
    Ok((ordinal << ITEM_BITS) | index)
}

/// Locks the numbers of a shard, and returns the next one.
async fn lock_shard(tx: &mut Tx<'_>, shard: Shard) -> Result<i64> {
    let text = sql!(tx,
        // SQLite has one writer, so no other caller can hold the row.
        sqlite: "SELECT next_ordinal FROM fold_shard WHERE shard = $1",
        postgres: "SELECT next_ordinal FROM fold_shard WHERE shard = $1 FOR UPDATE");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(shard)
        .fetch_one(conn)
        .await)?)
}

/// A list as it travels to the database.
fn json<T: serde::Serialize>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<T> = items.collect();
    serde_json::to_string(&items).expect("plain data is always JSON")
}

fn all(changed: u64, expected: usize) -> Result<()> {
    if usize::try_from(changed).is_ok_and(|changed| changed == expected) {
        Ok(())
    } else {
        Err(Error::Stale)
    }
}
