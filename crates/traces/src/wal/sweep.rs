//! Removes objects of the log that no one needs any more.

use std::collections::BTreeSet;
use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use towpath_domain::{Timestamp, WalSegmentId};
use towpath_store::wal_segments::{FlushedWalSegment, Position};
use towpath_store::{Store, wal_segments};

use crate::objects::{Objects, ObjectsError};

/// Where the objects are.
pub const FOLDER: &str = "wal";
/// Objects removed at the same time.
const AT_ONCE: usize = 32;
/// Objects looked up in one statement.
const TOGETHER: usize = 1000;

/// Why sweeping stopped; it continues next time.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The object store.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// The database.
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
}

/// A scan of flushed WAL segments in order of their flush. Failed removals are retried when it starts again.
#[derive(Debug)]
pub struct FlushedWalk {
    rows: i64,
    from: Position,
}

impl FlushedWalk {
    /// From the beginning, by so many WAL segments at a time.
    #[must_use]
    pub const fn new(rows: i64) -> Self {
        Self {
            rows,
            from: Position::START,
        }
    }

    /// Removes and deletes WAL segments that were flushed before `before`, from the current position until the end or
    /// until `until`.
    pub async fn sweep_next(
        &mut self,
        store: &Store,
        objects: &Objects,
        before: Timestamp,
        until: Instant,
    ) -> Result<(), SweepError> {
        loop {
            let (from, rows) = (self.from, self.rows);
            let old = store
                .read(async |tx| wal_segments::flushed_before(tx, before, from, rows).await)
                .await?;
            let is_last = i64::try_from(old.len()).is_ok_and(|old| old < rows);
            self.from = old.last().filter(|_| !is_last).map_or(Position::START, Position::of);
            let gone = sweep_flushed(objects, &old).await?;
            if !gone.is_empty() {
                store.write(async |tx| wal_segments::forget(tx, &gone).await).await?;
            }
            if is_last || Instant::now() >= until {
                return Ok(());
            }
        }
    }
}

/// Removes the objects of flushed WAL segments (from
/// [`flushed_before`](towpath_store::wal_segments::flushed_before)) that no other WAL segment needs, and
/// returns the rows that may now be deleted: all except those whose object could not be removed. After a crash, rows
/// without objects remain, which the next sweep finds again.
pub async fn sweep_flushed(
    objects: &Objects,
    flushed: &[FlushedWalSegment],
) -> Result<Vec<WalSegmentId>, ObjectsError> {
    let done: BTreeSet<String> = flushed
        .iter()
        .filter(|unit| unit.object_done)
        .map(|unit| unit.path.clone())
        .collect();
    let wanted = done.len();
    let removed: Vec<(String, Result<(), ObjectsError>)> = futures::stream::iter(done)
        .map(|path| async move {
            let removed = objects.delete(&Path::from(path.as_str())).await;
            (path, removed)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut stay = BTreeSet::new();
    let mut why = None;
    for (path, removed) in removed {
        if let Err(error) = removed {
            stay.insert(path);
            why = Some(error);
        }
    }
    if let Some(error) = why {
        if stay.len() == wanted {
            return Err(error);
        }
        // One that cannot be removed holds up none of the others.
        tracing::warn!(objects = stay.len(), %error, "objects of the log cannot be removed; retrying");
    }
    Ok(flushed
        .iter()
        .filter(|unit| !stay.contains(&unit.path))
        .map(|unit| unit.id)
        .collect())
}

/// Removes objects older than `before` that no row names: their transaction never committed. `before` must be longer
/// ago than a transaction can take. Returns how many.
///
/// All objects are listed: neither a folder nor every kind of bucket lists names in order.
pub async fn orphans(store: &Store, objects: &Objects, before: Timestamp) -> Result<usize, SweepError> {
    let folder = Path::from(FOLDER);
    let mut listed = objects.store().list(Some(&folder));
    let (mut old, mut swept) = (Vec::new(), 0);
    while let Some(object) = listed.try_next().await.map_err(ObjectsError::from)? {
        let name = object.location.filename().and_then(|name| name.strip_suffix(".unit"));
        // What does not carry such a name was not put there by us.
        let Some(id) = name.and_then(|name| name.parse::<WalSegmentId>().ok()) else {
            continue;
        };
        // By both clocks, that of its writer and that of the store, since either may be ahead.
        if object.last_modified < before.to_utc() && !is_younger(id, before) {
            old.push(object.location);
        }
        if old.len() == TOGETHER {
            swept += remove_unnamed(store, objects, std::mem::take(&mut old)).await?;
        }
    }
    Ok(swept + remove_unnamed(store, objects, old).await?)
}

/// Whether an id was made at or after `time`.
fn is_younger(id: WalSegmentId, time: Timestamp) -> bool {
    id.0.get_timestamp().is_some_and(|made| {
        let (seconds, nanos) = made.to_unix();
        let micros = seconds
            .saturating_mul(1_000_000)
            .saturating_add(u64::from(nanos) / 1_000);
        i64::try_from(micros).is_ok_and(|micros| micros >= time.micros())
    })
}

/// Removes those of these objects that no row names, and returns how many.
async fn remove_unnamed(store: &Store, objects: &Objects, paths: Vec<Path>) -> Result<usize, SweepError> {
    if paths.is_empty() {
        return Ok(0);
    }
    let texts: Vec<String> = paths.iter().map(Path::to_string).collect();
    let named = store
        .read(async |tx| wal_segments::referenced_objects(tx, &texts).await)
        .await?;
    let named: BTreeSet<String> = named.into_iter().collect();
    let mut swept = 0;
    for (path, text) in paths.iter().zip(&texts) {
        if named.contains(text) {
            continue;
        }
        objects.delete(path).await?;
        tracing::info!(wal.path = %path, "removed an object of the log that was never registered");
        swept += 1;
    }
    Ok(swept)
}
