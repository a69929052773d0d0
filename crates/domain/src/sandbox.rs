//! Sandboxes, isolated machines for the commands of agents, and their volumes, templates, pools and snapshots.

mod config;
mod lifetime;
mod name;
mod proxy;
mod quantity;

use serde::{Deserialize, Serialize};

pub use config::{
    Attachment, BoxConfig, RunConfig, TemplateMount, TemplateResources, check_attachments, check_labels, check_ttl,
};
pub use lifetime::{BoxActivity, DueAction, Lifetime};
pub use name::{
    SnapshotReference, check_box_name, check_mount_path, check_tag, check_text, check_volume_name, host_name,
};
pub use proxy::{AccessControl, ProxyConfig, ProxyHeader, ProxyHeaderKind, ProxyRule, ProxySecrets, StoredProxy};
pub use quantity::{GIB, format_bytes, parse_bytes, parse_cpu_millis};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum BoxStatus {
    Provisioning,
    Ready,
    /// Not running; its files are kept, and a request starts it again.
    Stopped,
    Failed,
    /// It is being removed; its name can be used again.
    Deleting,
}

impl BoxStatus {
    pub const ALL: [Self; 5] = [
        Self::Provisioning,
        Self::Ready,
        Self::Stopped,
        Self::Failed,
        Self::Deleting,
    ];

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

    /// Whether a start may begin in this state. A failed sandbox may be retried.
    #[must_use]
    pub const fn may_start(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed)
    }

    /// Whether a machine runs its processes, or is about to.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Provisioning | Self::Ready)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum SnapshotStatus {
    Building,
    /// Sandboxes can be created from it.
    Ready,
    Failed,
    Deleting,
}

impl SnapshotStatus {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum VolumeStatus {
    /// The files of another volume are being copied into it.
    Provisioning,
    Ready,
    Failed,
    /// It is being removed; its name can be used again.
    Deleting,
}

impl VolumeStatus {
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

/// The purpose of a sandbox's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum TokenKind {
    /// One port.
    Service,
    /// One file.
    Download,
}

/// Limits per workspace; 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxQuota {
    /// Includes stopped sandboxes.
    pub boxes: i64,
    pub snapshots: i64,
    pub volumes: i64,
    /// The sum of the sizes of all volumes.
    pub volume_bytes: i64,
    pub templates: i64,
    /// Also those whose target size is 0.
    pub pools: i64,
    pub registries: i64,
}

impl Default for SandboxQuota {
    fn default() -> Self {
        Self {
            boxes: 100,
            snapshots: 200,
            volumes: 100,
            volume_bytes: 100 * GIB,
            templates: 200,
            pools: 100,
            registries: 100,
        }
    }
}

/// Default idle time after which a sandbox stops.
pub const IDLE_TTL_SECONDS: i64 = 600;
/// Default time after which a stopped sandbox is removed.
pub const DELETE_AFTER_STOP_SECONDS: i64 = 14 * 24 * 60 * 60;
