//! Reading Parquet out of an object store.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, MetadataFetch};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

/// Size of the first request, from the end of the object. It contains the footer unless the segment has very many
/// projects, so that opening takes one request.
const FOOTER_GUESS: u64 = 64 << 10;

/// What stays in memory of an object once its footer was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CachePolicy {
    Nothing,
    /// All of an object that is so small that it was fetched along with its footer.
    WholeObject,
    /// What comes along with the footer.
    Tail,
}

/// One object, read by ranges.
#[derive(Clone, Debug)]
pub struct Object {
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    cache_policy: CachePolicy,
    /// Bytes in memory, each piece with where it begins.
    cached: Vec<(u64, Bytes)>,
}

impl Object {
    pub const fn new(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self {
            store,
            path,
            cache_policy: CachePolicy::Nothing,
            cached: Vec::new(),
        }
    }

    /// Keeps an object in memory that is so small that it was fetched along with its footer.
    pub const fn caching_whole(mut self) -> Self {
        self.cache_policy = CachePolicy::WholeObject;
        self
    }

    /// Keeps what was fetched along with the footer: in a small segment, the bloom filters.
    pub const fn caching_tail(mut self) -> Self {
        self.cache_policy = CachePolicy::Tail;
        self
    }

    /// Lets go of what is in memory.
    pub fn drop_cache(&mut self) {
        self.cache_policy = CachePolicy::Nothing;
        self.cached = Vec::new();
    }

    /// Fetches ranges into memory, nearby ones with one request.
    pub async fn fetch(&mut self, ranges: &[Range<u64>]) -> Result<()> {
        if ranges.iter().all(|range| self.cached(range).is_some()) {
            return Ok(());
        }
        let pieces = self.store.get_ranges(&self.path, ranges).await.map_err(external)?;
        self.cached.extend(ranges.iter().map(|range| range.start).zip(pieces));
        Ok(())
    }

    /// How many bytes of it are in memory.
    pub fn kept_bytes(&self) -> usize {
        self.cached.iter().map(|(_, piece)| piece.len()).sum()
    }

    fn cached(&self, range: &Range<u64>) -> Option<Bytes> {
        self.cached.iter().find_map(|(start, piece)| {
            let from = usize::try_from(range.start.checked_sub(*start)?).ok()?;
            let to = usize::try_from(range.end - start).ok()?;
            (from <= to && to <= piece.len()).then(|| piece.slice(from..to))
        })
    }
}

/// Wraps the object store's error in a reader's error; `columnar::Error::reading` unwraps it.
fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for Object {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        if let Some(kept) = self.cached(&range) {
            return std::future::ready(Ok(kept)).boxed();
        }
        self.store.get_range(&self.path, range).map_err(external).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        if let Some(kept) = ranges.iter().map(|range| self.cached(range)).collect::<Option<_>>() {
            return std::future::ready(Ok(kept)).boxed();
        }
        // Adjacent columns come with one request: the store joins nearby ranges.
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
        async move {
            let tail = Tail::fetch(self).await?;
            if self.cache_policy == CachePolicy::Tail
                || (self.cache_policy == CachePolicy::WholeObject && tail.start == 0)
            {
                self.cached = vec![(tail.start, tail.bytes.clone())];
            }
            let size = tail.start + tail.bytes.len() as u64;
            reader.load_and_finish(tail, size).await.map(Arc::new)
        }
        .boxed()
    }
}

/// The end of an object.
///
/// The reader of parquet 59.3 can find footer and page index by a suffix itself, but then takes the suffix for the
/// beginning of the file when it looks for the page index. Given the size, it looks in the right place.
struct Tail {
    object: Object,
    start: u64,
    bytes: Bytes,
}

impl Tail {
    async fn fetch(object: &Object) -> Result<Self> {
        let options = GetOptions {
            range: Some(GetRange::Suffix(FOOTER_GUESS)),
            ..Default::default()
        };
        let found = object.store.get_opts(&object.path, options).await.map_err(external)?;
        let start = found.range.start;
        let bytes = found.bytes().await.map_err(external)?;
        Ok(Self {
            object: object.clone(),
            start,
            bytes,
        })
    }
}

impl MetadataFetch for Tail {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        let within = range.start.checked_sub(self.start).and_then(|from| {
            let (from, to) = (
                usize::try_from(from).ok()?,
                usize::try_from(range.end - self.start).ok()?,
            );
            (from <= to && to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
        });
        match within {
            Some(bytes) => std::future::ready(Ok(bytes)).boxed(),
            None => self.object.get_bytes(range),
        }
    }
}
