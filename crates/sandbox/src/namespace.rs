//! The driver `namespace`: boxes out of namespaces, control groups, an overlay and a filter of system calls.
//!
//! A box is no child of the platform: the launcher ends, and what is left is known by its [record](record::Record). The
//! lock of a box is held by the launcher too, so that a platform that takes over never meets half a start.

mod base;
mod fence;
mod groups;
mod life;
pub(crate) mod record;
mod request;
mod tree;
mod trial;
mod volume;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use nix::unistd::geteuid;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::driver::{Capabilities, Driver, Handle, Mark};
use crate::error::{Error, Result};
use crate::spec::{BoxSpec, Generation, Layer, Limits, Root, Source};
use fence::Lock;
use groups::Groups;
use record::Record;

/// The base made from the host.
const HOST: &str = "host";

/// What the operator says about it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where everything of boxes lies. Only one platform at a time uses it.
    pub root: PathBuf,
    /// The program that answers to [`program::run`](crate::program::run): `towpath`.
    pub program: PathBuf,
    /// The first of 65,536 user ids that nothing else on this machine has: root of boxes and their users. Used where the
    /// platform is root.
    pub first_user: u32,
}

/// The driver.
#[derive(Debug)]
pub struct Namespace {
    settings: Settings,
    found: OnceCell<std::result::Result<Capabilities, String>>,
}

impl Namespace {
    /// Makes its folders.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn new(settings: Settings) -> Result<Self> {
        for folder in ["base", "layers", "boxes", "runs", "volumes"] {
            private(&settings.root.join(folder))?;
        }
        private(&settings.root)?;
        let root = settings.root.canonicalize().map_err(Error::io("the folder of boxes"))?;
        Ok(Self {
            settings: Settings { root, ..settings },
            found: OnceCell::new(),
        })
    }

    fn folder(&self, id: Uuid) -> PathBuf {
        self.settings.root.join("boxes").join(id.to_string())
    }

    fn run(&self, id: Uuid, generation: Generation) -> PathBuf {
        self.settings.root.join("runs").join(name(id, generation))
    }

    fn layer(&self, id: Uuid) -> PathBuf {
        self.settings.root.join("layers").join(id.to_string())
    }

    /// The user of this machine that is root in boxes. None where the platform is not root: then its own account is.
    fn first_user(&self) -> Result<Option<u32>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        if self.settings.first_user == 0 {
            return Err(Error::Unsupported(
                "no user ids are reserved for boxes: set sandboxes.first_user_id".to_owned(),
            ));
        }
        Ok(Some(self.settings.first_user))
    }

    fn handle(&self, id: Uuid, generation: Generation, record: &Record) -> Handle {
        Handle {
            id,
            generation,
            pid: Some(record.pid),
            folder: self.run(id, generation),
        }
    }
}

#[async_trait]
impl Driver for Namespace {
    fn name(&self) -> &'static str {
        "namespace"
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let found = self.found.get_or_init(|| trial::of(self)).await;
        found.clone().map_err(Error::Unsupported)
    }

    async fn prepare(&self, image: &str) -> Result<Root> {
        // Names of public default images stand for it: they hold what the host has.
        let known = ["", HOST, "default", "ubuntu", "debian", "python"];
        let name = image.rsplit('/').next().unwrap_or_default();
        let name = name.split([':', '@']).next().unwrap_or_default();
        if !known.contains(&name) {
            return Err(Error::Unsupported(format!(
                "image {image}: the driver namespace has no images but {HOST}, which is made from this machine"
            )));
        }
        Ok(Root {
            base: HOST.to_owned(),
            layers: Vec::new(),
        })
    }

    async fn start(&self, spec: &BoxSpec, generation: Generation) -> Result<Handle> {
        request::check(spec)?;
        request::can_limit(&spec.limits, Groups::of_machine())?;
        let lock = Lock::take(&self.folder(spec.id)).await?;
        lock.start(spec.id, generation)?;
        let current = self.run(spec.id, generation);
        if let Some(record) = Record::running(&current).map_err(Error::io("the box's record"))? {
            let handle = self.handle(spec.id, generation, &record);
            if self.dial(&handle).hello().await.is_ok() {
                return Ok(handle);
            }
        }
        for (life, folder) in self.lives(spec.id)? {
            self.end(spec.id, life, &folder).await?;
        }
        let started = self.launch(spec, generation, &lock).await;
        if started.is_err() {
            // What was begun must not stay; a launcher that hangs still holds the lock.
            self.end(spec.id, generation, &current).await?;
        }
        started
    }

    async fn adopt(&self, id: Uuid, generation: Generation) -> Result<Option<Handle>> {
        if !self.folder(id).is_dir() {
            return Ok(None);
        }
        let _lock = Lock::take(&self.folder(id)).await?;
        let record = Record::running(&self.run(id, generation)).map_err(Error::io("the box's record"))?;
        let Some(record) = record else { return Ok(None) };
        let handle = self.handle(id, generation, &record);
        self.dial(&handle).hello().await?;
        Ok(Some(handle))
    }

    async fn freeze(&self, handle: &Handle) -> Result<()> {
        if Groups::of_machine().freezer.is_none() {
            return Err(Error::Unsupported(
                "this machine lets nobody here freeze processes".to_owned(),
            ));
        }
        let frozen = Groups::of_machine()
            .freeze(&name(handle.id, handle.generation), true)
            .await;
        frozen.map_err(Error::io("freezing the box"))
    }

    async fn thaw(&self, handle: &Handle) -> Result<()> {
        let thawed = Groups::of_machine()
            .freeze(&name(handle.id, handle.generation), false)
            .await;
        thawed.map_err(Error::io("thawing the box"))
    }

    async fn seal(&self, id: Uuid, generation: Generation, layer: Uuid) -> Result<Layer> {
        let lock = Lock::take(&self.folder(id)).await?;
        lock.check(id, generation)?;
        let made = self.layer(layer);
        if made.is_dir() {
            let what = "the layer";
            let used_bytes = blocking(what, move || tree::used_bytes(&made).map_err(Error::io(what))).await?;
            return Ok(Layer { id: layer, used_bytes });
        }
        if !self.folder(id).join("upper").is_dir() {
            return Err(Error::NotFound("the box has no files on this machine".to_owned()));
        }
        let record = Record::running(&self.run(id, generation)).map_err(Error::io("the box's record"))?;
        let Some(record) = record else {
            return self.sealed(id, layer).await;
        };
        let handle = self.handle(id, generation, &record);
        self.freeze(&handle).await?;
        let sealed = self.sealed(id, layer).await;
        self.thaw(&handle).await?;
        sealed
    }

    async fn remove_layer(&self, layer: Uuid) -> Result<()> {
        let path = self.layer(layer);
        remove(path.with_extension("partial")).await?;
        remove(path).await
    }

    async fn stop(&self, id: Uuid, generation: Generation, grace: Duration) -> Result<()> {
        if !self.folder(id).is_dir() {
            return Ok(());
        }
        let lock = Lock::take(&self.folder(id)).await?;
        lock.check(id, generation)?;
        let current = self.run(id, generation);
        if let Some(record) = Record::running(&current).map_err(Error::io("the box's record"))? {
            let handle = self.handle(id, generation, &record);
            self.thaw(&handle).await?;
            Self::wind_down(&self.dial(&handle), grace).await;
        }
        for (life, folder) in self.lives(id)? {
            self.end(id, life, &folder).await?;
        }
        Ok(())
    }

    async fn destroy(&self, id: Uuid, generation: Generation) -> Result<()> {
        let lock = Lock::take(&self.folder(id)).await?;
        lock.destroy(id, generation)?;
        for (life, folder) in self.lives(id)? {
            self.end(id, life, &folder).await?;
        }
        for files in ["upper", "work"] {
            remove(self.folder(id).join(files)).await?;
        }
        Ok(())
    }

    async fn forget(&self, id: Uuid) -> Result<()> {
        let lock = Lock::take(&self.folder(id)).await?;
        if !lock.is_destroyed()? {
            return Err(Error::Invalid(format!("box {id} is not destroyed")));
        }
        remove(self.folder(id)).await
    }

    async fn make_volume(&self, id: Uuid, bytes: u64) -> Result<Source> {
        let (volumes, first_user) = (self.settings.root.join("volumes"), self.first_user()?);
        blocking("making the volume", move || {
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
        blocking("removing the volume", move || volume::remove(&volumes, id)).await
    }

    async fn inventory(&self) -> Result<Vec<Mark>> {
        let mut marks = Vec::new();
        let entries = fs::read_dir(self.settings.root.join("boxes")).map_err(Error::io("the folder of boxes"))?;
        for entry in entries.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let generation = fence::newest(&entry.path())?;
            let running = Record::running(&self.run(id, generation)).map_err(Error::io("the box's record"))?;
            marks.push(Mark {
                id,
                generation,
                is_running: running.is_some(),
            });
        }
        Ok(marks)
    }
}

/// Of a life, everywhere on the machine.
fn name(id: Uuid, generation: Generation) -> String {
    format!("{id}.{generation}")
}

/// Makes a folder for its owner alone.
fn private(folder: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(0o700)))
        .map_err(Error::io("the folder of boxes"))
}

async fn remove(path: PathBuf) -> Result<()> {
    let what = "removing files of the box";
    blocking(what, move || tree::remove(&path).map_err(Error::io(what))).await
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
fn missing(groups: &Groups) -> Vec<String> {
    [
        (groups.memory.is_some(), "memory"),
        (groups.cpu.is_some(), "processor time"),
        (groups.processes.is_some(), "the number of processes"),
    ]
    .into_iter()
    .filter(|(can, _)| !can)
    .map(|(_, what)| format!("{what} of boxes cannot be limited: this process may not make control groups for it"))
    .collect()
}

/// Of a box that only shows that boxes can be started.
fn sample(id: Uuid) -> BoxSpec {
    BoxSpec {
        id,
        hostname: "trial".to_owned(),
        root: Root {
            base: HOST.to_owned(),
            layers: Vec::new(),
        },
        fresh: true,
        user: None,
        work_dir: None,
        env: std::collections::BTreeMap::new(),
        limits: Limits::default(),
        mounts: Vec::new(),
    }
}
