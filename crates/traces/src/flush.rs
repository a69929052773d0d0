//! Flush: converts WAL segments into trace segments.
//!
//! [`flush`] reads and writes objects and only reads SQL; [`record`] then applies all results in one transaction:
//! segments live, WAL segments flushed, patches put aside or taken up. Before that commit a flush has no effect and may
//! be repeated; objects of an abandoned one are removed through its intents.
//!
//! Each id is one trace run with one location: see [`locations`]. Operations on a trace run without a location wait, in
//! SQL if the flush ends first. The operation that defines the location takes them up.
//!
//! Memory is bounded regardless of the decoded size of bodies. Rows are written when they reach
//! [`Options::flush_bytes`]. Everything kept until the record (waiting operations, feedback, an entry for each trace
//! run) is bounded by [`Options::decoded_bytes`]: a flush that has taken that much leaves the rest to the next one,
//! even in the middle of a WAL segment. In addition, some decoded bodies or a single larger one are in memory.
//!
//! Flushes of a workspace must not overlap and must take its WAL segments in order of acceptance; their lane ensures
//! that.

mod groups;
mod locations;
mod merge;
mod prefetch;
mod quarantine;
mod record;
mod source;
mod unflushed;

use object_store::path::Path;
use towpath_domain::{SegmentId, TenantId, TraceRunId, WalSegmentId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::quarantine::Entry;
use towpath_store::wal_segments::WalSegment;
use towpath_store::{Store, pending_patches};
use uuid::Uuid;

use crate::columnar;
use crate::compact::SEGMENT_GROUPS;
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use crate::operation::Operation;
use crate::segment::Written;
pub use locations::{RunLocation, locate};
use merge::{Body, BodyBatch, Merge};
use prefetch::{Prefetch, PrefetchItem};
pub use quarantine::{quarantine_frame, quarantine_path};
pub use record::{catalog_parts, part_ref, record};
pub use unflushed::{UnflushedData, read_unflushed};

/// How flushing behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of rows that are in memory before a segment is written.
    pub segment_bytes: usize,
    /// Row groups of one segment.
    pub segment_groups: usize,
    /// Limit of decoded bytes. A flush stops before exceeding it, but takes at least one body.
    pub decoded_bytes: usize,
    /// Flushes only one frame of a single WAL segment: the first remaining one from this number on. Used to find a
    /// frame that cannot be flushed.
    pub frame: Option<i64>,
}

impl Options {
    /// Bytes of pending operations that are read at once.
    const PAGE_BYTES: usize = 8 << 20;

    fn page_bytes(&self) -> usize {
        self.segment_bytes.min(Self::PAGE_BYTES)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            segment_groups: SEGMENT_GROUPS,
            decoded_bytes: 256 * 1024 * 1024,
            frame: None,
        }
    }
}

/// A segment that is written and waits to be made live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSegment {
    pub tenant: TenantId,
    pub id: SegmentId,
    pub written: Written,
}

/// An operation that no one can place yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingOperation {
    pub tenant: TenantId,
    /// Its position in the order of acceptance.
    pub seq: i64,
    pub operation: Operation,
}

impl PendingOperation {
    /// About how many bytes it holds.
    fn weight(&self) -> usize {
        self.operation.weight() + size_of::<Self>() - size_of::<Operation>()
    }
}

/// What a flush did; [`record`] applies it.
#[derive(Clone, Debug, Default)]
pub struct FlushResult {
    /// WAL segments that are done with.
    pub wal_segments: Vec<WalSegmentId>,
    /// WAL segments whose objects are not there.
    pub missing: Vec<WalSegmentId>,
    /// The WAL segment in which the flush stopped, and how many of its frames are done.
    pub progress: Option<(WalSegmentId, i64)>,
    /// What cannot be read, and what is not there.
    pub quarantined: Vec<Entry>,
    /// Segments to make live.
    pub segments: Vec<NewSegment>,
    /// Operations to put aside.
    pub pending_operations: Vec<PendingOperation>,
    /// Operations put aside before that have found their trace run.
    pub resolved_patches: Vec<(TenantId, TraceRunId, i64)>,
    /// Feedback to store.
    pub feedback: Vec<Feedback>,
    /// Attachments to store; their bytes are already in the object store.
    pub attachments: Vec<Attachment>,
    /// Operations on trace runs that were flushed.
    pub operations: u64,
    /// Operations that were dropped because their project was deleted after their acceptance.
    pub dropped: u64,
}

/// Why a flush stopped. Doing it again may help.
#[derive(Debug, thiserror::Error)]
pub enum FlushError<E> {
    /// The caller could not write down an intent.
    #[error("cannot record the segment before writing it")]
    Intend(E),
    /// WAL segments, attachments.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Segments.
    #[error(transparent)]
    Columnar(#[from] columnar::Error),
    /// Looking things up.
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
    /// A bug that this data met.
    #[error("the flush panicked: {0}")]
    Panicked(String),
}

impl<E> FlushError<E> {
    /// Whether the flushed data caused the failure, so that other data can be flushed without them.
    #[must_use]
    pub const fn blames_data(&self) -> bool {
        match self {
            Self::Intend(_) | Self::Objects(_) => false,
            Self::Columnar(error) => matches!(
                error,
                columnar::Error::Columns(_)
                    | columnar::Error::NoLocation(_)
                    | columnar::Error::Parquet(_)
                    | columnar::Error::Arrow(_)
            ),
            Self::Store(error) => refuses_data(error),
            Self::Panicked(_) => true,
        }
    }
}

/// Whether the database rejected the data and would do so again.
#[must_use]
pub const fn refuses_data(error: &towpath_store::Error) -> bool {
    use towpath_store::Error as E;
    matches!(
        error,
        E::Corrupt { .. } | E::Driver(_) | E::Rejected(_) | E::Conflict { .. }
    )
}

/// Flushes `units`, which must be in order of acceptance: all of them, or the first ones within `options`. `intend` is
/// called before each segment is written and must have committed [`segments::intend`](towpath_store::segments::intend)
/// when it returns.
///
/// Decoding and encoding is CPU-bound: run it on the CPU pool.
///
/// # Errors
/// See [`FlushError`]. Unreadable frames and WAL segments with missing objects are not errors: they are quarantined.
pub async fn flush<E>(
    store: &Store,
    objects: &Objects,
    units: &[WalSegment],
    options: &Options,
    mut intend: impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
) -> Result<FlushResult, FlushError<E>> {
    let mut merge = Merge::new(store, objects, objects);
    let mut bodies = BodyBatch::default();
    let mut decoded = Prefetch::start(store, objects, units, options.frame);
    let mut decoded_bytes = 0;
    'units: for unit in units {
        // The number after the last frame taken of this WAL segment.
        let mut next = None;
        loop {
            match decoded.next().await.map_err(FlushError::from_inner)? {
                PrefetchItem::Body(number, body) => {
                    let with_it = body.contents.decoded_bytes.saturating_add(decoded_bytes);
                    let most = options.decoded_bytes;
                    if decoded_bytes > 0 && (with_it > most || merge.memory_bytes() > most) {
                        // The next flush continues here. If no frame of a WAL segment was taken, there is nothing to
                        // record.
                        merge.result.progress = next.map(|next| (unit.id, next));
                        break 'units;
                    }
                    decoded_bytes = with_it;
                    next = Some(number + 1);
                    bodies.push(body);
                    if bodies.is_full(options.segment_bytes) {
                        merge.add_bodies(bodies.take()).await.map_err(FlushError::from_inner)?;
                        merge.flush(options, &mut intend).await?;
                    }
                }
                PrefetchItem::Quarantined(number, entry) => {
                    next = Some(number + 1);
                    merge.result.quarantined.push(entry);
                    metrics::counter!(metric::WAL_DAMAGED).increment(1);
                }
                PrefetchItem::Missing(entry) => {
                    merge.result.quarantined.push(entry);
                    merge.result.missing.push(unit.id);
                    metrics::counter!(metric::WAL_MISSING).increment(1);
                    break;
                }
                PrefetchItem::End => {
                    match (options.frame, next) {
                        (Some(_), Some(next)) => merge.result.progress = Some((unit.id, next)),
                        _ => merge.result.wal_segments.push(unit.id),
                    }
                    break;
                }
            }
        }
    }
    // What was decoded beyond that is of no use.
    drop(decoded);
    merge.add_bodies(bodies.take()).await.map_err(FlushError::from_inner)?;
    merge.apply_deferred();
    merge.flush(options, &mut intend).await?;
    for (tenant, runs) in merge.take_new_runs() {
        let waiting = merge
            .pending_patches(tenant, &runs)
            .await
            .map_err(FlushError::from_inner)?;
        for page in pending_patches::pages(&waiting, options.page_bytes()) {
            merge
                .apply_pending(tenant, page)
                .await
                .map_err(FlushError::from_inner)?;
            merge.flush(options, &mut intend).await?;
        }
    }
    merge.flush_all(options, &mut intend).await?;
    let folded = merge.result;
    for segment in &folded.segments {
        metrics::counter!(metric::SEGMENTS).increment(1);
        metrics::counter!(metric::SEGMENT_ROWS).increment(segment.written.rows);
        metrics::counter!(metric::SEGMENT_BYTES).increment(segment.written.bytes);
    }
    metrics::counter!(metric::FOLDED_OPERATIONS).increment(folded.operations);
    metrics::counter!(metric::FOLDED_UNITS).increment(folded.wal_segments.len() as u64);
    if folded.dropped > 0 {
        metrics::counter!(metric::DROPPED_OPERATIONS).increment(folded.dropped);
    }
    Ok(folded)
}

/// What goes wrong inside, where no intent is involved.
type MergeError = FlushError<std::convert::Infallible>;

impl<E> FlushError<E> {
    fn from_inner(error: MergeError) -> Self {
        match error {
            FlushError::Intend(never) => match never {},
            FlushError::Objects(error) => Self::Objects(error),
            FlushError::Columnar(error) => Self::Columnar(error),
            FlushError::Store(error) => Self::Store(error),
            FlushError::Panicked(text) => Self::Panicked(text),
        }
    }
}

/// The path of an attachment that was accepted as number `seq`. A file that is sent again gets another object, so that
/// removing the old one cannot affect it. Files of earlier builds use their name alone, which contains no dot except in
/// `.named`.
#[must_use]
pub fn attachment_path(tenant: TenantId, run: TraceRunId, name: &str, seq: i64) -> Path {
    let folder = ["attachments".to_owned(), tenant.to_string(), run.to_string()];
    let plain = name.len() <= 80
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_ ".contains(&byte));
    // Other names could be too long for a file system once encoded, or have a special meaning.
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
