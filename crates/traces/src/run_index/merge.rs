//! Index files of one size become one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::{ProjectId, RunIndexId, TenantId, TraceRunId};
use towpath_store::{Store, projects};

use super::file::IndexFile;
use super::{Entry, NewIndexFile, Writer, path};
use crate::columnar;
use crate::flush::FlushError;
use crate::objects::Objects;

/// Entries of one file that are in memory at a time.
const CHUNK_ENTRIES: usize = 128 << 10;
/// Merged entries that wait to be encoded.
const BATCH_ENTRIES: usize = 64 << 10;

/// Merges index files of one workspace with `entries` in total. Entries of deleted projects and of days before
/// `keep_from` are dropped; `None` if none is left. For an id with several locations the first one is kept. `intend` is
/// called before the file is written and must have committed [`run_index::intend`](towpath_store::run_index::intend)
/// when it returns.
///
/// Read the list of files before calling this: then a project that was deleted before one of its trace runs was sent
/// again to another project is known to be deleted.
///
/// Decoding and encoding is CPU-bound: run it on the CPU pool. A part of each file and one unfinished row group are in
/// memory.
pub async fn merge<E>(
    store: &Store,
    objects: &Objects,
    tenant: TenantId,
    files: &[Path],
    entries: u64,
    keep_from: Option<NaiveDate>,
    mut intend: impl AsyncFnMut(TenantId, RunIndexId, &Path) -> Result<(), E>,
) -> Result<Option<NewIndexFile>, FlushError<E>> {
    let mut filter = Filter {
        store,
        tenant,
        keep_from,
        deleted: HashMap::new(),
    };
    let mut cursors = Vec::with_capacity(files.len());
    for path in files {
        let file = IndexFile::open(objects.blocking_store(), path.clone()).await?;
        cursors.push(Cursor::new(file));
    }
    let mut heads: BinaryHeap<Reverse<(Entry, usize)>> = BinaryHeap::new();
    for (number, cursor) in cursors.iter_mut().enumerate() {
        advance(cursor, number, &mut heads, &mut filter).await?;
    }
    let mut writer = None;
    let mut merged: Vec<Entry> = Vec::with_capacity(BATCH_ENTRIES);
    let mut last: Option<TraceRunId> = None;
    while let Some(Reverse((entry, number))) = heads.pop() {
        advance(&mut cursors[number], number, &mut heads, &mut filter).await?;
        // Entries of deleted projects are dropped first, so that they never hide another.
        if last == Some(entry.id) || filter.drops(&entry) {
            continue;
        }
        last = Some(entry.id);
        merged.push(entry);
        if merged.len() == BATCH_ENTRIES {
            let open = begun(&mut writer, objects, tenant, entries, &mut intend).await?;
            open.write(&merged).await?;
            merged.clear();
        }
    }
    if !merged.is_empty() {
        let open = begun(&mut writer, objects, tenant, entries, &mut intend).await?;
        open.write(&merged).await?;
    }
    match writer {
        Some(writer) => writer.finish(objects).await.map(Some),
        None => Ok(None),
    }
}

/// The writer, begun when there is something to write.
async fn begun<'w, E>(
    writer: &'w mut Option<Writer>,
    objects: &Objects,
    tenant: TenantId,
    entries: u64,
    intend: &mut impl AsyncFnMut(TenantId, RunIndexId, &Path) -> Result<(), E>,
) -> Result<&'w mut Writer, FlushError<E>> {
    let open = match writer.take() {
        Some(open) => open,
        None => {
            let id = RunIndexId::new();
            intend(tenant, id, &path(tenant, id))
                .await
                .map_err(FlushError::Intend)?;
            Writer::new(objects, tenant, id, entries)?
        }
    };
    Ok(writer.insert(open))
}

/// Adds the next entry of a file to the heads, if there is one.
async fn advance<E>(
    cursor: &mut Cursor,
    number: usize,
    heads: &mut BinaryHeap<Reverse<(Entry, usize)>>,
    filter: &mut Filter<'_>,
) -> Result<(), FlushError<E>> {
    if cursor.chunk.as_slice().is_empty() {
        cursor.read().await?;
        filter.learn(cursor.chunk.as_slice()).await?;
    }
    heads.extend(cursor.chunk.next().map(|entry| Reverse((entry, number))));
    Ok(())
}

/// A place in a file.
struct Cursor {
    file: IndexFile,
    group: usize,
    row: usize,
    chunk: std::vec::IntoIter<Entry>,
}

impl Cursor {
    fn new(file: IndexFile) -> Self {
        Self {
            file,
            group: 0,
            row: 0,
            chunk: Vec::new().into_iter(),
        }
    }

    /// Reads the next chunk; an empty one at the end of the file.
    async fn read(&mut self) -> columnar::Result<()> {
        while self.group < self.file.groups().len() {
            let rows = self.file.group_entries(self.group);
            if self.row < rows {
                let range = self.row..rows.min(self.row + CHUNK_ENTRIES);
                self.row = range.end;
                self.chunk = self.file.entries(self.group, range).await?.into_iter();
                return Ok(());
            }
            self.group += 1;
            self.row = 0;
        }
        Ok(())
    }
}

/// Which entries are dropped.
struct Filter<'a> {
    store: &'a Store,
    tenant: TenantId,
    keep_from: Option<NaiveDate>,
    deleted: HashMap<ProjectId, bool>,
}

impl Filter<'_> {
    /// Asks which projects of these entries were deleted.
    async fn learn(&mut self, entries: &[Entry]) -> Result<(), towpath_store::Error> {
        let projects = entries.iter().map(|entry| entry.location.project);
        let mut unknown: Vec<ProjectId> = projects.filter(|project| !self.deleted.contains_key(project)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        let tenant = self.tenant;
        let deleted = self
            .store
            .read(async |tx| projects::deleted(tx, tenant, &unknown).await)
            .await?;
        self.deleted.extend(unknown.into_iter().map(|project| (project, false)));
        self.deleted.extend(deleted.into_iter().map(|project| (project, true)));
        Ok(())
    }

    fn drops(&self, entry: &Entry) -> bool {
        self.keep_from
            .is_some_and(|keep_from| entry.location.sort_time.day() < keep_from)
            || self.deleted.get(&entry.location.project).copied().unwrap_or_default()
    }
}
