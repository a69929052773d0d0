//! Applies the result of a flush.

use std::collections::BTreeSet;

use object_store::path::Path;
use towpath_domain::{JobId, TenantId};
use towpath_store::pending_patches::PendingPatch;
use towpath_store::segments::Part;
use towpath_store::{Error, Result, Tx, feedback, pending_patches, quarantine, segments, wal_segments};

use super::{FlushResult, NewSegment, PendingOperation, store_fills_in};

/// Records the result of a flush. Must run in one transaction, fenced by the job that flushed.
///
/// # Errors
/// [`Error::Stale`] if a WAL segment was flushed by another process or an intent was swept: discard the flush.
pub async fn record(tx: &mut Tx<'_>, job: JobId, folded: &FlushResult) -> Result<()> {
    for segment in &folded.segments {
        publish(tx, segment).await?;
    }
    let waiting = folded.pending_operations.iter().map(|waiting| waiting.tenant);
    let taken_up = folded.resolved_patches.iter().map(|(tenant, ..)| *tenant);
    let tenants: BTreeSet<TenantId> = waiting.chain(taken_up).collect();
    pending_patches::lock(tx, tenants.into_iter()).await?;
    let mut rest = folded.pending_operations.as_slice();
    while !rest.is_empty() {
        let (some, later) = rest.split_at(batch_length(rest));
        pending_patches::put_all(tx, &pending(some)?).await?;
        rest = later;
    }
    pending_patches::remove_all(tx, &folded.resolved_patches).await?;
    feedback::put_all(tx, &folded.feedback).await?;
    feedback::attach_all(tx, &folded.attachments).await?;
    quarantine::put_all(tx, &folded.quarantined).await?;
    wal_segments::remove(tx, &folded.missing).await?;
    if let Some((unit, frames)) = folded.progress {
        wal_segments::advance(tx, job, unit, frames).await?;
    }
    wal_segments::mark_flushed(tx, job, &folded.wal_segments).await
}

/// Bytes of operations that are turned into JSON at once.
const AT_ONCE: usize = 8 << 20;

/// How many of the first operations are put aside at once; at least one if there is one.
fn batch_length(waiting: &[PendingOperation]) -> usize {
    let mut bytes = 0;
    let fit = waiting.iter().take_while(|waiting| {
        let fits = bytes < AT_ONCE;
        bytes += waiting.weight();
        fits
    });
    fit.count()
}

fn pending(waiting: &[PendingOperation]) -> Result<Vec<PendingPatch>> {
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
    .await?;
    match segment.written.price_version {
        0 => Ok(()),
        version => segments::set_price_version(tx, segment.tenant, segment.id, version).await,
    }
}

/// A row group of the catalog, in the form that readers need.
#[must_use]
pub fn part_ref(placed: &segments::LocatedPart) -> crate::scan::PartRef {
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
