//! An object store with bad habits: it lists the last names first, and keeps some objects whatever is said.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

#[derive(Debug)]
pub struct FaultyStore {
    below: Arc<dyn ObjectStore>,
    stuck: Mutex<Vec<Path>>,
}

impl FaultyStore {
    /// In front of another store. The objects `stuck` cannot be removed.
    pub fn new(below: Arc<dyn ObjectStore>, stuck: impl IntoIterator<Item = Path>) -> Arc<Self> {
        Arc::new(Self {
            below,
            stuck: Mutex::new(stuck.into_iter().collect()),
        })
    }

    /// All can be removed from now on.
    pub fn repair(&self) {
        self.stuck.lock().unwrap().clear();
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Odd({})", self.below)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
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
        self.below.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let stuck = self.stuck.lock().unwrap().clone();
        let refused = locations.map(move |location| match location {
            Ok(path) if stuck.contains(&path) => Err(Error::Generic {
                store: "Odd",
                source: format!("{path} stays").into(),
            }),
            location => location,
        });
        self.below.delete_stream(refused.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.below.list(prefix).try_collect::<Vec<_>>();
        let backwards = async move {
            let mut listed = listed.await?;
            listed.sort_unstable_by(|one, other| other.location.cmp(&one.location));
            Ok::<_, Error>(stream::iter(listed.into_iter().map(Ok)))
        };
        stream::once(backwards).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.below.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.below.copy_opts(from, to, options).await
    }
}
