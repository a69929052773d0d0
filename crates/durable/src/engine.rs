//! What the parts of the engine share in one process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use towpath_store::jobs::{self, Fenced};
use towpath_store::steps::{self, NewStep};
use towpath_store::{self as store, Dialect, Store, Tx};

use crate::along::{self, Along};
use crate::batch::Batch;
use crate::metric::{AllMeters, Meters};

/// Times of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a worker keeps its jobs without a renewal. Renewed every third of it.
    pub lease: Duration,
    /// How long a cancelled job may go on before it is dropped.
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

/// A job that ends with nothing to write but its own row, its place in a lane if it has one, and what goes along.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The job, and the fence of its attempt.
    pub job: Fenced,
    /// Its lane.
    pub lane: Option<String>,
    /// What else is written with its end.
    pub along: Option<Arc<dyn Along>>,
}

/// Jobs that end together, as the store takes them.
pub struct Endings {
    /// The jobs.
    pub held: Vec<Fenced>,
    /// Their lanes in order, each once.
    pub lanes: Vec<String>,
    along: Vec<(Fenced, Arc<dyn Along>)>,
}

impl Endings {
    /// These.
    pub fn of<'a>(endings: impl IntoIterator<Item = &'a Ending>) -> Self {
        let (mut held, mut lanes, mut along) = (Vec::new(), BTreeSet::new(), Vec::new());
        for ending in endings {
            held.push(ending.job);
            lanes.extend(ending.lane.clone());
            along.extend(ending.along.clone().map(|along| (ending.job, along)));
        }
        Self {
            held,
            lanes: lanes.into_iter().collect(),
            along,
        }
    }

    /// Whether ending them is one statement, which needs no transaction around it.
    #[must_use]
    pub fn are_one_statement(&self) -> bool {
        self.lanes.is_empty() && self.along.is_empty()
    }

    /// Ends them; answers those that hit.
    ///
    /// # Errors
    /// As every statement.
    pub async fn complete(&self, store: &Store) -> store::Result<Vec<Fenced>> {
        let complete = async |tx: &mut Tx<'_>| {
            let hit = jobs::complete(tx, &self.held, &self.lanes).await?;
            self.write_along(tx, |job| hit.contains(&job)).await?;
            Ok(hit)
        };
        if self.are_one_statement() {
            store.write_one(complete).await
        } else {
            store.write(complete).await
        }
    }

    /// Writes what goes along with those of them that ended, in the transaction that ended them.
    ///
    /// # Errors
    /// As every statement.
    pub async fn write_along(&self, tx: &mut Tx<'_>, ended: impl Fn(Fenced) -> bool) -> store::Result<()> {
        let hit = self.along.iter().filter(|(job, _)| ended(*job));
        along::write(tx, hit.map(|(_, along)| Arc::clone(along)).collect()).await
    }
}

/// The engine of one process. Clones share it.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Store,
    settings: Settings,
    steps: Batch<NewStep, bool>,
    completions: Batch<Ending, bool>,
    /// Who claims in this process, by pool.
    claimers: Mutex<HashMap<String, mpsc::Sender<Joining>>>,
    meters: AllMeters,
}

/// Jobs to be recorded in the transaction that claims the next ones.
pub struct Joining {
    /// What records them. It need not wake the pool of the claimer.
    pub along: Arc<dyn Along>,
    /// Told once they are recorded, and dropped when they are not.
    pub done: oneshot::Sender<()>,
}

/// What may wait for a claimer's next turn; more write by themselves.
const JOINING: usize = 512;

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
                        // Several statements a step.
                        Dialect::Sqlite => store.write(record).await?,
                    };
                    Ok(among(held, group.iter().map(|step| step.job)))
                }
            }
        });
        let completions = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<Ending>>| {
                let store = store.clone();
                async move {
                    let endings = Endings::of(group.iter());
                    let hit = endings.complete(&store).await?;
                    Ok(among(hit, endings.held.iter().copied()))
                }
            }
        });
        Self(Arc::new(Inner {
            store,
            settings,
            steps,
            completions,
            claimers: Mutex::default(),
            meters: AllMeters::default(),
        }))
    }

    /// For the one claimer of a pool in this process: what is to be recorded with its turns, until it drops this.
    #[must_use]
    pub fn joining(&self, pool: &str) -> mpsc::Receiver<Joining> {
        let (send, receive) = mpsc::channel(JOINING);
        self.claimers().insert(pool.to_owned(), send);
        receive
    }

    /// Has jobs of a pool recorded by whoever claims them in this process, in the transaction of its next turn: where a slot
    /// is free they are claimed there and then. False when nobody claims here, or the transaction failed; then nothing was
    /// recorded.
    ///
    /// For SQLite: there a transaction that was not answered was not committed, and nobody else would have to be woken.
    pub async fn record_with_turn(&self, pool: &str, along: Arc<dyn Along>) -> bool {
        if self.store().dialect() != Dialect::Sqlite {
            return false;
        }
        let Some(claimer) = self.claimers().get(pool).cloned() else {
            return false;
        };
        let (done, recorded) = oneshot::channel();
        let asked = claimer.try_send(Joining { along, done }).is_ok();
        drop(claimer);
        asked && recorded.await.is_ok()
    }

    fn claimers(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Joining>>> {
        // An insertion does not panic half way.
        self.0.claimers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The times.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.0.settings
    }

    pub(crate) fn meters(&self, pool: &str, kind: &str) -> Arc<Meters> {
        self.0.meters.of(pool, kind)
    }

    /// Records a step, alone or with whatever other steps wait; `false` when the job is held by somebody else.
    pub(crate) async fn record_step(&self, step: NewStep) -> store::Result<bool> {
        if let Some(_alone) = self.0.steps.alone()
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

    /// Completes a job that has nothing else to write; `false` when it moved on or was asked to stop.
    pub(crate) async fn complete(&self, ending: Ending) -> store::Result<bool> {
        self.0.completions.call(ending).await
    }
}

/// Told apart by fence too: an old holder of a job may stand in one group with the new one.
fn among(hit: Vec<Fenced>, wanted: impl Iterator<Item = Fenced>) -> Vec<bool> {
    let hit: HashSet<Fenced> = hit.into_iter().collect();
    wanted.map(|job| hit.contains(&job)).collect()
}
