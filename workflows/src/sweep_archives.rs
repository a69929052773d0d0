//! Removes unneeded source archives.
//!
//! Archives of open revisions are needed, and so are those of revisions whose artifact is kept, because it can be built
//! again as long as it can be deployed. The others are removed a day after their upload. An archive is first released,
//! so that no revision can use it, and checked again before its removal, because a revision may have been created at
//! the same time.

use std::collections::HashSet;
use std::time::Duration;

use object_store::path::Path;
use towpath_domain::UploadId;
use towpath_durable::{Failure, IntoFailure as _};
use towpath_store::source_uploads::{self, UploadedArchive};
use towpath_store::{Store, artifacts};

use crate::Services;

/// Time between the upload of an archive and the creation of its revision.
const UNUSED_RETENTION: Duration = Duration::from_secs(86_400);
/// Longer than any transaction that began before an archive was released.
const RELEASE_DELAY: Duration = Duration::from_secs(60);
/// Archives per statement.
const PAGE: i64 = 500;

/// Releases unneeded archives, and removes those that were released before. `each` is the number of artifacts kept per
/// deployment. Returns the number of removed archives.
pub async fn run(world: &Services, each: i64) -> Result<usize, Failure> {
    release(&world.store, each).await?;
    let before = world.store.clock().now().minus(RELEASE_DELAY);
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
                    return source_uploads::reclaim(tx, &archive).await;
                }
                source_uploads::delete_released(tx, &archive).await
            });
            written.await.retry()?;
        }
        if is_last {
            return Ok(removed);
        }
    }
}

async fn release(store: &Store, each: i64) -> Result<(), Failure> {
    let before = store.clock().now().minus(UNUSED_RETENTION);
    let mut after = UploadId::nil();
    // Read once for all pages. Archives that become needed later are checked before their removal.
    let mut needed_now = None;
    loop {
        let read = store.read(async |tx| source_uploads::uploaded_before(tx, before, after, PAGE).await);
        let found = read.await.retry()?;
        let needed = match &mut needed_now {
            Some(needed) => needed,
            None => {
                let read = store.read(async |tx| needed(tx, each, &found).await);
                needed_now.insert(read.await.retry()?)
            }
        };
        let unneeded: Vec<&UploadedArchive> = found.iter().filter(|one| !needed.contains(&one.path)).collect();
        if !unneeded.is_empty() {
            let written = store.write(async |tx| {
                for archive in &unneeded {
                    source_uploads::release(tx, archive).await?;
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

/// Skips the query if there are no archives.
async fn needed(
    tx: &mut towpath_store::Tx<'_>,
    each: i64,
    archives: &[UploadedArchive],
) -> towpath_store::Result<HashSet<String>> {
    if archives.is_empty() {
        return Ok(HashSet::new());
    }
    artifacts::archives(tx, each).await
}
