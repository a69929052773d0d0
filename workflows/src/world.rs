//! What workflows need beside their input.

use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use towpath_domain::export::{DestinationConfig, Limits};
use towpath_domain::{Disk, Disks, TenantId, Timestamp};
use towpath_durable::{Failure, Verdict};
use towpath_outbound::Destination;
use towpath_store::pending_patches::Bounds;
use towpath_store::quarantine::Quota;
use towpath_store::sealing::{OpenError, Sealer};
use towpath_store::{Store, destinations};
use towpath_traces::hive::Prefix;
use towpath_traces::objects::Objects;
use towpath_traces::parquet_file::FILE_BYTES;

use crate::boxes::Boxes;
use crate::delete_destination::DELETED;
use crate::fold_units;
use crate::heavy::Heavy;
use crate::hosting::Hosting;

/// How long a job waits before it looks again whether there is room on the disk.
const ROOM_LOOK: Duration = Duration::from_secs(10);

/// The world of all workflows.
pub struct World {
    /// For reading. A workflow writes through its `Ctx`.
    pub store: Store,
    /// Units and segments.
    pub objects: Objects,
    /// Opens the credentials of destinations.
    pub sealer: Sealer,
    /// Where exports may go.
    pub destinations: towpath_outbound::Settings,
    /// Where rows are decoded and encoded.
    pub heavy: Heavy,
    /// What runs deployments, in the process that keeps them.
    pub hosting: Option<Arc<Hosting>>,
    /// The machine of boxes, in the process that holds it.
    pub boxes: Option<Arc<Boxes>>,
    /// Where builds and exports to folders find room, or wait for it.
    pub disks: Disks,
    /// Sizes.
    pub sizes: Sizes,
    /// How many exports work at the same time, and how long one may take.
    pub exports: Limits,
    /// What becomes of old segments.
    pub keeping: Keeping,
}

/// How long things are kept.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// Days that trace runs are kept, counted from the one they started on; `None` is for ever.
    pub days: Option<u32>,
    /// How long a segment or an index file that was replaced still lies there for queries that began before. Longer than
    /// the longest.
    pub replaced: Duration,
    /// How much of a workspace's trace data may be in quarantine.
    pub quarantine: Quota,
    /// How often objects that were missing are looked for.
    pub missing: Duration,
}

impl Keeping {
    /// The first day of which trace runs are kept; `None` when all are.
    #[must_use]
    pub fn first_day(&self, now: Timestamp) -> Option<NaiveDate> {
        self.days
            .map(|days| now.minus(Duration::from_secs(u64::from(days) * 86_400)).day())
    }
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            days: None,
            replaced: Duration::from_secs(15 * 60),
            quarantine: Quota::default(),
            missing: Duration::from_secs(60 * 60),
        }
    }
}

/// How much is done at once.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of units that one round of folding takes.
    pub fold_bytes: i64,
    /// The same of their bodies after decoding. A larger unit is folded in parts.
    pub fold_decoded_bytes: i64,
    /// How long a unit waits for others that are folded with it.
    pub fold_delay: Duration,
    /// Bytes at which an exported file ends.
    pub file_bytes: u64,
    /// Rows at which an exported file ends, whatever its size.
    pub file_rows: u64,
    /// Bytes of a part of an upload.
    pub part_bytes: usize,
    /// Row groups of at least so many rows are copied into an export rather than read.
    pub splice_rows: u64,
    /// Patches of a workspace that may wait for their trace runs.
    pub pending: Bounds,
    /// So many segments of a workspace outside of its index of trace runs are brought into it.
    pub index_segments: i64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            fold_bytes: 64 << 20,
            fold_decoded_bytes: 256 << 20,
            fold_delay: fold_units::DELAY,
            file_bytes: FILE_BYTES,
            file_rows: u64::MAX,
            part_bytes: towpath_traces::upload::PART_BYTES,
            splice_rows: towpath_traces::feed::SPLICE_ROWS,
            pending: Bounds::default(),
            index_segments: 16,
        }
    }
}

impl World {
    /// What runs deployments.
    ///
    /// # Errors
    /// Retryable: another process has it, and serves the pool of these jobs.
    pub(crate) fn hosting(&self) -> Result<&Hosting, Failure> {
        let missing = || Failure::retry("this process keeps no deployments");
        self.hosting.as_deref().ok_or_else(missing)
    }

    /// The machine of boxes.
    ///
    /// # Errors
    /// Retryable: another process has it, and serves the pool of these jobs.
    pub(crate) fn boxes(&self) -> Result<&Arc<Boxes>, Failure> {
        let boxes = self.boxes.as_ref().filter(|boxes| !boxes.is_lost());
        boxes.ok_or_else(|| Failure::retry("this process does not hold the machine of boxes"))
    }

    /// Opens the destination of an export as it is stored now.
    ///
    /// # Errors
    /// Fatal when it is gone or cannot be one; retryable when this process lacks the key of its credentials, which
    /// another may have.
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

/// Has a job wait where a disk is short of room: what is under way needs what there is.
///
/// # Errors
/// The disk is.
pub(crate) fn room_on(disk: &Disk) -> Result<(), Failure> {
    if disk.is_low() {
        tracing::info!("the disk is nearly full: the job waits");
        return Err(Failure::Snooze(ROOM_LOOK));
    }
    Ok(())
}

/// What every key of a destination begins with.
///
/// # Errors
/// It could lead elsewhere, which a stored one does not.
pub fn prefix(config: &DestinationConfig) -> Result<Prefix, towpath_domain::Rejection> {
    let prefix = Prefix::new(&config.prefix)?;
    match &config.bucket_name {
        Some(bucket) if config.include_bucket_in_prefix => prefix.with_bucket(bucket),
        _ => Ok(prefix),
    }
}
