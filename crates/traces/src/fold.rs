//! Folding: from units of the write-ahead log to segments.
//!
//! [`fold`] reads and writes objects and only looks things up in SQL; [`record`] then makes all of it true in one
//! transaction: segments live, units folded, patches put aside or taken up. Until that has committed nothing has
//! happened, and a fold may be done again; what an abandoned one wrote is removed by its intents.
//!
//! An id names one trace run, which lies in one place: see [`places`]. Operations on a trace run that no operation has
//! placed yet wait, in SQL where the fold ends before one does. The operation that places it takes them up.
//!
//! Memory is bounded, whatever bodies unpack to. Rows are written once they come to [`Options::flush_bytes`]. What stays
//! until the record (operations that wait, feedback, an entry for each trace run) is bounded by [`Options::decoded_bytes`]:
//! a fold that has taken so much leaves the rest to another, also in the middle of a unit. Beside that lie some decoded
//! bodies, or one that is larger.
//!
//! Folds of one workspace must not overlap, and take its units in order of acceptance; their lane sees to that.

mod ahead;
mod groups;
mod merge;
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

use crate::columnar;
use crate::compact::SEGMENT_GROUPS;
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use crate::operation::Operation;
use crate::segment::Written;
use ahead::{Ahead, Piece};
use merge::{Bodies, Body, Merge};
pub use places::{Place, locate};
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
    /// Bytes of decoded bodies that are folded. A fold that would pass this leaves the rest as it is; it takes one body at
    /// least.
    pub decoded_bytes: usize,
    /// Folds only one frame of a single unit: the first that is left from this number on. Shows which cannot be folded.
    pub frame: Option<i64>,
}

impl Options {
    /// Bytes of operations that are read at once of those that were put aside.
    const PAGE_BYTES: usize = 8 << 20;

    fn page_bytes(&self) -> usize {
        self.flush_bytes.min(Self::PAGE_BYTES)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            flush_bytes: 64 * 1024 * 1024,
            segment_groups: SEGMENT_GROUPS,
            decoded_bytes: 256 * 1024 * 1024,
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

impl Waiting {
    /// About how many bytes it holds.
    fn weight(&self) -> usize {
        self.operation.weight() + size_of::<Self>() - size_of::<Operation>()
    }
}

/// What a fold did; [`record`] makes it true.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    /// Units that are done with.
    pub units: Vec<UnitId>,
    /// Units whose objects are not there.
    pub missing: Vec<UnitId>,
    /// The unit in the middle of which the fold ended, and how many of its frames are done with.
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

/// Folds `units`, which must be in order of acceptance: all of them, or the first as far as `options` let it. `intend` is
/// called before each segment is written and must have committed
/// [`segments::intend`](towpath_store::segments::intend) when it returns.
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
    let mut decoded_bytes = 0;
    'units: for unit in units {
        // The number behind the last frame that was taken of this unit.
        let mut next = None;
        loop {
            match decoded.next().await.map_err(FoldError::from_inner)? {
                Piece::Body(number, body) => {
                    let with_it = body.contents.decoded_bytes.saturating_add(decoded_bytes);
                    let most = options.decoded_bytes;
                    if decoded_bytes > 0 && (with_it > most || merge.held() > most) {
                        // Another fold goes on here. Of a unit of which nothing was taken there is nothing to write down.
                        merge.folded.progress = next.map(|next| (unit.id, next));
                        break 'units;
                    }
                    decoded_bytes = with_it;
                    next = Some(number + 1);
                    bodies.push(body);
                    if bodies.are_enough(options.flush_bytes) {
                        merge.take_in(bodies.take()).await.map_err(FoldError::from_inner)?;
                        merge.flush(options, &mut intend).await?;
                    }
                }
                Piece::Quarantined(number, entry) => {
                    next = Some(number + 1);
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
                    match (options.frame, next) {
                        (Some(_), Some(next)) => merge.folded.progress = Some((unit.id, next)),
                        _ => merge.folded.units.push(unit.id),
                    }
                    break;
                }
            }
        }
    }
    // What was decoded beyond that is of no use.
    drop(decoded);
    merge.take_in(bodies.take()).await.map_err(FoldError::from_inner)?;
    merge.apply_waiting();
    merge.flush(options, &mut intend).await?;
    for (tenant, runs) in merge.placed() {
        let waiting = merge.put_aside(tenant, &runs).await.map_err(FoldError::from_inner)?;
        for page in pending_patches::pages(&waiting, options.page_bytes()) {
            merge.take_up(tenant, page).await.map_err(FoldError::from_inner)?;
            merge.flush(options, &mut intend).await?;
        }
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

/// The store sets `created_at` itself when it writes a row.
const fn store_fills_in() -> towpath_domain::Timestamp {
    towpath_domain::Timestamp::from_micros(0)
}
