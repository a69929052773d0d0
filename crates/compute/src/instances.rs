//! The agent servers that run, by deployment, whatever they run in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use towpath_domain::{DeploymentId, RevisionId};

use crate::backend::State;
use crate::life::Life;
use crate::metric;

/// A running agent server. Dropped, it is ended.
pub(crate) trait Instance: Send + Sync + 'static {
    /// Its life.
    fn life(&self) -> &Life;
}

/// What serves.
#[derive(Debug)]
pub(crate) struct Instances<I> {
    running: Mutex<HashMap<DeploymentId, Running<I>>>,
    ended: Arc<Notify>,
}

#[derive(Debug)]
struct Running<I> {
    instance: Arc<I>,
    state: State,
}

impl<I> Default for Instances<I> {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
            ended: Arc::default(),
        }
    }
}

impl<I: Instance> Instances<I> {
    /// Takes in what serves a deployment now.
    pub(crate) fn put(
        &self,
        deployment: DeploymentId,
        instance: Arc<I>,
        revision: RevisionId,
        address: String,
    ) -> State {
        let state = State { revision, address };
        let (mut ending, ended) = (instance.life().ending(), Arc::clone(&self.ended));
        let running = Running {
            instance,
            state: state.clone(),
        };
        self.lock().insert(deployment, running);
        self.count();
        tokio::spawn(async move {
            // An error says that its task is gone, and so is it.
            let _ = ending.wait_for(Option::is_some).await;
            ended.notify_one();
        });
        state
    }

    pub(crate) fn state(&self, deployment: DeploymentId) -> Option<State> {
        let all = self.lock();
        let running = all.get(&deployment)?;
        let lives = running.instance.life().ending().borrow().is_none();
        lives.then(|| running.state.clone())
    }

    pub(crate) fn running(&self) -> Vec<DeploymentId> {
        self.lock().keys().copied().collect()
    }

    pub(crate) async fn stop(&self, deployment: DeploymentId) {
        let running = self.lock().remove(&deployment);
        if let Some(running) = running {
            running.instance.life().stop().await;
        }
        self.count();
    }

    pub(crate) async fn stop_all(&self) {
        let all: Vec<_> = self.lock().drain().map(|(_, running)| running.instance).collect();
        // All are asked before the first is waited for.
        let stopping: Vec<_> = all
            .into_iter()
            .map(|instance| tokio::spawn(async move { instance.life().stop().await }))
            .collect();
        for stopped in stopping {
            let _ = stopped.await;
        }
        self.count();
    }

    /// Waits until one has ended by itself.
    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }

    fn count(&self) {
        metrics::gauge!(metric::AGENTS).set(self.lock().len() as f64);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DeploymentId, Running<I>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
