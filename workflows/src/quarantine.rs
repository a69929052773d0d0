//! Accepted trace data that could not be folded: looked at, folded again, dropped.
//!
//! An entry names a range of an object. A retry hands the range back to the write-ahead log as a unit of its own, which
//! is accepted anew. An object goes when neither an entry nor a unit names it any more.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use towpath_domain::{ProjectId, QuarantineId, Rejection, Shard, TenantId, UnitId};
use towpath_store::quarantine::{self, Entry};
use towpath_store::units::{NewUnit, UnitName};
use towpath_store::{self as store, Store, Tx, units};
use towpath_traces::objects::{Objects, ObjectsError};
use towpath_traces::wal::{Damage, Frame, unit};

use crate::{fold_units, metric};

/// Below it lie the objects of entries, in a folder for each workspace.
pub const FOLDER: &str = "quarantine";

/// Objects that are asked for in one statement.
const PATHS: usize = 500;

/// Why something could not be done with an entry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such entry, it cannot be retried, or the database did not do its part.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The object store did not do its part.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Store(rejection.into())
    }
}

/// What of an entry lies in the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// All of it, as far as its size says.
    Whole,
    /// The object ends before the entry's frames do.
    Short {
        /// Its size in bytes.
        bytes: u64,
    },
    /// Nothing.
    Absent,
}

/// The frames of an entry in their order, each as it was accepted or with what is wrong with it; `None` where the
/// object is not there.
///
/// # Errors
/// What the object store says.
pub async fn frames(objects: &Objects, entry: &Entry) -> Result<Option<Vec<Result<Frame, Damage>>>, ObjectsError> {
    let (start, end) = (entry.byte_offset.unsigned_abs(), end(entry));
    let bytes = match objects.get_range(&path(entry), start..end).await {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    // An object of an earlier build may hold what other workspaces sent at the same time.
    let is_own = |frame: &Result<Frame, Damage>| match frame {
        Ok(frame) => frame.head.tenant == entry.tenant_id,
        Err(_) => true,
    };
    let frames = unit::read_unit(bytes, start, end - start);
    Ok(Some(frames.filter(is_own).collect()))
}

/// Looks whether the object of an entry is there, without reading it.
///
/// # Errors
/// What the object store says.
pub async fn presence(objects: &Objects, entry: &Entry) -> Result<Presence, ObjectsError> {
    match objects.store().head(&path(entry)).await {
        Ok(object) if object.size >= end(entry) => Ok(Presence::Whole),
        Ok(object) => Ok(Presence::Short { bytes: object.size }),
        Err(object_store::Error::NotFound { .. }) => Ok(Presence::Absent),
        Err(error) => Err(error.into()),
    }
}

/// Has an entry folded again, and answers it as it was.
///
/// # Errors
/// There is no such entry; a rejection where its object is not there or not whole. Nothing was changed then.
pub async fn retry(store: &Store, objects: &Objects, id: QuarantineId) -> Result<Entry, Error> {
    let entry = store.read(async |tx| quarantine::get(tx, id).await).await?;
    match presence(objects, &entry).await? {
        Presence::Whole => {}
        Presence::Absent => {
            let text = format!(
                "the object {} is not in the object store: put it back first",
                entry.path
            );
            return Err(Rejection::conflict("", text).into());
        }
        Presence::Short { bytes } => {
            let text = format!(
                "the object {} has {bytes} bytes and the entry's frames end at byte {}: put the whole object back first",
                entry.path,
                end(&entry)
            );
            return Err(Rejection::conflict("", text).into());
        }
    }
    store
        .write(async |tx| requeue(tx, &entry, fold_units::DELAY).await)
        .await?;
    Ok(entry)
}

/// Takes an entry out and registers its range as an open unit, in the caller's transaction.
///
/// # Errors
/// [`store::Error::NotFound`] when the entry is not there any more; those of the database.
pub(crate) async fn requeue(tx: &mut Tx<'_>, entry: &Entry, delay: Duration) -> store::Result<()> {
    fold_units::ensure(tx, &[Shard::of(entry.tenant_id)], delay).await?;
    let entry = quarantine::take(tx, entry.id).await?;
    let unit = NewUnit {
        id: UnitId::new(),
        tenant: entry.tenant_id,
        byte_offset: entry.byte_offset,
        bytes: entry.bytes,
        decoded_bytes: entry.decoded_bytes,
        operations: entry.items,
    };
    let names: BTreeMap<String, ProjectId> =
        serde_json::from_str(&entry.names).map_err(|_| store::Error::corrupt("quarantine", "names", entry.id))?;
    let names: Vec<UnitName> = names
        .into_iter()
        .map(|(name, project_id)| UnitName {
            unit_id: unit.id,
            name,
            project_id,
        })
        .collect();
    units::register(tx, &entry.path, &[unit], &names).await
}

/// Drops an entry for good, with its object where nothing else needs that, and answers the entry.
///
/// # Errors
/// There is no such entry; those of the database. An object that cannot be removed is left to the sweep.
pub async fn discard(store: &Store, objects: &Objects, id: QuarantineId) -> store::Result<Entry> {
    let entry = store.write(async |tx| quarantine::take(tx, id).await).await?;
    if let Err(error) = remove_unneeded(store, objects, vec![entry.path.clone()]).await {
        // The entry is gone, and that is what was asked for.
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            quarantine.path = entry.path,
            "the object of an entry that was dropped is left to the sweep"
        );
    }
    Ok(entry)
}

/// Says of a workspace that its oldest entries were dropped, to keep it within its quota. Call it once that is committed.
pub fn count_dropped(tenant: TenantId, dropped: &[Entry]) {
    if dropped.is_empty() {
        return;
    }
    let operations: i64 = dropped.iter().map(|entry| entry.items).sum();
    metrics::counter!(metric::QUARANTINE_DROPPED).increment(dropped.len() as u64);
    tracing::error!(
        tenant.id = %tenant,
        quarantine.entries = dropped.len(),
        quarantine.operations = operations,
        "dropped the oldest quarantined trace data of a workspace that has more than its quota"
    );
}

/// Removes those of these objects that neither an entry nor a unit names, and says how many that were. What cannot be
/// removed stays, and the others go.
///
/// # Errors
/// Those of the database.
pub(crate) async fn remove_unneeded(store: &Store, objects: &Objects, paths: Vec<String>) -> store::Result<u64> {
    let mut removed = 0;
    for paths in paths.chunks(PATHS) {
        let needed: HashSet<String> = store
            .read(async |tx| quarantine::needed(tx, paths).await)
            .await?
            .into_iter()
            .collect();
        for path in paths.iter().filter(|path| !needed.contains(*path)) {
            match objects.delete(&Path::from(path.as_str())).await {
                Ok(()) => removed += 1,
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    quarantine.path = path,
                    "an object that nothing needs cannot be removed"
                ),
            }
        }
    }
    Ok(removed)
}

fn path(entry: &Entry) -> Path {
    Path::from(entry.path.as_str())
}

/// The first byte behind an entry's frames.
const fn end(entry: &Entry) -> u64 {
    entry.byte_offset.saturating_add(entry.bytes).unsigned_abs()
}
