//! The job, for those who record it.

use serde::{Deserialize, Serialize};
use towpath_domain::{JobId, TenantId};
use towpath_durable::Start;
use towpath_store::{self as store, Tx, item_vectors};

#[derive(Debug, Serialize, Deserialize)]
pub struct EmbedItems {
    pub tenant: TenantId,
    /// As `item_index` names the job.
    pub(crate) mark: JobId,
}

/// Records a job, unless there is one or the workspace has no index.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId) -> store::Result<()> {
    let row = item_vectors::get(tx, tenant).await?;
    if row.is_none_or(|row| row.job_id.is_some()) {
        return Ok(());
    }
    let mark = JobId::new();
    towpath_durable::start(tx, &EmbedItems { tenant, mark }, Start::new(tenant)).await?;
    // If another was named meanwhile, this one ends at once.
    item_vectors::set_job(tx, tenant, mark).await.map(drop)
}
