//! The running agent servers by deployment, regardless of the backend.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_domain::{DeploymentId, RevisionId};

use crate::error::{Error, Result};
use crate::launch::RunningAgent;
use crate::lifecycle::Lifecycle;
use crate::metric;

/// A running agent server. Dropped, it is ended.
pub(crate) trait Instance: Send + Sync + 'static {
    /// Its life.
    fn lifecycle(&self) -> &Lifecycle;
}

/// What serves.
#[derive(Debug)]
pub(crate) struct Instances<I> {
    running: Mutex<HashMap<DeploymentId, RunningInstance<I>>>,
    ended: Arc<Notify>,
    /// All are stopped, for good. Changes while `running` is locked.
    closed: AtomicBool,
}

#[derive(Debug)]
struct RunningInstance<I> {
    instance: Arc<I>,
    /// None before it is healthy.
    state: Option<RunningAgent>,
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
    /// Adds an agent server that is about to serve a deployment. If the caller that waits for its health is dropped, it
    /// is stopped from here.
    pub(crate) async fn insert(&self, deployment: DeploymentId, instance: Arc<I>) -> Result<()> {
        let entered = {
            let mut running = self.running.lock();
            let open = !self.closed.load(Ordering::Relaxed);
            if open {
                let instance = Arc::clone(&instance);
                running.insert(deployment, RunningInstance { instance, state: None });
            }
            open
        };
        self.count();
        if entered {
            return Ok(());
        }
        instance.lifecycle().stop().await;
        Err(Error::Transient("this process no longer runs deployments".to_owned()))
    }

    /// Takes in what serves a deployment now.
    pub(crate) fn set_healthy(
        &self,
        deployment: DeploymentId,
        instance: Arc<I>,
        revision: RevisionId,
        address: String,
    ) -> RunningAgent {
        let state = RunningAgent { revision, address };
        let (mut ending, ended) = (instance.lifecycle().subscribe_end(), Arc::clone(&self.ended));
        let running = RunningInstance {
            instance,
            state: Some(state.clone()),
        };
        self.running.lock().insert(deployment, running);
        self.count();
        tokio::spawn(async move {
            // An error says that its task is gone, and so is it.
            let _ = ending.wait_for(Option::is_some).await;
            ended.notify_one();
        });
        state
    }

    pub(crate) fn state(&self, deployment: DeploymentId) -> Option<RunningAgent> {
        let all = self.running.lock();
        let running = all.get(&deployment)?;
        if running.instance.lifecycle().is_running() {
            running.state.clone()
        } else {
            None
        }
    }

    pub(crate) fn running(&self) -> Vec<DeploymentId> {
        self.running.lock().keys().copied().collect()
    }

    pub(crate) async fn stop(&self, deployment: DeploymentId) {
        let found = self
            .running
            .lock()
            .get(&deployment)
            .map(|running| Arc::clone(&running.instance));
        if let Some(instance) = found {
            instance.lifecycle().stop().await;
            self.forget(deployment, &instance);
        }
    }

    /// Removes the entry of an ended agent server. Until then the entry stays, so that the next one waits for its end
    /// even if the stopping caller was dropped.
    fn forget(&self, deployment: DeploymentId, instance: &Arc<I>) {
        let mut all = self.running.lock();
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
            let running = self.running.lock();
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
                let stopped = tokio::spawn(async move { asked.lifecycle().stop().await });
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
        metrics::gauge!(metric::AGENTS).set(self.running.lock().len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::LifecycleReporter;

    struct Fixed(Lifecycle);

    impl Instance for Fixed {
        fn lifecycle(&self) -> &Lifecycle {
            &self.0
        }
    }

    fn one() -> (Arc<Fixed>, LifecycleReporter) {
        let (life, holder) = Lifecycle::start();
        (Arc::new(Fixed(life)), holder)
    }

    /// The database belongs to a stopping agent server until it has ended.
    #[tokio::test]
    async fn a_stop_that_is_dropped_is_waited_for_by_the_next() {
        let (all, deployment) = (Instances::default(), DeploymentId::new());
        let (instance, holder) = one();
        all.set_healthy(deployment, instance, RevisionId::new(), "127.0.0.1:1".to_owned());
        let dropped = tokio::time::timeout(std::time::Duration::ZERO, all.stop(deployment)).await;
        assert!(dropped.is_err(), "it cannot have ended yet");
        assert!(holder.stop.is_cancelled(), "it was asked to stop");
        assert_eq!(all.state(deployment), None, "it serves no more");
        assert_eq!(all.running(), [deployment], "nobody would wait for its end");

        let (next, end) = (all.stop_all(), async { holder.report_end("was stopped".to_owned()) });
        tokio::join!(next, end);
        assert!(all.running().is_empty());
    }

    /// One whose health check was dropped is stopped with the others.
    #[tokio::test]
    async fn what_is_about_to_serve_is_known() {
        let (all, deployment) = (Instances::default(), DeploymentId::new());
        let (instance, holder) = one();
        all.insert(deployment, instance).await.unwrap();
        assert_eq!((all.state(deployment), all.running()), (None, vec![deployment]));
        let end = async {
            holder.stop.cancelled().await;
            holder.report_end("was stopped".to_owned());
        };
        tokio::join!(all.stop(deployment), end);
        assert!(all.running().is_empty());
    }

    /// A build that ends after everything was stopped must not leave a running server.
    #[tokio::test]
    async fn who_comes_after_all_were_stopped_is_stopped() {
        let all = Instances::default();
        all.stop_all().await;
        let (instance, holder) = one();
        let end = async {
            holder.stop.cancelled().await;
            holder.report_end("was stopped".to_owned());
        };
        let (entered, ()) = tokio::join!(all.insert(DeploymentId::new(), instance), end);
        assert!(matches!(entered, Err(Error::Transient(_))), "{entered:?}");
        assert!(all.running().is_empty());
    }
}
