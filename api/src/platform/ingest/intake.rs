//! The mouth of ingest: how much memory and how many threads bodies under way may take together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::Instant;
use towpath_domain::TenantId;

use crate::errors::ApiError;
use crate::gate::Pace;
use crate::metric;

/// Memory is counted in these.
const GRAIN_BYTES: usize = 4096;
/// A sender that is silent for longer has gone away; its memory is needed.
const SILENCE: Duration = Duration::from_secs(20);
/// However steadily it sends: who needs longer for one body holds memory that others could use.
const PATIENCE: Duration = Duration::from_secs(120);
/// The shortest time told to a sender whose body found no memory: one that comes back sooner only spends its few tries.
const SHORTEST_WAIT: Duration = Duration::from_secs(2);

/// The bodies of a workspace may hold so many times what is free: those of another always find some.
const MOST_OF_FREE: usize = 7;

/// Guards memory and threads of ingest.
pub struct Intake {
    memory: Arc<Semaphore>,
    grains: usize,
    held: Arc<Held>,
    /// Grains given back.
    pace: Arc<Pace>,
    /// Checking a body unpacks it, which may take many times its size: so many at once.
    checks: Semaphore,
}

/// Grains of each workspace that has some.
#[derive(Default)]
struct Held(Mutex<HashMap<TenantId, usize>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        // Nothing in here panics half way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, tenant: TenantId) -> usize {
        self.lock().get(&tenant).copied().unwrap_or_default()
    }

    fn add(&self, tenant: TenantId, grains: usize) {
        *self.lock().entry(tenant).or_default() += grains;
    }

    fn remove(&self, tenant: TenantId, grains: usize) {
        let mut held = self.lock();
        if let Some(count) = held.get_mut(&tenant) {
            *count -= grains;
            if *count == 0 {
                held.remove(&tenant);
            }
        }
    }
}

/// Stands for the memory of one body; given back when dropped.
pub struct Place {
    permit: Option<OwnedSemaphorePermit>,
    tenant: TenantId,
    held: Arc<Held>,
    pace: Arc<Pace>,
}

impl Place {
    fn grains(&self) -> usize {
        self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let grains = self.grains();
        self.pace.done(grains);
        self.held.remove(self.tenant, grains);
        metrics::gauge!(metric::INGEST_MEMORY).decrement((grains * GRAIN_BYTES) as f64);
    }
}

impl Intake {
    /// Bodies under way take at most `memory_bytes` together.
    #[must_use]
    pub fn new(memory_bytes: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let grains = memory_bytes.div_ceil(GRAIN_BYTES);
        Self {
            memory: Arc::new(Semaphore::new(grains)),
            grains,
            held: Arc::default(),
            pace: Arc::default(),
            checks: Semaphore::new(cores),
        }
    }

    /// Reads a body of at most `limit_bytes`, as sent, for a workspace.
    pub(in crate::platform) async fn read(
        &self,
        mut body: Body,
        limit_bytes: usize,
        tenant: TenantId,
    ) -> Result<(Bytes, Place), ApiError> {
        // Where the length is known, a body too large or without room is refused before any of it is read.
        let hint = body.size_hint();
        let known = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
        if known > limit_bytes {
            return Err(ApiError::too_large(limit_bytes));
        }
        let mut place = Place {
            permit: None,
            tenant,
            held: Arc::clone(&self.held),
            pace: Arc::clone(&self.pace),
        };
        self.reserve(&mut place, known)?;
        let mut whole = BytesMut::with_capacity(known);
        let latest = Instant::now() + PATIENCE;
        loop {
            let frame = match tokio::time::timeout_at(latest.min(Instant::now() + SILENCE), body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok((whole.freeze(), place)),
                Ok(Some(Err(_))) => return Err(ApiError::bad_request("the body broke off before its end")),
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

    /// Makes `place` large enough for `bytes`. Refuses rather than waits: a body that waits for memory holds some.
    fn reserve(&self, place: &mut Place, bytes: usize) -> Result<(), ApiError> {
        let more = bytes.div_ceil(GRAIN_BYTES).saturating_sub(place.grains());
        if more == 0 {
            return Ok(());
        }
        let own = place.grains();
        let others = self.held.of(place.tenant).saturating_sub(own);
        let left = self.memory.available_permits().saturating_sub(more);
        // One body alone may have all of it.
        if others > 0 && others + own + more > left.saturating_mul(MOST_OF_FREE) {
            let text = "this workspace sends too much trace data at once";
            return Err(self.refusal(text, others + own));
        }
        let grains = u32::try_from(more).unwrap_or(u32::MAX);
        match Arc::clone(&self.memory).try_acquire_many_owned(grains) {
            Ok(permit) => {
                self.held.add(place.tenant, more);
                metrics::gauge!(metric::INGEST_MEMORY).increment((more * GRAIN_BYTES) as f64);
                match &mut place.permit {
                    Some(all) => all.merge(permit),
                    none => *none = Some(permit),
                }
                Ok(())
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                let held = self.grains - self.memory.available_permits();
                Err(self.refusal("too much trace data is coming in at once", held))
            }
        }
    }

    /// Refuses a body until so many grains may be given back.
    fn refusal(&self, text: &'static str, held: usize) -> ApiError {
        metrics::counter!(metric::INGEST_REFUSED).increment(1);
        metrics::counter!(metric::SHED, "reason" => "ingest_memory").increment(1);
        let wait = self.pace.time_for(held).max(SHORTEST_WAIT);
        ApiError::too_many(text, wait)
    }

    /// Runs a check of a body on a thread that may be busy.
    pub(in crate::platform) async fn check<T: Send + 'static>(
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
    async fn fill(intake: &Intake, tenant: TenantId, size: usize) -> Vec<Place> {
        let mut places = Vec::new();
        while let Ok((_, place)) = intake.read(Body::from(vec![0_u8; size]), size, tenant).await {
            places.push(place);
        }
        places
    }

    #[tokio::test]
    async fn bodies_of_one_workspace_leave_memory_for_another() {
        let intake = Intake::new(128 * GRAIN_BYTES);
        let (one, other) = (TenantId::new(), TenantId::new());
        let held = fill(&intake, one, GRAIN_BYTES).await;
        assert_eq!(held.len(), 112);
        assert_eq!(fill(&intake, other, GRAIN_BYTES).await.len(), 14);
        drop(held);
        assert!(intake.held.lock().is_empty(), "who holds nothing is forgotten");
        // One body may be as large as all of it.
        assert_eq!(fill(&intake, one, 128 * GRAIN_BYTES).await.len(), 1);
    }
}
