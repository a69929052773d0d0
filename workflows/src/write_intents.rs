//! Write intents of work in the CPU pool. Before it writes a trace segment or an index file, an intent must be recorded
//! in SQL. Only the job's holder writes there, so the work asks it to record the intent.

use object_store::path::Path;
use tokio::sync::{mpsc, oneshot};
use towpath_domain::{JobId, RunIndexId, SegmentId, TenantId};
use towpath_durable::{Ctx, Failure};
use towpath_store::{run_index, segments};

use crate::cpu_pool::CpuPool;

#[derive(Clone, Copy, Debug)]
pub enum IntentTarget {
    Segment(SegmentId),
    IndexFile(RunIndexId),
}

impl From<SegmentId> for IntentTarget {
    fn from(id: SegmentId) -> Self {
        Self::Segment(id)
    }
}

impl From<RunIndexId> for IntentTarget {
    fn from(id: RunIndexId) -> Self {
        Self::IndexFile(id)
    }
}

/// A request to record an intent; the sender reports success.
type IntentRequest = (TenantId, IntentTarget, String, oneshot::Sender<()>);

/// The intent could not be recorded; the job knows the reason.
#[derive(Debug, thiserror::Error)]
#[error("the job was interrupted")]
pub struct IntentFailed;

/// Used by the work in the pool.
pub struct IntentSender(mpsc::Sender<IntentRequest>);

impl IntentSender {
    /// Records an intent; returns when it is recorded.
    pub async fn record(&self, tenant: TenantId, id: impl Into<IntentTarget>, path: &Path) -> Result<(), IntentFailed> {
        let (done, heard) = oneshot::channel();
        let asked = (tenant, id.into(), path.to_string(), done);
        self.0.send(asked).await.map_err(|_| IntentFailed)?;
        heard.await.map_err(|_| IntentFailed)
    }
}

/// Runs `work` and records its intents under `mark`, until it ends or the job is cancelled.
pub async fn run_with_intents<T: Send + 'static, F: Future<Output = T>>(
    ctx: &mut Ctx,
    heavy: &CpuPool,
    mark: JobId,
    work: impl FnOnce(IntentSender) -> F + Send + 'static,
) -> Result<T, Failure> {
    let (ask, mut asked) = mpsc::channel::<IntentRequest>(1);
    let work = heavy.run_local(move || work(IntentSender(ask)));
    tokio::pin!(work);
    let cancelled = ctx.cancelled();
    loop {
        tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(Failure::Cancelled),
            Some((tenant, id, path, done)) = asked.recv() => {
                ctx.commit(async |tx| match id {
                    IntentTarget::Segment(id) => segments::intend(tx, tenant, id, &path, Some(mark)).await,
                    IntentTarget::IndexFile(id) => run_index::intend(tx, tenant, id, &path, Some(mark)).await,
                })
                .await?;
                // The receiver is gone if the work has just failed.
                let _ = done.send(());
            }
            done = &mut work => return done,
        }
    }
}
