//! State that the parts of the engine share in one process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use towpath_store::jobs::{self, JobFence};
use towpath_store::steps::{self, NewStep};
use towpath_store::{self as store, Dialect, Store, Tx};

use crate::batch::Batch;
use crate::batched_write::{self, BatchedWrite};
use crate::metric::{AllMeters, Meters};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a worker keeps its jobs without a renewal. It renews every third of this time.
    pub lease: Duration,
    /// How long a cancelled job may run before it is dropped.
    pub cancel_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            cancel_grace: Duration::from_secs(10),
        }
    }
}

/// A completion: a succeeded job whose own row, lane slot and batched rows remain to be written.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The job and the fence of its attempt.
    pub job: JobFence,
    pub lane: Option<String>,
    /// Rows that are written with its end.
    pub batched_write: Option<Arc<dyn BatchedWrite>>,
}

/// Completions that are written together, in the format of the store.
pub struct CompletionBatch {
    pub jobs: Vec<JobFence>,
    /// Their lanes, sorted and unique.
    pub lanes: Vec<String>,
    batched_writes: Vec<(JobFence, Arc<dyn BatchedWrite>)>,
}

impl CompletionBatch {
    pub fn of<'a>(endings: impl IntoIterator<Item = &'a Completion>) -> Self {
        let (mut held, mut lanes, mut along) = (Vec::new(), BTreeSet::new(), Vec::new());
        for ending in endings {
            held.push(ending.job);
            lanes.extend(ending.lane.clone());
            along.extend(ending.batched_write.clone().map(|along| (ending.job, along)));
        }
        Self {
            jobs: held,
            lanes: lanes.into_iter().collect(),
            batched_writes: along,
        }
    }

    /// Whether they need one statement only, and so no transaction.
    #[must_use]
    pub fn is_single_statement(&self) -> bool {
        self.lanes.is_empty() && self.batched_writes.is_empty()
    }

    /// Ends the jobs; returns those that were still held.
    pub async fn complete(&self, store: &Store) -> store::Result<Vec<JobFence>> {
        let complete = async |tx: &mut Tx<'_>| {
            let hit = jobs::complete(tx, &self.jobs, &self.lanes).await?;
            self.write_batched(tx, |job| hit.contains(&job)).await?;
            Ok(hit)
        };
        if self.is_single_statement() {
            store.write_one(complete).await
        } else {
            store.write(complete).await
        }
    }

    /// Writes the batched rows of the jobs that ended, in the same transaction.
    pub async fn write_batched(&self, tx: &mut Tx<'_>, ended: impl Fn(JobFence) -> bool) -> store::Result<()> {
        let hit = self.batched_writes.iter().filter(|(job, _)| ended(*job));
        batched_write::write_batched(tx, hit.map(|(_, along)| Arc::clone(along)).collect()).await
    }
}

/// The engine of one process. Clones share its state.
#[derive(Clone)]
pub struct Engine(Arc<EngineState>);

struct EngineState {
    store: Store,
    settings: Settings,
    steps: Batch<NewStep, bool>,
    completions: Batch<Completion, bool>,
    /// Claimers in this process, by pool.
    claimers: Mutex<HashMap<String, mpsc::Sender<RecordRequest>>>,
    meters: AllMeters,
}

/// Jobs to record in the transaction that claims the next ones.
pub struct RecordRequest {
    /// Records them. It need not wake the claimer's own pool.
    pub batched_write: Arc<dyn BatchedWrite>,
    /// Reports that they are recorded; dropped if they are not.
    pub recorded: oneshot::Sender<()>,
}

/// Capacity of the queue to a claimer; further callers write by themselves.
const RECORD_QUEUE_CAPACITY: usize = 512;

impl Engine {
    /// An engine over `store`, on the calling runtime.
    #[must_use]
    pub fn new(store: Store, settings: Settings) -> Self {
        let steps = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<NewStep>>| {
                let store = store.clone();
                async move {
                    let record = async |tx: &mut Tx<'_>| steps::record(tx, &group).await;
                    let held = match store.dialect() {
                        Dialect::Postgres => store.write_one(record).await?,
                        // A step needs several statements.
                        Dialect::Sqlite => store.write(record).await?,
                    };
                    Ok(membership(held, group.iter().map(|step| step.job)))
                }
            }
        });
        let completions = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<Completion>>| {
                let store = store.clone();
                async move {
                    let endings = CompletionBatch::of(group.iter());
                    let hit = endings.complete(&store).await?;
                    Ok(membership(hit, endings.jobs.iter().copied()))
                }
            }
        });
        Self(Arc::new(EngineState {
            store,
            settings,
            steps,
            completions,
            claimers: Mutex::default(),
            meters: AllMeters::default(),
        }))
    }

    /// Registers the claimer of a pool in this process; it receives record requests until it drops the receiver.
    #[must_use]
    pub fn record_requests(&self, pool: &str) -> mpsc::Receiver<RecordRequest> {
        let (send, receive) = mpsc::channel(RECORD_QUEUE_CAPACITY);
        self.0.claimers.lock().insert(pool.to_owned(), send);
        receive
    }

    /// Records jobs of a pool in the next transaction of this process's claimer, which claims them at once if a slot is
    /// free. Returns false if there is no claimer here or the transaction failed; nothing is recorded then.
    ///
    /// For SQLite: there, an unacknowledged transaction is certainly not committed, and no other process must be woken.
    pub async fn record_with_next_claim(&self, pool: &str, along: Arc<dyn BatchedWrite>) -> bool {
        if self.store().dialect() != Dialect::Sqlite {
            return false;
        }
        let Some(claimer) = self.0.claimers.lock().get(pool).cloned() else {
            return false;
        };
        let (done, recorded) = oneshot::channel();
        let asked = claimer
            .try_send(RecordRequest {
                batched_write: along,
                recorded: done,
            })
            .is_ok();
        drop(claimer);
        asked && recorded.await.is_ok()
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    #[must_use]
    pub fn settings(&self) -> Settings {
        self.0.settings
    }

    pub(crate) fn meters(&self, pool: &str, kind: &str) -> Arc<Meters> {
        self.0.meters.of(pool, kind)
    }

    /// Records a step, grouped with concurrent ones; `false` if another worker holds the job.
    pub(crate) async fn record_step(&self, step: NewStep) -> store::Result<bool> {
        if let Some(_alone) = self.0.steps.try_exclusive()
            && self
                .0
                .store
                .write_one(async |tx| steps::record_one(tx, &step).await)
                .await?
        {
            return Ok(true);
        }
        self.0.steps.call(step).await
    }

    /// Completes a job that writes only its own row; `false` if it moved on or was asked to stop.
    pub(crate) async fn complete(&self, ending: Completion) -> store::Result<bool> {
        self.0.completions.call(ending).await
    }
}

/// Compares fences too: the former and the new holder of a job may be in the same group.
fn membership(hit: Vec<JobFence>, wanted: impl Iterator<Item = JobFence>) -> Vec<bool> {
    let hit: HashSet<JobFence> = hit.into_iter().collect();
    wanted.map(|job| hit.contains(&job)).collect()
}
