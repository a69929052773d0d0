//! The object store of trace segments, WAL segments and attachments: a local folder or an S3 bucket.

mod folder;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig};
use uuid::Uuid;

use self::folder::Folder;
use crate::metric;
use crate::prices::PriceBook;
use crate::run_index::cache::Cache;

/// Folder of files that are being written, of a local store.
const UNFINISHED: &str = "tmp";

/// What went wrong with an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The address of the store cannot be used; the text says why.
    #[error("{0}")]
    Address(String),
    /// No room left.
    #[error("no space left for objects")]
    Full,
    /// A local file.
    #[error("cannot write {path}")]
    File {
        /// The object.
        path: Path,
        /// What the file system says.
        #[source]
        source: io::Error,
    },
    /// What the object store says.
    #[error("object store")]
    Store(#[from] object_store::Error),
}

impl ObjectsError {
    /// Whether there is no such object.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::Store(object_store::Error::NotFound { .. }))
    }

    fn file(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Self::Full,
            _ => Self::File {
                path: path.clone(),
                source,
            },
        }
    }
}

/// An object store with the cache of lookups by id and the prices of its rows. Clones share all of them.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    local: Option<Arc<Local>>,
    cache: Arc<Cache>,
    prices: PriceBook,
}

#[derive(Debug)]
struct Local {
    files: LocalFileSystem,
    root: PathBuf,
}

impl Objects {
    /// Opens `file:///folder` (created if missing) or `s3://bucket/prefix`. `variables` are the usual `AWS_…` ones;
    /// only `cli` reads the environment.
    ///
    /// # Errors
    /// [`ObjectsError::Address`] for another scheme or inconsistent settings, [`ObjectsError::File`] if the folder
    /// cannot be created.
    pub fn open(url: &str, variables: &BTreeMap<String, String>) -> Result<Self, ObjectsError> {
        let address = |why: &str| ObjectsError::Address(format!("object store address `{url}`: {why}"));
        let parsed = url::Url::parse(url).map_err(|error| address(&error.to_string()))?;
        match parsed.scheme() {
            "file" => Self::folder(&parsed.to_file_path().map_err(|()| address("expected file:///folder"))?),
            "s3" => {
                let bucket = parsed.host_str().filter(|bucket| !bucket.is_empty());
                let bucket = bucket.ok_or_else(|| address("expected s3://bucket/prefix"))?;
                let prefix = Path::from_url_path(parsed.path()).map_err(|error| address(&error.to_string()))?;
                Self::bucket(bucket, &prefix, variables)
            }
            _ => Err(address("expected file:///folder or s3://bucket/prefix")),
        }
    }

    /// A local folder.
    pub fn folder(root: &std::path::Path) -> Result<Self, ObjectsError> {
        let made = std::fs::create_dir_all(root).and_then(|()| root.canonicalize());
        let root = made.map_err(|source| ObjectsError::file(&Path::default(), source))?;
        let files = LocalFileSystem::new_with_prefix(&root)?;
        let local = Arc::new(Local { files, root });
        Ok(Self {
            store: Arc::new(Folder::new(local.clone())),
            local: Some(local),
            cache: Arc::default(),
            prices: PriceBook::default(),
        })
    }

    fn bucket(bucket: &str, prefix: &Path, variables: &BTreeMap<String, String>) -> Result<Self, ObjectsError> {
        // A client of ingest waits ten seconds, so three minutes of retries help no one.
        let retry = RetryConfig {
            max_retries: 3,
            retry_timeout: Duration::from_secs(20),
            ..RetryConfig::default()
        };
        let variables = || variables.iter().filter(|(name, _)| name.starts_with("AWS_"));
        let http = |address: &str| {
            address
                .get(..7)
                .is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
        };
        let plain = variables().any(|(name, value)| name.starts_with("AWS_ENDPOINT") && http(value));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_retry(retry)
            .with_allow_http(plain)
            // Over TLS nothing is won by a digest of every byte.
            .with_unsigned_payload(!plain);
        for (name, value) in variables() {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        let store = builder.build()?;
        let store: Arc<dyn ObjectStore> = if prefix.as_ref().is_empty() {
            Arc::new(store)
        } else {
            Arc::new(PrefixStore::new(store, prefix.clone()))
        };
        Ok(Self::from_store(store))
    }

    /// Objects of a store that was made elsewhere.
    #[must_use]
    pub fn from_store(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            store,
            local: None,
            cache: Arc::default(),
            prices: PriceBook::default(),
        }
    }

    /// Sets the size of the cache for [lookups by id](crate::run_index::locate).
    #[must_use]
    pub fn with_index_cache(mut self, bytes: usize) -> Self {
        self.cache = Arc::new(Cache::new(bytes));
        self
    }

    /// How many bytes the cache for lookups by id holds.
    #[must_use]
    pub fn index_cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Sets the prices by which costs are computed; the bundled ones by default.
    #[must_use]
    pub fn with_prices(mut self, prices: PriceBook) -> Self {
        self.prices = prices;
        self
    }

    /// The prices by which costs are computed.
    #[must_use]
    pub const fn prices(&self) -> &PriceBook {
        &self.prices
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// An in-memory store, for tests.
    #[must_use]
    pub fn memory() -> Self {
        Self::from_store(Arc::new(InMemory::new()))
    }

    /// The store itself, for readers.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The store for work on its own threads: local files are read on the calling thread between awaits.
    #[must_use]
    pub fn blocking_store(&self) -> Arc<dyn ObjectStore> {
        match &self.local {
            Some(local) => Arc::new(Folder::blocking(local.clone())),
            None => self.store.clone(),
        }
    }

    /// Whether writes are so cheap that batching does not pay.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Writes an object made of `pieces` and returns when it survives a loss of power. It becomes visible as a whole;
    /// an existing one is replaced.
    ///
    /// # Errors
    /// [`ObjectsError::Full`] if the disk is full, else the error of the store.
    pub async fn put(&self, path: &Path, pieces: Vec<Bytes>) -> Result<(), ObjectsError> {
        metric::object_call("put", self.put_whole(path, pieces), |_| false).await
    }

    async fn put_whole(&self, path: &Path, pieces: Vec<Bytes>) -> Result<(), ObjectsError> {
        let Some(local) = self.local.clone() else {
            self.store.put(path, PutPayload::from_iter(pieces)).await?;
            return Ok(());
        };
        let object = path.clone();
        let written = tokio::task::spawn_blocking(move || {
            let target = local.files.path_to_filesystem(&object)?;
            local
                .write(&target, &pieces)
                .map_err(|source| ObjectsError::file(&object, source))
        });
        written.await.unwrap_or_else(|ended| {
            Err(ObjectsError::File {
                path: path.clone(),
                source: io::Error::other(ended),
            })
        })
    }

    /// Health check: a bucket must answer, a folder must be writable.
    pub async fn check(&self) -> Result<(), &'static str> {
        let Some(local) = self.local.clone() else {
            // Not being there is an answer too.
            return match self.store.head(&Path::from("ready")).await {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }) => {
                    Err("access is refused")
                }
                Err(_) => Err("unexpected answer"),
            };
        };
        let tried = tokio::task::spawn_blocking(move || local.probe()).await;
        match tried {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(match ObjectsError::file(&Path::default(), error) {
                ObjectsError::Full => "no disk space left",
                _ => "the folder is not writable",
            }),
            Err(_) => Err("the folder is not writable"),
        }
    }

    /// Makes an object written through [`Objects::store`] survive a loss of power. An object store already guarantees
    /// that; local files need a sync.
    pub async fn sync(&self, path: &Path) -> Result<(), ObjectsError> {
        let Some(local) = self.local.clone() else { return Ok(()) };
        let object = path.clone();
        let synced = tokio::task::spawn_blocking(move || {
            let target = local.files.path_to_filesystem(&object)?;
            local
                .sync(&target)
                .map_err(|source| ObjectsError::file(&object, source))
        });
        synced.await.unwrap_or_else(|ended| {
            Err(ObjectsError::File {
                path: path.clone(),
                source: io::Error::other(ended),
            })
        })
    }

    /// The whole object.
    pub async fn get(&self, path: &Path) -> Result<Bytes, ObjectsError> {
        let get = async { Ok(self.store.get(path).await?.bytes().await?) };
        metric::object_call("get", get, ObjectsError::is_not_found).await
    }

    /// A range of an object; less if the object ends before `range` does.
    pub async fn get_range(&self, path: &Path, range: Range<u64>) -> Result<Bytes, ObjectsError> {
        let get = async {
            let error = match self.store.get_range(path, range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => ObjectsError::from(error),
            };
            if error.is_not_found() {
                return Err(error);
            }
            // Every store reports a range beyond the end as an error with its own message.
            match self.store.head(path).await {
                Ok(object) if object.size <= range.start => Ok(Bytes::new()),
                _ => Err(error),
            }
        };
        metric::object_call("get", get, ObjectsError::is_not_found).await
    }

    /// Removes an object. One that is not there is no error.
    pub async fn delete(&self, path: &Path) -> Result<(), ObjectsError> {
        let delete = async { self.store.delete(path).await.map_err(ObjectsError::from) };
        match metric::object_call("delete", delete, ObjectsError::is_not_found).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes every object below `folder`, and returns how many. Concurrently written objects may stay.
    pub async fn delete_below(&self, folder: &Path) -> Result<usize, ObjectsError> {
        let listed: Vec<Path> = self
            .store
            .list(Some(folder))
            .map_ok(|object| object.location)
            .try_collect()
            .await?;
        for path in &listed {
            self.delete(path).await?;
        }
        Ok(listed.len())
    }

    /// Removes leftovers of writers that died before `before`, and returns the number of files.
    pub async fn sweep_unfinished(&self, before: towpath_domain::Timestamp) -> Result<usize, ObjectsError> {
        let Some(local) = self.local.clone() else {
            return Ok(0);
        };
        let swept = tokio::task::spawn_blocking(move || local.sweep_unfinished(before.to_utc().into()));
        let swept = swept.await.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        swept.map_err(|source| ObjectsError::file(&Path::from(UNFINISHED), source))
    }
}

impl Local {
    /// Writes to a temporary file, syncs it, renames it into place, and syncs the folder: the name never points at half
    /// a file.
    fn write(&self, target: &std::path::Path, pieces: &[Bytes]) -> io::Result<()> {
        let folder = target.parent().unwrap_or(&self.root);
        self.ensure(folder)?;
        let unfinished = self.root.join(UNFINISHED);
        self.ensure(&unfinished)?;
        let beside = unfinished.join(Uuid::now_v7().to_string());
        let moved = self
            .fill(&beside, pieces)
            .and_then(|()| std::fs::rename(&beside, target));
        if moved.is_err() {
            // It may not exist; whatever is left is swept later.
            let _ = std::fs::remove_file(&beside);
        }
        moved?;
        sync(folder)
    }

    fn sweep_unfinished(&self, before: SystemTime) -> io::Result<usize> {
        let mut swept = 0;
        let files = match std::fs::read_dir(self.root.join(UNFINISHED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            files => files?,
        };
        for file in files {
            let file = file?;
            let removed = file.metadata().and_then(|about| about.modified()).and_then(|at| {
                let old = at < before;
                if old {
                    std::fs::remove_file(file.path())?;
                }
                Ok(old)
            });
            match removed {
                Ok(removed) => swept += usize::from(removed),
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(swept)
    }

    /// Writes a file as large as a small WAL segment, and removes it.
    fn probe(&self) -> io::Result<()> {
        let unfinished = self.root.join(UNFINISHED);
        self.ensure(&unfinished)?;
        let file = unfinished.join(format!("ready-{}", Uuid::now_v7()));
        let written = std::fs::write(&file, [0; 64 << 10]);
        let removed = std::fs::remove_file(&file);
        written.and(removed)
    }

    /// Syncs a file and every folder above it, any of which may be new.
    fn sync(&self, target: &std::path::Path) -> io::Result<()> {
        std::fs::File::open(target)?.sync_all()?;
        target
            .ancestors()
            .skip(1)
            .take_while(|above| above.starts_with(&self.root))
            .try_for_each(sync)
    }

    fn fill(&self, path: &std::path::Path, pieces: &[Bytes]) -> io::Result<()> {
        let mut file = std::fs::File::create_new(path)?;
        for piece in pieces {
            file.write_all(piece)?;
        }
        file.sync_all()
    }

    /// Creates `folder` and its parents durably.
    fn ensure(&self, folder: &std::path::Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(folder)?;
        for above in folder
            .ancestors()
            .skip(1)
            .take_while(|above| above.starts_with(&self.root))
        {
            sync(above)?;
        }
        Ok(())
    }
}

fn sync(folder: &std::path::Path) -> io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_local_object_is_there_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}", folder.path().display());
        let objects = Objects::open(&url, &BTreeMap::new()).unwrap();
        let path = Path::from("wal/deep/one.unit");
        objects
            .put(&path, vec![Bytes::from_static(b"ca"), Bytes::from_static(b"nal")])
            .await
            .unwrap();
        objects.put(&path, vec![Bytes::from_static(b"canal 2")]).await.unwrap();
        assert_eq!(objects.get(&path).await.unwrap(), "canal 2");
        let all: Vec<_> = objects.store().list(None).try_collect().await.unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        objects.delete(&path).await.unwrap();
        objects.delete(&path).await.unwrap();
        assert!(objects.get(&path).await.unwrap_err().is_not_found());
    }

    #[tokio::test]
    async fn part_of_an_object_is_what_there_is_of_it() {
        let folder = tempfile::tempdir().unwrap();
        for objects in [Objects::folder(folder.path()).unwrap(), Objects::memory()] {
            let path = Path::from("wal/one.unit");
            objects.put(&path, vec![Bytes::from_static(b"canal")]).await.unwrap();
            for (range, part) in [(1..3, "an"), (3..9, "al"), (5..9, ""), (7..9, "")] {
                assert_eq!(objects.get_range(&path, range).await.unwrap(), part);
            }
            let missing = objects.get_range(&Path::from("wal/two.unit"), 1..3).await;
            assert!(missing.unwrap_err().is_not_found());
        }
    }

    #[tokio::test]
    async fn what_a_dead_writer_left_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::folder(folder.path()).unwrap();
        std::fs::create_dir(folder.path().join(UNFINISHED)).unwrap();
        std::fs::write(folder.path().join(UNFINISHED).join("half"), b"x").unwrap();
        let long_ago = towpath_domain::Timestamp::from_micros(0);
        assert_eq!(objects.sweep_unfinished(long_ago).await.unwrap(), 0);
        let far_ahead = towpath_domain::Timestamp::from_micros(9_000_000_000_000_000);
        assert_eq!(objects.sweep_unfinished(far_ahead).await.unwrap(), 1);
    }

    /// Whole objects and parts of one, by a process that is killed: forgotten, they are not cleaned up either.
    #[tokio::test]
    async fn a_writer_that_dies_leaves_nothing_beside_its_object() {
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::folder(folder.path()).unwrap();
        let path = Path::from("segments/day/one.parquet");
        for store in [objects.store().clone(), objects.blocking_store()] {
            store.put(&path, PutPayload::from_static(b"canal")).await.unwrap();
            let mut upload = store.put_multipart(&path).await.unwrap();
            upload.put_part(PutPayload::from_static(b"half")).await.unwrap();
            std::mem::forget(upload);
        }
        let beside = |below: &str| std::fs::read_dir(folder.path().join(below)).unwrap().count();
        assert_eq!((beside("segments/day"), beside(UNFINISHED)), (1, 2));
        let far_ahead = towpath_domain::Timestamp::from_micros(9_000_000_000_000_000);
        assert_eq!(objects.sweep_unfinished(far_ahead).await.unwrap(), 2);
        assert_eq!((beside("segments/day"), beside(UNFINISHED)), (1, 0));

        let mut upload = objects.store().put_multipart(&path).await.unwrap();
        upload.put_part(PutPayload::from_static(b"can")).await.unwrap();
        upload.put_part(PutPayload::from_static(b"al 2")).await.unwrap();
        upload.complete().await.unwrap();
        assert_eq!(objects.get(&path).await.unwrap(), "canal 2");
        assert_eq!((beside("segments/day"), beside(UNFINISHED)), (1, 0));
    }

    #[test]
    fn addresses_are_checked() {
        for wrong in ["", "/folder", "ftp://x", "s3:///x", "file://host/x"] {
            assert!(
                matches!(Objects::open(wrong, &BTreeMap::new()), Err(ObjectsError::Address(_))),
                "{wrong}"
            );
        }
    }
}
