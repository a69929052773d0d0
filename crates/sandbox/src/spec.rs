//! What a box is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Number of a life of a box, from its row: each start has a greater one. The engine's fence reaches the machine by it.
pub type Generation = u64;

/// A box to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoxSpec {
    /// The box. Files are kept under it from one start to the next.
    pub id: Uuid,
    /// Host name in the box: the box's name.
    pub hostname: String,
    /// The root file system, as [`Driver::prepare`](crate::Driver::prepare) answered it.
    pub root: Root,
    /// Whether the box's own files are removed before the start (`persistent: false`).
    pub fresh: bool,
    /// The user of commands and file operations: `root`, `user`, or a user id below 65536. `user` by default.
    pub user: Option<String>,
    /// Where commands start and relative paths begin. The user's home by default.
    pub work_dir: Option<String>,
    /// Variables of every command. Secrets do not belong here: each process of the box can read them.
    pub env: BTreeMap<String, String>,
    /// What the box may use.
    pub limits: Limits,
    /// Volumes.
    pub mounts: Vec<Mount>,
}

/// A root file system: a base with sealed layers over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Name of the base. The driver `namespace` has `host` alone.
    pub base: String,
    /// Sealed layers, the newest first. At most 32.
    #[serde(default)]
    pub layers: Vec<Uuid>,
}

/// What a box may use. A limit that the machine cannot enforce makes the start fail: ask
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
pub struct Mount {
    /// Where the volume lies on the host.
    pub source: Source,
    /// Absolute path in the box.
    pub path: String,
    /// Whether the box may not write to it.
    pub read_only: bool,
}

/// Where a volume lies on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A folder.
    Folder(PathBuf),
    /// A file that holds an ext4 file system. Its size is a hard limit.
    Image(PathBuf),
}

/// Files of a box that no longer change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its id.
    pub id: Uuid,
    /// What it takes on the disk.
    pub used_bytes: u64,
}
