//! What starts and stops boxes.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::client::BoxAgent;
use crate::error::{Error, Result};
use crate::spec::{BoxSpec, Generation, Layer, Root, Source};

/// How a driver isolates, from weaker to stronger. `sandboxes.min_isolation` compares them.
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

/// What a driver can do on this machine. A false field has its reason in [`missing`](Self::missing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How boxes are isolated.
    pub isolation: Isolation,
    /// Whether [`BoxSpec::limits`] may hold memory.
    pub limits_memory: bool,
    /// Whether they may hold processor time.
    pub limits_cpu: bool,
    /// Whether they may hold a number of processes.
    pub limits_processes: bool,
    /// Whether they may hold disk bytes.
    pub limits_disk: bool,
    /// Whether a running box can be frozen, which [`Driver::seal`] of a running box needs.
    pub freezes: bool,
    /// Whether memory is kept over a stop.
    pub suspends: bool,
    /// Whether volumes may be [`Source::Image`].
    pub mounts_images: bool,
    /// What this machine lacks, one sentence each, for people.
    pub missing: Vec<String>,
}

/// A box that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
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
pub struct Mark {
    /// The box.
    pub id: Uuid,
    /// The newest generation that the machine has seen.
    pub generation: Generation,
    /// Whether that generation runs.
    pub is_running: bool,
}

/// Starts and stops boxes on this machine. Every call may be repeated.
#[async_trait]
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// Its name in settings and on boxes.
    fn name(&self) -> &'static str;

    /// What it can do here. Fails with [`Unsupported`](crate::Error::Unsupported), which says what the machine lacks,
    /// where no box can be started. Tried once, then remembered.
    async fn capabilities(&self) -> Result<Capabilities>;

    /// Makes the root file system of an image name available.
    async fn prepare(&self, image: &str) -> Result<Root>;

    /// Starts a box and waits until its agent answers. A box that runs with this generation is answered as it is; an
    /// older life is ended first; a generation older than the machine has seen is refused.
    async fn start(&self, spec: &BoxSpec, generation: Generation) -> Result<Handle>;

    /// Finds a box that runs with this generation, also when another process started it.
    async fn adopt(&self, id: Uuid, generation: Generation) -> Result<Option<Handle>>;

    /// Stops every process of a box until [`thaw`](Self::thaw).
    async fn freeze(&self, handle: &Handle) -> Result<()>;

    /// Lets them run again.
    async fn thaw(&self, handle: &Handle) -> Result<()>;

    /// Copies the box's own files into a read-only layer. A running box is frozen meanwhile. The layers of the box's root
    /// stay below the new one: a box on the capture has `[layer, …root.layers]`.
    async fn seal(&self, id: Uuid, generation: Generation, layer: Uuid) -> Result<Layer>;

    /// Removes a layer that no box and no child layer uses.
    async fn remove_layer(&self, layer: Uuid) -> Result<()>;

    /// Asks the box's commands to end (SIGTERM), waits as long as `grace`, and ends them. Files stay. A newer generation
    /// is left alone and is an error.
    async fn stop(&self, id: Uuid, generation: Generation, grace: Duration) -> Result<()>;

    /// Ends the box and removes its files. Volumes and layers stay. The generation remains on the machine, so that a late
    /// start of the same or an older one is refused; [`forget`](Self::forget) removes that too.
    async fn destroy(&self, id: Uuid, generation: Generation) -> Result<()>;

    /// Removes the last trace of a destroyed box. Safe once no job of the box can run any more.
    async fn forget(&self, id: Uuid) -> Result<()>;

    /// Makes a volume of this size, or answers the one that is there. Where the driver cannot hold the size, a
    /// [`Source::Folder`].
    async fn make_volume(&self, _id: Uuid, _bytes: u64) -> Result<Source> {
        Err(Error::Unsupported("this driver has no volumes".to_owned()))
    }

    /// Makes a volume larger that no box has mounted.
    async fn grow_volume(&self, _id: Uuid, _bytes: u64) -> Result<()> {
        Err(Error::Unsupported("this driver has no volumes".to_owned()))
    }

    /// Removes a volume that no box has mounted.
    async fn remove_volume(&self, _id: Uuid) -> Result<()> {
        Err(Error::Unsupported("this driver has no volumes".to_owned()))
    }

    /// Every box that has something on this machine, destroyed ones too until they are forgotten.
    async fn inventory(&self) -> Result<Vec<Mark>>;

    /// The agent of a box. Makes no connection yet.
    fn dial(&self, handle: &Handle) -> BoxAgent {
        BoxAgent::new(&handle.folder)
    }
}
