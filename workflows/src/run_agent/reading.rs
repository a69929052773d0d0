//! Reading runs that begin, many at a time: a claim brings many.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_domain::{RunId, TenantId};
use towpath_durable::Batch;
use towpath_store::runs::{self, Run};
use towpath_store::{self as store, Store};

/// Reads runs. Those that are asked for while others are being read share the next statement.
pub struct Runs {
    store: Store,
    together: Batch<RunId, Option<(TenantId, Run)>>,
}

impl Runs {
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
                    // Two may ask for the same one: an attempt that lost it, and the next.
                    Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
                }
            }
        });
        Self { store, together }
    }

    /// One run.
    ///
    /// # Errors
    /// [`store::Error::NotFound`] also for another workspace's.
    pub async fn get(&self, tenant: TenantId, id: RunId) -> store::Result<Run> {
        if let Some(_alone) = self.together.alone() {
            return self.store.read(async |tx| runs::get(tx, tenant, id).await).await;
        }
        let found = self.together.call(id).await?;
        let (_, run) = found
            .filter(|(owner, _)| *owner == tenant)
            .ok_or(store::Error::NotFound)?;
        Ok(run)
    }
}
