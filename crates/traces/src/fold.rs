//! Folding: from units of the write-ahead log to segments.
//!
//! [`fold`] reads and writes objects and only looks things up in SQL; [`record`] then makes all of it true in one
//! transaction: segments live, units folded, patches put aside or taken up. Until that has committed nothing has
//! happened, and a fold may be done again; what an abandoned one wrote is removed by its intents.
//!
//! An id names one trace run: sent again into another project it changes nothing there, and what is said of it goes to
//! the project it came to first.
//!
//! Operations that say neither where nor when their trace run lies (a bare `PATCH /runs/{id}`) are placed by another
//! operation of the same batch, else by the catalog, else they wait. A trace run that comes later takes them up.
//!
//! Memory is bounded by [`Options::flush_bytes`] of rows plus a few decoded bodies and a small entry per trace run of the
//! batch, so the caller bounds the batch. Folds of one workspace must not overlap; the lane of its shard sees to that.

mod ahead;
mod groups;
mod places;
mod record;
mod source;
mod unfolded;

use object_store::path::Path;
use towpath_domain::{SegmentId, TenantId, TraceRunId, UnitId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::units::Unit;
use towpath_store::{Store, pending_patches};
use uuid::Uuid;

use crate::accept::Contents;
use crate::columnar;
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use crate::operation::Operation;
use crate::segment::Written;
use crate::wal::unit;
use ahead::{Ahead, Piece};
use groups::Groups;
use places::Places;
pub use places::{Place, locate};
pub use record::{catalog_parts, part_ref, record};
pub use unfolded::{Unfolded, unfolded};

/// How folding behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of rows that lie in memory before a segment is written.
    pub flush_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            flush_bytes: 64 * 1024 * 1024,
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
    /// Units whose objects are not there. They stay open, so that a disk that is mounted wrongly loses nothing.
    pub missing: Vec<UnitId>,
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
    /// Those of them that were dropped, since their project was deleted after they were acknowledged.
    pub dropped: u64,
    /// Frames that could not be read. Copies of their units are kept under `quarantine/`.
    pub damaged: u64,
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
}

/// Folds `units`, which must be in order of acceptance. `intend` is called before each segment is written and must
/// have committed [`segments::intend`](towpath_store::segments::intend) when it returns.
///
/// Decoding and encoding is hard work: call it where that disturbs nobody.
///
/// # Errors
/// See [`FoldError`]. Damaged frames are none: they are set aside and counted.
pub async fn fold<E>(
    store: &Store,
    objects: &Objects,
    units: &[Unit],
    options: &Options,
    mut intend: impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
) -> Result<Folded, FoldError<E>> {
    let mut folded = Folded::default();
    let mut places = Places::new(store, objects);
    let mut groups = Groups::default();
    let mut decoded = Ahead::start(store, objects, units);
    for unit in units {
        let mut damaged = 0;
        let bytes = loop {
            match decoded.next().await.map_err(FoldError::from_inner)? {
                Piece::Body {
                    tenant,
                    first,
                    contents,
                } => {
                    take_in(&mut folded, &mut places, &mut groups, objects, tenant, first, contents)
                        .await
                        .map_err(FoldError::from_inner)?;
                    if groups.bytes() > options.flush_bytes {
                        groups.flush(objects, &mut intend, &mut folded).await?;
                    }
                }
                Piece::Damaged => damaged += 1,
                Piece::End(bytes) => break bytes,
            }
        };
        let Some(bytes) = bytes else {
            metrics::counter!(metric::WAL_MISSING).increment(1);
            folded.missing.push(unit.id);
            continue;
        };
        if damaged > 0 {
            let offset = u64::try_from(unit.byte_offset).unwrap_or_default();
            objects
                .put(
                    &Path::from(format!("quarantine/{}.unit", unit.id)),
                    unit::alone(bytes, offset),
                )
                .await?;
            metrics::counter!(metric::WAL_DAMAGED).increment(damaged);
            folded.damaged += damaged;
        }
        folded.units.push(unit.id);
    }
    settle_places(store, &mut folded, &mut places, &mut groups)
        .await
        .map_err(FoldError::from_inner)?;
    groups.flush(objects, &mut intend, &mut folded).await?;
    for segment in &folded.segments {
        metrics::counter!(metric::SEGMENTS).increment(1);
        metrics::counter!(metric::SEGMENT_ROWS).increment(segment.written.rows);
        metrics::counter!(metric::SEGMENT_BYTES).increment(segment.written.bytes);
    }
    metrics::counter!(metric::FOLDED_OPERATIONS).increment(folded.operations);
    metrics::counter!(metric::DROPPED_OPERATIONS).increment(folded.dropped);
    metrics::counter!(metric::FOLDED_UNITS).increment(folded.units.len() as u64);
    Ok(folded)
}

/// Sorts what a frame holds to where it goes. Its items are numbered from `first`, in the order of the fields of
/// [`Contents`].
async fn take_in(
    folded: &mut Folded,
    places: &mut Places<'_>,
    groups: &mut Groups,
    objects: &Objects,
    tenant: TenantId,
    first: i64,
    contents: Contents,
) -> Result<(), InnerError> {
    let mut seq = first;
    places.meet(tenant, &contents.operations).await?;
    for operation in contents.operations {
        folded.operations += 1;
        if places.is_deleted(tenant, &operation) {
            folded.dropped += 1;
        } else {
            match places.own(tenant, &operation).await? {
                Some(place) => groups.add(tenant, place, operation, seq),
                None => folded.waiting.push(Waiting { tenant, seq, operation }),
            }
        }
        seq += 1;
    }
    for feedback in contents.feedback {
        folded.feedback.push(Feedback {
            tenant_id: tenant,
            id: feedback.id,
            run_id: feedback.run,
            key: storable(&feedback.key),
            body: feedback.body,
            seq,
            created_at: store_fills_in(),
            modified_at: None,
            deleted: false,
        });
        seq += 1;
    }
    for attachment in contents.attachments {
        let path = attachment_path(tenant, attachment.run, &attachment.name);
        let bytes = attachment.data.len();
        objects.put(&path, vec![attachment.data]).await?;
        folded.attachments.push(Attachment {
            tenant_id: tenant,
            run_id: attachment.run,
            name: attachment.name,
            content_type: attachment.content_type,
            path: path.into(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            seq,
            created_at: store_fills_in(),
        });
        seq += 1;
    }
    Ok(())
}

/// Places what could not place itself, and takes up what waited for trace runs of this batch.
async fn settle_places(
    store: &Store,
    folded: &mut Folded,
    places: &mut Places<'_>,
    groups: &mut Groups,
) -> Result<(), InnerError> {
    places.look_up(&folded.waiting).await?;
    for waiting in std::mem::take(&mut folded.waiting) {
        match places.of(waiting.tenant, &waiting.operation).await? {
            Some(place) => groups.add(waiting.tenant, place, waiting.operation, waiting.seq),
            None => folded.waiting.push(waiting),
        }
    }
    for (tenant, runs) in places.met() {
        for runs in runs.chunks(4096) {
            let found = store
                .read(async |tx| pending_patches::for_runs(tx, tenant, runs).await)
                .await?;
            for patch in found {
                let operation: Operation = serde_json::from_str(&patch.operation)
                    .map_err(|_| towpath_store::Error::corrupt("pending_patch", "operation", patch.seq))?;
                if let Some(place) = places.of(tenant, &operation).await? {
                    folded.taken_up.push((tenant, patch.run_id, patch.seq));
                    groups.add(tenant, place, operation, patch.seq);
                }
            }
        }
    }
    Ok(())
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
        }
    }
}

/// Where the bytes of an attachment lie.
#[must_use]
pub fn attachment_path(tenant: TenantId, run: TraceRunId, name: &str) -> Path {
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
    Path::from_iter(folder.into_iter().chain([file]))
}

/// Text that PostgreSQL can keep.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The store sets `created_at` itself when it writes a row.
const fn store_fills_in() -> towpath_domain::Timestamp {
    towpath_domain::Timestamp::from_micros(0)
}
