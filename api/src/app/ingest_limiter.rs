//! Limits of memory and threads that concurrent ingest bodies share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::Instant;
use towpath_domain::TenantId;

use crate::concurrency::Throughput;
use crate::errors::ApiError;
use crate::metric;

/// Unit in which memory is counted.
const GRAIN_BYTES: usize = 4096;
/// A client that sends nothing for longer is disconnected, since its body holds memory.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time for one body, however steadily it arrives: it holds memory that others could use.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);
/// Minimum `Retry-After` for a body without memory: clients that retry sooner waste their few attempts.
const MIN_RETRY_AFTER: Duration = Duration::from_secs(2);

/// A workspace may hold at most this many times the free memory, so that other workspaces always find some.
const SHARE_FACTOR: usize = 7;

/// Limits memory and threads of ingest.
pub struct IngestLimiter {
    memory: Arc<Semaphore>,
    grains: usize,
    workspace_memory: Arc<WorkspaceMemory>,
    /// Grains returned per second.
    throughput: Arc<Throughput>,
    /// Limits concurrent checks: a decompressed body may be many times larger.
    checks: Semaphore,
}

/// Grains held by each workspace.
#[derive(Default)]
struct WorkspaceMemory(Mutex<HashMap<TenantId, usize>>);

impl WorkspaceMemory {
    fn of(&self, tenant: TenantId) -> usize {
        self.0.lock().get(&tenant).copied().unwrap_or_default()
    }

    fn add(&self, tenant: TenantId, grains: usize) {
        *self.0.lock().entry(tenant).or_default() += grains;
    }

    fn remove(&self, tenant: TenantId, grains: usize) {
        let mut held = self.0.lock();
        if let Some(count) = held.get_mut(&tenant) {
            *count -= grains;
            if *count == 0 {
                held.remove(&tenant);
            }
        }
    }
}

/// The memory of one body; returned when dropped.
pub struct BodyMemory {
    permit: Option<OwnedSemaphorePermit>,
    tenant: TenantId,
    workspace_memory: Arc<WorkspaceMemory>,
    throughput: Arc<Throughput>,
}

impl BodyMemory {
    fn grains(&self) -> usize {
        self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        let grains = self.grains();
        self.throughput.record(grains);
        self.workspace_memory.remove(self.tenant, grains);
        metrics::gauge!(metric::INGEST_MEMORY).decrement((grains * GRAIN_BYTES) as f64);
    }
}

impl IngestLimiter {
    /// Concurrent bodies share `memory_bytes`.
    #[must_use]
    pub fn new(memory_bytes: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let grains = memory_bytes.div_ceil(GRAIN_BYTES);
        Self {
            memory: Arc::new(Semaphore::new(grains)),
            grains,
            workspace_memory: Arc::default(),
            throughput: Arc::default(),
            checks: Semaphore::new(cores),
        }
    }

    /// Reads a body of at most `limit_bytes` for a workspace.
    pub(crate) async fn read(
        &self,
        mut body: Body,
        limit_bytes: usize,
        tenant: TenantId,
    ) -> Result<(Bytes, BodyMemory), ApiError> {
        // A body of known length that is too large or finds no memory is rejected before it is read.
        let hint = body.size_hint();
        let known = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
        if known > limit_bytes {
            return Err(ApiError::too_large(limit_bytes));
        }
        let mut place = BodyMemory {
            permit: None,
            tenant,
            workspace_memory: Arc::clone(&self.workspace_memory),
            throughput: Arc::clone(&self.throughput),
        };
        self.reserve(&mut place, known)?;
        let mut whole = BytesMut::with_capacity(known);
        let latest = Instant::now() + BODY_TIMEOUT;
        loop {
            let frame = match tokio::time::timeout_at(latest.min(Instant::now() + IDLE_TIMEOUT), body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok((whole.freeze(), place)),
                Ok(Some(Err(_))) => return Err(ApiError::bad_request("the body ended before it was complete")),
                Err(_) => return Err(ApiError::too_slow()),
            };
            let Ok(data) = frame.into_data() else { continue };
            let size = whole.len() + data.len();
            if size > limit_bytes {
                return Err(ApiError::too_large(limit_bytes));
            }
            self.reserve(&mut place, size)?;
            whole.extend_from_slice(&data);
        }
    }

    /// Extends `place` to `bytes`. Rejects instead of waiting: a waiting body holds memory.
    fn reserve(&self, place: &mut BodyMemory, bytes: usize) -> Result<(), ApiError> {
        let more = bytes.div_ceil(GRAIN_BYTES).saturating_sub(place.grains());
        if more == 0 {
            return Ok(());
        }
        let own = place.grains();
        let others = self.workspace_memory.of(place.tenant).saturating_sub(own);
        let left = self.memory.available_permits().saturating_sub(more);
        // A single body may use all of it.
        if others > 0 && others + own + more > left.saturating_mul(SHARE_FACTOR) {
            let text = "this workspace sends too much trace data at once";
            return Err(self.refusal(text, others + own));
        }
        let grains = u32::try_from(more).unwrap_or(u32::MAX);
        match Arc::clone(&self.memory).try_acquire_many_owned(grains) {
            Ok(permit) => {
                self.workspace_memory.add(place.tenant, more);
                metrics::gauge!(metric::INGEST_MEMORY).increment((more * GRAIN_BYTES) as f64);
                match &mut place.permit {
                    Some(all) => all.merge(permit),
                    none => *none = Some(permit),
                }
                Ok(())
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                let held = self.grains - self.memory.available_permits();
                Err(self.refusal("too much trace data is arriving at once", held))
            }
        }
    }

    /// Rejects a body, with the time until `held` grains are expected back.
    fn refusal(&self, text: &'static str, held: usize) -> ApiError {
        metrics::counter!(metric::INGEST_REFUSED).increment(1);
        metrics::counter!(metric::SHED, "reason" => "ingest_memory").increment(1);
        let wait = self.throughput.time_to_finish(held).max(MIN_RETRY_AFTER);
        ApiError::too_many(text, wait)
    }

    /// Runs a check of a body on a thread for CPU-bound work.
    pub(crate) async fn check<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _turn = self.checks.acquire().await.expect("the semaphore is never closed");
        tokio::task::spawn_blocking(check)
            .await
            .map_err(|error| ApiError::internal(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace's bodies of `size` bytes: as many as find memory.
    async fn fill(intake: &IngestLimiter, tenant: TenantId, size: usize) -> Vec<BodyMemory> {
        let mut places = Vec::new();
        while let Ok((_, place)) = intake.read(Body::from(vec![0_u8; size]), size, tenant).await {
            places.push(place);
        }
        places
    }

    #[tokio::test]
    async fn bodies_of_one_workspace_leave_memory_for_another() {
        let intake = IngestLimiter::new(128 * GRAIN_BYTES);
        let (one, other) = (TenantId::new(), TenantId::new());
        let held = fill(&intake, one, GRAIN_BYTES).await;
        assert_eq!(held.len(), 112);
        assert_eq!(fill(&intake, other, GRAIN_BYTES).await.len(), 14);
        drop(held);
        assert!(
            intake.workspace_memory.0.lock().is_empty(),
            "a workspace without bodies has no entry"
        );
        // A single body may use all of the memory.
        assert_eq!(fill(&intake, one, 128 * GRAIN_BYTES).await.len(), 1);
    }
}
