//! Images on this machine.
//!
//! An image is pulled once for each repository that it comes from: a registry gives rights by repository, so that the
//! manifest, which every request reads with the credentials of its workspace, shows that the workspace may have the
//! files too.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use uuid::Uuid;

use super::digest::Digest;
use super::layer::{self, ImageTree};
use super::manifest::{Document, ImageConfig, LayerBlob, parse_config};
use super::reference::ImageReference;
use super::registry::{RegistryTransport, Repository};
use super::{ImageRequest, ImageSettings};
use crate::error::{Error, Result};
use crate::tree;

const RECORD_FILE: &str = "image.json";
const ROOT_FOLDER: &str = "root";
/// Its time is that of the last use.
const USE_FILE: &str = "used";
/// Ends the name of an image that is being made or removed.
const PARTIAL_SUFFIX: &str = ".partial";
/// Pulls at a time, each of which needs its own memory and disk bandwidth.
const MAX_PULLS: usize = 4;
/// Shorter than the job of a start or a build.
const PULL_TIMEOUT: Duration = Duration::from_secs(540);
/// An image that no row names is kept for this long: the job that pulled it may not have written its row yet. Longer
/// than any such job.
const UNUSED_DURATION: Duration = Duration::from_secs(3600);

/// An image whose files are on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredImage {
    /// The read-only files.
    pub(crate) root: PathBuf,
    pub(crate) config: ImageConfig,
}

/// Written last.
#[derive(Debug, Serialize, Deserialize)]
struct ImageRecord {
    /// As in [`RootFileSystem::base`](crate::RootFileSystem::base).
    reference: String,
    used_bytes: u64,
    config: ImageConfig,
}

impl ImageRecord {
    fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(RECORD_FILE))?)?)
    }
}

#[derive(Debug)]
pub(crate) struct ImageStore {
    folder: PathBuf,
    settings: ImageSettings,
    pulls: Semaphore,
    /// Folders that pulls of this process are working on.
    drafts: Mutex<HashSet<PathBuf>>,
    /// Held while an image is marked as used, and while an unused one is taken away.
    uses: Mutex<()>,
}

impl ImageStore {
    pub(crate) fn new(folder: PathBuf, settings: ImageSettings) -> Self {
        Self {
            folder,
            settings,
            pulls: Semaphore::new(MAX_PULLS),
            drafts: Mutex::default(),
            uses: Mutex::default(),
        }
    }

    /// Pulls an image unless it is here, and returns its reference with the digest of its manifest.
    pub(crate) async fn pull(self: &Arc<Self>, request: &ImageRequest, first_user: Option<u32>) -> Result<String> {
        let reference = ImageReference::parse(&request.name)?;
        let Some(transport) = self.settings.transport.clone() else {
            return Err(Error::Unsupported(format!(
                "image {reference}: this process has no access to registries"
            )));
        };
        let pulled = timeout(
            PULL_TIMEOUT,
            self.pull_from(&*transport, &reference, request, first_user),
        )
        .await;
        pulled.map_err(|_| Error::TimedOut("pulling the image"))?
    }

    async fn pull_from(
        self: &Arc<Self>,
        transport: &dyn RegistryTransport,
        reference: &ImageReference,
        request: &ImageRequest,
        first_user: Option<u32>,
    ) -> Result<String> {
        let invalid = |error| in_image(reference, error);
        let mut repository = Repository::new(transport, reference, request.login.as_ref());
        let (mut text, mut digest) = repository.manifest(reference.version()).await?;
        let mut document = Document::parse(&text).map_err(invalid)?;
        if let Document::Index(manifest) = document {
            let exact = reference.with_digest(manifest);
            (text, digest) = repository.manifest(exact.version()).await?;
            document = Document::parse(&text).map_err(invalid)?;
        }
        let Document::Image { config, layers } = document else {
            return Err(invalid(Error::Invalid("its index leads to another index".to_owned())));
        };
        let name = reference.with_digest(digest).to_string();
        let target = self.image_folder(&name, first_user);
        if self.mark_used(&target)? {
            return Ok(name);
        }
        let permit = self.pulls.acquire().await;
        let _permit = permit.map_err(|_| Error::Busy("images are no longer pulled".to_owned()))?;
        // Another pull may have made it meanwhile.
        if self.mark_used(&target)? {
            return Ok(name);
        }
        let size = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.size));
        let max_bytes = self.available_bytes(reference, size)?;
        let config = repository.document(&config).await?;
        let (config, layers) = parse_config(&config, layers).map_err(invalid)?;
        let draft = self.begin_draft(&target)?;
        let made = self
            .make(
                &mut repository,
                &draft.folder,
                &layers,
                (name.as_str(), config),
                (first_user, max_bytes),
            )
            .await;
        let placed = match made {
            Ok(()) => self.place(&draft.folder, &target),
            Err(error) => Err(in_image(reference, error)),
        };
        // Nothing of it is left if it was placed.
        let left = draft.folder.clone();
        run_blocking(move || tree::remove(&left)).await?;
        placed.map(|()| name)
    }

    /// Unpacks the layers into a draft.
    async fn make(
        &self,
        repository: &mut Repository<'_>,
        draft: &Path,
        layers: &[LayerBlob],
        (name, config): (&str, ImageConfig),
        (first_user, max_bytes): (Option<u32>, u64),
    ) -> Result<()> {
        let what = "storing the image";
        let root = draft.join(ROOT_FOLDER);
        fs::create_dir(&root).map_err(Error::io(what))?;
        let mut image = ImageTree::open(&root, first_user, max_bytes).map_err(unpack_error)?;
        for (index, layer) in layers.iter().enumerate() {
            let blob = draft.join(format!("{index}.blob"));
            let mut file = tokio::fs::File::create_new(&blob).await.map_err(Error::io(what))?;
            repository.download(&layer.blob, &mut file).await?;
            drop(file);
            let (archive, content) = (draft.join(format!("{index}.tar")), layer.content.clone());
            image = run_blocking(move || {
                layer::decompress(&blob, &archive, &content, max_bytes)?;
                fs::remove_file(&blob)?;
                image.apply(&File::open(&archive)?)?;
                fs::remove_file(&archive)?;
                Ok(image)
            })
            .await?;
        }
        let (draft, reference) = (draft.to_owned(), name.to_owned());
        run_blocking(move || {
            image.complete(config.work_dir.as_deref())?;
            let record = ImageRecord {
                reference,
                used_bytes: tree::used_bytes(&root)?,
                config,
            };
            fs::write(draft.join(USE_FILE), "used")?;
            fs::write(draft.join(RECORD_FILE), serde_json::to_vec(&record)?)?;
            Ok(rustix::fs::syncfs(File::open(&draft)?)?)
        })
        .await
    }

    /// Whether an image was pulled before. Its removal is then postponed.
    pub(crate) fn contains(&self, name: &str, first_user: Option<u32>) -> Result<bool> {
        self.mark_used(&self.image_folder(name, first_user))
    }

    /// The files of an image that was pulled before.
    pub(crate) fn open(&self, name: &str, first_user: Option<u32>) -> Result<StoredImage> {
        let folder = self.image_folder(name, first_user);
        if !self.mark_used(&folder)? {
            return Err(Error::NotFound(format!("image {name} is not on this machine")));
        }
        let record = ImageRecord::read(&folder).map_err(Error::io("the record of the image"))?;
        Ok(StoredImage {
            root: folder.join(ROOT_FOLDER),
            config: record.config,
        })
    }

    /// Removes images that have none of these names and were not used of late, and what interrupted pulls left.
    pub(crate) fn remove_unused(&self, names: &BTreeSet<String>) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let folder = entry.path();
            if is_partial(&folder) {
                if !self.drafts.lock().contains(&folder) {
                    tree::remove(&folder)?;
                }
                continue;
            }
            let doomed = draft_of(&folder);
            {
                let _uses = self.uses.lock();
                let is_used = ImageRecord::read(&folder).is_ok_and(|record| names.contains(&record.reference));
                if is_used || !is_old(&folder)? {
                    continue;
                }
                fs::rename(&folder, &doomed)?;
            }
            tree::remove(&doomed)?;
        }
        Ok(())
    }

    /// The name depends on the owner of the files, which an operator may change.
    fn image_folder(&self, name: &str, first_user: Option<u32>) -> PathBuf {
        let owner = first_user.map_or_else(|| "account".to_owned(), |first| first.to_string());
        self.folder.join(Digest::of(format!("{owner} {name}").as_bytes()).hex())
    }

    /// Whether an image is here, whose removal is then postponed.
    fn mark_used(&self, folder: &Path) -> Result<bool> {
        let _uses = self.uses.lock();
        match fs::write(folder.join(USE_FILE), "used") {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("the record of the image")(error)),
        }
    }

    /// The bytes that an image may have. Refuses one that cannot fit: the size of its compressed layers is the least
    /// that it takes.
    fn available_bytes(&self, reference: &ImageReference, size: u64) -> Result<u64> {
        let ImageSettings {
            max_image_bytes,
            max_total_bytes,
            ..
        } = self.settings;
        if size > max_image_bytes {
            return Err(Error::Invalid(format!(
                "image {reference}: its layers have {size} bytes, and this machine accepts {max_image_bytes}"
            )));
        }
        let entries = fs::read_dir(&self.folder).map_err(Error::io("the folder of images"))?;
        let records = entries
            .flatten()
            .filter_map(|entry| ImageRecord::read(&entry.path()).ok());
        let stored: u64 = records.map(|record| record.used_bytes).sum();
        let free = max_total_bytes.saturating_sub(stored);
        if size > free {
            return Err(Error::Busy(format!(
                "image {reference}: this machine keeps at most {max_total_bytes} bytes of images; delete sandboxes and \
                 snapshots of other images, which are then removed within two hours"
            )));
        }
        Ok(free.min(max_image_bytes))
    }

    fn begin_draft(self: &Arc<Self>, target: &Path) -> Result<Draft> {
        let folder = draft_of(target);
        // Known before it exists, so that no one takes it for a leftover.
        self.drafts.lock().insert(folder.clone());
        let draft = Draft {
            store: Arc::clone(self),
            folder,
        };
        fs::create_dir(&draft.folder).map_err(Error::io("storing the image"))?;
        Ok(draft)
    }

    fn place(&self, draft: &Path, target: &Path) -> Result<()> {
        let _uses = self.uses.lock();
        match fs::rename(draft, target) {
            // Another pull was first.
            Err(_) if target.is_dir() => Ok(()),
            other => other.map_err(Error::io("storing the image")),
        }
    }
}

/// A folder that a pull works on. Dropped, it may be removed as a leftover.
struct Draft {
    store: Arc<ImageStore>,
    folder: PathBuf,
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.store.drafts.lock().remove(&self.folder);
    }
}

fn draft_of(image: &Path) -> PathBuf {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    image.with_file_name(format!("{name}.{}{PARTIAL_SUFFIX}", Uuid::now_v7()))
}

fn is_partial(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(PARTIAL_SUFFIX))
}

fn is_old(folder: &Path) -> io::Result<bool> {
    let used = match fs::metadata(folder.join(USE_FILE)) {
        // It is no image.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other?.modified()?,
    };
    // A clock that was set back makes it young.
    Ok(used.elapsed().is_ok_and(|age| age >= UNUSED_DURATION))
}

/// Runs work on the disk. What an image is to blame for is invalid; a full disk is not.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = spawn_blocking(work).await;
    let done = done.map_err(|error| Error::io("storing the image")(error.into()))?;
    done.map_err(unpack_error)
}

fn unpack_error(error: io::Error) -> Error {
    if error.raw_os_error().is_some() {
        Error::io("storing the image")(error)
    } else {
        Error::Invalid(error.to_string())
    }
}

/// Names the image in an error about its content.
fn in_image(reference: &ImageReference, error: Error) -> Error {
    match error {
        Error::Invalid(text) => Error::Invalid(format!("image {reference}: {text}")),
        error => error,
    }
}

#[cfg(test)]
mod tests;
