//! A folder as an object store.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use uuid::Uuid;

use super::{Local, UNFINISHED};

/// Unfinished objects are written to a separate folder: a writer that dies leaves nothing next to its object, where it
/// would not be found.
#[derive(Debug)]
pub(super) struct Folder {
    local: Arc<Local>,
    /// Whether ranges are read on the calling thread. Most allocators keep memory that one thread allocates and another
    /// frees, and row groups are many megabytes.
    is_blocking: bool,
}

impl Folder {
    pub(super) const fn new(local: Arc<Local>) -> Self {
        Self {
            local,
            is_blocking: false,
        }
    }

    pub(super) const fn blocking(local: Arc<Local>) -> Self {
        Self {
            local,
            is_blocking: true,
        }
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Folder({})", self.local.files)
    }
}

// Methods that are not forwarded fall back to a copy, which is next to its target meanwhile.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ObjectStore for Folder {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if options.mode != PutMode::Overwrite {
            return Err(Error::NotImplemented {
                operation: "put unless it is there".to_owned(),
                implementer: self.to_string(),
            });
        }
        let staging_path = staging_path();
        let put = self.local.files.put_opts(&staging_path, payload, options).await?;
        publish(&self.local, &staging_path, location).await?;
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let staging_path = staging_path();
        // What cannot be made is found out before the first byte.
        let (local, target) = (Arc::clone(&self.local), self.local.files.path_to_filesystem(location)?);
        let made = tokio::task::spawn_blocking(move || local.ensure(target.parent().unwrap_or(&local.root)));
        made.await?.map_err(|error| failed(location, error))?;
        let upload = self.local.files.put_multipart_opts(&staging_path, options).await?;
        Ok(Box::new(StagedUpload {
            local: Arc::clone(&self.local),
            upload,
            staging_path,
            location: location.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.local.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if !self.is_blocking {
            return self.local.files.get_ranges(location, ranges).await;
        }
        let path = self.local.files.path_to_filesystem(location)?;
        read(&path, ranges).map_err(|error| failed(location, error))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.local.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.local.files.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.local.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.local.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.local.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.local.files.rename_opts(from, to, options).await
    }
}

/// An object that is being written in parts.
#[derive(Debug)]
struct StagedUpload {
    local: Arc<Local>,
    upload: Box<dyn MultipartUpload>,
    staging_path: Path,
    location: Path,
}

#[async_trait]
impl MultipartUpload for StagedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let put = self.upload.complete().await?;
        publish(&self.local, &self.staging_path, &self.location).await?;
        Ok(put)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// A name that no other caller writes under.
fn staging_path() -> Path {
    Path::from_iter([UNFINISHED, &Uuid::now_v7().to_string()])
}

/// Gives a whole object its name.
async fn publish(local: &Arc<Local>, beside: &Path, location: &Path) -> Result<()> {
    let from = local.files.path_to_filesystem(beside)?;
    let target = local.files.path_to_filesystem(location)?;
    let local = Arc::clone(local);
    let moved = tokio::task::spawn_blocking(move || {
        let moved = local
            .ensure(target.parent().unwrap_or(&local.root))
            .and_then(|()| std::fs::rename(&from, target));
        if moved.is_err() {
            // The attempt is repeated under another name; leftovers are swept later.
            let _ = std::fs::remove_file(&from);
        }
        moved
    });
    moved.await?.map_err(|error| failed(location, error))
}

fn read(path: &std::path::Path, ranges: &[Range<u64>]) -> io::Result<Vec<Bytes>> {
    let file = File::open(path)?;
    let read = |range: &Range<u64>| {
        let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, range.start)?;
        Ok(Bytes::from(bytes))
    };
    ranges.iter().map(read).collect()
}

fn failed(location: &Path, error: io::Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        return Error::NotFound {
            path: location.to_string(),
            source: Box::new(error),
        };
    }
    Error::Generic {
        store: "folder",
        source: Box::new(error),
    }
}
