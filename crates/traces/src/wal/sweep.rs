//! Removes objects of the log that nobody needs any more.

use std::collections::BTreeSet;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use towpath_domain::{Timestamp, UnitId};
use towpath_store::units::FoldedUnit;
use towpath_store::{Store, units};

use crate::objects::{Objects, ObjectsError};

/// Where the objects lie.
pub const FOLDER: &str = "wal";
/// Objects removed at the same time.
const AT_ONCE: usize = 8;

/// Why sweeping stopped; it goes on next time.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The object store.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// The database.
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
}

/// Removes the objects of folded units (from [`units::folded_before`]) that no other unit needs, and answers whose rows may
/// now be forgotten (with [`units::forget`]): all of them, since the last row of an object takes it along. In this order a
/// crash leaves rows without objects, which the next sweep meets again.
///
/// # Errors
/// What the object store says.
pub async fn folded(objects: &Objects, folded: &[FoldedUnit]) -> Result<Vec<UnitId>, ObjectsError> {
    let done: BTreeSet<&str> = folded
        .iter()
        .filter(|unit| unit.object_done)
        .map(|unit| unit.path.as_str())
        .collect();
    futures::stream::iter(done)
        .map(Ok::<_, ObjectsError>)
        .try_for_each_concurrent(AT_ONCE, |path| async move { objects.delete(&Path::from(path)).await })
        .await?;
    Ok(folded.iter().map(|unit| unit.id).collect())
}

/// Removes objects older than `before` that no row names: their transaction never committed. `before` must be longer
/// ago than a transaction can take. Answers how many.
///
/// # Errors
/// What the object store or the database says.
pub async fn orphans(store: &Store, objects: &Objects, before: Timestamp) -> Result<usize, SweepError> {
    let folder = Path::from(FOLDER);
    let listed: Vec<_> = objects
        .store()
        .list(Some(&folder))
        .try_collect()
        .await
        .map_err(ObjectsError::from)?;
    let mut swept = 0;
    for object in listed
        .into_iter()
        .filter(|object| object.last_modified < before.to_utc())
    {
        let name = object.location.filename().and_then(|name| name.strip_suffix(".unit"));
        // What does not carry such a name was not put there by us.
        if name.and_then(|name| name.parse::<UnitId>().ok()).is_none() {
            continue;
        }
        let path = &object.location;
        if !store.read(async |tx| units::named(tx, path.as_ref()).await).await? {
            objects.delete(path).await?;
            tracing::info!(wal.path = %path, "removed an object of the log that was never registered");
            swept += 1;
        }
    }
    Ok(swept)
}
