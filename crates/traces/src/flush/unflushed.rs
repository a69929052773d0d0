//! Accepted but unflushed data, for readers that must not wait for a flush.
//!
//! The WAL segments of a workspace are flushed into memory: readers then see segments like any others and merge them by
//! the same rule. Merging is idempotent, so it is harmless if a WAL segment is flushed meanwhile and read twice.

use std::convert::Infallible;

use object_store::path::Path;
use towpath_domain::{ProjectId, SegmentId, TenantId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::wal_segments::WalSegment;
use towpath_store::{Store, pending_patches};

use super::prefetch::body;
use super::source::{self, Names, WalSegmentReader};
use super::{BodyBatch, FlushError, Merge, Options};
use crate::objects::Objects;
use crate::scan::PartRef;

/// Open WAL segments as readers want them.
#[derive(Debug)]
pub struct UnflushedData {
    /// Holds the segments below, and attachments.
    pub objects: Objects,
    /// Row groups, each with its project and how many rows it has.
    pub parts: Vec<(ProjectId, PartRef, u64)>,
    pub feedback: Vec<Feedback>,
    /// Attachments; their bytes are in `objects`.
    pub attachments: Vec<Attachment>,
    /// About how many bytes of memory it takes at most.
    pub bytes: usize,
}

/// Flushes WAL segments of one workspace, in order of acceptance, into memory. Nothing is recorded, and operations
/// without a location are not shown. `None` if the decoded data exceed `most` bytes.
pub async fn read_unflushed(
    store: &Store,
    objects: &Objects,
    units: &[WalSegment],
    most: usize,
) -> Result<Option<UnflushedData>, FlushError<Infallible>> {
    let memory = Objects::memory();
    let mut merge = Merge::new(store, objects, &memory);
    let mut bodies = BodyBatch::default();
    let mut decoded_bytes = 0_usize;
    let options = Options::default();
    let options = Options {
        segment_bytes: options.segment_bytes.min(most),
        ..options
    };
    let mut intend = async |_: TenantId, _: SegmentId, _: &Path| Ok::<(), Infallible>(());
    let names = Names::of(store, units).await?;
    let mut source = WalSegmentReader::new(objects, units);
    for (nth, unit) in units.iter().enumerate() {
        let bytes = source.bytes(nth, unit).await?;
        for frame in source::frames(unit, bytes) {
            // What cannot be read is reported by the flush itself.
            let Ok(known) = &frame.frame else { continue };
            // Before it is decoded, however small it is as it was sent.
            match source::decoded_size(known, most.saturating_sub(decoded_bytes)) {
                Some(size) => decoded_bytes += size,
                None => return Ok(None),
            }
            let Ok(body) = body(unit, &names, &frame) else { continue };
            bodies.push(body);
            if bodies.is_full(options.segment_bytes) {
                merge.add_bodies(bodies.take()).await?;
                merge.flush(&options, &mut intend).await?;
                if merge.memory_bytes() > most {
                    return Ok(None);
                }
            }
        }
    }
    merge.add_bodies(bodies.take()).await?;
    merge.apply_deferred();
    merge.flush(&options, &mut intend).await?;
    for (tenant, runs) in merge.take_new_runs() {
        let waiting = merge.pending_patches(tenant, &runs).await?;
        let sizes = waiting
            .iter()
            .map(|patch| usize::try_from(patch.bytes).unwrap_or_default());
        decoded_bytes = decoded_bytes.saturating_add(sizes.sum::<usize>());
        if decoded_bytes > most {
            return Ok(None);
        }
        for page in pending_patches::pages(&waiting, options.page_bytes()) {
            merge.apply_pending(tenant, page).await?;
            merge.flush(&options, &mut intend).await?;
        }
    }
    merge.flush_all(&options, &mut intend).await?;
    let held = merge.memory_bytes();
    if held > most {
        return Ok(None);
    }
    let folded = merge.result;
    let segments = folded.segments.iter().map(|segment| segment.written.bytes);
    let segments = usize::try_from(segments.sum::<u64>()).unwrap_or(usize::MAX);
    let parts = folded.segments.into_iter().flat_map(|segment| {
        let path = segment.written.path;
        segment.written.parts.into_iter().map(move |part| {
            let at = PartRef {
                path: path.clone(),
                row_group: part.row_group,
                min_sort_time: part.min_sort_time,
                max_sort_time: part.max_sort_time,
            };
            (part.project, at, part.rows)
        })
    });
    Ok(Some(UnflushedData {
        parts: parts.collect(),
        objects: memory,
        feedback: folded.feedback,
        attachments: folded.attachments,
        // An attachment keeps the body alive in which it came.
        bytes: decoded_bytes.max(segments.saturating_add(held)),
    }))
}
