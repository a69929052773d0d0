//! An object store that counts: requests, and bytes that somebody still holds.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Passes everything on, and counts it.
#[derive(Debug)]
pub struct Watched {
    below: Arc<dyn ObjectStore>,
    requests: Mutex<Vec<Request>>,
    held: Arc<Held>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The end of an object.
    End(Path),
    /// Ranges of one, as many as were asked for together.
    Ranges(Path, Vec<Range<u64>>),
}

impl Request {
    /// The object.
    #[must_use]
    pub const fn path(&self) -> &Path {
        match self {
            Self::End(path) | Self::Ranges(path, _) => path,
        }
    }
}

#[derive(Debug, Default)]
struct Held {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Bytes that are counted as long as they live.
struct Living {
    bytes: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Living {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.held.now.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Watched {
    /// In front of another store.
    #[must_use]
    pub fn new(below: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self {
            below,
            requests: Mutex::default(),
            held: Arc::default(),
        })
    }

    /// What was asked for since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked())
    }

    /// The most bytes that were held at one moment since the last call.
    pub fn most_held(&self) -> usize {
        self.held
            .most
            .swap(self.held.now.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, bytes: Bytes) -> Bytes {
        let now = self.held.now.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.held.most.fetch_max(now, Ordering::Relaxed);
        let held = Arc::clone(&self.held);
        Bytes::from_owner(Living { bytes, held })
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.below)
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.below.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.below.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.below.get_opts(location, options.clone()).await?;
        let request = match options.range {
            Some(object_store::GetRange::Bounded(range)) => Request::Ranges(location.clone(), vec![range]),
            _ => Request::End(location.clone()),
        };
        self.asked().push(request);
        let (meta, range, attributes) = (found.meta.clone(), found.range.clone(), found.attributes.clone());
        let bytes = self.watch(found.bytes().await?);
        Ok(GetResult {
            payload: GetResultPayload::Stream(futures::stream::once(async { Ok(bytes) }).boxed()),
            meta,
            range,
            attributes,
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let found = self.below.get_ranges(location, ranges).await?;
        let request = Request::Ranges(location.clone(), ranges.to_vec());
        self.asked().push(request);
        Ok(found.into_iter().map(|bytes| self.watch(bytes)).collect())
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.below.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.below.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.below.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.below.copy_opts(from, to, options).await
    }
}
