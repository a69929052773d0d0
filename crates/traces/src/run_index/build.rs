//! From segments to index files.

use object_store::path::Path;
use towpath_domain::{ProjectId, RunIndexId, TenantId};

use super::{Entry, NewIndexFile, Writer, path};
use crate::fold::{FoldError, Place};
use crate::objects::Objects;
use crate::segment::Segment;

/// Entries of one file, all of which lie in memory until they are sorted.
const FILE_ENTRIES: usize = super::GROUP_ENTRIES;

/// A segment that is to be indexed.
#[derive(Clone, Debug)]
pub struct Indexed {
    /// Its object.
    pub path: Path,
    /// Its row groups that readers see, each with its project.
    pub row_groups: Vec<(usize, ProjectId)>,
}

/// Writes index files that together name every row of these segments. `intend` is called before each file is written
/// and must have committed [`run_index::intend`](towpath_store::run_index::intend) when it returns.
///
/// Decoding and encoding is hard work: call it where that disturbs nobody.
///
/// # Errors
/// A segment can't be read, a file can't be written, or an intent could not be recorded; nothing has happened then.
pub async fn build<E>(
    objects: &Objects,
    tenant: TenantId,
    segments: &[Indexed],
    mut intend: impl AsyncFnMut(TenantId, RunIndexId, &Path) -> Result<(), E>,
) -> Result<Vec<NewIndexFile>, FoldError<E>> {
    let mut files = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    for indexed in segments {
        let segment = Segment::open(objects.near_store(), indexed.path.clone()).await?;
        for &(row_group, project) in &indexed.row_groups {
            segment.check_owner(row_group, tenant, project)?;
            let keys = segment.keys(row_group).await?;
            if !entries.is_empty() && entries.len() + keys.len() > FILE_ENTRIES {
                files.push(write(objects, tenant, &mut entries, &mut intend).await?);
            }
            entries.extend(keys.into_iter().map(|key| Entry {
                id: key.id,
                place: Place {
                    sort_time: key.sort_time,
                    project,
                },
            }));
        }
    }
    if !entries.is_empty() {
        files.push(write(objects, tenant, &mut entries, &mut intend).await?);
    }
    Ok(files)
}

/// Writes what was gathered, which is at least one entry, and starts anew.
async fn write<E>(
    objects: &Objects,
    tenant: TenantId,
    entries: &mut Vec<Entry>,
    intend: &mut impl AsyncFnMut(TenantId, RunIndexId, &Path) -> Result<(), E>,
) -> Result<NewIndexFile, FoldError<E>> {
    entries.sort_unstable();
    // An id with several places, which only earlier builds wrote, keeps the first in their order.
    entries.dedup_by_key(|entry| entry.id);
    let id = RunIndexId::new();
    intend(tenant, id, &path(tenant, id)).await.map_err(FoldError::Intend)?;
    let mut writer = Writer::new(objects, tenant, id, entries.len() as u64)?;
    writer.write(entries).await?;
    entries.clear();
    writer.finish(objects).await
}
