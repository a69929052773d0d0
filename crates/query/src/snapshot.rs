//! All of a workspace at one moment: live segments, and what is not folded into any yet.

mod recent;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::NaiveDate;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::units::Unit;
use towpath_store::{Store, segments, units};
use towpath_traces::fold::{self, FoldError, Place, Unfolded};
use towpath_traces::lookup::{Footers, Lookup};
use towpath_traces::objects::Objects;
use towpath_traces::scan::PartRef;
use towpath_traces::segment::Segment;

use recent::{Placed, Recent};

use crate::overlay::Overlay;
use crate::{Error, Result};

/// Projects of one statement.
const PROJECTS: usize = 1000;
/// How often it looks meanwhile.
const PACE: Duration = Duration::from_millis(50);

/// How much of what is not folded yet readers take into memory. Whoever would need more waits for the fold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a workspace's open units for one query, as they were sent.
    pub bytes: i64,
    /// The same after decoding.
    pub decoded_bytes: i64,
    /// Bytes after decoding of what all queries together fold into memory at one time.
    pub together_bytes: i64,
    /// Bytes of what is kept for the queries that come next.
    pub recent_bytes: usize,
    /// How long a query waits.
    pub patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bytes: 8 << 20,
            decoded_bytes: 64 << 20,
            together_bytes: 256 << 20,
            recent_bytes: 128 << 20,
            patience: Duration::from_secs(8),
        }
    }
}

/// Reads traces. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    store: Store,
    objects: Objects,
    bounds: Bounds,
    /// For what is being folded into memory, in KiB.
    room: Arc<Semaphore>,
    recent: Arc<Mutex<Recent>>,
    footers: Footers,
}

/// A row group of a project.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where it is.
    pub at: PartRef,
    /// Rows in it.
    pub rows: u64,
}

impl Part {
    /// Whether it may hold starts of a range.
    pub(crate) fn overlaps(&self, range: &Range<Timestamp>) -> bool {
        self.at.max_sort_time >= range.start && self.at.min_sort_time < range.end
    }
}

/// What a query reads. It stays as it is however much comes in meanwhile.
pub struct Snapshot {
    tenant: TenantId,
    reader: Reader,
    open: Arc<Unfolded>,
    objects: Arc<dyn ObjectStore>,
}

impl Reader {
    /// Reads what is in these.
    #[must_use]
    pub fn new(store: Store, objects: Objects) -> Self {
        Self::bounded(store, objects, Bounds::default())
    }

    /// Reads what is in these, with other bounds than usual.
    #[must_use]
    pub fn bounded(store: Store, objects: Objects, bounds: Bounds) -> Self {
        Self {
            store,
            objects,
            bounds,
            room: Arc::new(Semaphore::new(kib(bounds.together_bytes) as usize)),
            recent: Arc::new(Mutex::new(Recent::new(bounds.recent_bytes))),
            footers: Footers::default(),
        }
    }

    /// The database.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Takes up everything of a workspace that was acknowledged before now.
    ///
    /// # Errors
    /// [`Error::Behind`] when too much of it waits to be folded for too long; else what the database and the object
    /// store say.
    pub async fn snapshot(&self, tenant: TenantId) -> Result<Snapshot> {
        let until = Instant::now() + self.bounds.patience;
        let mut last = None;
        // Units that turned out to be too large; as long as there are no others it is no use to look again.
        let mut too_large: Option<Vec<Placed>> = None;
        loop {
            let mut open = self.store.read(async |tx| units::open_of(tx, tenant).await).await?;
            // What comes in while we wait is not ours to wait for.
            let registered = || open.iter().map(|unit| unit.seq).max();
            let last = *last.get_or_insert_with(|| registered().unwrap_or(0));
            open.retain(|unit| unit.seq <= last);
            let late = Instant::now() >= until;
            let placed = open.iter().map(|unit| (unit.id, unit.order(), unit.frames_done));
            let placed: Vec<Placed> = placed.collect();
            if self.may_hold(&open) && too_large.as_ref() != Some(&placed) {
                match self.unfolded(tenant, &open, &placed, until).await {
                    // Folded and swept since the list was read: then it is in a segment.
                    Err(Error::Unfolded(FoldError::Objects(error))) if error.is_not_found() && !late => {}
                    Ok(None) => too_large = Some(placed),
                    Ok(Some(open)) => return Ok(self.over(tenant, open)),
                    Err(error) => return Err(error),
                }
            }
            if late {
                return Err(Error::Behind);
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Whether units are within the bounds, as far as the catalog knows.
    fn may_hold(&self, open: &[Unit]) -> bool {
        let bytes = open.iter().map(|unit| unit.bytes).fold(0, i64::saturating_add);
        bytes <= self.bounds.bytes && decoded_bytes(open) <= self.bounds.decoded_bytes
    }

    /// What units come to; `None` where they do not fit into the bounds.
    ///
    /// # Errors
    /// [`Error::Behind`] when other queries have all the memory until the end.
    async fn unfolded(
        &self,
        tenant: TenantId,
        open: &[Unit],
        placed: &[Placed],
        until: Instant,
    ) -> Result<Option<Arc<Unfolded>>> {
        if let Some(known) = self.recent().find(tenant, placed) {
            return Ok(Some(known));
        }
        let wanted = kib(decoded_bytes(open)).min(kib(self.bounds.together_bytes));
        let room = tokio::time::timeout_at(until, self.room.acquire_many(wanted)).await;
        // Nobody closes it, so only time can end it without a permit.
        let Ok(Ok(_room)) = room else { return Err(Error::Behind) };
        // Whoever had the room may have folded the same units.
        if let Some(known) = self.recent().find(tenant, placed) {
            return Ok(Some(known));
        }
        let most = usize::try_from(self.bounds.decoded_bytes).unwrap_or_default();
        let folded = fold::unfolded(&self.store, &self.objects, open, most).await?;
        let folded = folded.map(Arc::new);
        if let Some(folded) = &folded {
            self.recent().keep(tenant, placed.to_vec(), Arc::clone(folded));
        }
        Ok(folded)
    }

    fn over(&self, tenant: TenantId, open: Arc<Unfolded>) -> Snapshot {
        Snapshot {
            tenant,
            objects: Arc::new(Overlay {
                above: Arc::clone(open.objects.store()),
                below: Arc::clone(self.objects.store()),
            }),
            reader: self.clone(),
            open,
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        // A panic between two of its steps leaves it whole.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn decoded_bytes(units: &[Unit]) -> i64 {
    units.iter().map(Unit::decoded_size).fold(0, i64::saturating_add)
}

/// In KiB, as a semaphore counts them; some, however little it is.
fn kib(bytes: i64) -> u32 {
    u32::try_from((bytes >> 10).saturating_add(1)).unwrap_or(u32::MAX >> 1)
}

impl Snapshot {
    /// The workspace.
    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The database.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.reader.store
    }

    /// Where segments are, those in memory too.
    pub(crate) fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.objects)
    }

    /// Asks them for trace runs.
    pub(crate) fn lookup(&self) -> Lookup {
        Lookup::new(self.objects(), self.reader.footers.clone())
    }

    /// Opens one of them.
    pub(crate) async fn open(&self, path: &Path) -> Result<Segment> {
        Ok(self.reader.footers.open(self.objects(), path).await?)
    }

    /// Feedback that is in no table yet.
    pub(crate) fn open_feedback(&self) -> &[Feedback] {
        &self.open.feedback
    }

    /// Attachments that are in no table yet.
    #[must_use]
    pub fn open_attachments(&self) -> &[Attachment] {
        &self.open.attachments
    }

    /// The bytes of an attachment, wherever they are.
    ///
    /// # Errors
    /// What the object store says.
    pub async fn attachment(&self, attachment: &Attachment) -> Result<bytes::Bytes> {
        let path = Path::from(attachment.path.as_str());
        let held = match self.open.objects.get(&path).await {
            Ok(bytes) => Ok(bytes),
            Err(_) => self.reader.objects.get(&path).await,
        };
        held.map_err(|error| Error::Unfolded(error.into()))
    }

    /// Row groups of a project that may hold starts from `from` until before `until`.
    ///
    /// # Errors
    /// What the database says.
    pub async fn parts(&self, project: ProjectId, from: Timestamp, until: Timestamp) -> Result<Vec<Part>> {
        let (tenant, first, last) = (self.tenant, day(from), day(until));
        let live = self
            .store()
            .read(async |tx| segments::live_parts(tx, tenant, project, first, last).await)
            .await?;
        let live = live.iter().map(|placed| Part {
            at: fold::part_ref(placed),
            rows: u64::try_from(placed.part.rows).unwrap_or_default(),
        });
        let open = self.open.parts.iter().filter(|(own, ..)| *own == project);
        let open = open.map(|(_, at, rows)| Part {
            at: at.clone(),
            rows: *rows,
        });
        let mut parts: Vec<Part> = live.chain(open).collect();
        parts.retain(|part| part.at.max_sort_time >= from && part.at.min_sort_time < until);
        Ok(parts)
    }

    /// Row groups of each of `projects` that may hold starts of a range.
    ///
    /// # Errors
    /// What the database says.
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
                    at: fold::part_ref(&placed),
                    rows: u64::try_from(placed.part.rows).unwrap_or_default(),
                };
                if part.overlaps(range) {
                    parts.entry(placed.part.project_id).or_default().push(part);
                }
            }
        }
        for (project, at, rows) in &self.open.parts {
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

    /// Segments of what is not folded yet, each as often as it has row groups.
    pub(crate) fn open_paths(&self) -> impl Iterator<Item = &Path> {
        self.open.parts.iter().map(|(_, at, _)| &at.path)
    }

    /// Where trace runs are, as far as they are found.
    ///
    /// # Errors
    /// The catalog or a segment cannot be read.
    pub async fn locate(&self, runs: &[TraceRunId]) -> Result<Vec<(TraceRunId, Place)>> {
        let mut found = Vec::new();
        let mut paths: Vec<&Path> = self.open.parts.iter().map(|(_, at, _)| &at.path).collect();
        paths.dedup();
        for path in paths {
            let segment = Segment::open(self.objects(), path.clone()).await?;
            for at in segment.locate(runs).await? {
                let place = Place {
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
            found.extend(fold::locate(store, objects, self.tenant, &rest).await?);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// A UTC day, within what all parties can say.
pub(crate) fn day(time: Timestamp) -> NaiveDate {
    const FIRST: i64 = -62_135_596_800_000_000;
    const LAST: i64 = 253_402_300_799_000_000;
    Timestamp::from_micros(time.micros().clamp(FIRST, LAST)).day()
}
