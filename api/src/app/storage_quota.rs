//! Storage quota of a workspace for trace data, datasets and prompts.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_domain::{Clock, TenantId, Timestamp};
use towpath_store::{Store, datasets, prompts, segments};

use crate::errors::ApiError;

/// How long a count is cached.
const CACHE_TTL: Duration = Duration::from_secs(10);
const MAX_CACHED_WORKSPACES: usize = 10_000;
/// `Retry-After` for a full workspace: its data must be deleted first.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Limits the bytes of segments, datasets and prompts of each workspace. Unflushed data has limits of its own.
pub struct StorageQuota {
    /// 0 means no limit.
    max_bytes: u64,
    /// Bytes of each workspace, and when they were counted.
    cached_bytes: Mutex<HashMap<TenantId, (Timestamp, u64)>>,
}

impl StorageQuota {
    /// A workspace may store at most `most` bytes; 0 means no limit.
    pub(crate) fn new(most: u64) -> Self {
        Self {
            max_bytes: most,
            cached_bytes: Mutex::default(),
        }
    }

    /// Rejects new data if the workspace has reached its quota.
    pub(crate) async fn check(&self, store: &Store, clock: &Clock, tenant: TenantId) -> Result<(), ApiError> {
        if self.max_bytes == 0 || self.bytes(store, clock, tenant).await? < self.max_bytes {
            return Ok(());
        }
        let text = format!(
            "the workspace has reached its quota of {} bytes of trace data, datasets and prompts: delete projects, datasets \
             or prompts, or shorten the retention of traces",
            self.max_bytes
        );
        Err(ApiError::insufficient_storage(text, RETRY_AFTER))
    }

    async fn bytes(&self, store: &Store, clock: &Clock, tenant: TenantId) -> Result<u64, towpath_store::Error> {
        let now = clock.now();
        let known = self.cached_bytes.lock().get(&tenant).copied();
        if let Some((counted_at, bytes)) = known
            && counted_at <= now
            && now.since(counted_at) < CACHE_TTL
        {
            return Ok(bytes);
        }
        let read = store.read(async |tx| {
            let segments = segments::live_bytes(tx, tenant).await?;
            let datasets = datasets::stored_bytes(tx, tenant).await?;
            Ok(segments + datasets + prompts::stored_bytes(tx, tenant).await?)
        });
        let bytes = read.await?;
        let bytes = u64::try_from(bytes).unwrap_or_default();
        let mut counted = self.cached_bytes.lock();
        if counted.len() >= MAX_CACHED_WORKSPACES {
            counted.clear();
        }
        counted.insert(tenant, (now, bytes));
        Ok(bytes)
    }
}
