//! Making a fold true.

use std::collections::BTreeSet;

use object_store::path::Path;
use towpath_domain::{JobId, TenantId};
use towpath_store::pending_patches::PendingPatch;
use towpath_store::segments::Part;
use towpath_store::{Error, Result, Tx, feedback, pending_patches, quarantine, segments, units};

use super::{Folded, NewSegment, Waiting, store_fills_in};

/// Writes down all a fold did. Belongs into one transaction, fenced by the job that folded.
///
/// # Errors
/// [`Error::Stale`] when a unit was folded by somebody else or an intent was swept: the fold was too late and
/// counts for nothing.
pub async fn record(tx: &mut Tx<'_>, job: JobId, folded: &Folded) -> Result<()> {
    for segment in &folded.segments {
        publish(tx, segment).await?;
    }
    let waiting = folded.waiting.iter().map(|waiting| waiting.tenant);
    let taken_up = folded.taken_up.iter().map(|(tenant, ..)| *tenant);
    let tenants: BTreeSet<TenantId> = waiting.chain(taken_up).collect();
    pending_patches::lock(tx, tenants.into_iter()).await?;
    let mut rest = folded.waiting.as_slice();
    while !rest.is_empty() {
        let (some, later) = rest.split_at(at_once(rest));
        pending_patches::put_all(tx, &pending(some)?).await?;
        rest = later;
    }
    pending_patches::remove_all(tx, &folded.taken_up).await?;
    feedback::put_all(tx, &folded.feedback).await?;
    feedback::attach_all(tx, &folded.attachments).await?;
    quarantine::put_all(tx, &folded.quarantined).await?;
    units::remove(tx, &folded.missing).await?;
    if let Some((unit, frames)) = folded.progress {
        units::advance(tx, job, unit, frames).await?;
    }
    units::fold(tx, job, &folded.units).await
}

/// Bytes of operations that are turned into JSON at once.
const AT_ONCE: usize = 8 << 20;

/// How many of the first operations are put aside at once; at least one if there is one.
fn at_once(waiting: &[Waiting]) -> usize {
    let mut bytes = 0;
    let fit = waiting.iter().take_while(|waiting| {
        let fits = bytes < AT_ONCE;
        bytes += waiting.weight();
        fits
    });
    fit.count()
}

fn pending(waiting: &[Waiting]) -> Result<Vec<PendingPatch>> {
    let pending = waiting.iter().map(|waiting| {
        Ok(PendingPatch {
            tenant_id: waiting.tenant,
            run_id: waiting.operation.id,
            seq: waiting.seq,
            operation: serde_json::to_string(&waiting.operation)
                .map_err(|_| Error::corrupt("pending_patch", "operation", waiting.seq))?,
            created_at: store_fills_in(),
        })
    });
    pending.collect()
}

/// What the catalog is told of a segment.
#[must_use]
pub fn catalog_parts(segment: &NewSegment) -> Vec<Part> {
    segment
        .written
        .parts
        .iter()
        .map(|part| Part {
            segment_id: segment.id,
            tenant_id: segment.tenant,
            project_id: part.project,
            day: part.day,
            row_group: int(part.row_group),
            rows: int(part.rows),
            min_sort_time: part.min_sort_time,
            max_sort_time: part.max_sort_time,
            min_seq: part.min_seq,
            max_seq: part.max_seq,
        })
        .collect()
}

async fn publish(tx: &mut Tx<'_>, segment: &NewSegment) -> Result<()> {
    let parts = catalog_parts(segment);
    segments::publish(
        tx,
        segment.tenant,
        segment.id,
        int(segment.written.rows),
        int(segment.written.bytes),
        &parts,
    )
    .await
}

/// The parts of the catalog as the readers of segments want them.
#[must_use]
pub fn part_ref(placed: &segments::PlacedPart) -> crate::scan::PartRef {
    crate::scan::PartRef {
        path: Path::from(placed.path.as_str()),
        row_group: usize::try_from(placed.part.row_group).unwrap_or_default(),
        min_sort_time: placed.part.min_sort_time,
        max_sort_time: placed.part.max_sort_time,
    }
}

fn int(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}
