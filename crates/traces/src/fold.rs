//! Folding: from units of the write-ahead log to segments.
//!
//! [`fold`] reads and writes objects and only looks things up in SQL; [`record`] then makes all of it true in one
//! transaction: segments live, units folded, patches put aside or taken up. Until that has committed nothing has
//! happened, and a fold may be done again; what an abandoned one wrote is removed by its intents.
//!
//! An id names one trace run, which lies in one place: see [`places`]. Operations on a trace run that no operation has
//! placed yet wait, in SQL where the fold ends before one does. The operation that places it takes them up.
//!
//! Memory is bounded by [`Options::flush_bytes`] of rows plus a few decoded bodies, what waits, and a small entry per
//! trace run of the batch, so the caller bounds the batch. Folds of one workspace must not overlap, and take its units in
//! order of acceptance; their lane sees to that.

mod ahead;
mod groups;
mod places;
mod quarantine;
mod record;
mod source;
mod unfolded;

use object_store::path::Path;
use towpath_domain::{SegmentId, TenantId, TraceRunId, UnitId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::quarantine::Entry;
use towpath_store::units::Unit;
use towpath_store::{Store, pending_patches};
use uuid::Uuid;

use crate::accept::{self, Contents};
use crate::columnar;
use crate::compact::SEGMENT_GROUPS;
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use crate::operation::Operation;
use crate::segment::Written;
use ahead::{Ahead, Piece};
use groups::Groups;
pub use places::{Place, locate};
use places::{Placement, Places};
pub use quarantine::{quarantine_frame, quarantine_path};
pub use record::{catalog_parts, part_ref, record};
pub use unfolded::{Unfolded, unfolded};

/// How folding behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of rows that lie in memory before a segment is written.
    pub flush_bytes: usize,
    /// Row groups of one segment.
    pub segment_groups: usize,
    /// Folds only the frame of this number of a single unit, to find the one that cannot be folded.
    pub frame: Option<i64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            flush_bytes: 64 * 1024 * 1024,
            segment_groups: SEGMENT_GROUPS,
            frame: None,
        }
    }
}

/// A segment that is written and waits to be made live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSegment {
    /// Its workspace.
    pub tenant: TenantId,
    /// The segment.
    pub id: SegmentId,
    /// What is in it.
    pub written: Written,
}

/// An operation that nobody can place yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// Its workspace.
    pub tenant: TenantId,
    /// Its place in the order of acceptance.
    pub seq: i64,
    /// The operation.
    pub operation: Operation,
}

/// What a fold did; [`record`] makes it true.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    /// Units that are done with.
    pub units: Vec<UnitId>,
    /// Units whose objects are not there.
    pub missing: Vec<UnitId>,
    /// A unit that is folded frame by frame, and how many of its frames are done with.
    pub progress: Option<(UnitId, i64)>,
    /// What cannot be read, and what is not there.
    pub quarantined: Vec<Entry>,
    /// Segments to make live.
    pub segments: Vec<NewSegment>,
    /// Operations to put aside.
    pub waiting: Vec<Waiting>,
    /// Operations put aside before that have found their trace run.
    pub taken_up: Vec<(TenantId, TraceRunId, i64)>,
    /// Feedback to store.
    pub feedback: Vec<Feedback>,
    /// Attachments to store; their bytes lie in the object store already.
    pub attachments: Vec<Attachment>,
    /// Operations on trace runs that were folded.
    pub operations: u64,
    /// Those of them that were dropped, since their project was deleted after they were accepted.
    pub dropped: u64,
}

/// Why a fold stopped. Doing it again may help.
#[derive(Debug, thiserror::Error)]
pub enum FoldError<E> {
    /// The caller could not write down an intent.
    #[error("cannot note the segment about to be written")]
    Intend(E),
    /// Units, attachments.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Segments.
    #[error(transparent)]
    Columnar(#[from] columnar::Error),
    /// Looking things up.
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
    /// A defect of ours that this data met.
    #[error("folding panicked: {0}")]
    Panicked(String),
}

impl<E> FoldError<E> {
    /// Whether what is folded is to blame, so that other data can be folded without it.
    #[must_use]
    pub const fn blames_data(&self) -> bool {
        match self {
            Self::Intend(_) | Self::Objects(_) => false,
            Self::Columnar(error) => matches!(
                error,
                columnar::Error::Columns(_)
                    | columnar::Error::Unplaced(_)
                    | columnar::Error::Parquet(_)
                    | columnar::Error::Arrow(_)
            ),
            Self::Store(error) => refuses_data(error),
            Self::Panicked(_) => true,
        }
    }
}

/// Whether the database refused what it was given, and would again.
#[must_use]
pub const fn refuses_data(error: &towpath_store::Error) -> bool {
    use towpath_store::Error as E;
    matches!(
        error,
        E::Corrupt { .. } | E::Driver(_) | E::Rejected(_) | E::Conflict { .. }
    )
}

/// Folds `units`, which must be in order of acceptance. `intend` is called before each segment is written and must
/// have committed [`segments::intend`](towpath_store::segments::intend) when it returns.
///
/// Decoding and encoding is hard work: call it where that disturbs nobody.
///
/// # Errors
/// See [`FoldError`]. Frames that cannot be read and units whose objects are not there are none: they are quarantined.
pub async fn fold<E>(
    store: &Store,
    objects: &Objects,
    units: &[Unit],
    options: &Options,
    mut intend: impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
) -> Result<Folded, FoldError<E>> {
    let mut merge = Merge::new(store, objects, objects);
    let mut bodies = Bodies::default();
    let mut decoded = Ahead::start(store, objects, units, options.frame);
    for unit in units {
        let mut frames = 0;
        loop {
            match decoded.next().await.map_err(FoldError::from_inner)? {
                Piece::Body(body) => {
                    frames += 1;
                    bodies.push(body);
                    if bodies.are_enough(options.flush_bytes) {
                        merge.take_in(bodies.take()).await.map_err(FoldError::from_inner)?;
                        merge.flush(options, &mut intend).await?;
                    }
                }
                Piece::Quarantined(entry) => {
                    frames += 1;
                    merge.folded.quarantined.push(entry);
                    metrics::counter!(metric::WAL_DAMAGED).increment(1);
                }
                Piece::Missing(entry) => {
                    merge.folded.quarantined.push(entry);
                    merge.folded.missing.push(unit.id);
                    metrics::counter!(metric::WAL_MISSING).increment(1);
                    break;
                }
                Piece::End => {
                    match options.frame {
                        Some(number) if frames > 0 => merge.folded.progress = Some((unit.id, number + 1)),
                        _ => merge.folded.units.push(unit.id),
                    }
                    break;
                }
            }
        }
    }
    merge.take_in(bodies.take()).await.map_err(FoldError::from_inner)?;
    merge.apply_waiting();
    for (tenant, runs) in merge.placed() {
        merge.flush(options, &mut intend).await?;
        merge.take_up(tenant, &runs).await.map_err(FoldError::from_inner)?;
    }
    merge.flush_all(options, &mut intend).await?;
    let folded = merge.folded;
    for segment in &folded.segments {
        metrics::counter!(metric::SEGMENTS).increment(1);
        metrics::counter!(metric::SEGMENT_ROWS).increment(segment.written.rows);
        metrics::counter!(metric::SEGMENT_BYTES).increment(segment.written.bytes);
    }
    metrics::counter!(metric::FOLDED_OPERATIONS).increment(folded.operations);
    metrics::counter!(metric::FOLDED_UNITS).increment(folded.units.len() as u64);
    if folded.dropped > 0 {
        metrics::counter!(metric::DROPPED_OPERATIONS).increment(folded.dropped);
    }
    Ok(folded)
}

/// A body as it was accepted.
#[derive(Debug)]
struct Body {
    /// Its sender's workspace.
    tenant: TenantId,
    /// The number of its first item in the order of acceptance. Items are numbered in the order of the fields of
    /// [`Contents`].
    first: i64,
    /// What it holds.
    contents: Contents,
}

impl Body {
    fn operations(&self) -> impl Iterator<Item = (TenantId, &Operation)> {
        let operations = self.contents.operations.iter();
        operations.map(|operation| (self.tenant, operation))
    }
}

/// Bodies that are merged together, so that the places of their trace runs are looked up at once.
#[derive(Default)]
struct Bodies {
    bodies: Vec<Body>,
    operations: usize,
    bytes: usize,
}

impl Bodies {
    /// Operations whose places are looked up at once.
    const OPERATIONS: usize = 4096;
    /// Decoded bytes that wait for that at most.
    const BYTES: usize = 8 << 20;

    fn push(&mut self, body: Body) {
        self.operations += body.contents.operations.len();
        self.bytes += body.contents.decoded_bytes;
        self.bodies.push(body);
    }

    /// With at most `bytes` of rows in memory.
    fn are_enough(&self, bytes: usize) -> bool {
        self.operations >= Self::OPERATIONS || self.bytes >= bytes.min(Self::BYTES)
    }

    fn take(&mut self) -> Vec<Body> {
        std::mem::take(self).bodies
    }
}

/// A fold under way.
struct Merge<'a> {
    store: &'a Store,
    /// Where segments and attachments go.
    objects: &'a Objects,
    places: Places<'a>,
    groups: Groups,
    folded: Folded,
}

impl<'a> Merge<'a> {
    /// `segments` holds the segments of earlier folds, `objects` takes those of this one.
    fn new(store: &'a Store, segments: &'a Objects, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            places: Places::new(store, segments),
            groups: Groups::default(),
            folded: Folded::default(),
        }
    }

    /// Sorts what bodies hold to where it goes. Bodies come in order of acceptance.
    async fn take_in(&mut self, bodies: Vec<Body>) -> Result<(), InnerError> {
        self.places.look_up(&bodies).await?;
        for Body {
            tenant,
            first,
            contents,
        } in bodies
        {
            let mut seq = first;
            for operation in contents.operations {
                self.folded.operations += 1;
                match self.places.place(tenant, &operation).await? {
                    Placement::At(place) => self.groups.add(tenant, place, operation, seq),
                    Placement::Unknown => self.folded.waiting.push(Waiting { tenant, seq, operation }),
                    Placement::Deleted => self.folded.dropped += 1,
                }
                seq += 1;
            }
            for feedback in contents.feedback {
                self.folded.feedback.push(Feedback {
                    tenant_id: tenant,
                    id: feedback.id,
                    run_id: feedback.run,
                    key: storable(feedback.key),
                    body: storable(feedback.body),
                    seq,
                    created_at: store_fills_in(),
                    modified_at: None,
                    deleted: false,
                });
                seq += 1;
            }
            for attachment in contents.attachments {
                self.keep_attachment(tenant, attachment, seq).await?;
                seq += 1;
            }
        }
        Ok(())
    }

    async fn keep_attachment(
        &mut self,
        tenant: TenantId,
        attachment: accept::Attachment,
        seq: i64,
    ) -> Result<(), InnerError> {
        let path = attachment_path(tenant, attachment.run, &attachment.name, seq);
        let bytes = attachment.data.len();
        self.objects.put(&path, vec![attachment.data]).await?;
        self.folded.attachments.push(Attachment {
            tenant_id: tenant,
            run_id: attachment.run,
            name: storable(attachment.name),
            content_type: storable(attachment.content_type),
            path: path.into(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            seq,
            created_at: store_fills_in(),
        });
        Ok(())
    }

    /// Applies what came before the operation that placed its trace run.
    fn apply_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.folded.waiting) {
            match self.places.of(waiting.tenant, waiting.operation.id) {
                Some(place) => self.groups.add(waiting.tenant, place, waiting.operation, waiting.seq),
                None => self.folded.waiting.push(waiting),
            }
        }
    }

    /// The trace runs that this fold placed, in lists that are looked up at once.
    fn placed(&mut self) -> Vec<(TenantId, Vec<TraceRunId>)> {
        let placed = self.places.take_placed().into_iter();
        let lists = placed.flat_map(|(tenant, runs)| {
            let lists: Vec<_> = runs.chunks(4096).map(|runs| (tenant, runs.to_vec())).collect();
            lists
        });
        lists.collect()
    }

    /// Applies what earlier folds have put aside for these trace runs.
    async fn take_up(&mut self, tenant: TenantId, runs: &[TraceRunId]) -> Result<(), InnerError> {
        let found = self
            .store
            .read(async |tx| pending_patches::for_runs(tx, tenant, runs).await)
            .await?;
        for patch in found {
            let operation: Operation = serde_json::from_str(&patch.operation)
                .map_err(|_| towpath_store::Error::corrupt("pending_patch", "operation", patch.seq))?;
            if let Some(place) = self.places.of(tenant, patch.run_id) {
                self.folded.taken_up.push((tenant, patch.run_id, patch.seq));
                self.groups.add(tenant, place, operation, patch.seq);
            }
        }
        Ok(())
    }

    /// Writes segments, once as much lies here as `options` say.
    async fn flush<E>(
        &mut self,
        options: &Options,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
    ) -> Result<(), FoldError<E>> {
        if self.groups.bytes() > options.flush_bytes || self.groups.count() > options.segment_groups {
            self.flush_all(options, intend).await?;
        }
        Ok(())
    }

    /// Writes segments of all that lies here.
    async fn flush_all<E>(
        &mut self,
        options: &Options,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
    ) -> Result<(), FoldError<E>> {
        let groups = std::mem::take(&mut self.groups);
        groups
            .write(self.objects, options.segment_groups, intend, &mut self.folded)
            .await
    }
}

/// What goes wrong inside, where no intent is involved.
type InnerError = FoldError<std::convert::Infallible>;

impl<E> FoldError<E> {
    fn from_inner(error: InnerError) -> Self {
        match error {
            FoldError::Intend(never) => match never {},
            FoldError::Objects(error) => Self::Objects(error),
            FoldError::Columnar(error) => Self::Columnar(error),
            FoldError::Store(error) => Self::Store(error),
            FoldError::Panicked(text) => Self::Panicked(text),
        }
    }
}

/// Where the bytes of an attachment lie that was accepted as number `seq`. A file that is sent again is another object:
/// whoever removes the old one cannot meet the new one. Files of earlier builds lie under their names alone, which have
/// no dot but in `.named`.
#[must_use]
pub fn attachment_path(tenant: TenantId, run: TraceRunId, name: &str, seq: i64) -> Path {
    let folder = ["attachments".to_owned(), tenant.to_string(), run.to_string()];
    let plain = name.len() <= 80
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_ ".contains(&byte));
    // Other names could be too long for a file system once they are encoded, or mean something to it.
    let file = if plain {
        name.to_owned()
    } else {
        format!("{}.named", Uuid::new_v5(&run.0, name.as_bytes()))
    };
    Path::from_iter(folder.into_iter().chain([format!("{file}.{seq}")]))
}

/// Text that PostgreSQL can keep. Every text from a body passes through here before a statement binds it.
fn storable(text: String) -> String {
    match memchr::memchr(0, text.as_bytes()) {
        None => text,
        Some(_) => text.replace('\0', "\u{fffd}"),
    }
}

/// The store sets `created_at` itself when it writes a row.
const fn store_fills_in() -> towpath_domain::Timestamp {
    towpath_domain::Timestamp::from_micros(0)
}
