//! The children of one set of graphs: how many, which one gets a run, and when one is replaced.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::child::{Child, Launch, StartError};
use super::choice::Purpose;
use super::forks::Forks;
use super::message::Ready;
use super::options::Options;
use super::upkeep;
use crate::GraphError;

/// Of the next child, in whichever pool: a pool and the one that replaces it share a folder of sockets.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Between two attempts at starting a child that does not start: doubled up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Children of one set of graphs. When it is dropped they end.
pub struct Pool {
    inner: Arc<Inner>,
    ready: Ready,
}

pub(super) struct Inner {
    launch: Launch,
    /// Where there may be several children: what has loaded the graphs for all of them.
    forks: Option<Arc<Forks>>,
    pub(super) options: Options,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) children: Vec<Arc<Child>>,
    pub(super) starting: usize,
    failed: Option<Failed>,
    pub(super) over: bool,
}

impl State {
    /// Whether the last start failed so lately that it is not tried again yet.
    pub(super) fn backs_off(&self) -> bool {
        self.failed
            .as_ref()
            .is_some_and(|failed| failed.at.elapsed() < failed.pause())
    }
}

struct Failed {
    at: Instant,
    times: u32,
    why: StartError,
}

impl Failed {
    fn pause(&self) -> Duration {
        let factor = 1_u32 << self.times.saturating_sub(1).min(10);
        (BACKOFF.0 * factor).min(BACKOFF.1)
    }
}

enum Choice {
    Taken(Seat),
    Wait,
    Failed(StartError),
}

impl Pool {
    /// Starts the first child, and says what it loaded.
    ///
    /// # Errors
    /// It cannot be started, or cannot load its graphs.
    pub async fn start(launch: Launch, options: Options) -> Result<Self, StartError> {
        let forks = if options.children > 1 {
            Forks::start(&launch).await?
        } else {
            None
        };
        let inner = Arc::new(Inner {
            launch,
            forks,
            options,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        let first = inner.child().await?;
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
        tokio::spawn(upkeep::look_after(Arc::downgrade(&inner)));
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

    /// A place for a run whose process ended so often while others were in it; waits for one.
    ///
    /// # Errors
    /// No child can be started.
    pub async fn seat(&self, shared_crashes: u32) -> Result<Seat, GraphError> {
        let company = self.inner.options.company(shared_crashes);
        if company < self.inner.options.slots {
            self.take(Purpose::Suspect { company }).await
        } else {
            self.take(Purpose::Run).await
        }
    }

    /// A child for a question: never waits for runs to end.
    ///
    /// # Errors
    /// No child can be started.
    pub async fn anyone(&self) -> Result<Seat, GraphError> {
        self.take(Purpose::Question).await
    }

    async fn take(&self, purpose: Purpose) -> Result<Seat, GraphError> {
        loop {
            let changed = self.inner.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match Inner::choose(&self.inner, purpose) {
                Choice::Taken(seat) => return Ok(seat),
                Choice::Failed(why) => return Err(GraphError::lost("HostNotStarted", why.to_string())),
                Choice::Wait => {}
            }
            // A child whose loop was blocked becomes free without a word.
            let _ = tokio::time::timeout(self.inner.options.ping_every, changed).await;
        }
    }

    /// Process ids of the children that serve, with their runs.
    #[must_use]
    pub fn children(&self) -> Vec<(i32, usize)> {
        let state = self.inner.state();
        let lives = state.children.iter().filter(|child| child.lives());
        lives.map(|child| (child.hello.pid, child.runs())).collect()
    }

    /// Ends all children: their runs may go on for `grace`. Returns when they are gone.
    pub async fn close(&self, grace: Duration) {
        let children = self.inner.end(grace);
        for child in children {
            child.gone().await;
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
        // Whoever runs on a child holds this, so there are no runs.
        self.inner.end(Duration::from_secs(1));
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between two fields can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn child(&self) -> Result<Child, StartError> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let forks = self.forks.as_ref().filter(|forks| forks.lives());
        Child::start(&self.launch, forks, number).await
    }

    fn add(&self, child: Child) {
        let mut state = self.state();
        if state.over {
            child.kill();
        }
        state.children.push(Arc::new(child));
        drop(state);
        self.changed.notify_waiters();
    }

    fn end(&self, grace: Duration) -> Vec<Arc<Child>> {
        let mut state = self.state();
        state.over = true;
        for child in &state.children {
            child.retire(grace);
        }
        std::mem::take(&mut state.children)
    }

    /// Finds a child, or starts one.
    fn choose(this: &Arc<Self>, purpose: Purpose) -> Choice {
        let mut state = this.state();
        if state.over {
            return Choice::Failed(StartError::Process("the graph hosts were ended".to_owned()));
        }
        state.children.retain(|child| child.lives());
        let serving: Vec<Arc<Child>> = state
            .children
            .iter()
            .filter(|child| !child.draining.load(Ordering::Relaxed))
            .cloned()
            .collect();
        let found = this.find(purpose, &serving, state.starting);
        if found.start {
            match &state.failed {
                Some(failed) if failed.at.elapsed() < failed.pause() => {
                    if found.child.is_none() && state.starting == 0 {
                        return Choice::Failed(failed.why.clone());
                    }
                }
                _ => Self::start_another(this, &mut state),
            }
        }
        let Some(child) = found.child else { return Choice::Wait };
        let run = !matches!(purpose, Purpose::Question);
        if run {
            child.open.fetch_add(1, Ordering::Relaxed);
            child.served.fetch_add(1, Ordering::Relaxed);
            child.touch();
        }
        if let Purpose::Suspect { company } = purpose {
            child.company.store(company, Ordering::Relaxed);
        }
        Choice::Taken(Seat {
            child,
            pool: this.clone(),
            run,
        })
    }

    /// Starts one more child.
    pub(super) fn start_another(this: &Arc<Self>, state: &mut State) {
        state.starting += 1;
        tokio::spawn(start(this.clone()));
    }
}

async fn start(pool: Arc<Inner>) {
    let started = pool.child().await;
    {
        let mut state = pool.state();
        state.starting -= 1;
        match &started {
            Ok(_) => state.failed = None,
            Err(why) => {
                tracing::error!(error = %why, "a graph host cannot be started");
                state.failed = Some(Failed {
                    at: Instant::now(),
                    times: state.failed.as_ref().map_or(1, |failed| failed.times + 1),
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
pub struct Seat {
    child: Arc<Child>,
    pool: Arc<Inner>,
    run: bool,
}

impl Seat {
    /// The child.
    #[must_use]
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Gives up a run that does not stop, for as long as the answer lives. The child gets no more runs, and is ended once no
    /// other ones are in it.
    pub(super) fn abandon(&self) -> Abandoned<'_> {
        self.child.drain();
        self.child.abandoned.fetch_add(1, Ordering::Relaxed);
        self.pool.changed.notify_waiters();
        Abandoned(&self.child)
    }
}

/// A run that was given up and goes on all the same.
pub(super) struct Abandoned<'a>(&'a Child);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.abandoned.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.run {
            return;
        }
        {
            // Nobody takes a place meanwhile.
            let _state = self.pool.state();
            if self.child.open.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.child.company.store(0, Ordering::Relaxed);
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
        let failed = |times| Failed {
            at: Instant::now(),
            times,
            why: StartError::Process(String::new()),
        };
        assert_eq!(failed(1).pause(), Duration::from_millis(200));
        assert_eq!(failed(3).pause(), Duration::from_millis(800));
        assert_eq!(failed(60).pause(), Duration::from_secs(15));
    }
}
