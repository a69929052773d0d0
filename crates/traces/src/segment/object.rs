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

/// Fetched from the end of the object at first: the footer of all but segments of very many projects lies in it, so
/// that opening one is one request.
const FOOTER_GUESS: u64 = 64 << 10;

/// What of an object stays in memory once its footer was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Nothing,
    /// All of one that is so small that it comes whole along with its footer.
    Whole,
    /// What comes along with the footer.
    End,
}

/// One object, read by ranges.
#[derive(Clone, Debug)]
pub struct Object {
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    keeps: Keeps,
    /// Bytes in memory, each piece with where it begins.
    kept: Vec<(u64, Bytes)>,
}

impl Object {
    pub const fn new(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self {
            store,
            path,
            keeps: Keeps::Nothing,
            kept: Vec::new(),
        }
    }

    /// An object so small that it comes whole along with its footer stays in memory, so that reading it asks for
    /// nothing more.
    pub const fn keeping_whole(mut self) -> Self {
        self.keeps = Keeps::Whole;
        self
    }

    /// What comes along with its footer stays in memory: in a small segment the bloom filters lie in it.
    pub const fn keeping_end(mut self) -> Self {
        self.keeps = Keeps::End;
        self
    }

    /// Lets go of what is in memory.
    pub fn forget(&mut self) {
        self.keeps = Keeps::Nothing;
        self.kept = Vec::new();
    }

    /// Fetches ranges into memory, those that lie close together by one request.
    pub async fn fetch(&mut self, ranges: &[Range<u64>]) -> Result<()> {
        if ranges.iter().all(|range| self.kept(range).is_some()) {
            return Ok(());
        }
        let pieces = self.store.get_ranges(&self.path, ranges).await.map_err(external)?;
        self.kept.extend(ranges.iter().map(|range| range.start).zip(pieces));
        Ok(())
    }

    /// How many bytes of it are in memory.
    pub fn kept_bytes(&self) -> usize {
        self.kept.iter().map(|(_, piece)| piece.len()).sum()
    }

    fn kept(&self, range: &Range<u64>) -> Option<Bytes> {
        self.kept.iter().find_map(|(start, piece)| {
            let from = usize::try_from(range.start.checked_sub(*start)?).ok()?;
            let to = usize::try_from(range.end - start).ok()?;
            (from <= to && to <= piece.len()).then(|| piece.slice(from..to))
        })
    }
}

/// The object store's error travels inside the reader's and is taken out again by `columnar::Error::reading`.
fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for Object {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        if let Some(kept) = self.kept(&range) {
            return std::future::ready(Ok(kept)).boxed();
        }
        self.store.get_range(&self.path, range).map_err(external).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        if let Some(kept) = ranges.iter().map(|range| self.kept(range)).collect::<Option<_>>() {
            return std::future::ready(Ok(kept)).boxed();
        }
        // Neighbouring columns come in one request: the store joins ranges that lie close together.
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
        async move {
            let tail = Tail::fetch(self).await?;
            if self.keeps == Keeps::End || (self.keeps == Keeps::Whole && tail.start == 0) {
                self.kept = vec![(tail.start, tail.bytes.clone())];
            }
            let size = tail.start + tail.bytes.len() as u64;
            reader.load_and_finish(tail, size).await.map(Arc::new)
        }
        .boxed()
    }
}

/// The end of an object.
///
/// The reader of parquet 59.3 can look for footer and page index by a suffix itself, but takes such a suffix for the
/// beginning of the file when it then looks for the page index in it. Given the size, it looks in the right place.
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
