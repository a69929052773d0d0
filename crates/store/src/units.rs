//! Units of the write-ahead log of trace ingest: what was accepted and is not folded into segments yet.
//!
//! A unit is what one workspace sent in one flush of the log: a range of the flush's object.
//!
//! ```text
//! open ──► folded ──► (row gone, then the object, once no row names it)
//!   └────► quarantined
//! ```
//!
//! `seq` is the order of registration. On PostgreSQL a unit may become visible after a higher one was folded, so it is
//! not the order of acceptance: that is `ordinal`, which a unit gets when a fold takes it.

mod leaving;
mod shared;

use towpath_domain::{JobId, ProjectId, Shard, TenantId, Timestamp, UnitId};

use crate::segments::id_list;
use crate::{Error, Result, Tx};

pub use leaving::{FoldedUnit, Position, count_folded, folded_before, folded_bytes_since, forget, named, named_among};
pub use shared::split;

/// Where a unit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum UnitState {
    /// Accepted, not in a segment yet.
    Open,
    /// Its operations are in live segments (or pending); the object may go.
    Folded,
    /// It cannot be folded, and is kept for a look at it.
    Quarantined,
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Unit {
    /// Order of registration over all units.
    pub seq: i64,
    /// The unit.
    pub id: UnitId,
    /// Its workspace.
    pub tenant_id: TenantId,
    /// The shard of its workspace.
    pub shard: Shard,
    /// The object it lies in.
    pub path: String,
    /// Where its frames begin in the object. 0 where it is a whole object, in which frames of other workspaces may lie,
    /// too.
    pub byte_offset: i64,
    /// How many bytes its frames take in the object.
    pub bytes: i64,
    /// Size of its bodies after decoding. 0 where that was not counted.
    pub decoded_bytes: i64,
    /// Operations on trace runs, feedback and attachments in it.
    pub operations: i64,
    /// Its place in the order of acceptance within the shard, once it has one.
    pub ordinal: Option<i64>,
    /// Where it stands.
    pub state: UnitState,
    /// The job that folds or folded it.
    pub fold_job: Option<JobId>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it was folded.
    pub folded_at: Option<Timestamp>,
    /// Frames of it that are folded or quarantined already, counted from its first. More than none only where it could not
    /// be folded as a whole.
    pub frames_done: i64,
}

impl Unit {
    /// Its place in the order of acceptance of its workspace. A unit that has none yet comes after all that have one,
    /// in the order of registration. Such a place is for reading only: a fold gives another.
    #[must_use]
    pub const fn order(&self) -> i64 {
        match self.ordinal {
            Some(ordinal) => ordinal,
            None => UNORDERED + self.seq,
        }
    }

    /// Size of its bodies after decoding. Where it was not counted it is taken to be large, so that whoever bounds what
    /// lies in memory takes little at once.
    #[must_use]
    pub const fn decoded_size(&self) -> i64 {
        if self.decoded_bytes > 0 {
            self.decoded_bytes
        } else {
            self.bytes.saturating_mul(UNCOUNTED_RATIO)
        }
    }
}

/// What each byte of a body that was not counted is taken to unpack to. Trace runs pack about eightfold.
const UNCOUNTED_RATIO: i64 = 16;

/// Above every ordinal.
const UNORDERED: i64 = 1 << 42;

/// Bits of an item's number within its unit.
const ITEM_BITS: u32 = 20;

/// Items of one unit are numbered below this, see [`item_seq`].
pub const MAX_ITEMS: u32 = 1 << ITEM_BITS;

/// The place of the `index`-th item of a unit of this order in the order of acceptance of its workspace.
#[must_use]
pub const fn item_seq(order: i64, index: u32) -> i64 {
    (order << ITEM_BITS) | (index as i64)
}

/// A unit about to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewUnit {
    /// The unit.
    pub id: UnitId,
    /// Its workspace.
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

/// What the name of a project means in a unit.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct UnitName {
    /// The unit.
    pub unit_id: UnitId,
    /// The name as it was sent.
    pub name: String,
    /// The project that had this name when the unit was registered.
    pub project_id: ProjectId,
}

/// Registers the units of an object that is on disk, and what the names of projects in them mean. Once this is committed
/// their bodies count as accepted.
///
/// # Errors
/// Only what the database says.
pub async fn register(tx: &mut Tx<'_>, path: &str, units: &[NewUnit], names: &[UnitName]) -> Result<()> {
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

/// What the names of projects in these units mean.
///
/// # Errors
/// Only what the database says.
pub async fn names(tx: &mut Tx<'_>, units: &[UnitId]) -> Result<Vec<UnitName>> {
    let text = sql!(tx,
        sqlite: "SELECT unit_id, name, project_id FROM wal_unit_name
                 WHERE unit_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        // An array, because plans for joins read the table.
        postgres: "SELECT unit_id, name, project_id FROM wal_unit_name
                   WHERE unit_id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($1::json)))");
    let ids = id_list(units.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(ids).fetch_all(conn).await)?)
}

/// More units would be slow to list and mark in one transaction.
const MOST: i64 = 2048;

/// Open units of all workspaces in order of registration, as many as stay within `max_bytes` together; at least one if
/// there is one.
///
/// # Errors
/// Only what the database says.
pub async fn open(tx: &mut Tx<'_>, max_bytes: i64) -> Result<Vec<Unit>> {
    let mut units: Vec<Unit> = on!(tx, |conn| sqlx::query_as(concat!(
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
    units.truncate(bounds.fit(&units));
    Ok(units)
}

/// Open units of a workspace, in order of acceptance: what readers have to look into beside the segments.
///
/// # Errors
/// Only what the database says.
pub async fn open_of(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Unit>> {
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

/// The open unit of a workspace that was registered last: what was acknowledged before now is no later.
///
/// # Errors
/// Only what the database says.
pub async fn last_open(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<i64>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT MAX(seq) FROM wal_unit WHERE state = 'open' AND shard = $1 AND tenant_id = $2",
    )
    .bind(Shard::of(tenant))
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// How many units of a workspace are open of those registered up to `last_seq`.
///
/// # Errors
/// Only what the database says.
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

/// Whether a unit of this shard is open.
///
/// # Errors
/// Only what the database says.
pub async fn any_open(tx: &mut Tx<'_>, shard: Shard) -> Result<bool> {
    let found: Option<i64> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT seq FROM wal_unit WHERE state = 'open' AND shard = $1 LIMIT 1",
    )
    .bind(shard)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// Shards with a unit that has been open since before this time.
///
/// # Errors
/// Only what the database says.
pub async fn shards_open_since(tx: &mut Tx<'_>, before: Timestamp) -> Result<Vec<Shard>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT DISTINCT shard FROM wal_unit WHERE state = 'open' AND created_at < $1 ORDER BY shard",
    )
    .bind(before)
    .fetch_all(conn)
    .await)?)
}

/// How many units are open, and how many bytes they have together.
///
/// # Errors
/// Only what the database says.
pub async fn backlog(tx: &mut Tx<'_>) -> Result<(i64, i64)> {
    Ok(on!(tx, |conn| sqlx::query_as(
        // SUM of bigint is numeric on PostgreSQL.
        "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS bigint) FROM wal_unit WHERE state = 'open'",
    )
    .fetch_one(conn)
    .await)?)
}

/// How much a fold takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes in the object store.
    pub bytes: i64,
    /// Bytes after decoding.
    pub decoded_bytes: i64,
}

impl Bounds {
    /// How many of the first of `units` stay within the bounds together; at least one if there is one.
    fn fit(&self, units: &[Unit]) -> usize {
        let (mut bytes, mut decoded) = (0_i64, 0_i64);
        let fit = units.iter().take_while(|unit| {
            bytes = bytes.saturating_add(unit.bytes);
            decoded = decoded.saturating_add(unit.decoded_size());
            bytes <= self.bytes && decoded <= self.decoded_bytes
        });
        fit.count().max(1).min(units.len())
    }
}

/// Open units of a shard, numbered within their workspaces in order of acceptance: the first half of a statement.
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

/// Takes open units of a shard to be folded by `job`, whoever had them before, and gives them their places in the order
/// of acceptance. Workspaces take turns, so that the backlog of one keeps no other waiting; of each, the first units come
/// first. Answers them in order of acceptance. Of the workspaces that are left out none is taken.
///
/// Folds of a shard follow one another: call it as the holder of the shard's lane.
///
/// # Errors
/// Only what the database says.
pub async fn take(
    tx: &mut Tx<'_>,
    job: JobId,
    shard: Shard,
    bounds: Bounds,
    left_out: &[TenantId],
) -> Result<Vec<Unit>> {
    let next = lock_shard(tx, shard).await?;
    let text = sql!(tx,
        sqlite: concat!(turns!(), "AND tenant_id NOT IN (SELECT unhex(replace(value, '-', '')) FROM json_each($4))", in_turn!()),
        postgres: concat!(turns!(), "AND tenant_id <> ALL (ARRAY (SELECT value::uuid FROM json_array_elements_text($4::json)))",
                          in_turn!()));
    let left_out = id_list(left_out.iter().map(|tenant| tenant.0));
    let mut units: Vec<Unit> = on!(tx, |conn| sqlx::query_as(text)
        .bind(shard)
        // What earlier builds register of several workspaces waits until it is split.
        .bind(TenantId::nil())
        .bind(MOST)
        .bind(left_out)
        .fetch_all(conn)
        .await)?;
    units.truncate(bounds.fit(&units));
    units.sort_unstable_by_key(Unit::order);
    for unit in &mut units {
        unit.fold_job = Some(job);
    }
    place(tx, shard, next, &mut units).await?;
    Ok(units)
}

/// Gives places to those of `units` that have none, from `next` on, and writes down who has taken them. The numbers of the
/// shard are locked, and the units in the order of acceptance.
async fn place(tx: &mut Tx<'_>, shard: Shard, next: i64, units: &mut [Unit]) -> Result<()> {
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

/// Gives units back that `job` had taken and did not fold.
///
/// # Errors
/// Only what the database says.
pub async fn release(tx: &mut Tx<'_>, job: JobId) -> Result<u64> {
    Ok(on!(tx, |conn| sqlx::query(
        "UPDATE wal_unit SET fold_job = NULL WHERE fold_job = $1 AND state = 'open'"
    )
    .bind(job)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Marks units folded. Belongs into the transaction that makes their segments live.
///
/// # Errors
/// [`Error::Stale`] when one of them is not open any more: somebody else folded it, and this work must be dropped.
pub async fn fold(tx: &mut Tx<'_>, job: JobId, units: &[UnitId]) -> Result<()> {
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

/// Notes how many frames of an open unit are done with. Belongs into the transaction that records them.
///
/// # Errors
/// [`Error::Stale`] when it is not open any more, or `job` does not fold it.
pub async fn advance(tx: &mut Tx<'_>, job: JobId, unit: UnitId, frames: i64) -> Result<()> {
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

/// Removes open units that are in quarantine from now on.
///
/// # Errors
/// [`Error::Stale`] when one of them is not open any more.
pub async fn remove(tx: &mut Tx<'_>, units: &[UnitId]) -> Result<()> {
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

/// The number in the order of acceptance under which an item may be kept. A number that is for reading only (see
/// [`Unit::order`]) becomes the one that a fold will give it: the unit gets its place now, and so do all open ones that
/// were registered before it.
///
/// # Errors
/// [`Error::Stale`] when the unit was forgotten meanwhile: the item was read long ago.
pub async fn lasting_seq(tx: &mut Tx<'_>, tenant: TenantId, seq: i64) -> Result<i64> {
    let order = seq >> ITEM_BITS;
    if order < UNORDERED {
        return Ok(seq);
    }
    let (seq_of_unit, shard) = (order - UNORDERED, Shard::of(tenant));
    // A fold that is just taking the unit has given it a place by the time the lock is ours.
    let next = lock_shard(tx, shard).await?;
    let mut units: Vec<Unit> = on!(tx, |conn| {
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
    place(tx, shard, next, &mut units).await?;
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

/// Locks the numbers of a shard, and answers the next one.
async fn lock_shard(tx: &mut Tx<'_>, shard: Shard) -> Result<i64> {
    let text = sql!(tx,
        // SQLite has one writer, so nobody else can hold the row.
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
