use std::collections::HashMap;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::json;
use tempfile::TempDir;

use super::super::registry::{RegistryBody, RegistryReply, TransportError};
use super::*;

const NAME: &str = "registry.example/app:v1";
const MANY_BYTES: u64 = 1 << 20;

/// A registry in memory that anyone may read.
#[derive(Debug, Default)]
struct MemoryRegistry(Mutex<HashMap<String, Vec<u8>>>);

impl MemoryRegistry {
    fn set(&self, path: &str, content: impl Into<Vec<u8>>) {
        let url = format!("https://registry.example/v2/app/{path}");
        self.0.lock().insert(url, content.into());
    }

    /// Stores a blob and describes it.
    fn set_blob(&self, content: &[u8]) -> serde_json::Value {
        let digest = Digest::of(content).to_string();
        self.set(&format!("blobs/{digest}"), content);
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": content.len()})
    }

    /// Stores an image with one layer of one file, and returns the digest of its manifest.
    fn set_image(&self, content: &str) -> String {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, "file", content.as_bytes()).unwrap();
        let layer = archive.into_inner().unwrap();
        let config = json!({"config": {"User": "app"}, "rootfs": {"diff_ids": [Digest::of(&layer).to_string()]}});
        let config = self.set_blob(config.to_string().as_bytes());
        let manifest = json!({"config": config, "layers": [self.set_blob(&layer)]}).to_string();
        let digest = Digest::of(manifest.as_bytes()).to_string();
        self.set("manifests/v1", manifest);
        digest
    }
}

struct MemoryBody(Option<Bytes>);

#[async_trait]
impl RegistryBody for MemoryBody {
    async fn chunk(&mut self) -> std::result::Result<Option<Bytes>, TransportError> {
        Ok(self.0.take())
    }
}

#[async_trait]
impl RegistryTransport for MemoryRegistry {
    async fn get(&self, url: &str, _: HeaderMap) -> std::result::Result<RegistryReply, TransportError> {
        let found = self.0.lock().get(url).cloned();
        let status = if found.is_some() {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        };
        Ok(RegistryReply {
            status,
            headers: HeaderMap::new(),
            body: Box::new(MemoryBody(found.map(Bytes::from))),
        })
    }
}

struct World {
    folder: TempDir,
    registry: Arc<MemoryRegistry>,
    store: Arc<ImageStore>,
}

impl World {
    fn new() -> Self {
        Self::with_limits(MANY_BYTES, MANY_BYTES)
    }

    fn with_limits(max_image_bytes: u64, max_total_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Arc::new(MemoryRegistry::default());
        let settings = ImageSettings {
            transport: Some(registry.clone()),
            max_image_bytes,
            max_total_bytes,
        };
        Self {
            store: Arc::new(ImageStore::new(folder.path().to_owned(), settings)),
            folder,
            registry,
        }
    }

    async fn pull(&self) -> Result<String> {
        self.store.pull(&ImageRequest::anonymous(NAME), None).await
    }

    /// Makes an image look unused for a long time.
    fn age(&self, name: &str) {
        let used = self.store.image_folder(name, None).join(USE_FILE);
        let used = File::options().write(true).open(used).unwrap();
        used.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    fn names(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }
}

#[tokio::test]
async fn an_image_is_pulled_once_and_known_by_its_digest() {
    let world = World::new();
    let digest = world.registry.set_image("first");
    let name = world.pull().await.unwrap();
    assert_eq!(name, format!("registry.example/app@{digest}"));
    let image = world.store.open(&name, None).unwrap();
    assert_eq!(fs::read(image.root.join("file")).unwrap(), b"first");
    assert_eq!(image.config.user, "app");
    assert_eq!((world.pull().await.unwrap(), world.names()), (name.clone(), 1));

    world.registry.set_image("second");
    let other = world.pull().await.unwrap();
    assert_ne!(other, name);
    let image = world.store.open(&other, None).unwrap();
    assert_eq!(fs::read(image.root.join("file")).unwrap(), b"second");
    assert_eq!(world.names(), 2);
    // Files of another owner are another image.
    assert!(matches!(world.store.open(&name, Some(7)), Err(Error::NotFound(_))));
}

#[tokio::test]
async fn content_that_differs_from_its_digest_is_refused() {
    let world = World::new();
    world.registry.set_image("content");
    let urls: Vec<String> = world.registry.0.lock().keys().cloned().collect();
    for url in urls.into_iter().filter(|url| url.contains("/blobs/")) {
        let before = world.registry.0.lock().get_mut(&url).map(|content| {
            let before = content.clone();
            content[0] ^= 1;
            before
        });
        let error = world.pull().await.unwrap_err();
        assert!(
            error.is_transient() && error.to_string().contains("differs from its digest"),
            "{error}"
        );
        assert_eq!(world.names(), 0, "nothing is left of it");
        world.registry.0.lock().insert(url, before.unwrap());
    }
    world.pull().await.unwrap();
}

#[tokio::test]
async fn an_image_that_is_too_large_is_refused() {
    let world = World::with_limits(1000, MANY_BYTES);
    world.registry.set_image("content");
    let error = world.pull().await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("accepts 1000")),
        "{error}"
    );
    let world = World::with_limits(MANY_BYTES, 1000);
    world.registry.set_image("content");
    let error = world.pull().await.unwrap_err();
    assert!(
        matches!(&error, Error::Busy(text) if text.contains("at most 1000 bytes")),
        "{error}"
    );
    assert_eq!(world.names(), 0);
}

#[tokio::test]
async fn unused_images_and_leftovers_are_removed() {
    let world = World::new();
    world.registry.set_image("first");
    let used = world.pull().await.unwrap();
    world.registry.set_image("second");
    let unused = world.pull().await.unwrap();
    let bases = BTreeSet::from([used.clone()]);
    world.store.remove_unused(&bases).unwrap();
    assert_eq!(world.names(), 2, "both were used just now");

    for name in [&used, &unused] {
        world.age(name);
    }
    fs::create_dir(world.folder.path().join(format!("left{PARTIAL_SUFFIX}"))).unwrap();
    let target = world.folder.path().join("image");
    let draft = world.store.begin_draft(&target).unwrap();
    world.store.remove_unused(&bases).unwrap();
    world.store.open(&used, None).unwrap();
    assert!(matches!(world.store.open(&unused, None), Err(Error::NotFound(_))));
    assert!(draft.folder.is_dir(), "a pull works on it");
    assert_eq!(world.names(), 2);
    drop(draft);
    world.age(&used);
    world.store.remove_unused(&BTreeSet::new()).unwrap();
    assert_eq!(world.names(), 0);
}

#[tokio::test]
async fn a_process_without_registries_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(ImageStore::new(folder.path().to_owned(), ImageSettings::default()));
    let error = store.pull(&ImageRequest::anonymous(NAME), None).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported(text) if text.contains("no access to registries")),
        "{error}"
    );
}
