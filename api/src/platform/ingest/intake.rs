//! The mouth of ingest: how much memory and how many threads bodies under way may take together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::Instant;

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

/// Guards memory and threads of ingest.
pub struct Intake {
    memory: Arc<Semaphore>,
    grains: usize,
    /// Grains given back.
    pace: Arc<Pace>,
    /// Checking a body unpacks it, which may take many times its size: so many at once.
    checks: Semaphore,
}

/// Stands for the memory of one body; given back when dropped.
pub struct Place {
    permit: Option<OwnedSemaphorePermit>,
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
            pace: Arc::default(),
            checks: Semaphore::new(cores),
        }
    }

    /// Reads a body of at most `limit_bytes`, as sent.
    pub(in crate::platform) async fn read(
        &self,
        mut body: Body,
        limit_bytes: usize,
    ) -> Result<(Bytes, Place), ApiError> {
        // Where the length is known, a body too large or without room is refused before any of it is read.
        let hint = body.size_hint();
        let known = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
        if known > limit_bytes {
            return Err(ApiError::too_large(limit_bytes));
        }
        let mut place = Place {
            permit: None,
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
        let grains = u32::try_from(more).unwrap_or(u32::MAX);
        match Arc::clone(&self.memory).try_acquire_many_owned(grains) {
            Ok(permit) => {
                metrics::gauge!(metric::INGEST_MEMORY).increment((more * GRAIN_BYTES) as f64);
                match &mut place.permit {
                    Some(all) => all.merge(permit),
                    none => *none = Some(permit),
                }
                Ok(())
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                metrics::counter!(metric::INGEST_REFUSED).increment(1);
                metrics::counter!(metric::SHED, "reason" => "ingest_memory").increment(1);
                let held = self.grains - self.memory.available_permits();
                let wait = self.pace.time_for(held).max(SHORTEST_WAIT);
                Err(ApiError::too_many("too much trace data is coming in at once", wait))
            }
        }
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
