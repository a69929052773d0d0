//! Deleting a project: nobody sees its trace runs from then on; the bytes go when compaction and the sweep come by.
//! Exports that have begun go on with what they pinned.

use towpath_domain::{ProjectId, TenantId};
use towpath_store::exports::scheduled;
use towpath_store::segments::replace;
use towpath_store::{self as store, Tx, projects};

use crate::spawn_export;

/// Deletes a project with its schedules.
///
/// # Errors
/// [`store::Error::NotFound`]; those of the database.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId) -> store::Result<()> {
    // First: it takes the locks of jobs.
    for schedule in scheduled::running_of(tx, tenant, project).await? {
        spawn_export::cancel(tx, tenant, schedule.id, Some("the tracing project was deleted")).await?;
    }
    projects::delete(tx, tenant, project).await?;
    replace::retire_project(tx, tenant, project).await.map(drop)
}
