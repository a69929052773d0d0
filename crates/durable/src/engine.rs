//! What the parts of the engine share in one process.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use towpath_store::jobs::{self, Fenced};
use towpath_store::steps::{self, NewStep};
use towpath_store::{self as store, Store};

use crate::batch::Batch;

/// Times of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a claim lasts without a renewal. Renewed every third of it.
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

/// The engine of one process. Clones share it.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Store,
    settings: Settings,
    steps: Batch<NewStep, bool>,
    completions: Batch<Fenced, bool>,
}

impl Engine {
    /// An engine over `store`, on the calling runtime.
    #[must_use]
    pub fn new(store: Store, settings: Settings) -> Self {
        let steps = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<NewStep>>| {
                let store = store.clone();
                async move {
                    let held = store.write_one(async |tx| steps::record(tx, &group).await).await?;
                    Ok(among(held, group.iter().map(|step| step.job)))
                }
            }
        });
        let completions = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<Fenced>>| {
                let store = store.clone();
                async move {
                    let hit = store.write_one(async |tx| jobs::complete(tx, &group).await).await?;
                    Ok(among(hit, group.iter().copied()))
                }
            }
        });
        Self(Arc::new(Inner {
            store,
            settings,
            steps,
            completions,
        }))
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
    pub(crate) async fn complete(&self, job: Fenced) -> store::Result<bool> {
        self.0.completions.call(job).await
    }
}

/// Told apart by fence too: an old holder of a job may stand in one group with the new one.
fn among(hit: Vec<Fenced>, wanted: impl Iterator<Item = Fenced>) -> Vec<bool> {
    let hit: HashSet<Fenced> = hit.into_iter().collect();
    wanted.map(|job| hit.contains(&job)).collect()
}
