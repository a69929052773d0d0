//! The `namespace` driver: boxes from namespaces, control groups, an overlay and a system call filter.
//!
//! A box is not a child of the platform: the launcher exits, and the remaining process is identified by its
//! [record](process_record::ProcessRecord). The launcher also holds the lock of the box, so that a successor of the
//! platform never sees a half-finished start.

mod base_image;
mod box_lock;
mod cgroups;
pub(crate) mod libraries;
mod lifecycle;
pub(crate) mod process_record;
pub(crate) mod proxy_files;
mod self_test;
mod spec_check;
mod volume;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::unistd::geteuid;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::driver::{BoxHandle, BoxState, Capabilities, Driver};
use crate::error::{Error, Result};
use crate::image::{ImageRequest, ImageSettings, ImageStore};
use crate::proxy::ProxyEndpoint;
use crate::spec::{BoxSpec, Generation, Layer, Limits, RootFileSystem, VolumeSource};
use crate::tree;
use box_lock::BoxLock;
use cgroups::Cgroups;
use process_record::ProcessRecord;

pub(crate) use self_test::run_guard;

/// The base made from the host.
const HOST_BASE: &str = "host";
/// Names of public images that stand for it, so that they need no network. With a registry in front, as in
/// `docker.io/library/debian`, they name the images themselves.
const HOST_ALIASES: [&str; 5] = ["", "default", "ubuntu", "debian", "python"];

/// What the operator says about it.
#[derive(Clone, Debug)]
pub struct NamespaceSettings {
    /// The folder of all box data. Only one platform at a time uses it.
    pub root: PathBuf,
    /// The program that implements [`program::run`](crate::program::run): `towpath`.
    pub program: PathBuf,
    /// The first of 65,536 user ids reserved for boxes on this machine: root of boxes and their users. Used if the
    /// platform is root.
    pub first_user: u32,
    pub images: ImageSettings,
}

#[derive(Debug)]
pub struct NamespaceDriver {
    settings: NamespaceSettings,
    images: Arc<ImageStore>,
    capabilities: OnceCell<std::result::Result<Capabilities, String>>,
}

impl NamespaceDriver {
    /// Makes its folders.
    pub fn new(settings: NamespaceSettings) -> Result<Self> {
        for folder in ["base", "images", "layers", "boxes", "runs", "volumes"] {
            create_private_folder(&settings.root.join(folder))?;
        }
        create_private_folder(&settings.root)?;
        let root = settings
            .root
            .canonicalize()
            .map_err(Error::io("the folder of sandboxes"))?;
        Ok(Self::with_folders(NamespaceSettings { root, ..settings }))
    }

    /// In folders that exist.
    fn with_folders(settings: NamespaceSettings) -> Self {
        Self {
            images: Arc::new(ImageStore::new(settings.root.join("images"), settings.images.clone())),
            settings,
            capabilities: OnceCell::new(),
        }
    }

    fn box_folder(&self, id: Uuid) -> PathBuf {
        self.settings.root.join("boxes").join(id.to_string())
    }

    fn run_folder(&self, id: Uuid, generation: Generation) -> PathBuf {
        self.settings.root.join("runs").join(life_name(id, generation))
    }

    fn layer_folder(&self, id: Uuid) -> PathBuf {
        self.settings.root.join("layers").join(id.to_string())
    }

    /// The host user that is root in boxes. `None` if the platform is not root: then its own account is.
    fn first_user(&self) -> Result<Option<u32>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        if self.settings.first_user == 0 {
            return Err(Error::Unsupported(
                "no user ids are reserved for sandboxes; set sandboxes.first_user_id".to_owned(),
            ));
        }
        Ok(Some(self.settings.first_user))
    }

    /// The same, for work that outlives its caller.
    fn own(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            images: Arc::clone(&self.images),
            capabilities: OnceCell::new(),
        }
    }

    fn handle(&self, id: Uuid, generation: Generation, record: &ProcessRecord) -> BoxHandle {
        BoxHandle {
            id,
            generation,
            pid: Some(record.pid),
            folder: self.run_folder(id, generation),
        }
    }
}

/// Operations that must run to their end once begun, under the lock of the box.
impl NamespaceDriver {
    async fn begin(&self, spec: &BoxSpec, generation: Generation) -> Result<BoxHandle> {
        let lock = BoxLock::acquire(&self.box_folder(spec.id)).await?;
        lock.record_start(spec.id, generation)?;
        let current = self.run_folder(spec.id, generation);
        if let Some(record) = ProcessRecord::running(&current).map_err(Error::io("the record of the sandbox"))? {
            let handle = self.handle(spec.id, generation, &record);
            self.thaw(&handle).await?;
            if self.agent(&handle).check_ready().await.is_ok() {
                return Ok(handle);
            }
        }
        for (life, folder) in self.lives(spec.id)? {
            self.end(spec.id, life, &folder).await?;
        }
        let started = self.launch(spec, generation, &lock).await;
        if started.is_err()
            // Leftovers of the start must not stay; a hanging launcher still holds the lock.
            && let Err(error) = self.end(spec.id, generation, &current).await
        {
            // The caller gets the error of the start. The next operation on the box ends this process life.
            tracing::warn!(sandbox.id = %spec.id, %error, "the leftovers of a start cannot be removed yet");
        }
        started
    }

    async fn capture(&self, id: Uuid, generation: Generation, layer: Uuid) -> Result<Layer> {
        let lock = BoxLock::acquire(&self.box_folder(id)).await?;
        lock.check_generation(id, generation)?;
        let made = self.layer_folder(layer);
        if made.is_dir() {
            let what = "the layer";
            let used_bytes = blocking(what, move || tree::used_bytes(&made).map_err(Error::io(what))).await?;
            return Ok(Layer { id: layer, used_bytes });
        }
        if !self.box_folder(id).join("upper").is_dir() {
            return Err(Error::NotFound("the sandbox has no files on this machine".to_owned()));
        }
        let record =
            ProcessRecord::running(&self.run_folder(id, generation)).map_err(Error::io("the record of the sandbox"))?;
        let Some(record) = record else {
            return self.captured_layer(id, layer).await;
        };
        let handle = self.handle(id, generation, &record);
        let sealed = match self.freeze(&handle).await {
            Ok(()) => self.captured_layer(id, layer).await,
            Err(error) => Err(error),
        };
        // Even if not all processes could be frozen: some are.
        self.thaw(&handle).await?;
        sealed
    }

    async fn halt(&self, id: Uuid, generation: Generation, grace: Duration) -> Result<()> {
        let lock = BoxLock::acquire(&self.box_folder(id)).await?;
        lock.check_generation(id, generation)?;
        let current = self.run_folder(id, generation);
        if let Some(record) = ProcessRecord::running(&current).map_err(Error::io("the record of the sandbox"))? {
            let handle = self.handle(id, generation, &record);
            self.thaw(&handle).await?;
            Self::terminate_commands(&self.agent(&handle), grace).await;
        }
        for (life, folder) in self.lives(id)? {
            self.end(id, life, &folder).await?;
        }
        Ok(())
    }

    async fn erase(&self, id: Uuid, generation: Generation) -> Result<()> {
        let lock = BoxLock::acquire(&self.box_folder(id)).await?;
        lock.record_destroy(id, generation)?;
        for (life, folder) in self.lives(id)? {
            self.end(id, life, &folder).await?;
        }
        for files in ["upper", "work"] {
            remove(self.box_folder(id).join(files)).await?;
        }
        Ok(())
    }

    async fn leave(&self, id: Uuid) -> Result<()> {
        let lock = BoxLock::acquire(&self.box_folder(id)).await?;
        if !lock.is_destroyed()? {
            return Err(Error::Invalid(format!("cannot destroy sandbox {id}")));
        }
        remove(self.box_folder(id)).await
    }
}

#[async_trait]
impl Driver for NamespaceDriver {
    fn name(&self) -> &'static str {
        "namespace"
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let found = self
            .capabilities
            .get_or_init(|| self_test::probe_capabilities(self))
            .await;
        found.clone().map_err(Error::Unsupported)
    }

    async fn prepare(&self, image: &ImageRequest) -> Result<RootFileSystem> {
        let base = if is_host_image(&image.name) {
            HOST_BASE.to_owned()
        } else {
            self.images.pull(image, self.first_user()?).await?
        };
        Ok(RootFileSystem {
            base,
            layers: Vec::new(),
        })
    }

    async fn is_prepared(&self, base: &str) -> Result<bool> {
        Ok(base == HOST_BASE || self.images.contains(base, self.first_user()?)?)
    }

    async fn remove_unused_images(&self, bases: &BTreeSet<String>) -> Result<()> {
        let (images, bases, what) = (Arc::clone(&self.images), bases.clone(), "removing unused images");
        blocking(what, move || images.remove_unused(&bases).map_err(Error::io(what))).await
    }

    async fn start(&self, spec: &BoxSpec, generation: Generation) -> Result<BoxHandle> {
        spec_check::check_spec(spec)?;
        spec_check::check_limits(&spec.limits, Cgroups::of_machine())?;
        let (own, spec) = (self.own(), spec.clone());
        whole(async move { own.begin(&spec, generation).await }).await
    }

    async fn adopt(&self, id: Uuid, generation: Generation) -> Result<Option<BoxHandle>> {
        if !self.box_folder(id).is_dir() {
            return Ok(None);
        }
        let _lock = BoxLock::acquire(&self.box_folder(id)).await?;
        let record =
            ProcessRecord::running(&self.run_folder(id, generation)).map_err(Error::io("the record of the sandbox"))?;
        let Some(record) = record else { return Ok(None) };
        let handle = self.handle(id, generation, &record);
        // A platform that was killed during a capture left the box frozen.
        self.thaw(&handle).await?;
        self.agent(&handle).check_ready().await?;
        Ok(Some(handle))
    }

    async fn freeze(&self, handle: &BoxHandle) -> Result<()> {
        if Cgroups::of_machine().freezer.is_none() {
            return Err(Error::Unsupported(
                "this process cannot freeze processes on this machine".to_owned(),
            ));
        }
        let frozen = Cgroups::of_machine()
            .freeze(&life_name(handle.id, handle.generation))
            .await;
        frozen.map_err(Error::io("freezing the sandbox"))
    }

    async fn thaw(&self, handle: &BoxHandle) -> Result<()> {
        let thawed = Cgroups::of_machine()
            .thaw(&life_name(handle.id, handle.generation))
            .await;
        thawed.map_err(Error::io("thawing the sandbox"))
    }

    async fn capture_layer(&self, id: Uuid, generation: Generation, layer: Uuid) -> Result<Layer> {
        let own = self.own();
        whole(async move { own.capture(id, generation, layer).await }).await
    }

    async fn remove_layer(&self, layer: Uuid) -> Result<()> {
        let path = self.layer_folder(layer);
        remove(path.with_extension("partial")).await?;
        remove(path).await
    }

    async fn stop(&self, id: Uuid, generation: Generation, grace: Duration) -> Result<()> {
        if !self.box_folder(id).is_dir() {
            return Ok(());
        }
        let own = self.own();
        whole(async move { own.halt(id, generation, grace).await }).await
    }

    async fn destroy(&self, id: Uuid, generation: Generation) -> Result<()> {
        let own = self.own();
        whole(async move { own.erase(id, generation).await }).await
    }

    async fn forget(&self, id: Uuid) -> Result<()> {
        let own = self.own();
        whole(async move { own.leave(id).await }).await
    }

    async fn make_volume(&self, id: Uuid, bytes: u64) -> Result<VolumeSource> {
        let (volumes, first_user) = (self.settings.root.join("volumes"), self.first_user()?);
        blocking("creating the volume", move || {
            volume::make(&volumes, id, bytes, first_user)
        })
        .await
    }

    async fn grow_volume(&self, id: Uuid, bytes: u64) -> Result<()> {
        let volumes = self.settings.root.join("volumes");
        blocking("growing the volume", move || volume::grow(&volumes, id, bytes)).await
    }

    async fn remove_volume(&self, id: Uuid) -> Result<()> {
        let volumes = self.settings.root.join("volumes");
        blocking("removing the volume", move || volume::remove_tree(&volumes, id)).await
    }

    async fn open_proxy(&self, handle: &BoxHandle) -> Result<Option<ProxyEndpoint>> {
        let Some(authority) = proxy_files::read(&handle.folder).map_err(Error::io("the proxy of the sandbox"))? else {
            return Ok(None);
        };
        let listener = self.agent(handle).proxy_listener().await?;
        Ok(Some(ProxyEndpoint { listener, authority }))
    }

    async fn inventory(&self) -> Result<Vec<BoxState>> {
        let boxes = self.all_boxes()?.into_iter();
        Ok(boxes.filter(|found| !self_test::is_self_test(found.id)).collect())
    }
}

impl NamespaceDriver {
    /// Every box of the folder, those of self-tests too.
    fn all_boxes(&self) -> Result<Vec<BoxState>> {
        let mut marks = Vec::new();
        let entries = fs::read_dir(self.settings.root.join("boxes")).map_err(Error::io("the folder of sandboxes"))?;
        for entry in entries.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let generation = box_lock::newest_generation(&entry.path())?;
            let running = ProcessRecord::running(&self.run_folder(id, generation))
                .map_err(Error::io("the record of the sandbox"))?;
            marks.push(BoxState {
                id,
                generation,
                is_running: running.is_some(),
            });
        }
        Ok(marks)
    }
}

/// Whether a name stands for the base made from the host.
fn is_host_image(name: &str) -> bool {
    let plain = name.split([':', '@']).next().unwrap_or_default();
    plain == HOST_BASE || HOST_ALIASES.contains(&plain)
}

/// Of a life, everywhere on the machine.
fn life_name(id: Uuid, generation: Generation) -> String {
    format!("{id}.{generation}")
}

/// Creates a folder for its owner alone.
fn create_private_folder(folder: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(0o700)))
        .map_err(Error::io("the folder of sandboxes"))
}

async fn remove(path: PathBuf) -> Result<()> {
    let what = "removing files of the sandbox";
    blocking(what, move || tree::remove(&path).map_err(Error::io(what))).await
}

/// Runs an operation to its end even if its caller is dropped: half of it would leave a box frozen, or remove files of
/// a restarted box.
async fn whole<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let done = tokio::spawn(work).await;
    done.map_err(|error| Error::io("an operation on the sandbox")(error.into()))?
}

/// Performs what keeps a thread waiting.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| Error::io(what)(error.into()))?
}

/// Says which limits cannot be had.
fn missing_limits(groups: &Cgroups) -> Vec<String> {
    [
        (groups.memory.is_some(), "memory"),
        (groups.cpu.is_some(), "processor time"),
        (groups.processes.is_some(), "the number of processes"),
    ]
    .into_iter()
    .filter(|(can, _)| !can)
    .map(|(_, what)| {
        format!("{what} of sandboxes cannot be limited: this process may not create control groups for it")
    })
    .collect()
}

/// Of a box that only shows that boxes can be started.
fn self_test_spec(id: Uuid) -> BoxSpec {
    BoxSpec {
        id,
        hostname: "trial".to_owned(),
        root: RootFileSystem {
            base: HOST_BASE.to_owned(),
            layers: Vec::new(),
        },
        fresh: true,
        user: None,
        work_dir: None,
        env: std::collections::BTreeMap::new(),
        limits: Limits::default(),
        mounts: Vec::new(),
        has_proxy: false,
    }
}
