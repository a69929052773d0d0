//! Where exports are written: a bucket of any store that speaks S3, or a folder below the operator's.

mod begun;
mod bucket;
mod failure;
mod folder;
mod listing;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use towpath_domain::export::{Credentials, DestinationConfig, DestinationKind};

use crate::Guard;
pub use begun::Begun;
use begun::Uploads;
use bucket::Bucket;
pub use failure::{DestinationFailure, Reason, classify};
use folder::Folder;

/// What a test file may take: somebody waits for it.
const TEST_LIMIT: Duration = Duration::from_secs(15);

/// What the operator says about destinations.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Judges the addresses of buckets.
    pub guard: Guard,
    /// The folder below which `file` destinations lie; `None` refuses them.
    pub file_root: Option<PathBuf>,
    /// Credentials of the operator's own environment, for destinations without any; `None` refuses those.
    pub environment_credentials: Option<Credentials>,
}

/// An open destination.
#[derive(Clone, Debug)]
pub struct Destination {
    objects: Arc<dyn ObjectStore>,
    place: Place,
    uploads: Uploads,
}

#[derive(Clone, Debug)]
enum Place {
    Bucket(Bucket),
    Folder(Folder),
}

impl Destination {
    /// Opens a destination. A bucket is not called yet; a folder is made and looked at.
    ///
    /// # Errors
    /// The configuration cannot be one: an endpoint that is no address, no folder configured, a link that leads out.
    pub fn open(
        settings: &Settings,
        kind: DestinationKind,
        config: &DestinationConfig,
        credentials: Option<&Credentials>,
    ) -> Result<Self, DestinationFailure> {
        let uploads = Uploads::default();
        match kind {
            DestinationKind::S3 => {
                let credentials = credentials
                    .or(settings.environment_credentials.as_ref())
                    .ok_or_else(|| {
                        let why = "credentials are required: this server does not lend its own";
                        DestinationFailure::new(Reason::AccessDenied, why)
                    })?;
                let bucket = Bucket::open(config, credentials, settings.guard.clone(), uploads.clone())?;
                Ok(Self {
                    objects: Arc::new(bucket.clone()),
                    place: Place::Bucket(bucket),
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
                    place: Place::Folder(folder),
                    uploads,
                })
            }
        }
    }

    /// The store of its objects, for writers. Keys are whole: below the bucket, or below the operator's folder. Ask
    /// [`classify`] about its errors.
    #[must_use]
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Bytes of a part of an upload that suit it. A bucket wants 5 MiB at least, and all parts but the last equal; a
    /// folder takes any, and of small ones less lies in memory.
    #[must_use]
    pub const fn part_bytes(&self) -> usize {
        match self.place {
            Place::Bucket(_) => 5 << 20,
            Place::Folder(_) => 1 << 20,
        }
    }

    /// Whether it is a folder of this machine.
    #[must_use]
    pub const fn is_folder(&self) -> bool {
        matches!(self.place, Place::Folder(_))
    }

    /// Uploads in parts that were begun through this value and are not over. Whoever wants them to be given up after
    /// a crash writes them down.
    #[must_use]
    pub fn begun(&self) -> Vec<Begun> {
        self.uploads.list()
    }

    /// Whether an upload in parts was ever begun through this value.
    #[must_use]
    pub fn began_any(&self) -> bool {
        self.uploads.any()
    }

    /// Gives up every upload in parts of a key that begins with `prefix` and is open by the destination's own word,
    /// also one whose id nobody was told because the answer that had it was lost. How many that were. Nobody may be
    /// writing such a key. The right to ask is optional; without it nothing is found.
    pub async fn give_up_strays(&self, prefix: &str) -> usize {
        let Place::Bucket(bucket) = &self.place else { return 0 };
        let found = tokio::time::timeout(TEST_LIMIT, bucket.open_uploads(prefix)).await;
        let mut given_up = 0;
        for upload in found.unwrap_or_default() {
            match self.abort(&upload).await {
                Ok(()) => given_up += 1,
                Err(failure) => tracing::info!(%failure, "a stray upload in parts cannot be given up"),
            }
        }
        given_up
    }

    /// Gives up an upload that another process began. One that is gone already is no error.
    ///
    /// # Errors
    /// What the destination answered.
    pub async fn abort(&self, upload: &Begun) -> Result<(), DestinationFailure> {
        match &self.place {
            Place::Bucket(bucket) => bucket.abort(upload).await,
            Place::Folder(folder) => folder.abort(upload).await,
        }
        .map_err(|error| classify(&error, &upload.path))
    }

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// What the destination answered. The right to delete is optional.
    pub async fn remove(&self, path: &Path) -> Result<(), DestinationFailure> {
        match self.objects.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(classify(&error, path.as_ref())),
        }
    }

    /// Writes a small file at `path` and deletes it again where that is allowed.
    ///
    /// # Errors
    /// What the destination answered to the write. Nobody will try again, so also what may pass is an answer.
    pub async fn test(&self, path: &Path) -> Result<(), DestinationFailure> {
        let text = PutPayload::from_static(b"Towpath wrote this to see whether it may.\n");
        let late = |_| {
            let why = format!("it did not answer in time for key {path}");
            DestinationFailure::new(Reason::InvalidEndpoint, why)
        };
        let written = tokio::time::timeout(TEST_LIMIT, self.objects.put(path, text));
        let written = written.await.map_err(late)?;
        written.map_err(|error| classify(&error, path.as_ref()).final_answer())?;
        let deleted = tokio::time::timeout(TEST_LIMIT, self.objects.delete(path)).await;
        match deleted.map_err(late) {
            Ok(Err(error)) => {
                let failure = classify(&error, path.as_ref());
                tracing::debug!(%failure, "the test file stays where it is");
            }
            Err(failure) => tracing::debug!(%failure, "the test file may stay where it is"),
            Ok(Ok(())) => {}
        }
        Ok(())
    }

    /// Looks whether an object has the size it should have. What may not be looked at is taken as it is: the right
    /// to read is optional.
    ///
    /// # Errors
    /// It is there in another size: something between here and there lost a part of it. Trying again helps.
    pub async fn verify(&self, path: &Path, bytes: u64) -> Result<(), DestinationFailure> {
        match tokio::time::timeout(TEST_LIMIT, self.objects.head(path)).await {
            Ok(Ok(found)) if found.size != bytes => {
                let why = format!("{} of {bytes} bytes arrived for key {path}", found.size);
                Err(DestinationFailure::new(Reason::Transient, why))
            }
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let failure = classify(&error, path.as_ref());
                tracing::debug!(%failure, "the size of a file cannot be looked at");
                Ok(())
            }
            Err(_) => {
                tracing::debug!(object.path = %path, "the size of a file could not be looked at in time");
                Ok(())
            }
        }
    }
}
