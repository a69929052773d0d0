//! The agent servers that run, by deployment, whatever they run in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use towpath_domain::{DeploymentId, RevisionId};

use crate::backend::State;
use crate::error::{Error, Result};
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
    /// All are stopped, for good. Changes while `running` is locked.
    closed: AtomicBool,
}

#[derive(Debug)]
struct Running<I> {
    instance: Arc<I>,
    /// None before it is healthy.
    state: Option<State>,
}

impl<I> Default for Instances<I> {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
            ended: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }
}

impl<I: Instance> Instances<I> {
    /// Takes in what is about to serve a deployment. Whoever waits for its health may be dropped: it is stopped from here
    /// then, and waited for.
    ///
    /// # Errors
    /// All were stopped: nobody would stop this one. It is stopped.
    pub(crate) async fn enter(&self, deployment: DeploymentId, instance: Arc<I>) -> Result<()> {
        let entered = {
            let mut running = self.lock();
            let open = !self.closed.load(Ordering::Relaxed);
            if open {
                let instance = Arc::clone(&instance);
                running.insert(deployment, Running { instance, state: None });
            }
            open
        };
        self.count();
        if entered {
            return Ok(());
        }
        instance.life().stop().await;
        Err(Error::Transient(
            "this process does not run deployments any more".to_owned(),
        ))
    }

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
            state: Some(state.clone()),
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
        if running.instance.life().goes_on() {
            running.state.clone()
        } else {
            None
        }
    }

    pub(crate) fn running(&self) -> Vec<DeploymentId> {
        self.lock().keys().copied().collect()
    }

    pub(crate) async fn stop(&self, deployment: DeploymentId) {
        let found = self
            .lock()
            .get(&deployment)
            .map(|running| Arc::clone(&running.instance));
        if let Some(instance) = found {
            instance.life().stop().await;
            self.forget(deployment, &instance);
        }
    }

    /// What has ended needs no entry. Before that it keeps it, so that the next one waits for its end, even when whoever
    /// stopped it was dropped.
    fn forget(&self, deployment: DeploymentId, instance: &Arc<I>) {
        let mut all = self.lock();
        if all
            .get(&deployment)
            .is_some_and(|running| Arc::ptr_eq(&running.instance, instance))
        {
            all.remove(&deployment);
        }
        drop(all);
        self.count();
    }

    /// Stops all, and takes in no other.
    pub(crate) async fn stop_all(&self) {
        let all: Vec<_> = {
            let running = self.lock();
            self.closed.store(true, Ordering::Relaxed);
            let all = running.iter();
            all.map(|(deployment, running)| (*deployment, Arc::clone(&running.instance)))
                .collect()
        };
        // All are asked before the first is waited for.
        let stopping: Vec<_> = all
            .into_iter()
            .map(|(deployment, instance)| {
                let asked = Arc::clone(&instance);
                let stopped = tokio::spawn(async move { asked.life().stop().await });
                (deployment, instance, stopped)
            })
            .collect();
        for (deployment, instance, stopped) in stopping {
            let _ = stopped.await;
            self.forget(deployment, &instance);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::Holder;

    struct Fixed(Life);

    impl Instance for Fixed {
        fn life(&self) -> &Life {
            &self.0
        }
    }

    fn one() -> (Arc<Fixed>, Holder) {
        let (life, holder) = Life::begin();
        (Arc::new(Fixed(life)), holder)
    }

    /// The database belongs to one that was asked to stop until it has ended.
    #[tokio::test]
    async fn a_stop_that_is_dropped_is_waited_for_by_the_next() {
        let (all, deployment) = (Instances::default(), DeploymentId::new());
        let (instance, holder) = one();
        all.put(deployment, instance, RevisionId::new(), "127.0.0.1:1".to_owned());
        let dropped = tokio::time::timeout(std::time::Duration::ZERO, all.stop(deployment)).await;
        assert!(dropped.is_err(), "it cannot have ended yet");
        assert!(holder.stop.is_cancelled(), "it was asked to stop");
        assert_eq!(all.state(deployment), None, "it serves no more");
        assert_eq!(all.running(), [deployment], "nobody would wait for its end");

        let (next, end) = (all.stop_all(), async { holder.ended("was stopped".to_owned()) });
        tokio::join!(next, end);
        assert!(all.running().is_empty());
    }

    /// One whose health nobody waits for any more is stopped with the others.
    #[tokio::test]
    async fn what_is_about_to_serve_is_known() {
        let (all, deployment) = (Instances::default(), DeploymentId::new());
        let (instance, holder) = one();
        all.enter(deployment, instance).await.unwrap();
        assert_eq!((all.state(deployment), all.running()), (None, vec![deployment]));
        let end = async {
            holder.stop.cancelled().await;
            holder.ended("was stopped".to_owned());
        };
        tokio::join!(all.stop(deployment), end);
        assert!(all.running().is_empty());
    }

    /// A build that ends behind the stop of all must not leave a server that nobody stops.
    #[tokio::test]
    async fn who_comes_after_all_were_stopped_is_stopped() {
        let all = Instances::default();
        all.stop_all().await;
        let (instance, holder) = one();
        let end = async {
            holder.stop.cancelled().await;
            holder.ended("was stopped".to_owned());
        };
        let (entered, ()) = tokio::join!(all.enter(DeploymentId::new(), instance), end);
        assert!(matches!(entered, Err(Error::Transient(_))), "{entered:?}");
        assert!(all.running().is_empty());
    }
}
