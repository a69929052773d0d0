//! What a box is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The number of a process life of a box, from its row; it increases with each start and serves as the engine's fence
/// on the machine.
pub type Generation = u64;

/// A box to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoxSpec {
    /// The box. Files are kept under it from one start to the next.
    pub id: Uuid,
    /// Host name in the box: the box's name.
    pub hostname: String,
    /// The root file system from [`Driver::prepare`](crate::Driver::prepare).
    pub root: RootFileSystem,
    /// Whether the box's own files are removed before the start (`persistent: false`).
    pub fresh: bool,
    /// The user of commands and file operations: a name such as `root`, or a user id below 65536. That of the image by
    /// default; `user` on the base `host`.
    pub user: Option<String>,
    /// The working directory of commands, to which relative paths refer. That of the image by default, otherwise the
    /// user's home.
    pub work_dir: Option<String>,
    /// Environment of every command. Not for secrets: each process of the box can read it.
    pub env: BTreeMap<String, String>,
    /// What the box may use.
    pub limits: Limits,
    pub mounts: Vec<VolumeMount>,
    /// Whether its processes reach the [proxy](crate::proxy). Without it the box has no network.
    #[serde(default)]
    pub has_proxy: bool,
}

/// A root file system: a base with sealed layers over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFileSystem {
    /// Name of the base: `host`, or an image with the digest of its manifest.
    pub base: String,
    /// Sealed layers, the newest first. At most 32.
    #[serde(default)]
    pub layers: Vec<Uuid>,
}

/// Resource limits of a box. A limit that the machine cannot enforce makes the start fail: check
/// [`Capabilities`](crate::Capabilities) first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all processes and of temporary file systems.
    pub memory_bytes: Option<u64>,
    /// Processor time, in thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Files of the box.
    pub disk_bytes: Option<u64>,
}

/// A volume in a box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Where the volume is on the host.
    pub source: VolumeSource,
    /// Absolute path in the box.
    pub path: String,
    /// Whether the box may not write to it.
    pub read_only: bool,
}

/// Where a volume is on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeSource {
    Folder(PathBuf),
    /// A file with an ext4 file system. Its size is a hard limit.
    Image(PathBuf),
}

/// Files of a box that no longer change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub id: Uuid,
    /// What it takes on the disk.
    pub used_bytes: u64,
}
