//! Loads starting runs, many at a time, because a claim returns many.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_domain::{RunId, TenantId};
use towpath_durable::Batch;
use towpath_store::runs::{self, Run};
use towpath_store::{self as store, Store};

/// Loads runs. Concurrent requests share the next statement.
pub struct RunLoader {
    store: Store,
    batch: Batch<RunId, Option<(TenantId, Run)>>,
}

impl RunLoader {
    /// Reads from this store, on the calling runtime.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let together = Batch::new({
            let store = store.clone();
            move |ids: Arc<Vec<RunId>>| {
                let store = store.clone();
                async move {
                    let found = store.read(async |tx| runs::get_each(tx, &ids).await).await?;
                    let found: HashMap<RunId, (TenantId, Run)> =
                        found.into_iter().map(|(tenant, run)| (run.id, (tenant, run))).collect();
                    // Two callers may load the same run: an attempt that lost it, and the next.
                    Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
                }
            }
        });
        Self { store, batch: together }
    }

    /// Loads one run.
    ///
    /// [`store::Error::NotFound`], also for a run of another workspace.
    pub async fn get(&self, tenant: TenantId, id: RunId) -> store::Result<Run> {
        if let Some(_alone) = self.batch.try_exclusive() {
            return self.store.read(async |tx| runs::get(tx, tenant, id).await).await;
        }
        let found = self.batch.call(id).await?;
        let (_, run) = found
            .filter(|(owner, _)| *owner == tenant)
            .ok_or(store::Error::NotFound)?;
        Ok(run)
    }
}
