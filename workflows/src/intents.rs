//! Work on the heavy runtime that writes segments and index files. Before it writes one it has to say so in SQL, and
//! only the job's holder writes there: so it asks, and the holder writes it down.

use object_store::path::Path;
use tokio::sync::{mpsc, oneshot};
use towpath_domain::{JobId, RunIndexId, SegmentId, TenantId};
use towpath_durable::{Ctx, Failure};
use towpath_store::{run_index, segments};

use crate::heavy::Heavy;

/// What is going to be written.
#[derive(Clone, Copy, Debug)]
pub enum Intended {
    /// A segment.
    Segment(SegmentId),
    /// A file of the index of trace runs.
    IndexFile(RunIndexId),
}

impl From<SegmentId> for Intended {
    fn from(id: SegmentId) -> Self {
        Self::Segment(id)
    }
}

impl From<RunIndexId> for Intended {
    fn from(id: RunIndexId) -> Self {
        Self::IndexFile(id)
    }
}

/// Asks for an intent to be written down, and hears when it is.
type Asked = (TenantId, Intended, String, oneshot::Sender<()>);

/// The intent could not be written down; why, the job knows itself.
#[derive(Debug, thiserror::Error)]
#[error("the job was interrupted")]
pub struct Interrupted;

/// Held by the work.
pub struct Intend(mpsc::Sender<Asked>);

impl Intend {
    /// Returns when the intent is written down.
    pub async fn ask(&self, tenant: TenantId, id: impl Into<Intended>, path: &Path) -> Result<(), Interrupted> {
        let (done, heard) = oneshot::channel();
        let asked = (tenant, id.into(), path.to_string(), done);
        self.0.send(asked).await.map_err(|_| Interrupted)?;
        heard.await.map_err(|_| Interrupted)
    }
}

/// Performs `work`, and writes its intents down under `mark`, until it is over or the job is cancelled.
pub async fn with<T: Send + 'static, F: Future<Output = T>>(
    ctx: &mut Ctx,
    heavy: &Heavy,
    mark: JobId,
    work: impl FnOnce(Intend) -> F + Send + 'static,
) -> Result<T, Failure> {
    let (ask, mut asked) = mpsc::channel::<Asked>(1);
    let work = heavy.run_local(move || work(Intend(ask)));
    tokio::pin!(work);
    let cancelled = ctx.cancelled();
    loop {
        tokio::select! {
            biased;
            () = cancelled.cancelled() => return Err(Failure::Cancelled),
            Some((tenant, id, path, done)) = asked.recv() => {
                ctx.commit(async |tx| match id {
                    Intended::Segment(id) => segments::intend(tx, tenant, id, &path, Some(mark)).await,
                    Intended::IndexFile(id) => run_index::intend(tx, tenant, id, &path, Some(mark)).await,
                })
                .await?;
                // Nobody listens when the work has just failed.
                let _ = done.send(());
            }
            done = &mut work => return done,
        }
    }
}
