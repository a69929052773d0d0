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

/// What is written lies among the unfinished until it is whole: a writer that dies leaves nothing beside its object,
/// where nobody would look for it.
#[derive(Debug)]
pub(super) struct Folder {
    local: Arc<Local>,
    /// Ranges are read at once, not by a thread of their own. What one thread allocates and another frees is kept for a
    /// while by most allocators, and row groups are many megabytes.
    near: bool,
}

impl Folder {
    pub(super) const fn new(local: Arc<Local>) -> Self {
        Self { local, near: false }
    }

    pub(super) const fn near(local: Arc<Local>) -> Self {
        Self { local, near: true }
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Folder({})", self.local.files)
    }
}

// What is not passed on is done by copying, which lies beside its target meanwhile.
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
        let beside = beside();
        let put = self.local.files.put_opts(&beside, payload, options).await?;
        bring_in(&self.local, &beside, location).await?;
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let beside = beside();
        // What cannot be made is found out before the first byte.
        let (local, target) = (Arc::clone(&self.local), self.local.files.path_to_filesystem(location)?);
        let made = tokio::task::spawn_blocking(move || local.ensure(target.parent().unwrap_or(&local.root)));
        made.await?.map_err(|error| failed(location, error))?;
        let upload = self.local.files.put_multipart_opts(&beside, options).await?;
        Ok(Box::new(Unfinished {
            local: Arc::clone(&self.local),
            upload,
            beside,
            location: location.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.local.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if !self.near {
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
struct Unfinished {
    local: Arc<Local>,
    upload: Box<dyn MultipartUpload>,
    beside: Path,
    location: Path,
}

#[async_trait]
impl MultipartUpload for Unfinished {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let put = self.upload.complete().await?;
        bring_in(&self.local, &self.beside, &self.location).await?;
        Ok(put)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// A name that nobody else writes under.
fn beside() -> Path {
    Path::from_iter([UNFINISHED, &Uuid::now_v7().to_string()])
}

/// Gives a whole object its name.
async fn bring_in(local: &Arc<Local>, beside: &Path, location: &Path) -> Result<()> {
    let from = local.files.path_to_filesystem(beside)?;
    let target = local.files.path_to_filesystem(location)?;
    let local = Arc::clone(local);
    let moved = tokio::task::spawn_blocking(move || {
        let moved = local
            .ensure(target.parent().unwrap_or(&local.root))
            .and_then(|()| std::fs::rename(&from, target));
        if moved.is_err() {
            // It is tried again under another name; what is left is swept later.
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
