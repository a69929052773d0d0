//! Boxes.

mod change;
mod find;
mod lifecycle;
mod overview;

use towpath_domain::sandbox::{Attachment, BoxActivity, BoxConfig, BoxStatus, Lifetime};
use towpath_domain::{BoxId, PoolId, SnapshotId, TemplateId, TenantId, Timestamp, VolumeId};
use uuid::Uuid;

use super::{from_json, to_json};
use crate::{Result, Tx};

pub use change::{BoxUpdate, claim_pooled, update};
pub use find::{
    BoxLocation, Filter, count, due, find, find_duplicate, find_location, get, list, list_after, lock, pool_members,
    roots_after, volumes_of,
};
pub use lifecycle::{
    StartResult, begin_start, mark_deleting, mark_failed, mark_ready, mark_stopped, postpone, remove, touch, update_due,
};
pub use overview::{count_by_status, get_in_any_workspace, list_all};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SandboxBox {
    pub id: BoxId,
    pub tenant_id: TenantId,
    pub name: String,
    pub status: BoxStatus,
    /// Why it failed or stopped.
    pub status_message: Option<String>,
    /// Number of its newest life.
    pub generation: i64,
    /// The node it was placed on; its files are there.
    pub host_id: Option<Uuid>,
    /// How it is isolated, once it was started.
    pub isolation: Option<String>,
    /// JSON: what it was started on.
    pub root: Option<String>,
    /// JSON; see [`SandboxBox::config`].
    pub config: String,
    /// Name of its template or its snapshot.
    pub template_name: String,
    pub template_id: Option<TemplateId>,
    pub snapshot_id: Option<SnapshotId>,
    /// The pool that it waits in for a caller.
    pub pool_id: Option<PoolId>,
    /// See [`Lifetime`](towpath_domain::sandbox::Lifetime).
    pub idle_ttl_seconds: i64,
    /// See [`Lifetime`](towpath_domain::sandbox::Lifetime).
    pub ttl_seconds: i64,
    /// See [`Lifetime`](towpath_domain::sandbox::Lifetime).
    pub delete_after_stop_seconds: i64,
    /// When it was used last.
    pub active_at: Timestamp,
    /// When one of its times may be over.
    pub due_at: Option<Timestamp>,
    /// When it stopped or failed.
    pub stopped_at: Option<Timestamp>,
    pub created_by: String,
    /// The key that changed it last.
    pub updated_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl SandboxBox {
    pub fn config(&self) -> Result<BoxConfig> {
        from_json(&self.config, "sandbox_box", "config", &self.id)
    }

    /// Its times.
    #[must_use]
    pub const fn lifetime(&self) -> Lifetime {
        Lifetime {
            idle_ttl_seconds: self.idle_ttl_seconds,
            ttl_seconds: self.ttl_seconds,
            delete_after_stop_seconds: self.delete_after_stop_seconds,
        }
    }

    /// The times from which its lifetimes count.
    #[must_use]
    pub const fn activity(&self) -> BoxActivity {
        BoxActivity {
            status: self.status,
            created_at: self.created_at,
            active_at: self.active_at,
            stopped_at: self.stopped_at,
        }
    }
}

/// A box to record. It is about to be started for the first time.
#[derive(Clone, Debug)]
pub struct NewBox<'a> {
    pub id: BoxId,
    pub name: &'a str,
    pub config: &'a BoxConfig,
    /// Name of its template or its snapshot.
    pub template_name: &'a str,
    pub template: Option<TemplateId>,
    pub snapshot: Option<SnapshotId>,
    /// The pool that it waits in.
    pub pool: Option<PoolId>,
    /// The node it is placed on; without one, the node that starts it.
    pub node: Option<Uuid>,
    /// Its times.
    pub lifetime: Lifetime,
    /// Its volumes.
    pub attachments: &'a [Attachment],
    /// Digest of the request.
    pub request: &'a [u8],
    pub created_by: &'a str,
}

/// Records a sandbox with its first generation.
///
/// # Errors
/// [`crate::Error::Conflict`] if the name is taken.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewBox<'_>) -> Result<SandboxBox> {
    let now = tx.now();
    let config = to_json(new.config, "sandbox_box", "config", &new.id)?;
    let standing = BoxActivity {
        status: BoxStatus::Provisioning,
        created_at: now,
        active_at: now,
        stopped_at: None,
    };
    let due = new.lifetime.next_due(&standing).map(|(at, _)| at);
    let row = on!(tx, |conn| {
        sqlx::query_as(concat!(
        "INSERT INTO sandbox_box (id, tenant_id, name, status, generation, config, template_name, template_id, snapshot_id,
                                  pool_id, idle_ttl_seconds, ttl_seconds, delete_after_stop_seconds, active_at, due_at,
                                  request, created_by, updated_by, created_at, updated_at, host_id)
         VALUES ($1, $2, $3, 'provisioning', 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, $12, $12, $16)
         RETURNING ",
        columns!(sandbox_box)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.name)
    .bind(config)
    .bind(new.template_name)
    .bind(new.template)
    .bind(new.snapshot)
    .bind(new.pool)
    .bind(new.lifetime.idle_ttl_seconds)
    .bind(new.lifetime.ttl_seconds)
    .bind(new.lifetime.delete_after_stop_seconds)
    .bind(now)
    .bind(due)
    .bind(new.request)
    .bind(new.created_by)
    .bind(new.node)
    .fetch_one(conn)
    .await
    })?;
    for attachment in new.attachments {
        on!(tx, |conn| sqlx::query(
            "INSERT INTO sandbox_box_volume (box_id, volume_id, mount_path, read_only) VALUES ($1, $2, $3, $4)"
        )
        .bind(new.id)
        .bind(attachment.volume)
        .bind(&attachment.mount_path)
        .bind(attachment.read_only)
        .execute(conn)
        .await
        .map(drop))?;
    }
    Ok(row)
}

/// A volume in a box, with its name.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct BoxVolume {
    pub box_id: BoxId,
    pub volume_id: VolumeId,
    pub volume_name: String,
    /// Where it is in the box.
    pub mount_path: String,
    /// Whether the box may not write to it.
    pub read_only: bool,
}
