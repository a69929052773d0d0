//! Finding trace runs by id.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use parquet::bloom_filter::Sbbf;
use towpath_domain::{ProjectId, TenantId, TraceRunId};
use towpath_store::run_index::{self, IndexSource};
use towpath_store::{Store, projects};

use super::Entry;
use super::cache::{CachePart, CacheValue};
use super::file::IndexFile;
use super::unindexed::OpenSegment;
use crate::columnar::{self, Error};
use crate::flush::{FlushError, RunLocation};
use crate::objects::Objects;

/// How often the list of objects is read before a missing one is an error.
const TRIES: usize = 4;
/// Objects that are open together.
const OPEN_AT_ONCE: usize = 64;
/// Concurrent requests. Each may read a filter of some MiB.
const REQUESTS_AT_ONCE: usize = 16;

/// Why trace runs could not be looked for.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// An index file or a segment.
    #[error(transparent)]
    Columnar(#[from] Error),
    /// The catalog.
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
}

impl<E> From<LocateError> for FlushError<E> {
    fn from(error: LocateError) -> Self {
        match error {
            LocateError::Columnar(error) => Self::Columnar(error),
            LocateError::Store(error) => Self::Store(error),
        }
    }
}

/// The locations of trace runs, ordered by id, without unknown ones and those in deleted projects. Data of earlier
/// builds may yield several per id.
pub async fn locate(
    store: &Store,
    objects: &Objects,
    tenant: TenantId,
    runs: &[TraceRunId],
) -> Result<Vec<(TraceRunId, RunLocation)>, LocateError> {
    let mut ids = runs.to_vec();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut tries = 1;
    let found = loop {
        let sources = store.read(async |tx| run_index::sources(tx, tenant).await).await?;
        match search(objects, &sources, &ids).await {
            // It was replaced and removed since the list was read; another object has its content.
            Err(error) if error.is_not_found() && tries < TRIES => tries += 1,
            found => break found?,
        }
    };
    let found = without_deleted(store, tenant, found).await?;
    Ok(found.into_iter().map(|entry| (entry.id, entry.location)).collect())
}

/// Looks for sorted ids in every source.
async fn search(objects: &Objects, sources: &[IndexSource], ids: &[TraceRunId]) -> columnar::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for sources in sources.chunks(OPEN_AT_ONCE) {
        let needed = sources
            .iter()
            .filter(|source| !within(ids, source.first_run.zip(source.last_run)).is_empty());
        let opened = together(needed.map(|source| open(objects, source).boxed()).collect()).await?;
        let mut searches: Vec<BoxFuture<'_, columnar::Result<Vec<Entry>>>> = Vec::new();
        for opened in &opened {
            match opened {
                OpenSource::File(file) => {
                    for (group, range) in file.groups().iter().enumerate() {
                        let ids = within(ids, Some(*range));
                        if !ids.is_empty() {
                            searches.push(in_group(objects, file, group, ids).boxed());
                        }
                    }
                }
                OpenSource::Segment(segment) => {
                    for chunk in segment.chunks() {
                        let ids = within(ids, chunk.ids());
                        if !ids.is_empty() {
                            searches.push(segment.find(objects, chunk, ids).boxed());
                        }
                    }
                }
            }
        }
        found.extend(together(searches).await?.into_iter().flatten());
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

enum OpenSource {
    File(Arc<IndexFile>),
    Segment(Arc<OpenSegment>),
}

async fn open(objects: &Objects, source: &IndexSource) -> columnar::Result<OpenSource> {
    let path = Path::from(source.path.as_str());
    if source.first_run.is_none() {
        return OpenSegment::of(objects, &path).await.map(OpenSource::Segment);
    }
    if let Some(CacheValue::File(file)) = objects.cache().get(&path, CachePart::Footer) {
        return Ok(OpenSource::File(file));
    }
    let file = Arc::new(IndexFile::open(objects.store().clone(), path.clone()).await?);
    objects
        .cache()
        .put(&path, CachePart::Footer, CacheValue::File(Arc::clone(&file)));
    Ok(OpenSource::File(file))
}

/// Looks for ids in a row group of an index file.
async fn in_group(
    objects: &Objects,
    file: &IndexFile,
    group: usize,
    ids: &[TraceRunId],
) -> columnar::Result<Vec<Entry>> {
    let filter = filter(objects, file, group).await?;
    let perhaps = ids.iter().filter(|id| filter.check(id.0.as_bytes().as_slice()));
    let perhaps: Vec<TraceRunId> = perhaps.copied().collect();
    if perhaps.is_empty() {
        return Ok(Vec::new());
    }
    file.find(group, perhaps).await
}

async fn filter(objects: &Objects, file: &IndexFile, group: usize) -> columnar::Result<Arc<Sbbf>> {
    let part = CachePart::Filter(group);
    if let Some(CacheValue::Filter(Some(filter))) = objects.cache().get(file.path(), part) {
        return Ok(filter);
    }
    let filter = Arc::new(file.filter(group).await?);
    let cached = CacheValue::Filter(Some(Arc::clone(&filter)));
    objects.cache().put(file.path(), part, cached);
    Ok(filter)
}

/// The part of sorted ids within an inclusive range.
fn within(ids: &[TraceRunId], range: Option<(TraceRunId, TraceRunId)>) -> &[TraceRunId] {
    let Some((first, last)) = range else { return ids };
    let from = ids.partition_point(|id| *id < first);
    let to = ids.partition_point(|id| *id <= last);
    ids.get(from..to).unwrap_or_default()
}

/// The results in any order. Boxed, since a stream of borrowing closures is not known to be `Send`.
async fn together<T>(futures: Vec<BoxFuture<'_, columnar::Result<T>>>) -> columnar::Result<Vec<T>> {
    stream::iter(futures)
        .buffer_unordered(REQUESTS_AT_ONCE)
        .try_collect()
        .await
}

async fn without_deleted(
    store: &Store,
    tenant: TenantId,
    mut found: Vec<Entry>,
) -> Result<Vec<Entry>, towpath_store::Error> {
    let mut named: Vec<ProjectId> = found.iter().map(|entry| entry.location.project).collect();
    named.sort_unstable();
    named.dedup();
    if named.is_empty() {
        return Ok(found);
    }
    let deleted = store
        .read(async |tx| projects::deleted(tx, tenant, &named).await)
        .await?;
    found.retain(|entry| !deleted.contains(&entry.location.project));
    Ok(found)
}
