//! One claim batch of a pool: writes completions and claims the next jobs, in one transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use towpath_domain::{JobId, WorkerId};
use towpath_durable::{CompletionBatch, Engine, RecordRequest};
use towpath_queue::{Queue, TakenJobs};
use towpath_store::jobs::{self, ClaimOutcome};
use towpath_store::{self as store, Tx};

use crate::UnrecordedCompletion;
use crate::active_jobs::ClaimGuard;
use crate::claim_cursor::CursorSnapshot;

/// A claim batch: completions to write, slots to claim for, and jobs to record.
#[derive(Default)]
pub(crate) struct ClaimBatch {
    pub(crate) completions: Vec<UnrecordedCompletion>,
    pub(crate) permits: Vec<OwnedSemaphorePermit>,
    pub(crate) record_requests: Vec<RecordRequest>,
}

impl ClaimBatch {
    pub(crate) fn slots(&self) -> usize {
        self.completions.len() + self.permits.len()
    }
}

/// Where a claim batch finds jobs.
pub(crate) enum ClaimSource {
    /// In the database, from this start.
    Scan(CursorSnapshot),
    /// By the ids that it takes from the queue.
    Queue(Queue),
}

/// Where a finished claim batch found jobs.
pub(crate) enum ClaimOrigin {
    Scan(CursorSnapshot),
    /// The ids that it took; absent if Redis did not answer.
    Queue(Option<TakenJobs>),
}

/// A finished claim batch.
pub(crate) struct ClaimBatchResult {
    pub(crate) batch: ClaimBatch,
    pub(crate) claimed_by: (WorkerId, ClaimGuard),
    /// Maximum number of jobs to claim.
    pub(crate) limit: usize,
    pub(crate) origin: ClaimOrigin,
    pub(crate) duration: Duration,
    pub(crate) outcome: store::Result<ClaimOutcome>,
}

/// Starts a batch for this worker and pool. The claim counts as in progress until the returned value is dropped.
pub(crate) fn start(
    engine: &Engine,
    pool: &str,
    by: (WorkerId, ClaimGuard),
    batch: ClaimBatch,
    spare: usize,
    source: ClaimSource,
) -> impl Future<Output = ClaimBatchResult> + Send + use<> {
    let (engine, pool) = (engine.clone(), pool.to_owned());
    let endings = CompletionBatch::of(
        batch
            .completions
            .iter()
            .map(|finished| finished.completion.completion()),
    );
    async move {
        let started = Instant::now();
        let wanted = batch.slots().saturating_sub(spare);
        let origin = match source {
            ClaimSource::Scan(snapshot) => ClaimOrigin::Scan(snapshot),
            ClaimSource::Queue(queue) if wanted > 0 => ClaimOrigin::Queue(queue.take(&pool, wanted).await),
            ClaimSource::Queue(_) => ClaimOrigin::Queue(Some(TakenJobs::default())),
        };
        let request = |limit: usize| jobs::ClaimRequest::new(&pool, by.0, i64::try_from(limit).unwrap_or(i64::MAX));
        let claimer = match &origin {
            ClaimOrigin::Scan(snapshot) => jobs::ClaimRequest {
                last_tenant: snapshot.last_tenant,
                positions: &snapshot.positions,
                ..request(wanted)
            },
            ClaimOrigin::Queue(taken) => {
                let ids: &[JobId] = match taken {
                    Some(taken) => &taken.ids,
                    None => &[],
                };
                jobs::ClaimRequest {
                    named: Some(ids),
                    ..request(ids.len())
                }
            }
        };
        let outcome = write_and_claim(engine.store(), &claimer, &endings, &batch.record_requests).await;
        let took = started.elapsed();
        ClaimBatchResult {
            batch,
            claimed_by: by,
            limit: wanted,
            origin,
            duration: took,
            outcome,
        }
    }
}

async fn write_and_claim(
    store: &store::Store,
    claimer: &jobs::ClaimRequest<'_>,
    endings: &CompletionBatch,
    joining: &[RecordRequest],
) -> store::Result<ClaimOutcome> {
    let CompletionBatch { jobs: held, lanes, .. } = endings;
    if held.is_empty() && joining.is_empty() && claimer.limit == 0 {
        return Ok(ClaimOutcome {
            not_completed: Vec::new(),
            claimed: Vec::new(),
        });
    }
    let all = async |tx: &mut Tx<'_>| {
        // Recorded first, so that they can be claimed in the same transaction.
        towpath_durable::write_batched(tx, joining.iter().map(|one| Arc::clone(&one.batched_write)).collect()).await?;
        if held.is_empty() {
            let claimed = match claimer.limit {
                0 => Vec::new(),
                _ => jobs::claim(tx, claimer).await?,
            };
            return Ok(ClaimOutcome {
                not_completed: Vec::new(),
                claimed,
            });
        }
        let outcome = jobs::complete_and_claim(tx, held, lanes, claimer).await?;
        endings
            .write_batched(tx, |job| !outcome.not_completed.contains(&job))
            .await?;
        Ok(outcome)
    };
    if endings.is_single_statement() && joining.is_empty() {
        store.write_one(all).await
    } else {
        store.write(all).await
    }
}
