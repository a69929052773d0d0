//! The child processes of a set of graphs: their number, the assignment of runs, and replacement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::child::Child;
use super::fork_server::ForkServer;
use super::launch::{Launch, StartError};
use super::maintenance;
use super::message::Ready;
use super::options::Options;
use super::selection::Purpose;
use crate::GraphError;

/// The number of the next child, over all pools: a pool and its successor share a folder of sockets.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Pause between attempts to start a failing child: doubled from the first to the second value.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Children of one set of graphs. When it is dropped they end.
pub struct Pool {
    inner: Arc<PoolInner>,
    ready: Ready,
}

pub(super) struct PoolInner {
    launch: Launch,
    /// If there may be several children: the fork server that has loaded the graphs for all of them.
    forks: Option<Arc<ForkServer>>,
    pub(super) options: Options,
    pub(super) state: Mutex<PoolState>,
    changed: Notify,
}

#[derive(Default)]
pub(super) struct PoolState {
    pub(super) children: Vec<Arc<Child>>,
    pub(super) starting: usize,
    last_failure: Option<StartFailure>,
    pub(super) closed: bool,
}

impl PoolState {
    /// Whether the last start failed so recently that it is not retried yet.
    pub(super) fn backs_off(&self) -> bool {
        self.last_failure
            .as_ref()
            .is_some_and(|failed| failed.at.elapsed() < failed.pause())
    }
}

struct StartFailure {
    at: Instant,
    times: u32,
    why: StartError,
}

impl StartFailure {
    fn pause(&self) -> Duration {
        let factor = 1_u32 << self.times.saturating_sub(1).min(10);
        (BACKOFF.0 * factor).min(BACKOFF.1)
    }
}

enum LeaseAttempt {
    Leased(ChildLease),
    Wait,
    Failed(StartError),
}

impl Pool {
    /// Starts the first child, and says what it loaded.
    pub async fn start(launch: Launch, options: Options) -> Result<Self, StartError> {
        let forks = if options.children > 1 {
            ForkServer::start(&launch).await?
        } else {
            None
        };
        let inner = Arc::new(PoolInner {
            launch,
            forks,
            options,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        let first = inner.start_child().await?;
        let ready = first.ready.clone();
        tracing::info!(
            host.pid = first.hello.pid,
            host.runtime = format!("{} {}", first.hello.runtime, first.hello.runtime_version),
            langgraph = first.hello.versions.get("langgraph").map(String::as_str),
            graphs = ready.graphs.len(),
            forked = inner.forks.is_some(),
            load_ms = ready.load_ms,
            "graph host ready"
        );
        inner.add(first);
        tokio::spawn(maintenance::maintain(Arc::downgrade(&inner)));
        Ok(Self { inner, ready })
    }

    /// What the first child loaded.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// How it behaves.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// How its children are started.
    #[must_use]
    pub fn launch(&self) -> &Launch {
        &self.inner.launch
    }

    /// Leases a slot for a run with this many shared crashes; waits for one.
    pub async fn lease_for_run(&self, shared_crashes: u32) -> Result<ChildLease, GraphError> {
        let company = self.inner.options.shared_limit(shared_crashes);
        if company < self.inner.options.slots {
            self.acquire(Purpose::Suspect { shared_limit: company }).await
        } else {
            self.acquire(Purpose::Run).await
        }
    }

    /// A child for a question: never waits for runs to end.
    pub async fn lease_for_question(&self) -> Result<ChildLease, GraphError> {
        self.acquire(Purpose::Question).await
    }

    async fn acquire(&self, purpose: Purpose) -> Result<ChildLease, GraphError> {
        loop {
            let changed = self.inner.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match PoolInner::try_lease(&self.inner, purpose) {
                LeaseAttempt::Leased(seat) => return Ok(seat),
                LeaseAttempt::Failed(why) => return Err(GraphError::lost("HostNotStarted", why.to_string())),
                LeaseAttempt::Wait => {}
            }
            // A child whose loop was blocked becomes free without a word.
            let _ = tokio::time::timeout(self.inner.options.ping_every, changed).await;
        }
    }

    /// Process ids of the children that serve, with their runs.
    #[must_use]
    pub fn children(&self) -> Vec<(i32, usize)> {
        let state = self.inner.state.lock();
        let lives = state.children.iter().filter(|child| child.is_alive());
        lives.map(|child| (child.hello.pid, child.runs())).collect()
    }

    /// Stops all children; their runs may continue for `grace`. Returns when they are gone.
    pub async fn close(&self, grace: Duration) {
        let children = self.inner.close_all(grace);
        for child in children {
            child.wait_exit().await;
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("children", &self.children())
            .finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Runs hold this value, so there are none left.
        self.inner.close_all(Duration::from_secs(1));
    }
}

impl PoolInner {
    async fn start_child(&self) -> Result<Child, StartError> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let forks = self.forks.as_ref().filter(|forks| forks.is_alive());
        Child::start(&self.launch, forks, number).await
    }

    fn add(&self, child: Child) {
        let mut state = self.state.lock();
        if state.closed {
            child.kill();
        }
        state.children.push(Arc::new(child));
        drop(state);
        self.changed.notify_waiters();
    }

    fn close_all(&self, grace: Duration) -> Vec<Arc<Child>> {
        let mut state = self.state.lock();
        state.closed = true;
        for child in &state.children {
            child.stop_after(grace);
        }
        std::mem::take(&mut state.children)
    }

    /// Finds a child, or starts one.
    fn try_lease(this: &Arc<Self>, purpose: Purpose) -> LeaseAttempt {
        let mut state = this.state.lock();
        if state.closed {
            return LeaseAttempt::Failed(StartError::Process("the graph hosts were stopped".to_owned()));
        }
        state.children.retain(|child| child.is_alive());
        let serving: Vec<Arc<Child>> = state
            .children
            .iter()
            .filter(|child| !child.draining.load(Ordering::Relaxed))
            .cloned()
            .collect();
        let found = this.find(purpose, &serving, state.starting);
        if found.start_another {
            match &state.last_failure {
                Some(failed) if failed.at.elapsed() < failed.pause() => {
                    if found.child.is_none() && state.starting == 0 {
                        return LeaseAttempt::Failed(failed.why.clone());
                    }
                }
                _ => Self::start_another(this, &mut state),
            }
        }
        let Some(child) = found.child else {
            return LeaseAttempt::Wait;
        };
        let run = !matches!(purpose, Purpose::Question);
        if run {
            child.active_runs.fetch_add(1, Ordering::Relaxed);
            child.served.fetch_add(1, Ordering::Relaxed);
            child.touch();
        }
        if let Purpose::Suspect { shared_limit: company } = purpose {
            child.shared_limit.store(company, Ordering::Relaxed);
        }
        LeaseAttempt::Leased(ChildLease {
            child,
            pool: this.clone(),
            run,
        })
    }

    /// Starts one more child.
    pub(super) fn start_another(this: &Arc<Self>, state: &mut PoolState) {
        state.starting += 1;
        tokio::spawn(start(this.clone()));
    }
}

async fn start(pool: Arc<PoolInner>) {
    let started = pool.start_child().await;
    {
        let mut state = pool.state.lock();
        state.starting -= 1;
        match &started {
            Ok(_) => state.last_failure = None,
            Err(why) => {
                tracing::error!(error = %why, "cannot start a graph host");
                state.last_failure = Some(StartFailure {
                    at: Instant::now(),
                    times: state.last_failure.as_ref().map_or(1, |failed| failed.times + 1),
                    why: why.clone(),
                });
            }
        }
    }
    match started {
        Ok(child) => pool.add(child),
        Err(_) => pool.changed.notify_waiters(),
    }
}

/// A place of a child.
pub struct ChildLease {
    child: Arc<Child>,
    pool: Arc<PoolInner>,
    run: bool,
}

impl ChildLease {
    #[must_use]
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Marks a run that does not stop as abandoned while the result lives. The child gets no new runs, and is stopped
    /// once it has no others.
    pub(super) fn abandon(&self) -> AbandonedRun<'_> {
        self.child.drain();
        self.child.abandoned.fetch_add(1, Ordering::Relaxed);
        self.pool.changed.notify_waiters();
        AbandonedRun(&self.child)
    }
}

/// A run that was given up and continues all the same.
pub(super) struct AbandonedRun<'a>(&'a Child);

impl Drop for AbandonedRun<'_> {
    fn drop(&mut self) {
        self.0.abandoned.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ChildLease {
    fn drop(&mut self) {
        if !self.run {
            return;
        }
        {
            // No one takes a place meanwhile.
            let _state = self.pool.state.lock();
            if self.child.active_runs.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.child.shared_limit.store(0, Ordering::Relaxed);
            }
        }
        self.child.touch();
        self.pool.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_start_is_tried_less_and_less_often() {
        let failed = |times| StartFailure {
            at: Instant::now(),
            times,
            why: StartError::Process(String::new()),
        };
        assert_eq!(failed(1).pause(), Duration::from_millis(200));
        assert_eq!(failed(3).pause(), Duration::from_millis(800));
        assert_eq!(failed(60).pause(), Duration::from_secs(15));
    }
}
