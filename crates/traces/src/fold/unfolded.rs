//! What was accepted and is in no segment yet, for readers that must not wait for a fold.
//!
//! The units of one workspace are folded as ever, only into memory: readers then see segments like any others and
//! merge them by the same rule. Since merging is idempotent it does no harm when a unit is folded for good meanwhile
//! and is read twice.

use std::convert::Infallible;

use object_store::path::Path;
use towpath_domain::{ProjectId, SegmentId, TenantId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::units::Unit;
use towpath_store::{Store, pending_patches};

use super::ahead::body;
use super::source::{self, Names, Source};
use super::{Bodies, FoldError, Merge, Options};
use crate::objects::Objects;
use crate::scan::PartRef;

/// Open units as readers want them.
#[derive(Debug)]
pub struct Unfolded {
    /// Holds the segments below, and attachments.
    pub objects: Objects,
    /// Row groups, each with its project and how many rows it has.
    pub parts: Vec<(ProjectId, PartRef, u64)>,
    /// Feedback.
    pub feedback: Vec<Feedback>,
    /// Attachments; their bytes are in `objects`.
    pub attachments: Vec<Attachment>,
    /// About how many bytes of memory it takes at most.
    pub bytes: usize,
}

/// Folds units of one workspace, in order of acceptance, into memory. Nothing is recorded, and nothing that waits for its
/// trace run is shown. `None` where bodies and what waits for their trace runs unpack to more than `most` bytes: it
/// stops there.
///
/// # Errors
/// A unit, the catalog or a segment cannot be read. A unit that is gone was folded and swept since the list was read:
/// the caller reads the list again.
pub async fn unfolded(
    store: &Store,
    objects: &Objects,
    units: &[Unit],
    most: usize,
) -> Result<Option<Unfolded>, FoldError<Infallible>> {
    let memory = Objects::memory();
    let mut merge = Merge::new(store, objects, &memory);
    let mut bodies = Bodies::default();
    let mut decoded_bytes = 0_usize;
    let options = Options::default();
    let options = Options {
        flush_bytes: options.flush_bytes.min(most),
        ..options
    };
    let mut intend = async |_: TenantId, _: SegmentId, _: &Path| Ok::<(), Infallible>(());
    let names = Names::of(store, units).await?;
    let mut source = Source::new(objects, units);
    for (nth, unit) in units.iter().enumerate() {
        let bytes = source.bytes(nth, unit).await?;
        for frame in source::frames(unit, bytes) {
            // What cannot be read is reported by the fold itself.
            let Ok(known) = &frame.frame else { continue };
            // Before it is decoded, however small it is as it was sent.
            match source::decoded_size(known, most.saturating_sub(decoded_bytes)) {
                Some(size) => decoded_bytes += size,
                None => return Ok(None),
            }
            let Ok(body) = body(unit, &names, &frame) else { continue };
            bodies.push(body);
            if bodies.are_enough(options.flush_bytes) {
                merge.take_in(bodies.take()).await?;
                merge.flush(&options, &mut intend).await?;
                if merge.held() > most {
                    return Ok(None);
                }
            }
        }
    }
    merge.take_in(bodies.take()).await?;
    merge.apply_waiting();
    merge.flush(&options, &mut intend).await?;
    for (tenant, runs) in merge.placed() {
        let waiting = merge.put_aside(tenant, &runs).await?;
        let sizes = waiting
            .iter()
            .map(|patch| usize::try_from(patch.bytes).unwrap_or_default());
        decoded_bytes = decoded_bytes.saturating_add(sizes.sum::<usize>());
        if decoded_bytes > most {
            return Ok(None);
        }
        for page in pending_patches::pages(&waiting, options.page_bytes()) {
            merge.take_up(tenant, page).await?;
            merge.flush(&options, &mut intend).await?;
        }
    }
    merge.flush_all(&options, &mut intend).await?;
    let held = merge.held();
    if held > most {
        return Ok(None);
    }
    let folded = merge.folded;
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
    Ok(Some(Unfolded {
        parts: parts.collect(),
        objects: memory,
        feedback: folded.feedback,
        attachments: folded.attachments,
        // An attachment keeps the body alive in which it came.
        bytes: decoded_bytes.max(segments.saturating_add(held)),
    }))
}
