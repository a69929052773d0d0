//! An object store that counts requests, and bytes still held by callers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// Passes everything on, and counts it.
#[derive(Debug)]
pub struct RecordingStore {
    below: Arc<dyn ObjectStore>,
    requests: Mutex<Vec<Request>>,
    memory: Arc<MemoryCount>,
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
struct MemoryCount {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Bytes that are counted as long as they live.
struct CountedBytes {
    bytes: Bytes,
    memory: Arc<MemoryCount>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.memory.now.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl RecordingStore {
    /// In front of another store.
    #[must_use]
    pub fn new(below: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self {
            below,
            requests: Mutex::default(),
            memory: Arc::default(),
        })
    }

    /// What was asked for since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock())
    }

    /// The peak of held bytes since the last call.
    pub fn peak_bytes(&self) -> usize {
        self.memory
            .most
            .swap(self.memory.now.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    fn watch(&self, bytes: Bytes) -> Bytes {
        let now = self.memory.now.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.memory.most.fetch_max(now, Ordering::Relaxed);
        let held = Arc::clone(&self.memory);
        Bytes::from_owner(CountedBytes { bytes, memory: held })
    }
}

impl fmt::Display for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.below)
    }
}

#[async_trait]
impl ObjectStore for RecordingStore {
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
        self.requests.lock().push(request);
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
        self.requests.lock().push(request);
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
