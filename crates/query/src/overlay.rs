//! Overlays two object stores.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A read-only store in which objects of `upper` hide those of `lower`.
#[derive(Debug)]
pub struct OverlayStore {
    pub upper: Arc<dyn ObjectStore>,
    pub lower: Arc<dyn ObjectStore>,
}

impl fmt::Display for OverlayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay({}, {})", self.upper, self.lower)
    }
}

fn refused<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "Overlay".to_owned(),
    })
}

impl OverlayStore {
    /// The store that has the object.
    async fn layer_of(&self, location: &Path) -> &Arc<dyn ObjectStore> {
        // The upper store is in memory, so this is cheap.
        match self.upper.head(location).await {
            Ok(_) => &self.upper,
            Err(_) => &self.lower,
        }
    }
}

#[async_trait]
impl ObjectStore for OverlayStore {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        refused("put")
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        refused("put_multipart")
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.layer_of(location).await.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.layer_of(location).await.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        futures::stream::once(async { refused("delete") }).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        futures::stream::once(async { refused("list") }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        refused("list")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        refused("copy")
    }
}
