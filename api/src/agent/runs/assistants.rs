//! Reading the assistants of runs that begin, once for all that begin at the same moment.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_domain::{AssistantId, TenantId};
use towpath_durable::Batch;
use towpath_store::assistants::{self, Assistant};
use towpath_store::{self as store, Store};

/// Reads assistants of one workspace. Requests that come while others are being answered share the next statement.
pub(crate) struct AssistantLoader {
    store: Store,
    tenant: TenantId,
    batch: Batch<AssistantId, Option<Arc<Assistant>>>,
}

impl AssistantLoader {
    /// Those of `tenant`, on the calling runtime.
    pub(crate) fn new(store: Store, tenant: TenantId) -> Self {
        let together = Batch::new({
            let store = store.clone();
            move |asked: Arc<Vec<AssistantId>>| {
                let store = store.clone();
                async move {
                    let mut ids = asked.to_vec();
                    ids.sort_unstable();
                    ids.dedup();
                    let found = store
                        .read(async |tx| assistants::get_each(tx, tenant, &ids).await)
                        .await?;
                    let found: HashMap<AssistantId, Arc<Assistant>> =
                        found.into_iter().map(|one| (one.id, Arc::new(one))).collect();
                    Ok(asked.iter().map(|id| found.get(id).cloned()).collect())
                }
            }
        });
        Self {
            store,
            tenant,
            batch: together,
        }
    }

    /// One assistant.
    ///
    /// # Errors
    /// [`store::Error::NotFound`].
    pub(crate) async fn get(&self, id: AssistantId) -> store::Result<Arc<Assistant>> {
        if let Some(_alone) = self.batch.try_exclusive() {
            let found = self
                .store
                .read(async |tx| assistants::get(tx, self.tenant, id).await)
                .await;
            return found.map(Arc::new);
        }
        self.batch.call(id).await?.ok_or(store::Error::NotFound)
    }
}
