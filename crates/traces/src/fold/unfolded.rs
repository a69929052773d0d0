//! What was accepted and is in no segment yet, for readers that must not wait for a fold.
//!
//! The units of one workspace are folded as ever, only into memory: readers then see segments like any others and
//! merge them by the same rule. Since merging is idempotent it does no harm when a unit is folded for good meanwhile
//! and is read twice.

use std::convert::Infallible;

use object_store::path::Path;
use towpath_domain::{ProjectId, SegmentId, TenantId};
use towpath_store::Store;
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::units::Unit;

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
}

/// Folds units of one workspace, in order of acceptance, into memory. The caller bounds them. Nothing is recorded, and
/// nothing that waits for its trace run is shown.
///
/// # Errors
/// A unit, the catalog or a segment cannot be read. A unit that is gone was folded and swept since the list was read:
/// the caller reads the list again.
pub async fn unfolded(store: &Store, objects: &Objects, units: &[Unit]) -> Result<Unfolded, FoldError<Infallible>> {
    let memory = Objects::memory();
    let mut merge = Merge::new(store, objects, &memory);
    let mut bodies = Bodies::default();
    let names = Names::of(store, units).await?;
    let mut source = Source::new(objects, units);
    for (nth, unit) in units.iter().enumerate() {
        let bytes = source.bytes(nth, unit).await?;
        // What cannot be read is reported by the fold itself.
        for body in source::frames(unit, bytes).filter_map(|frame| body(unit, &names, &frame).ok()) {
            bodies.push(body);
            if bodies.are_enough(usize::MAX) {
                merge.take_in(bodies.take()).await?;
            }
        }
    }
    merge.take_in(bodies.take()).await?;
    merge.apply_waiting();
    for (tenant, runs) in merge.placed() {
        merge.take_up(tenant, &runs).await?;
    }
    merge
        .flush_all(&Options::default(), &mut async |_: TenantId, _: SegmentId, _: &Path| {
            Ok::<(), Infallible>(())
        })
        .await?;
    let folded = merge.folded;
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
    Ok(Unfolded {
        parts: parts.collect(),
        objects: memory,
        feedback: folded.feedback,
        attachments: folded.attachments,
    })
}
