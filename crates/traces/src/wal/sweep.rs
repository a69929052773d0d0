//! Removes objects of the log that nobody needs any more.

use futures::TryStreamExt as _;
use object_store::path::Path;
use towpath_domain::{Timestamp, UnitId};
use towpath_store::units::Unit;
use towpath_store::{Store, units};

use crate::objects::{Objects, ObjectsError};

/// Where the units lie.
pub const FOLDER: &str = "wal";

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

/// Removes the objects of folded units (from [`units::folded_before`]) and answers whose rows may now be forgotten
/// (with [`units::forget`]). In this order a crash leaves rows without objects, which the next sweep meets again.
///
/// # Errors
/// What the object store says.
pub async fn folded(objects: &Objects, folded: &[Unit]) -> Result<Vec<UnitId>, ObjectsError> {
    let mut gone = Vec::with_capacity(folded.len());
    for unit in folded {
        objects.delete(&Path::from(unit.path.as_str())).await?;
        gone.push(unit.id);
    }
    Ok(gone)
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
        // What does not carry a unit's name was not put there by us.
        let Some(id) = name.and_then(|name| name.parse::<UnitId>().ok()) else {
            continue;
        };
        if !store.read(async |tx| units::exists(tx, id).await).await? {
            objects.delete(&object.location).await?;
            tracing::info!(wal.unit = %id, "removed a unit that was never registered");
            swept += 1;
        }
    }
    Ok(swept)
}
