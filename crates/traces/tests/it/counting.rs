//! An object store in memory that says how often it was read.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

#[derive(Debug, Default)]
pub struct CountingStore {
    objects: InMemory,
    reads: AtomicUsize,
    /// An object that is said not to be there, and how often.
    hidden: Mutex<Option<(Path, usize)>>,
}

impl CountingStore {
    /// Requests for bytes since this was last asked.
    pub fn reads(&self) -> usize {
        self.reads.swap(0, Ordering::SeqCst)
    }

    /// The next so many requests for the object find nothing.
    pub fn hide(&self, path: &Path, times: usize) {
        *self.hidden.lock().unwrap() = Some((path.clone(), times));
    }

    fn is_hidden(&self, path: &Path) -> bool {
        match &mut *self.hidden.lock().unwrap() {
            Some((hidden, times)) if hidden == path && *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counting({})", self.objects)
    }
}

// Ranges that are close together are joined by the trait itself, and then counted here.
#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.objects.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.is_hidden(location) {
            return Err(Error::NotFound {
                path: location.to_string(),
                source: "hidden".into(),
            });
        }
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
