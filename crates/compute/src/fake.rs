//! A backend that runs nothing and does what a test tells it.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::DeploymentId;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::launch::{Launch, RunningAgent};

/// What a call is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FakeAction {
    /// It goes well.
    #[default]
    Succeed,
    /// It does not become healthy.
    Fail,
    /// It takes until it is cancelled.
    Hang,
}

/// The backend.
#[derive(Debug, Default)]
pub struct Fake {
    inner: Mutex<FakeState>,
    ended: Notify,
    released: Notify,
    /// Number of health checks.
    health_checks: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FakeState {
    running: HashMap<DeploymentId, RunningAgent>,
    check: FakeAction,
    replace: FakeAction,
    stop: FakeAction,
    panics: bool,
    deaf: HashSet<DeploymentId>,
    databases: HashMap<DeploymentId, String>,
    calls: Vec<String>,
}

impl Fake {
    /// What the next checks and replacements are to do.
    pub fn act(&self, check: FakeAction, replace: FakeAction) {
        let mut inner = self.inner.lock();
        inner.check = check;
        inner.replace = replace;
    }

    /// The behaviour of the next stops; [`FakeAction::Hang`] lasts until [`Fake::release`].
    pub fn act_at_stop(&self, act: FakeAction) {
        self.inner.lock().stop = act;
    }

    /// Ends the stops that hang.
    pub fn release(&self) {
        self.inner.lock().stop = FakeAction::Succeed;
        self.released.notify_waiters();
    }

    /// The next replacement panics.
    pub fn panic_at_replace(&self) {
        self.inner.lock().panics = true;
    }

    /// Makes the agent server of a deployment unresponsive without ending it; its successor answers.
    pub fn deafen(&self, deployment: DeploymentId) {
        self.inner.lock().deaf.insert(deployment);
    }

    /// The database of a deployment is another one, or away.
    pub fn put_database(&self, deployment: DeploymentId, id: Option<&str>) {
        let mut inner = self.inner.lock();
        match id {
            Some(id) => inner.databases.insert(deployment, id.to_owned()),
            None => inner.databases.remove(&deployment),
        };
    }

    pub(crate) fn database(&self, deployment: DeploymentId) -> Option<String> {
        self.inner.lock().databases.get(&deployment).cloned()
    }

    pub(crate) fn name_database(&self, deployment: DeploymentId) -> String {
        let mut inner = self.inner.lock();
        let id = inner.databases.entry(deployment);
        id.or_insert_with(|| Uuid::now_v7().to_string()).clone()
    }

    /// The calls so far: `check`, `replace` or `stop`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.inner.lock().calls.clone()
    }

    /// The agent server of a deployment ends by itself.
    pub fn crash(&self, deployment: DeploymentId) {
        self.inner.lock().running.remove(&deployment);
        self.ended.notify_one();
    }

    pub(crate) async fn check(&self, _: &Launch, cancel: &CancellationToken) -> Result<()> {
        let act = self.called("check", |inner| inner.check);
        perform(act, cancel).await
    }

    pub(crate) async fn replace(&self, launch: &Launch, cancel: &CancellationToken) -> Result<RunningAgent> {
        let (act, panics) = self.called("replace", |inner| {
            inner.running.remove(&launch.deployment);
            inner.deaf.remove(&launch.deployment);
            (inner.replace, std::mem::take(&mut inner.panics))
        });
        assert!(!panics, "a test asked for this panic");
        perform(act, cancel).await?;
        let state = RunningAgent {
            revision: launch.revision,
            address: "127.0.0.1:1".to_owned(),
        };
        self.inner.lock().running.insert(launch.deployment, state.clone());
        Ok(state)
    }

    pub(crate) fn state(&self, deployment: DeploymentId) -> Option<RunningAgent> {
        self.inner.lock().running.get(&deployment).cloned()
    }

    /// Waits for so many further health checks.
    pub async fn until_checked(&self, times: u64) {
        let mut checks = self.health_checks.subscribe();
        let enough = *checks.borrow() + times;
        // `self` owns the sender.
        let _ = checks.wait_for(|checks| *checks >= enough).await;
    }

    pub(crate) fn check_health(&self, deployment: DeploymentId) -> bool {
        self.health_checks.send_modify(|checks| *checks += 1);
        !self.inner.lock().deaf.contains(&deployment)
    }

    /// As [`Fake::stop`], for as long as the test says.
    pub(crate) async fn drain(&self, deployment: DeploymentId) {
        let released = self.released.notified();
        tokio::pin!(released);
        // Before the look, so that no release is missed.
        released.as_mut().enable();
        let act = self.called("stop", |inner| inner.stop);
        if act == FakeAction::Hang {
            released.await;
        }
        self.inner.lock().running.remove(&deployment);
    }

    pub(crate) fn running(&self) -> Vec<DeploymentId> {
        self.inner.lock().running.keys().copied().collect()
    }

    pub(crate) fn stop(&self, deployment: DeploymentId) {
        self.called("stop", |inner| {
            inner.running.remove(&deployment);
        });
    }

    pub(crate) fn stop_all(&self) {
        self.inner.lock().running.clear();
    }

    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }

    fn called<T>(&self, name: &str, then: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut inner = self.inner.lock();
        inner.calls.push(name.to_owned());
        then(&mut inner)
    }
}

async fn perform(act: FakeAction, cancel: &CancellationToken) -> Result<()> {
    match act {
        FakeAction::Succeed => Ok(()),
        FakeAction::Fail => Err(Error::Refused("the agent server did not become healthy".to_owned())),
        FakeAction::Hang => {
            cancel.cancelled().await;
            Err(Error::Cancelled)
        }
    }
}
