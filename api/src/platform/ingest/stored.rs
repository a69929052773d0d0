//! How much a workspace may keep of trace data and datasets.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towpath_domain::{Clock, TenantId, Timestamp};
use towpath_store::{Store, datasets, segments};

use crate::errors::ApiError;

/// How long what was counted is believed.
const BELIEVED: Duration = Duration::from_secs(10);
/// Workspaces remembered at most.
const REMEMBERED: usize = 10_000;
/// Who has no room left may come back then: somebody has to make some.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Bounds what each workspace keeps in segments and datasets. What waits to be folded has bounds of its own.
pub struct Stored {
    /// Bytes; 0 is no limit.
    most: u64,
    /// What each workspace had, and when that was.
    counted: Mutex<HashMap<TenantId, (Timestamp, u64)>>,
}

impl Stored {
    /// A workspace keeps at most `most` bytes; 0 is no limit.
    pub(crate) fn new(most: u64) -> Self {
        Self {
            most,
            counted: Mutex::default(),
        }
    }

    /// Refuses more where a workspace has as much as it may have.
    pub(in crate::platform) async fn check(
        &self,
        store: &Store,
        clock: &Clock,
        tenant: TenantId,
    ) -> Result<(), ApiError> {
        if self.most == 0 || self.bytes(store, clock, tenant).await? < self.most {
            return Ok(());
        }
        let text = format!(
            "the workspace has the {} bytes of trace data and datasets that it may have: delete projects or datasets, or \
             keep traces for a shorter time",
            self.most
        );
        Err(ApiError::insufficient_storage(text, RETRY_AFTER))
    }

    async fn bytes(&self, store: &Store, clock: &Clock, tenant: TenantId) -> Result<u64, towpath_store::Error> {
        let now = clock.now();
        let known = self.lock().get(&tenant).copied();
        if let Some((counted_at, bytes)) = known
            && counted_at <= now
            && now.since(counted_at) < BELIEVED
        {
            return Ok(bytes);
        }
        let read = store.read(async |tx| {
            let segments = segments::live_bytes(tx, tenant).await?;
            Ok(segments + datasets::stored_bytes(tx, tenant).await?)
        });
        let bytes = read.await?;
        let bytes = u64::try_from(bytes).unwrap_or_default();
        let mut counted = self.lock();
        if counted.len() >= REMEMBERED {
            counted.clear();
        }
        counted.insert(tenant, (now, bytes));
        Ok(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, (Timestamp, u64)>> {
        // A panic between two map operations leaves the map whole.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
