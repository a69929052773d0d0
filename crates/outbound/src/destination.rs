//! Destinations of exports: an S3-compatible bucket, or a folder below the operator's.

mod bucket;
mod failure;
mod folder;
mod listing;
mod open_uploads;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use towpath_domain::export::{Credentials, DestinationConfig, DestinationKind};

use crate::Guard;
use bucket::Bucket;
pub use failure::{DestinationFailure, Reason, classify};
use folder::Folder;
pub use open_uploads::OpenUpload;
use open_uploads::OpenUploads;

/// What a test file may take: a caller waits for it.
const TEST_LIMIT: Duration = Duration::from_secs(15);

/// What the operator says about destinations.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Judges the addresses of buckets.
    pub guard: Guard,
    /// The root folder of `file` destinations; `None` disables them.
    pub file_root: Option<PathBuf>,
    /// Credentials from the operator's environment, for destinations without their own; `None` refuses those.
    pub environment_credentials: Option<Credentials>,
}

/// An open destination.
#[derive(Clone, Debug)]
pub struct Destination {
    objects: Arc<dyn ObjectStore>,
    backend: Backend,
    uploads: OpenUploads,
}

#[derive(Clone, Debug)]
enum Backend {
    Bucket(Bucket),
    Folder(Folder),
}

impl Destination {
    /// Opens a destination. A bucket is not called yet; a folder is created and checked.
    pub fn open(
        settings: &Settings,
        kind: DestinationKind,
        config: &DestinationConfig,
        credentials: Option<&Credentials>,
    ) -> Result<Self, DestinationFailure> {
        let uploads = OpenUploads::default();
        match kind {
            DestinationKind::S3 => {
                let credentials = credentials
                    .or(settings.environment_credentials.as_ref())
                    .ok_or_else(|| {
                        let why = "credentials are required: this server does not use its own";
                        DestinationFailure::new(Reason::AccessDenied, why)
                    })?;
                let bucket = Bucket::open(config, credentials, settings.guard.clone(), uploads.clone())?;
                Ok(Self {
                    objects: Arc::new(bucket.clone()),
                    backend: Backend::Bucket(bucket),
                    uploads,
                })
            }
            DestinationKind::File => {
                let top = settings.file_root.as_deref().ok_or_else(|| {
                    let why = "file destinations are not enabled (exports.file_root)";
                    DestinationFailure::new(Reason::Prefix, why)
                })?;
                let folder = Folder::open(top, &config.prefix, uploads.clone())?;
                Ok(Self {
                    objects: Arc::new(folder.clone()),
                    backend: Backend::Folder(folder),
                    uploads,
                })
            }
        }
    }

    /// The object store, for writers. Keys are relative to the bucket or the operator's folder. Use [`classify`] for
    /// its errors.
    #[must_use]
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Part size of multipart uploads in bytes. A bucket requires at least 5 MiB, and equal parts except for the last;
    /// for a folder small parts save memory.
    #[must_use]
    pub const fn part_bytes(&self) -> usize {
        match self.backend {
            Backend::Bucket(_) => 5 << 20,
            Backend::Folder(_) => 1 << 20,
        }
    }

    /// Whether it is a folder of this machine.
    #[must_use]
    pub const fn is_folder(&self) -> bool {
        matches!(self.backend, Backend::Folder(_))
    }

    /// Open multipart uploads begun through this value. A caller records them so that they can be aborted after a
    /// crash.
    #[must_use]
    pub fn open_uploads(&self) -> Vec<OpenUpload> {
        self.uploads.list()
    }

    /// Whether an upload in parts was ever begun through this value.
    #[must_use]
    pub fn has_begun_uploads(&self) -> bool {
        self.uploads.has_any()
    }

    /// Aborts every open multipart upload with a key that begins with `prefix`, as listed by the destination, including
    /// uploads whose id was lost with an answer. Returns how many. No one may be writing such a key. Without the
    /// optional permission to list, nothing is found.
    pub async fn abort_stray_uploads(&self, prefix: &str) -> usize {
        let Backend::Bucket(bucket) = &self.backend else {
            return 0;
        };
        let found = tokio::time::timeout(TEST_LIMIT, bucket.open_uploads(prefix)).await;
        let mut given_up = 0;
        for upload in found.unwrap_or_default() {
            match self.abort(&upload).await {
                Ok(()) => given_up += 1,
                Err(failure) => tracing::info!(%failure, "a stray multipart upload cannot be aborted"),
            }
        }
        given_up
    }

    /// Aborts an upload that another process began. It is not an error if it is gone.
    pub async fn abort(&self, upload: &OpenUpload) -> Result<(), DestinationFailure> {
        match &self.backend {
            Backend::Bucket(bucket) => bucket.abort(upload).await,
            Backend::Folder(folder) => folder.abort(upload).await,
        }
        .map_err(|error| classify(&error, &upload.path))
    }

    /// Removes an object. One that is not there is no error.
    pub async fn remove(&self, path: &Path) -> Result<(), DestinationFailure> {
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(classify(&error, path.as_ref())),
        }
    }

    /// Writes a small file at `path` and deletes it again if permitted.
    pub async fn test(&self, path: &Path) -> Result<(), DestinationFailure> {
        let text = PutPayload::from_static(b"Towpath wrote this to see whether it may.\n");
        let late = |_| {
            let why = format!("timed out for key {path}");
            DestinationFailure::new(Reason::InvalidEndpoint, why)
        };
        let written = tokio::time::timeout(TEST_LIMIT, self.objects.put(path, text));
        let written = written.await.map_err(late)?;
        written.map_err(|error| classify(&error, path.as_ref()).final_answer())?;
        let deleted = tokio::time::timeout(TEST_LIMIT, self.objects.delete(path)).await;
        match deleted.map_err(late) {
            Ok(Err(error)) => {
                let failure = classify(&error, path.as_ref());
                tracing::debug!(%failure, "the test file could not be removed");
            }
            Err(failure) => tracing::debug!(%failure, "the test file may not have been removed"),
            Ok(Ok(())) => {}
        }
        Ok(())
    }

    /// Checks the size of an object. If the optional read permission is missing, the check is skipped.
    pub async fn verify(&self, path: &Path, bytes: u64) -> Result<(), DestinationFailure> {
        match tokio::time::timeout(TEST_LIMIT, self.objects.head(path)).await {
            Ok(Ok(found)) if found.size != bytes => {
                let why = format!("{} of {bytes} bytes arrived for key {path}", found.size);
                Err(DestinationFailure::new(Reason::Transient, why))
            }
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let failure = classify(&error, path.as_ref());
                tracing::debug!(%failure, "cannot read the size of a file");
                Ok(())
            }
            Err(_) => {
                tracing::debug!(object.path = %path, "timed out reading the size of a file");
                Ok(())
            }
        }
    }
}
