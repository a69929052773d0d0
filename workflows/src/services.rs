//! Services of workflows, besides their input.

use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use towpath_domain::export::{DestinationConfig, Limits};
use towpath_domain::{DiskStatus, DiskStatuses, TenantId, Timestamp};
use towpath_durable::{Failure, IntoFailure};
use towpath_outbound::Destination;
use towpath_store::pending_patches::Bounds;
use towpath_store::quarantine::Quota;
use towpath_store::sandboxes::nodes;
use towpath_store::sealing::{OpenError, Sealer};
use towpath_store::{Dialect, Store, destinations};
use towpath_traces::hive::Prefix;
use towpath_traces::objects::Objects;
use towpath_traces::parquet_file::FILE_BYTES;
use uuid::Uuid;

use crate::cpu_pool::CpuPool;
use crate::delete_destination::DELETED;
use crate::deployment_host::DeploymentHost;
use crate::sandbox_host::SandboxHost;

/// Default time that the first WAL segment waits for others.
pub const DEFAULT_FLUSH_DELAY: Duration = Duration::from_secs(2);
/// How long a job waits before it checks the disk again.
const DISK_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// How long a job of sandboxes waits for the process that runs them.
const HOST_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The services of all workflows.
pub struct Services {
    /// For reading. A workflow writes through its `Ctx`.
    pub store: Store,
    /// WAL segments and trace segments.
    pub objects: Objects,
    /// Opens the credentials of destinations.
    pub sealer: Sealer,
    pub destinations: towpath_outbound::Settings,
    /// Decodes and encodes rows.
    pub cpu_pool: CpuPool,
    /// In the process that runs deployments.
    pub deployment_host: Option<Arc<DeploymentHost>>,
    /// In the process that runs sandboxes.
    pub sandbox_host: Option<Arc<SandboxHost>>,
    /// Free space for builds and for exports to folders.
    pub disks: DiskStatuses,
    pub sizes: Sizes,
    /// Number of concurrent exports, and their time limit.
    pub exports: Limits,
    pub retention: Retention,
}

/// How long data is kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Days that trace runs are kept, counted from the day of their start; `None` is for ever.
    pub days: Option<u32>,
    /// How long a replaced segment or index file is kept for running queries. Longer than the longest query.
    pub replaced_segments: Duration,
    /// Limits of a workspace's quarantine.
    pub quarantine: Quota,
    /// Interval of checks for missing objects.
    pub missing_patches: Duration,
}

impl Retention {
    /// The first day whose trace runs are kept; `None` if all are.
    #[must_use]
    pub fn first_day(&self, now: Timestamp) -> Option<NaiveDate> {
        self.days
            .map(|days| now.minus(Duration::from_secs(u64::from(days) * 86_400)).day())
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            days: None,
            replaced_segments: Duration::from_secs(15 * 60),
            quarantine: Quota::default(),
            missing_patches: Duration::from_secs(60 * 60),
        }
    }
}

/// Batch sizes and delays.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of WAL segments in one round of a flush.
    pub fold_bytes: i64,
    /// The same limit for decoded data. A larger segment is flushed in parts.
    pub fold_decoded_bytes: i64,
    /// How long a WAL segment waits for others.
    pub fold_delay: Duration,
    /// Size at which an exported file ends.
    pub file_bytes: u64,
    /// Rows at which an exported file ends, whatever its size.
    pub file_rows: u64,
    /// Part size of multipart uploads.
    pub part_bytes: usize,
    /// Row groups with at least this many rows are copied into an export instead of being read.
    pub splice_rows: u64,
    /// Limits of patches of a workspace that wait for their trace runs.
    pub pending: Bounds,
    /// Number of unindexed segments of a workspace at which they are indexed.
    pub index_segments: i64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            fold_bytes: 64 << 20,
            fold_decoded_bytes: 256 << 20,
            fold_delay: DEFAULT_FLUSH_DELAY,
            file_bytes: FILE_BYTES,
            file_rows: u64::MAX,
            part_bytes: towpath_traces::upload::PART_BYTES,
            splice_rows: towpath_traces::row_source::SPLICE_ROWS,
            pending: Bounds::default(),
            index_segments: 16,
        }
    }
}

impl Services {
    /// The deployment host; a retryable failure in another process.
    pub(crate) fn deployment_host(&self) -> Result<&DeploymentHost, Failure> {
        let missing = || Failure::retry("this process does not run deployments");
        self.deployment_host.as_deref().ok_or_else(missing)
    }

    /// The sandbox host. In another process, the job snoozes instead of failing.
    pub(crate) fn sandbox_host(&self) -> Result<&Arc<SandboxHost>, Failure> {
        let boxes = self.sandbox_host.as_ref().filter(|boxes| !boxes.is_lost());
        boxes.ok_or(Failure::Snooze(HOST_POLL_INTERVAL))
    }

    /// The sandbox host for something with files on `node`, if it has any; `None` if that node is gone. The job of
    /// another node snoozes.
    pub(crate) async fn sandbox_host_of(&self, node: Option<Uuid>) -> Result<Option<&Arc<SandboxHost>>, Failure> {
        let host = self.sandbox_host()?;
        let Some(node) = node.filter(|node| *node != host.host_id()) else {
            return Ok(Some(host));
        };
        let found = self.store.read(async |tx| nodes::find(tx, node).await).await.retry()?;
        match (found, self.store.dialect()) {
            (None, _) => Ok(None),
            // It was of another folder, and only this process is left.
            (Some(_), Dialect::Sqlite) => Ok(None),
            (Some(_), Dialect::Postgres) => Err(Failure::Snooze(HOST_POLL_INTERVAL)),
        }
    }

    /// Opens the current destination of an export.
    ///
    /// Fatal if the destination does not exist or is invalid; retryable if this process lacks the key of its
    /// credentials, which another process may have.
    pub(crate) async fn destination(
        &self,
        tenant: TenantId,
        id: towpath_domain::DestinationId,
    ) -> Result<Destination, Failure> {
        let row = match self
            .store
            .read(async |tx| destinations::get(tx, tenant, id).await)
            .await
        {
            Err(towpath_store::Error::NotFound) => return Err(Failure::fatal(DELETED)),
            row => row.retry()?,
        };
        let credentials = match row.credentials(&self.sealer) {
            Err(OpenError::UnknownKey) => Err(OpenError::UnknownKey).retry()?,
            opened => opened.fatal()?,
        };
        let config = row.config().fatal()?;
        Destination::open(&self.destinations, row.destination_type, &config, credentials.as_ref()).fatal()
    }
}

/// Makes a job wait while a disk is low on space.
pub(crate) fn require_disk_space(disk: &DiskStatus) -> Result<(), Failure> {
    if disk.is_low() {
        tracing::info!("the disk is nearly full; the job waits");
        return Err(Failure::Snooze(DISK_POLL_INTERVAL));
    }
    Ok(())
}

/// The prefix of all keys of a destination. Fails if it could lead outside, which a stored one never does.
pub fn prefix(config: &DestinationConfig) -> Result<Prefix, towpath_domain::Rejection> {
    let prefix = Prefix::new(&config.prefix)?;
    match &config.bucket_name {
        Some(bucket) if config.include_bucket_in_prefix => prefix.with_bucket(bucket),
        _ => Ok(prefix),
    }
}
