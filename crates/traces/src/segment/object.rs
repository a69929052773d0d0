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

/// One object, read by ranges.
#[derive(Clone, Debug)]
pub struct Object {
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    /// What was fetched of its end, if it is kept.
    pub end: Option<End>,
}

/// The end of an object.
#[derive(Clone, Debug)]
pub struct End {
    start: u64,
    bytes: Bytes,
}

impl End {
    /// The bytes of a range that lies in it.
    fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        let from = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        (from <= to && to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }
}

/// The object store's error travels inside the reader's and is taken out again by `columnar::Error::reading`.
fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for Object {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        match self.end.as_ref().and_then(|end| end.get(&range)) {
            Some(bytes) => std::future::ready(Ok(bytes)).boxed(),
            None => self.store.get_range(&self.path, range).map_err(external).boxed(),
        }
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        let known = |end: &End| {
            ranges
                .iter()
                .map(|range| end.get(range))
                .collect::<Option<Vec<Bytes>>>()
        };
        if let Some(known) = self.end.as_ref().and_then(known) {
            return std::future::ready(Ok(known)).boxed();
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
            let end = fetch_end(self).await?;
            let size = end.start + end.bytes.len() as u64;
            self.end = Some(end);
            reader.load_and_finish(Tail(self.clone()), size).await.map(Arc::new)
        }
        .boxed()
    }
}

async fn fetch_end(object: &Object) -> Result<End> {
    let options = GetOptions {
        range: Some(GetRange::Suffix(FOOTER_GUESS)),
        ..Default::default()
    };
    let found = object.store.get_opts(&object.path, options).await.map_err(external)?;
    let start = found.range.start;
    let bytes = found.bytes().await.map_err(external)?;
    Ok(End { start, bytes })
}

/// An object whose end is known.
///
/// The reader of parquet 59.3 can look for footer and page index by a suffix itself, but takes such a suffix for the
/// beginning of the file when it then looks for the page index in it. Given the size, it looks in the right place.
struct Tail(Object);

impl MetadataFetch for Tail {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.0.get_bytes(range)
    }
}
