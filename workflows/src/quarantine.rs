//! Quarantine: accepted trace data that could not be flushed. Entries can be read, retried and dropped.
//!
//! An entry names a range of an object. A retry registers the range as a new WAL segment. An object is removed when
//! neither an entry nor a WAL segment names it.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use towpath_domain::{ProjectId, QuarantineId, Rejection, Shard, TenantId, WalSegmentId};
use towpath_store::quarantine::{self, Entry};
use towpath_store::wal_segments::{NewWalSegment, WalSegmentName};
use towpath_store::{self as store, Store, Tx, wal_segments};
use towpath_traces::objects::{Objects, ObjectsError};
use towpath_traces::wal::{DamagedFrame, Frame, frame};

use crate::{flush_wal, metric};

/// Contains the objects of entries, in a folder for each workspace.
pub const FOLDER: &str = "quarantine";

/// Objects per statement.
const PATHS: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The entry does not exist, it cannot be retried, or an error of the database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// An error of the object store.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Store(rejection.into())
    }
}

/// Presence of the object of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Complete, by its size.
    Whole,
    /// The object ends before the entry's frames do.
    Short { bytes: u64 },
    /// The object does not exist.
    Absent,
}

/// The frames of an entry in order, each as accepted or with its error; `None` if the object does not exist.
pub async fn frames(
    objects: &Objects,
    entry: &Entry,
) -> Result<Option<Vec<Result<Frame, DamagedFrame>>>, ObjectsError> {
    let (start, end) = (entry.byte_offset.unsigned_abs(), end(entry));
    let bytes = match objects.get_range(&path(entry), start..end).await {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    // An object of an earlier build may contain data of other workspaces.
    let is_own = |frame: &Result<Frame, DamagedFrame>| match frame {
        Ok(frame) => frame.head.tenant == entry.tenant_id,
        Err(_) => true,
    };
    let frames = frame::read_range(bytes, start, end - start);
    Ok(Some(frames.filter(is_own).collect()))
}

/// Checks whether the object of an entry exists, without reading it.
pub async fn presence(objects: &Objects, entry: &Entry) -> Result<Presence, ObjectsError> {
    match objects.store().head(&path(entry)).await {
        Ok(object) if object.size >= end(entry) => Ok(Presence::Whole),
        Ok(object) => Ok(Presence::Short { bytes: object.size }),
        Err(object_store::Error::NotFound { .. }) => Ok(Presence::Absent),
        Err(error) => Err(error.into()),
    }
}

/// Flushes an entry again, and returns its former state.
///
/// A rejection if its object is missing or incomplete. Nothing is changed then.
pub async fn retry(store: &Store, objects: &Objects, id: QuarantineId) -> Result<Entry, Error> {
    let entry = store.read(async |tx| quarantine::get(tx, id).await).await?;
    match presence(objects, &entry).await? {
        Presence::Whole => {}
        Presence::Absent => {
            let text = format!(
                "the object {} is missing in the object store: restore it first",
                entry.path
            );
            return Err(Rejection::conflict("", text).into());
        }
        Presence::Short { bytes } => {
            let text = format!(
                "the object {} has {bytes} bytes and the entry's frames end at byte {}: restore the complete object \
                 first",
                entry.path,
                end(&entry)
            );
            return Err(Rejection::conflict("", text).into());
        }
    }
    store
        .write(async |tx| requeue(tx, &entry, flush_wal::DEFAULT_DELAY).await)
        .await?;
    Ok(entry)
}

/// Removes an entry and registers its range as an open WAL segment, in the caller's transaction.
///
/// [`store::Error::NotFound`] if the entry no longer exists.
pub(crate) async fn requeue(tx: &mut Tx<'_>, entry: &Entry, delay: Duration) -> store::Result<()> {
    flush_wal::ensure(tx, &[Shard::of(entry.tenant_id)], delay).await?;
    let entry = quarantine::take(tx, entry.id).await?;
    let unit = NewWalSegment {
        id: WalSegmentId::new(),
        tenant: entry.tenant_id,
        byte_offset: entry.byte_offset,
        bytes: entry.bytes,
        decoded_bytes: entry.decoded_bytes,
        operations: entry.items,
    };
    let names: BTreeMap<String, ProjectId> =
        serde_json::from_str(&entry.names).map_err(|_| store::Error::corrupt("quarantine", "names", entry.id))?;
    let names: Vec<WalSegmentName> = names
        .into_iter()
        .map(|(name, project_id)| WalSegmentName {
            unit_id: unit.id,
            name,
            project_id,
        })
        .collect();
    wal_segments::register(tx, &entry.path, &[unit], &names).await
}

/// Drops an entry permanently, with its object unless something else needs it, and returns the entry. An object that
/// cannot be removed is left to the sweep.
pub async fn discard(store: &Store, objects: &Objects, id: QuarantineId) -> store::Result<Entry> {
    let entry = store.write(async |tx| quarantine::take(tx, id).await).await?;
    if let Err(error) = remove_unneeded(store, objects, vec![entry.path.clone()]).await {
        // The entry is deleted, which is what the caller asked for.
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            quarantine.path = entry.path,
            "the object of a dropped entry could not be removed; the sweep removes it"
        );
    }
    Ok(entry)
}

/// Reports that the oldest entries of a workspace were dropped for its quota. Call it after the commit.
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
        "dropped the oldest quarantined trace data of a workspace that exceeds its quota"
    );
}

/// Removes those of these objects that neither an entry nor a WAL segment names, and returns their number. Errors do
/// not stop the others.
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
                    "an unneeded object cannot be removed"
                ),
            }
        }
    }
    Ok(removed)
}

fn path(entry: &Entry) -> Path {
    Path::from(entry.path.as_str())
}

/// The end of an entry's frames.
const fn end(entry: &Entry) -> u64 {
    entry.byte_offset.saturating_add(entry.bytes).unsigned_abs()
}
