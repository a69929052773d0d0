//! Deletes a destination with its credentials. Open exports to it fail at once; finished ones keep its id.

use towpath_domain::{DestinationId, TenantId};
use towpath_store::exports::{self, runs, scheduled};
use towpath_store::{self as store, Tx, destinations};

/// Error of exports and schedules that end by it.
pub(crate) const DELETED: &str = "the destination was deleted";

/// Fails open exports and cancels schedules of the destination.
///
/// [`store::Error::NotFound`], also for a destination of another workspace.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: DestinationId) -> store::Result<()> {
    destinations::get(tx, tenant, id).await?;
    let mut jobs = exports::open_jobs_to(tx, tenant, id).await?;
    jobs.extend(scheduled::spawn_jobs_to(tx, tenant, id).await?);
    towpath_durable::cancel_all(tx, &jobs, async |tx| {
        // First: it waits for concurrent transactions that record an export to the destination; those exports are
        // failed with the others. Their jobs, which are not in the list above, find an ended export.
        destinations::remove(tx, tenant, id).await?;
        runs::fail_all_to(tx, tenant, id, DELETED).await?;
        exports::fail_all_to(tx, tenant, id, DELETED).await?;
        scheduled::cancel_all_to(tx, tenant, id, DELETED).await
    })
    .await
}
