//! Boxes, isolated machines for the commands of agents, and what belongs to them: volumes, templates, pools, snapshots.

mod config;
mod name;
mod quantity;
mod times;

use serde::{Deserialize, Serialize};

pub use config::{
    Attachment, BoxConfig, RunConfig, TemplateMount, TemplateResources, check_attachments, check_labels, check_ttl,
};
pub use name::{
    SnapshotReference, check_box_name, check_mount_path, check_tag, check_text, check_volume_name, host_name,
};
pub use quantity::{GIB, format_bytes, parse_bytes, parse_cpu_millis};
pub use times::{Due, Standing, Times};

/// Where a box stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum BoxStatus {
    /// It is being started.
    Provisioning,
    /// It runs.
    Ready,
    /// It does not run; its files are kept, and a request starts it again.
    Stopped,
    /// It could not be started.
    Failed,
    /// It is being removed. Its name is free.
    Deleting,
}

impl BoxStatus {
    /// As it stands in the database and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Ready => "ready",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
        }
    }

    /// Whether a start may begin from here. A failed box may be tried again.
    #[must_use]
    pub const fn may_start(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed)
    }

    /// Whether a machine has processes of it, or is about to.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Provisioning | Self::Ready)
    }
}

/// Where a snapshot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum SnapshotStatus {
    /// Its files are being collected.
    Building,
    /// Boxes can be made from it.
    Ready,
    /// It could not be made.
    Failed,
    /// It is being removed.
    Deleting,
}

impl SnapshotStatus {
    /// As it stands in the database and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
        }
    }
}

/// Where a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum VolumeStatus {
    /// The files of another volume are being copied into it.
    Provisioning,
    /// It can be mounted.
    Ready,
    /// The copy failed.
    Failed,
    /// It is being removed. Its name is free.
    Deleting,
}

impl VolumeStatus {
    /// As it stands in the database and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
        }
    }
}

/// What a token of a box opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum TokenKind {
    /// One port.
    Service,
    /// One file.
    Download,
}

/// What one workspace may have. 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Boxes, stopped ones too.
    pub boxes: i64,
    /// Snapshots.
    pub snapshots: i64,
    /// Volumes.
    pub volumes: i64,
    /// Bytes of all volumes together, as their sizes say.
    pub volume_bytes: i64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            boxes: 100,
            snapshots: 200,
            volumes: 100,
            volume_bytes: 100 * GIB,
        }
    }
}

/// Idle boxes stop after so many seconds unless the request says otherwise.
pub const IDLE_TTL_SECONDS: i64 = 600;
/// Stopped boxes are removed after so many seconds unless the request says otherwise.
pub const DELETE_AFTER_STOP_SECONDS: i64 = 14 * 24 * 60 * 60;
