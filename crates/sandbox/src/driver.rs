//! What starts and stops boxes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::client::BoxAgent;
use crate::error::{Error, Result};
use crate::image::ImageRequest;
use crate::proxy::ProxyEndpoint;
use crate::spec::{BoxSpec, Generation, Layer, RootFileSystem, VolumeSource};

/// The isolation of a driver, from weaker to stronger, compared with `sandboxes.min_isolation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces of the host's kernel.
    Namespace,
    /// A kernel in user space.
    Gvisor,
    /// A virtual machine.
    Vm,
}

/// The capabilities of a driver on this machine. Reasons for false fields are in [`missing`](Self::missing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How boxes are isolated.
    pub isolation: Isolation,
    /// Whether [`BoxSpec::limits`] may hold memory.
    pub can_limit_memory: bool,
    /// Whether they may hold processor time.
    pub can_limit_cpu: bool,
    /// Whether they may hold a number of processes.
    pub can_limit_processes: bool,
    /// Whether they may hold disk bytes.
    pub can_limit_disk: bool,
    /// Whether a running box can be frozen, which [`Driver::capture_layer`] of a running box requires.
    pub can_freeze: bool,
    /// Whether memory is kept over a stop.
    pub can_suspend: bool,
    /// Whether volumes may be [`VolumeSource::Image`].
    pub can_mount_images: bool,
    /// What this machine lacks, one sentence each, for people.
    pub missing: Vec<String>,
}

/// A box that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxHandle {
    /// The box.
    pub id: Uuid,
    /// Its life.
    pub generation: Generation,
    /// Process id of its first process on the host, where it has one.
    pub pid: Option<i32>,
    /// The folder of this life.
    pub folder: PathBuf,
}

/// What a machine has of a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxState {
    /// The box.
    pub id: Uuid,
    /// The newest generation that the machine has seen.
    pub generation: Generation,
    /// Whether that generation runs.
    pub is_running: bool,
}

/// Starts and stops boxes on this machine. All calls are idempotent.
#[async_trait]
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// Its name in settings and on boxes.
    fn name(&self) -> &'static str;

    /// The capabilities on this machine. Fails with [`Unsupported`](crate::Error::Unsupported) and the reason if no box
    /// can be started. Probed once and cached.
    async fn capabilities(&self) -> Result<Capabilities>;

    /// Makes the root file system of an image available.
    async fn prepare(&self, image: &ImageRequest) -> Result<RootFileSystem>;

    /// Whether the base of a root is on this machine. An image then counts as used.
    async fn is_prepared(&self, base: &str) -> Result<bool>;

    /// Removes images that are the base of none of these roots and were not prepared or started of late.
    async fn remove_unused_images(&self, _bases: &BTreeSet<String>) -> Result<()> {
        Ok(())
    }

    /// Starts a box and waits until its agent answers. A box that already runs with this generation is returned; an
    /// older generation is ended first; a generation older than the newest known one is refused.
    async fn start(&self, spec: &BoxSpec, generation: Generation) -> Result<BoxHandle>;

    /// Finds a box that runs with this generation, even if another process started it.
    async fn adopt(&self, id: Uuid, generation: Generation) -> Result<Option<BoxHandle>>;

    /// Stops every process of a box until [`thaw`](Self::thaw).
    async fn freeze(&self, handle: &BoxHandle) -> Result<()>;

    /// Lets them run again.
    async fn thaw(&self, handle: &BoxHandle) -> Result<()>;

    /// Copies the box's own files into a read-only layer. A running box is frozen meanwhile. The layers of the box stay
    /// below the new one: a box on the capture has `[layer, …root.layers]`.
    async fn capture_layer(&self, id: Uuid, generation: Generation, layer: Uuid) -> Result<Layer>;

    /// Removes a layer that no box and no child layer uses.
    async fn remove_layer(&self, layer: Uuid) -> Result<()>;

    /// Sends SIGTERM to the box's commands, waits for `grace`, and kills them. Files stay. A newer generation is not
    /// stopped and yields an error.
    async fn stop(&self, id: Uuid, generation: Generation, grace: Duration) -> Result<()>;

    /// Stops the box and removes its files. Volumes and layers stay. The generation is remembered, so that a late start
    /// with it or an older one is refused, until [`forget`](Self::forget).
    async fn destroy(&self, id: Uuid, generation: Generation) -> Result<()>;

    /// Removes the last record of a destroyed box. Safe once no job of the box can run any more.
    async fn forget(&self, id: Uuid) -> Result<()>;

    /// Creates a volume of this size, or returns the existing one. Without support for size limits, a
    /// [`VolumeSource::Folder`].
    async fn make_volume(&self, _id: Uuid, _bytes: u64) -> Result<VolumeSource> {
        Err(Error::Unsupported("this driver has no volumes".to_owned()))
    }

    /// Grows an unmounted volume.
    async fn grow_volume(&self, _id: Uuid, _bytes: u64) -> Result<()> {
        Err(Error::Unsupported("this driver has no volumes".to_owned()))
    }

    /// Removes a volume that no box has mounted.
    async fn remove_volume(&self, _id: Uuid) -> Result<()> {
        Err(Error::Unsupported("this driver has no volumes".to_owned()))
    }

    /// Every box with data on this machine, including destroyed ones that are not forgotten.
    async fn inventory(&self) -> Result<Vec<BoxState>>;

    /// The proxy's end of a running box; `None` if it was started without [`BoxSpec::has_proxy`]. Each call returns
    /// another handle on the same end.
    async fn open_proxy(&self, _handle: &BoxHandle) -> Result<Option<ProxyEndpoint>> {
        Ok(None)
    }

    /// The agent of a box. Makes no connection yet.
    fn agent(&self, handle: &BoxHandle) -> BoxAgent {
        BoxAgent::new(&handle.folder)
    }
}
