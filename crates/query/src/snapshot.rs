//! A consistent view of a workspace: live segments and unflushed data.

mod recent_cache;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::wal_segments::WalSegment;
use towpath_store::{Store, segments, wal_segments};
use towpath_traces::flush::{self, FlushError, RunLocation, UnflushedData};
use towpath_traces::lookup::{FooterCache, Lookup};
use towpath_traces::objects::Objects;
use towpath_traces::prices::{PriceTable, Pricer};
use towpath_traces::scan::PartRef;
use towpath_traces::segment::Segment;

use recent_cache::{RecentCache, SegmentPosition};

use crate::overlay::OverlayStore;
use crate::{Error, Result};

/// Projects per statement.
const PROJECTS: usize = 1000;
/// Poll interval while waiting for the flush.
const PACE: Duration = Duration::from_millis(50);

/// How much unflushed data readers load into memory. A query that needs more waits for the flush.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum size of a workspace's open WAL segments for one query, as sent.
    pub bytes: i64,
    /// The same limit for decoded data.
    pub decoded_bytes: i64,
    /// Limit of decoded data that all queries load at the same time.
    pub together_bytes: i64,
    /// Size of the cache for later queries.
    pub recent_bytes: usize,
    /// How long a query waits.
    pub max_wait: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bytes: 8 << 20,
            decoded_bytes: 64 << 20,
            together_bytes: 256 << 20,
            recent_bytes: 128 << 20,
            max_wait: Duration::from_secs(8),
        }
    }
}

/// Reads traces. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    store: Store,
    objects: Objects,
    bounds: Bounds,
    /// Memory permits in KiB.
    memory_permits: Arc<Semaphore>,
    recent_cache: Arc<Mutex<RecentCache>>,
    footers: FooterCache,
}

/// A row group of a project.
#[derive(Clone, Debug)]
pub struct Part {
    pub at: PartRef,
    pub rows: u64,
}

impl Part {
    /// Whether it may contain starts in a range.
    pub(crate) fn overlaps(&self, range: &Range<Timestamp>) -> bool {
        self.at.max_sort_time >= range.start && self.at.min_sort_time < range.end
    }
}

/// The data of a query. It stays unchanged while new data arrives.
pub struct Snapshot {
    tenant: TenantId,
    prices: Arc<PriceTable>,
    reader: Reader,
    unflushed: Arc<UnflushedData>,
    objects: Arc<dyn ObjectStore>,
}

impl Reader {
    /// A reader with the default bounds.
    #[must_use]
    pub fn new(store: Store, objects: Objects) -> Self {
        Self::with_bounds(store, objects, Bounds::default())
    }

    /// A reader with other bounds.
    #[must_use]
    pub fn with_bounds(store: Store, objects: Objects, bounds: Bounds) -> Self {
        Self {
            store,
            objects,
            bounds,
            memory_permits: Arc::new(Semaphore::new(kib(bounds.together_bytes) as usize)),
            recent_cache: Arc::new(Mutex::new(RecentCache::new(bounds.recent_bytes))),
            footers: FooterCache::default(),
        }
    }

    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Captures everything of a workspace that was acknowledged before now.
    ///
    /// [`Error::FlushBehind`] if too much of it waits for its flush for too long.
    pub async fn snapshot(&self, tenant: TenantId) -> Result<Snapshot> {
        let prices = self.objects.prices().table(&self.store, tenant).await?;
        let until = Instant::now() + self.bounds.max_wait;
        let mut last = None;
        // WAL segments that turned out to be too large; polling is useless until others appear.
        let mut too_large: Option<Vec<SegmentPosition>> = None;
        loop {
            let mut open = self
                .store
                .read(async |tx| wal_segments::open_of(tx, tenant).await)
                .await?;
            // Later data need not be waited for.
            let registered = || open.iter().map(|unit| unit.seq).max();
            let last = *last.get_or_insert_with(|| registered().unwrap_or(0));
            open.retain(|unit| unit.seq <= last);
            let late = Instant::now() >= until;
            let placed = open.iter().map(|unit| (unit.id, unit.order(), unit.frames_done));
            let placed: Vec<SegmentPosition> = placed.collect();
            if self.fits_bounds(&open) && too_large.as_ref() != Some(&placed) {
                match self.load_unflushed(tenant, &open, &placed, until).await {
                    // Flushed and removed since the list was read: its data is in a segment.
                    Err(Error::Flush(FlushError::Objects(error))) if error.is_not_found() && !late => {}
                    Ok(None) => too_large = Some(placed),
                    Ok(Some(open)) => return Ok(self.snapshot_over(tenant, prices, open)),
                    Err(error) => return Err(error),
                }
            }
            if late {
                return Err(Error::FlushBehind);
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Whether the WAL segments are within the bounds, as far as the catalog knows.
    fn fits_bounds(&self, open: &[WalSegment]) -> bool {
        let bytes = open.iter().map(|unit| unit.bytes).fold(0, i64::saturating_add);
        bytes <= self.bounds.bytes && decoded_bytes(open) <= self.bounds.decoded_bytes
    }

    /// Loads WAL segments; `None` if they exceed the bounds.
    /// [`Error::FlushBehind`] if other queries use all the memory until the deadline.
    async fn load_unflushed(
        &self,
        tenant: TenantId,
        open: &[WalSegment],
        placed: &[SegmentPosition],
        until: Instant,
    ) -> Result<Option<Arc<UnflushedData>>> {
        if let Some(known) = self.recent_cache.lock().find(tenant, placed) {
            return Ok(Some(known));
        }
        let wanted = kib(decoded_bytes(open)).min(kib(self.bounds.together_bytes));
        let room = tokio::time::timeout_at(until, self.memory_permits.acquire_many(wanted)).await;
        // The semaphore is never closed, so only the timeout ends without a permit.
        let Ok(Ok(_room)) = room else {
            return Err(Error::FlushBehind);
        };
        // The previous holder of the memory may have loaded the same WAL segments.
        if let Some(known) = self.recent_cache.lock().find(tenant, placed) {
            return Ok(Some(known));
        }
        let most = usize::try_from(self.bounds.decoded_bytes).unwrap_or_default();
        let folded = flush::read_unflushed(&self.store, &self.objects, open, most).await?;
        let folded = folded.map(Arc::new);
        if let Some(folded) = &folded {
            self.recent_cache
                .lock()
                .keep(tenant, placed.to_vec(), Arc::clone(folded));
        }
        Ok(folded)
    }

    fn snapshot_over(&self, tenant: TenantId, prices: Arc<PriceTable>, open: Arc<UnflushedData>) -> Snapshot {
        Snapshot {
            tenant,
            prices,
            objects: Arc::new(OverlayStore {
                upper: Arc::clone(open.objects.store()),
                lower: Arc::clone(self.objects.store()),
            }),
            reader: self.clone(),
            unflushed: open,
        }
    }
}

fn decoded_bytes(units: &[WalSegment]) -> i64 {
    units.iter().map(WalSegment::decoded_size).fold(0, i64::saturating_add)
}

/// In KiB, as permits are counted; at least one.
fn kib(bytes: i64) -> u32 {
    u32::try_from((bytes >> 10).saturating_add(1)).unwrap_or(u32::MAX >> 1)
}

impl Snapshot {
    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.reader.store
    }

    /// The prices by which costs are computed that were not sent.
    #[must_use]
    pub const fn prices(&self) -> &Arc<PriceTable> {
        &self.prices
    }

    pub(crate) fn pricer(&self) -> Pricer {
        Pricer::new(Arc::clone(&self.prices))
    }

    /// The object store of segments, including those in memory.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.objects)
    }

    pub(crate) fn lookup(&self) -> Lookup {
        Lookup::new(self.objects(), self.reader.footers.clone())
    }

    pub(crate) async fn open(&self, path: &Path) -> Result<Segment> {
        Ok(self.reader.footers.open(self.objects(), path).await?)
    }

    /// Feedback that is not in the table yet.
    pub(crate) fn open_feedback(&self) -> &[Feedback] {
        &self.unflushed.feedback
    }

    /// Attachments that are not in the table yet.
    #[must_use]
    pub fn open_attachments(&self) -> &[Attachment] {
        &self.unflushed.attachments
    }

    /// Reads the bytes of an attachment.
    pub async fn attachment(&self, attachment: &Attachment) -> Result<bytes::Bytes> {
        let path = Path::from(attachment.path.as_str());
        let held = match self.unflushed.objects.get(&path).await {
            Ok(bytes) => Ok(bytes),
            Err(_) => self.reader.objects.get(&path).await,
        };
        held.map_err(|error| Error::Flush(error.into()))
    }

    /// Row groups of a project that may contain starts from `from` until before `until`.
    pub async fn parts(&self, project: ProjectId, from: Timestamp, until: Timestamp) -> Result<Vec<Part>> {
        let (tenant, first, last) = (self.tenant, day(from), day(until));
        let live = self
            .store()
            .read(async |tx| segments::live_parts(tx, tenant, project, first, last).await)
            .await?;
        let live = live.iter().map(|placed| Part {
            at: flush::part_ref(placed),
            rows: u64::try_from(placed.part.rows).unwrap_or_default(),
        });
        let open = self.unflushed.parts.iter().filter(|(own, ..)| *own == project);
        let open = open.map(|(_, at, rows)| Part {
            at: at.clone(),
            rows: *rows,
        });
        let mut parts: Vec<Part> = live.chain(open).collect();
        parts.retain(|part| part.at.max_sort_time >= from && part.at.min_sort_time < until);
        Ok(parts)
    }

    /// Row groups of each of `projects` that may contain starts in a range.
    pub async fn parts_of(
        &self,
        projects: &[ProjectId],
        range: &Range<Timestamp>,
    ) -> Result<HashMap<ProjectId, Vec<Part>>> {
        let (tenant, first, last) = (self.tenant, day(range.start), day(range.end));
        let mut parts: HashMap<ProjectId, Vec<Part>> = projects.iter().map(|id| (*id, Vec::new())).collect();
        for projects in projects.chunks(PROJECTS) {
            let live = self
                .store()
                .read(async |tx| segments::live_parts_of(tx, tenant, projects, first, last).await)
                .await?;
            for placed in live {
                let part = Part {
                    at: flush::part_ref(&placed),
                    rows: u64::try_from(placed.part.rows).unwrap_or_default(),
                };
                if part.overlaps(range) {
                    parts.entry(placed.part.project_id).or_default().push(part);
                }
            }
        }
        for (project, at, rows) in &self.unflushed.parts {
            let part = Part {
                at: at.clone(),
                rows: *rows,
            };
            if let Some(own) = parts.get_mut(project).filter(|_| part.overlaps(range)) {
                own.push(part);
            }
        }
        Ok(parts)
    }

    /// Paths of unflushed segments, repeated for each row group.
    pub(crate) fn open_paths(&self) -> impl Iterator<Item = &Path> {
        self.unflushed.parts.iter().map(|(_, at, _)| &at.path)
    }

    /// Locations of the trace runs that are found.
    pub async fn locate(&self, runs: &[TraceRunId]) -> Result<Vec<(TraceRunId, RunLocation)>> {
        let mut found = Vec::new();
        let mut paths: Vec<&Path> = self.unflushed.parts.iter().map(|(_, at, _)| &at.path).collect();
        paths.dedup();
        for path in paths {
            let segment = Segment::open(self.objects(), path.clone()).await?;
            for at in segment.locate(runs).await? {
                let place = RunLocation {
                    project: at.project,
                    sort_time: at.sort_time,
                };
                found.push((at.id, place));
            }
        }
        let rest: Vec<TraceRunId> = runs
            .iter()
            .copied()
            .filter(|run| !found.iter().any(|(id, _)| id == run))
            .collect();
        if !rest.is_empty() {
            let (store, objects) = (&self.reader.store, &self.reader.objects);
            found.extend(flush::locate(store, objects, self.tenant, &rest).await?);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// A UTC day, within the supported range of dates.
pub(crate) fn day(time: Timestamp) -> NaiveDate {
    const FIRST: i64 = -62_135_596_800_000_000;
    const LAST: i64 = 253_402_300_799_000_000;
    Timestamp::from_micros(time.micros().clamp(FIRST, LAST)).day()
}
