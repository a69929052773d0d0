//! Deletes a project: its trace runs become invisible at once, and compaction and the sweep remove the data. Running
//! exports continue with their pinned data.

use towpath_domain::{ProjectId, TenantId};
use towpath_store::exports::scheduled;
use towpath_store::segments::replace;
use towpath_store::{self as store, Tx, projects};

use crate::spawn_export;

/// Deletes a project with its schedules.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, project: ProjectId) -> store::Result<()> {
    // First, because it locks jobs.
    for schedule in scheduled::running_of(tx, tenant, project).await? {
        spawn_export::cancel(tx, tenant, schedule.id, Some("the tracing project was deleted")).await?;
    }
    projects::delete(tx, tenant, project).await?;
    replace::retire_project(tx, tenant, project).await.map(drop)
}
