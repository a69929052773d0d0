//! Removes source archives that no revision needs.
//!
//! Needed are those of revisions that are not over, and of those whose artifact is kept: what was built from an archive can
//! be built from it again as long as it can be deployed. The others go a day after they came. One is released first, so
//! that nobody asks for it any more, and looked at again before it goes: a revision may have been made with it in that
//! moment.

use std::collections::HashSet;
use std::time::Duration;

use object_store::path::Path;
use towpath_domain::UploadId;
use towpath_durable::{Failure, Verdict as _};
use towpath_store::source_uploads::{self, Archive};
use towpath_store::{Store, artifacts};

use crate::World;

/// Between sending an archive and making a revision of it.
const STAYS: Duration = Duration::from_secs(86_400);
/// Longer than any transaction that began before an archive was released.
const SETTLES: Duration = Duration::from_secs(60);
/// Archives of one statement.
const PAGE: i64 = 500;

/// Releases archives that are not needed, and removes those that were released before. `each`: artifacts that are kept of
/// a deployment. Answers how many are gone.
///
/// # Errors
/// Those of the database and of the object store.
pub async fn run(world: &World, each: i64) -> Result<usize, Failure> {
    release(&world.store, each).await?;
    let before = world.store.clock().now().minus(SETTLES);
    let mut removed = 0;
    loop {
        let read = world.store.read(async |tx| {
            let found = source_uploads::released_before(tx, before, PAGE).await?;
            let needed = needed(tx, each, &found).await?;
            Ok((found, needed))
        });
        let (found, needed) = read.await.retry()?;
        let is_last = (found.len() as i64) < PAGE;
        for archive in found {
            let is_needed = needed.contains(&archive.path);
            if !is_needed {
                let path = Path::parse(&archive.path).fatal()?;
                world.objects.delete(&path).await.retry()?;
                removed += 1;
            }
            let written = world.store.write(async |tx| {
                if is_needed {
                    return source_uploads::release(tx, &archive, false).await;
                }
                source_uploads::forget_released(tx, &archive).await
            });
            written.await.retry()?;
        }
        if is_last {
            return Ok(removed);
        }
    }
}

async fn release(store: &Store, each: i64) -> Result<(), Failure> {
    let before = store.clock().now().minus(STAYS);
    let mut after = UploadId::nil();
    // Asked once for all pages. Those that are needed since are looked at again before they are removed.
    let mut needed_now = None;
    loop {
        let read = store.read(async |tx| source_uploads::arrived_before(tx, before, after, PAGE).await);
        let found = read.await.retry()?;
        let needed = match &mut needed_now {
            Some(needed) => needed,
            None => {
                let read = store.read(async |tx| needed(tx, each, &found).await);
                needed_now.insert(read.await.retry()?)
            }
        };
        let unneeded: Vec<&Archive> = found.iter().filter(|one| !needed.contains(&one.path)).collect();
        if !unneeded.is_empty() {
            let written = store.write(async |tx| {
                for archive in &unneeded {
                    source_uploads::release(tx, archive, true).await?;
                }
                Ok(())
            });
            written.await.retry()?;
        }
        match found.last() {
            Some(last) if found.len() as i64 == PAGE => after = last.id,
            _ => return Ok(()),
        }
    }
}

/// Without archives nothing is asked.
async fn needed(
    tx: &mut towpath_store::Tx<'_>,
    each: i64,
    archives: &[Archive],
) -> towpath_store::Result<HashSet<String>> {
    if archives.is_empty() {
        return Ok(HashSet::new());
    }
    artifacts::archives(tx, each).await
}
