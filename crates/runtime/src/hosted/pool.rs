//! The children of one set of graphs: how many, which one gets a run, and when one is replaced.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::child::{Child, Launch, StartError};
use super::forks::Forks;
use super::message::Ready;
use crate::GraphError;

/// How a pool behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// At most so many children serve at a time.
    pub children: usize,
    /// Runs of one child at a time.
    pub slots: usize,
    /// Another child is started when every child has this many runs.
    pub spread: usize,
    /// A child is replaced after so many runs; 0 is never.
    pub max_runs: u64,
    /// A child is replaced when it holds so many bytes; 0 is never.
    pub max_rss_bytes: u64,
    /// How long a cancelled run may take to end before its child is ended.
    pub cancel_grace: Duration,
    /// How often children are asked whether they live.
    pub ping_every: Duration,
    /// A child whose event loop is blocked for this long gets no new runs until it is free.
    pub blocked_after: Duration,
    /// A child that does not even answer pings for this long is ended.
    pub silent_after: Duration,
    /// A child beyond the first that had no run for this long is ended; also one that stood in for a blocked one, this
    /// long after its start.
    pub idle_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            children: 1,
            slots: 64,
            spread: 4,
            max_runs: 0,
            max_rss_bytes: 0,
            cancel_grace: Duration::from_secs(10),
            ping_every: Duration::from_secs(1),
            blocked_after: Duration::from_secs(1),
            silent_after: Duration::from_secs(300),
            idle_after: Duration::from_secs(300),
        }
    }
}

impl Options {
    /// One run for each child at a time, `slots` children.
    #[must_use]
    pub fn isolated(mut self, slots: usize) -> Self {
        self.children = slots;
        self.slots = 1;
        self.spread = usize::MAX;
        self
    }
}

/// Of the next child, in whichever pool: a pool and the one that replaces it share a folder of sockets.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Between two attempts at starting a child that does not start: doubled up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Children of one set of graphs. When it is dropped they end.
pub struct Pool {
    inner: Arc<Inner>,
    ready: Ready,
}

struct Inner {
    launch: Launch,
    /// Where there may be several children: what has loaded the graphs for all of them.
    forks: Option<Arc<Forks>>,
    options: Options,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    children: Vec<Arc<Child>>,
    starting: usize,
    failed: Option<Failed>,
    over: bool,
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
        tokio::spawn(look_after(Arc::downgrade(&inner)));
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

    /// A place for a run; waits for one.
    ///
    /// # Errors
    /// No child can be started.
    pub async fn seat(&self) -> Result<Seat, GraphError> {
        self.take(true).await
    }

    /// A child for a question: never waits for runs to end.
    ///
    /// # Errors
    /// No child can be started.
    pub async fn anyone(&self) -> Result<Seat, GraphError> {
        self.take(false).await
    }

    async fn take(&self, run: bool) -> Result<Seat, GraphError> {
        loop {
            let changed = self.inner.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match Inner::choose(&self.inner, run) {
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
        lives
            .map(|child| (child.hello.pid, child.open.load(Ordering::Relaxed)))
            .collect()
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
    fn state(&self) -> MutexGuard<'_, State> {
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

    /// Whether new runs had better go elsewhere.
    fn blocked(&self, child: &Child) -> bool {
        let health = child.connection.health();
        // A thread of its own answers pings; what keeps even that from answering is no better.
        let silent = health.heard.elapsed().saturating_sub(self.options.ping_every);
        health.loop_lag.max(silent) >= self.options.blocked_after
    }

    /// Finds a child, or starts one.
    fn choose(this: &Arc<Self>, run: bool) -> Choice {
        let mut state = this.state();
        if state.over {
            return Choice::Failed(StartError::Process("the graph hosts were ended".to_owned()));
        }
        state.children.retain(|child| child.lives());
        let serving = state
            .children
            .iter()
            .filter(|child| !child.draining.load(Ordering::Relaxed));
        let (blocked, free): (Vec<_>, Vec<_>) = serving.cloned().partition(|child| this.blocked(child));
        let open = |child: &Arc<Child>| child.open.load(Ordering::Relaxed);
        let best = free
            .iter()
            .filter(|child| !run || open(child) < this.options.slots)
            .min_by_key(|child| open(child))
            // Better slow than not at all.
            .or_else(|| blocked.iter().find(|_| !run))
            .cloned();
        // A blocked child still works on what it has; another one may stand in for it.
        let most = this.options.children + blocked.len().min(this.options.children);
        let room = free.len() + blocked.len() + state.starting < most;
        let wanted = match &best {
            Some(best) => run && open(best) >= this.options.spread && state.starting == 0,
            None => true,
        };
        if wanted && room {
            match &state.failed {
                Some(failed) if failed.at.elapsed() < failed.pause() => {
                    if best.is_none() && state.starting == 0 {
                        return Choice::Failed(failed.why.clone());
                    }
                }
                _ => {
                    state.starting += 1;
                    tokio::spawn(start(this.clone()));
                }
            }
        }
        let Some(child) = best else { return Choice::Wait };
        if run {
            child.open.fetch_add(1, Ordering::Relaxed);
            child.served.fetch_add(1, Ordering::Relaxed);
            child.touch();
        }
        Choice::Taken(Seat {
            child,
            pool: this.clone(),
            run,
        })
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

/// Asks children how they are, and replaces those that had their time. Ends with the pool.
async fn look_after(pool: Weak<Inner>) {
    loop {
        let Some(pool) = pool.upgrade() else { return };
        let every = pool.options.ping_every;
        look(&pool);
        drop(pool);
        tokio::time::sleep(every).await;
    }
}

fn look(pool: &Arc<Inner>) {
    let options = &pool.options;
    let mut state = pool.state();
    if state.over {
        return;
    }
    state.children.retain(|child| child.lives());
    let mut serving = 0;
    // Of those, the ones that are not blocked.
    let mut free = 0;
    for child in &state.children {
        child.connection.ping();
        let health = child.connection.health();
        let open = child.open.load(Ordering::Relaxed);
        let pid = child.hello.pid;
        if health.heard.elapsed() >= options.silent_after {
            tracing::error!(host.pid = pid, runs = open, "a graph host does not answer; it is ended");
            child.kill();
            continue;
        }
        let worn = (options.max_runs > 0 && child.served.load(Ordering::Relaxed) >= options.max_runs)
            || (options.max_rss_bytes > 0 && health.rss_bytes >= options.max_rss_bytes);
        let idle = child.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= options.idle_after;
        let spare = idle && open == 0 && serving > 0;
        // It stood in for one that was blocked, and has done so for long enough.
        let surplus = free >= options.children && child.since.elapsed() >= options.idle_after;
        if (worn || spare || surplus) && !child.draining.swap(true, Ordering::Relaxed) {
            tracing::info!(
                host.pid = pid,
                rss_mb = health.rss_bytes >> 20,
                runs = open,
                "a graph host is replaced"
            );
        }
        if !child.draining.load(Ordering::Relaxed) {
            serving += 1;
            free += usize::from(!pool.blocked(child));
        } else if open == 0 && child.connection.streams() == 0 {
            child.retire(Duration::from_secs(1));
        }
    }
    let may = state
        .failed
        .as_ref()
        .is_none_or(|failed| failed.at.elapsed() >= failed.pause());
    if serving == 0 && state.starting == 0 && may {
        state.starting += 1;
        tokio::spawn(start(pool.clone()));
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
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.run {
            self.child.open.fetch_sub(1, Ordering::Relaxed);
            self.child.touch();
            self.pool.changed.notify_waiters();
        }
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
