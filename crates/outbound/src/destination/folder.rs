//! A folder below the operator's.
//!
//! Each object is written to `<prefix>/tmp/`, synced and renamed: a reader sees the whole object or nothing, even after
//! a power failure.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path as FilePath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use uuid::Uuid;

use super::failure::{DestinationFailure, Reason};
use super::open_uploads::{OpenUpload, OpenUploads};

#[derive(Clone, Debug)]
pub(super) struct Folder(Arc<FolderState>);

#[derive(Debug)]
struct FolderState {
    /// The operator's, without links.
    top: PathBuf,
    /// Where unfinished objects are, as a key.
    staging: String,
    /// For reading.
    files: LocalFileSystem,
    uploads: OpenUploads,
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a folder of the operator")
    }
}

impl Folder {
    pub(super) fn open(top: &FilePath, prefix: &str, uploads: OpenUploads) -> Result<Self, DestinationFailure> {
        let made = fs::create_dir_all(top).and_then(|()| top.canonicalize());
        let top = made.map_err(|error| failed(&error, "the folder of file destinations"))?;
        let files = LocalFileSystem::new_with_prefix(&top).map_err(|error| super::classify(&error, prefix))?;
        let prefix = prefix.trim_matches('/');
        let staging = if prefix.is_empty() {
            "tmp".to_owned()
        } else {
            format!("{prefix}/tmp")
        };
        let folder = Self(Arc::new(FolderState {
            top,
            staging,
            files,
            uploads,
        }));
        folder.0.within(prefix)?;
        Ok(folder)
    }

    pub(super) async fn abort(&self, upload: &OpenUpload) -> Result<()> {
        let (folder, upload) = (self.clone(), upload.clone());
        blocking(move || {
            folder.0.uploads.remove(&upload);
            remove(&folder.0.within(&upload.id)?, &upload.path)
        })
        .await
    }

    fn stage(&self, key: &str) -> Result<StagedUpload, DestinationFailure> {
        self.0.within(key)?;
        // A unique name: a replaced worker may still be writing.
        let id = format!("{}/{}.part", self.0.staging, Uuid::now_v7());
        let path = self.0.within(&id)?;
        let file = make_folders(&self.0.top, &path).and_then(|()| File::create_new(&path));
        let file = Arc::new(file.map_err(|error| failed(&error, key))?);
        let upload = OpenUpload {
            path: key.to_owned(),
            id,
        };
        self.0.uploads.add(upload.clone());
        Ok(StagedUpload {
            folder: self.clone(),
            upload,
            path,
            file,
            length: 0,
        })
    }
}

impl FolderState {
    /// The path of a key. Links on the way are resolved and must not lead out of the operator's folder.
    fn within(&self, key: &str) -> Result<PathBuf, DestinationFailure> {
        let outside = || DestinationFailure::new(Reason::Prefix, format!("{key} leads out of the configured folder"));
        let relative = FilePath::new(key);
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) || key.contains('\0') {
            return Err(outside());
        }
        let path = self.top.join(relative);
        for part in path.ancestors() {
            // `symlink_metadata` sees a link whose target is missing; `canonicalize` would report it as absent.
            match part.symlink_metadata() {
                Ok(_) => {
                    let real = part.canonicalize().map_err(|_| outside())?;
                    return if real.starts_with(&self.top) {
                        Ok(path)
                    } else {
                        Err(outside())
                    };
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&error, key)),
            }
        }
        Err(outside())
    }
}

#[async_trait]
impl ObjectStore for Folder {
    async fn put_opts(&self, location: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        let (folder, key) = (self.clone(), location.to_string());
        blocking(move || {
            let mut staged = folder.stage(&key)?;
            staged.write(&payload).map_err(|error| failed(&error, &key))?;
            staged.finish()
        })
        .await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (folder, key) = (self.clone(), location.to_string());
        let staged = blocking(move || Ok(folder.stage(&key)?)).await?;
        Ok(Box::new(staged))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.within(location.as_ref())?;
        self.0.files.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let folder = self.clone();
        let delete = move |location: Result<Path>| {
            let folder = folder.clone();
            async move {
                let location = location?;
                let key = location.to_string();
                blocking(move || remove(&folder.0.within(&key)?, &key)).await?;
                Ok(location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented {
            operation: "copy".to_owned(),
            implementer: self.to_string(),
        })
    }
}

/// An object that is being written.
#[derive(Debug)]
struct StagedUpload {
    folder: Folder,
    upload: OpenUpload,
    path: PathBuf,
    file: Arc<File>,
    length: u64,
}

impl StagedUpload {
    fn write(&mut self, payload: &PutPayload) -> io::Result<()> {
        for piece in payload {
            self.file.write_all_at(piece, self.length)?;
            self.length += piece.len() as u64;
        }
        Ok(())
    }

    /// Brings it to disk and under its name.
    fn finish(&self) -> Result<()> {
        finish(&self.folder, &self.upload, &self.path, &self.file)
    }
}

fn finish(folder: &Folder, upload: &OpenUpload, path: &FilePath, file: &File) -> Result<()> {
    let key = &upload.path;
    let target = folder.0.within(key)?;
    let finished = (|| {
        file.sync_all()?;
        make_folders(&folder.0.top, &target)?;
        fs::rename(path, &target)?;
        sync_folder(target.parent())
    })();
    finished.map_err(|error| failed(&error, key))?;
    folder.0.uploads.remove(upload);
    Ok(())
}

#[async_trait]
impl MultipartUpload for StagedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // Parts may arrive in any order; their offsets are assigned in the order of the calls.
        let (file, key, mut at) = (Arc::clone(&self.file), self.upload.path.clone(), self.length);
        self.length += data.content_length() as u64;
        Box::pin(blocking(move || {
            for piece in &data {
                file.write_all_at(piece, at).map_err(|error| failed(&error, &key))?;
                at += piece.len() as u64;
            }
            Ok(())
        }))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        // Bringing a large file to disk takes its time.
        let (folder, upload, path) = (self.folder.clone(), self.upload.clone(), self.path.clone());
        let file = Arc::clone(&self.file);
        blocking(move || finish(&folder, &upload, &path, &file)).await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn abort(&mut self) -> Result<()> {
        self.folder.abort(&self.upload).await
    }
}

impl Drop for StagedUpload {
    /// Removes the unfinished file. After `finish` there is nothing under this name.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.folder.0.uploads.remove(&self.upload);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

fn remove(path: &FilePath, key: &str) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(&error, key).into()),
        _ => Ok(()),
    }
}

/// Creates the folders above `path`, and syncs each one's parent.
fn make_folders(top: &FilePath, path: &FilePath) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let missing: Vec<_> = folder
        .ancestors()
        .take_while(|part| *part != top && !part.exists())
        .collect();
    for part in missing.into_iter().rev() {
        match fs::create_dir(part) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => sync_folder(part.parent())?,
        }
    }
    Ok(())
}

fn sync_folder(folder: Option<&FilePath>) -> io::Result<()> {
    folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

impl From<DestinationFailure> for Error {
    fn from(failure: DestinationFailure) -> Self {
        Self::Generic {
            store: "folder",
            source: Box::new(failure),
        }
    }
}

/// Tells the sort of an error, without the operator's paths.
fn failed(error: &io::Error, key: &str) -> DestinationFailure {
    let reason = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Reason::AccessDenied,
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidFilename => Reason::Prefix,
        _ => Reason::Transient,
    };
    DestinationFailure::new(reason, format!("{} for key {key}", error.kind()))
}
