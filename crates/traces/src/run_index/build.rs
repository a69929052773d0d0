//! From segments to index files.

use object_store::path::Path;
use towpath_domain::{ProjectId, RunIndexId, TenantId};

use super::{Entry, NewIndexFile, Writer, path};
use crate::flush::{FlushError, RunLocation};
use crate::objects::Objects;
use crate::segment::Segment;

/// Entries of one file, which are in memory until they are sorted.
const FILE_ENTRIES: usize = super::GROUP_ENTRIES;

#[derive(Clone, Debug)]
pub struct SegmentToIndex {
    /// Its object.
    pub path: Path,
    /// Its row groups that readers see, each with its project.
    pub row_groups: Vec<(usize, ProjectId)>,
}

/// Writes index files that together name every row of these segments. `intend` is called before each file is written
/// and must have committed [`run_index::intend`](towpath_store::run_index::intend) when it returns.
///
/// Decoding and encoding is CPU-bound: run it on the CPU pool.
pub async fn build<E>(
    objects: &Objects,
    tenant: TenantId,
    segments: &[SegmentToIndex],
    mut intend: impl AsyncFnMut(TenantId, RunIndexId, &Path) -> Result<(), E>,
) -> Result<Vec<NewIndexFile>, FlushError<E>> {
    let mut files = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    for indexed in segments {
        let segment = Segment::open(objects.blocking_store(), indexed.path.clone()).await?;
        for &(row_group, project) in &indexed.row_groups {
            segment.check_owner(row_group, tenant, project)?;
            let keys = segment.keys(row_group).await?;
            if !entries.is_empty() && entries.len() + keys.len() > FILE_ENTRIES {
                files.push(write(objects, tenant, &mut entries, &mut intend).await?);
            }
            entries.extend(keys.into_iter().map(|key| Entry {
                id: key.id,
                location: RunLocation {
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

/// Writes the collected entries (at least one) and starts again.
async fn write<E>(
    objects: &Objects,
    tenant: TenantId,
    entries: &mut Vec<Entry>,
    intend: &mut impl AsyncFnMut(TenantId, RunIndexId, &Path) -> Result<(), E>,
) -> Result<NewIndexFile, FlushError<E>> {
    entries.sort_unstable();
    // An id with several locations, which only earlier builds wrote, keeps the first one.
    entries.dedup_by_key(|entry| entry.id);
    let id = RunIndexId::new();
    intend(tenant, id, &path(tenant, id))
        .await
        .map_err(FlushError::Intend)?;
    let mut writer = Writer::new(objects, tenant, id, entries.len() as u64)?;
    writer.write(entries).await?;
    entries.clear();
    writer.finish(objects).await
}
