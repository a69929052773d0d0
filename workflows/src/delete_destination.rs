//! Deleting a destination: its credentials are gone, and what is on its way there fails at once. Finished exports keep its id.

use towpath_domain::{DestinationId, TenantId};
use towpath_store::exports::{self, runs, scheduled};
use towpath_store::{self as store, Tx, destinations};

/// What exports and schedules say that end by it.
pub(crate) const DELETED: &str = "the destination was deleted";

/// Deletes a destination. Its exports that are not over are failed, its schedules cancelled.
///
/// # Errors
/// [`store::Error::NotFound`], also for another workspace's; those of the database.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: DestinationId) -> store::Result<()> {
    destinations::get(tx, tenant, id).await?;
    let mut jobs = exports::open_jobs_to(tx, tenant, id).await?;
    jobs.extend(scheduled::spawn_jobs_to(tx, tenant, id).await?);
    towpath_durable::cancel_all(tx, &jobs, async |tx| {
        // First: this waits for whoever records an export to it at this moment, and that is failed with the others then. Its
        // job, which is not among those above, meets an export that is over.
        destinations::remove(tx, tenant, id).await?;
        runs::fail_all_to(tx, tenant, id, DELETED).await?;
        exports::fail_all_to(tx, tenant, id, DELETED).await?;
        scheduled::cancel_all_to(tx, tenant, id, DELETED).await
    })
    .await
}
