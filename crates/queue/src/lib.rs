//! Wakes, cancel signals and live events of threads. The state is in SQL; this crate only reports that it changed.
//!
//! Guarantees: a wake or a signal reaches every listener in this process at once, and listeners in other processes
//! within about a millisecond while Redis is available. No call blocks, fails or grows without bound. When hints may
//! have been lost, listeners are told to check everything ([`Wake::All`], [`Signal::Lagged`]).
//!
//! The crate also counts requests in sliding windows, in this process or for all processes ([`Windows`]).
//!
//! With directed dispatch, ids of ready jobs are in queues in Redis, and each worker takes its own ([`Queue::take`]).
//!
//! Every hint may be lost, because its state is already in the store: the polls of workers and their lease renewals
//! find it without a hint.

mod cancels;
mod dispatch;
mod events;
mod health;
mod listener_registry;
mod script_client;
mod streams;
mod wakes;
mod windows;

use std::fmt;
use std::sync::Arc;

use towpath_domain::job::ReadyJob;
use towpath_domain::{JobId, ThreadId};

pub use crate::cancels::{Cancels, Signal};
use crate::dispatch::JobQueues;
pub use crate::dispatch::{Refill, TakenJobs, WINDOW};
pub use crate::events::{Event, Events};
pub use crate::health::{Connections, Health, State};
use crate::listener_registry::ListenerRegistry;
use crate::streams::Streams;
pub use crate::streams::{DispatchMode, Error, Options};
use crate::wakes::WakeKind;
pub use crate::wakes::{Wake, Wakes};
pub use crate::windows::{CountingMode, WindowDecision, WindowRequest, Windows};

/// Carries hints between processes that record work and those that perform it. Clones share the queue.
#[derive(Clone)]
pub struct Queue(Backend);

#[derive(Clone)]
enum Backend {
    /// All listeners are in this process.
    Local(Arc<ListenerRegistry>),
    /// Listeners of this process are notified directly, those of other processes through Redis.
    Redis(Arc<Streams>),
}

impl Queue {
    #[must_use]
    pub fn local() -> Self {
        metric::describe();
        Self(Backend::Local(Arc::default()))
    }

    /// A queue shared by all processes with the same Redis and prefix.
    ///
    /// `uri` is `redis://` or `rediss://` `[user[:password]@]host[:port][/db]`. An unavailable Redis is not an error:
    /// the queue works in this process, connects in the background and reports it in [`Queue::health`]. The call waits
    /// for the first attempt, half a second at most, so that a healthy start is connected at once.
    pub async fn redis(uri: &str, options: Options) -> Result<Self, Error> {
        metric::describe();
        Ok(Self(Backend::Redis(Streams::start(uri, options).await?)))
    }

    /// Tells listeners of `pool` that there may be work. Call it after the commit. Never blocks, never fails, needs no
    /// runtime. Wakes of the same pool are merged while they wait to be sent.
    pub fn wake(&self, pool: &str) {
        metrics::counter!(metric::SENT, "via" => "local").increment(1);
        self.listeners().wake(pool, WakeKind::Database);
        if let Backend::Redis(streams) = &self.0 {
            streams.send_queue().wake(pool);
        }
    }

    /// Tells that these jobs are ready. Call it after the commit. Never blocks, never fails, needs no runtime.
    ///
    /// With directed dispatch their ids go to the queues of their pools, and listeners are woken when they are there;
    /// otherwise, and while Redis is unavailable, this is a wake of each pool.
    pub fn push(&self, jobs: &[ReadyJob]) {
        if let Backend::Redis(streams) = &self.0
            && streams.job_queues().is_some()
            && streams.send_queue().push(jobs)
        {
            return;
        }
        for of_pool in jobs.chunk_by(|one, next| one.pool == next.pool) {
            self.wake(&of_pool[0].pool);
        }
    }

    /// Whether ids of ready jobs can be taken now: dispatch is directed, and Redis answers.
    #[must_use]
    pub fn can_take(&self) -> bool {
        self.job_queues().is_some_and(JobQueues::is_up)
    }

    /// Takes at most `limit` ids of ready jobs of a pool: tenants in turn, then priority, then age. Nobody else gets
    /// them unless they are pushed again. `None` if Redis does not answer within [`Options::patience`], or if dispatch is
    /// not directed.
    ///
    /// The jobs may have been claimed or changed meanwhile: only the database knows.
    pub async fn take(&self, pool: &str, limit: usize) -> Option<TakenJobs> {
        self.job_queues()?.take(pool, limit).await
    }

    /// Puts the result of a scan that [`TakenJobs::refill`] asked for into the queues of a pool, and wakes its
    /// listeners.
    pub fn refill(&self, pool: &str, jobs: Vec<ReadyJob>, refill: Refill) {
        if let Backend::Redis(streams) = &self.0 {
            let complete = refill.found_all(&jobs);
            streams.send_queue().refill(pool, jobs, complete);
        }
    }

    fn job_queues(&self) -> Option<&JobQueues> {
        match &self.0 {
            Backend::Local(_) => None,
            Backend::Redis(streams) => streams.job_queues(),
        }
    }

    /// Listens to `pools`. The first wake is [`Wake::All`], because earlier jobs sent no wake to this listener.
    #[must_use]
    pub fn listen<P: AsRef<str>>(&self, pools: impl IntoIterator<Item = P>) -> Wakes {
        let wakes = Wakes::new(self.clone(), pools.into_iter().map(|pool| Arc::from(pool.as_ref())));
        if let Backend::Redis(streams) = &self.0 {
            // The reader may be blocked on its old pools; this makes it read the new ones.
            streams.send_queue().unblock_reader();
        }
        wakes
    }

    /// Signals the holders of `jobs` to stop. Their rows must be marked and committed before. Never blocks, never
    /// fails, needs no runtime.
    pub fn cancel(&self, jobs: &[JobId]) {
        self.listeners().cancel(jobs);
        if let Backend::Redis(streams) = &self.0 {
            streams.send_queue().cancel(jobs);
        }
    }

    /// All cancel signals from now on, from all processes.
    #[must_use]
    pub fn cancels(&self) -> Cancels {
        Cancels::new(self.clone(), self.listeners().subscribe_signals())
    }

    /// Publishes a frame to all readers of the thread, in all processes. Never blocks, never fails, needs no runtime.
    /// Frames of one thread arrive in the order of their publication.
    pub fn publish(&self, thread: ThreadId, frame: impl Into<Arc<str>>) {
        let frame = frame.into();
        self.listeners().events.publish(thread, &frame);
        if let Backend::Redis(streams) = &self.0 {
            streams.send_queue().publish(thread, &frame);
        }
    }

    /// Reads the events of a thread from now on. Everything published after the return arrives while Redis is
    /// available: a caller that subscribes before it records a run misses nothing.
    pub async fn subscribe(&self, thread: ThreadId) -> Events {
        let events = Events::new(self.clone(), thread);
        if let Backend::Redis(streams) = &self.0 {
            streams.follow(thread).await;
        }
        events
    }

    fn unfollow(&self, thread: ThreadId) {
        if let Backend::Redis(streams) = &self.0 {
            streams.unfollow(thread);
        }
    }

    /// Connections of this queue to Redis, if it uses Redis.
    #[must_use]
    pub fn connections(&self) -> Option<Connections> {
        match &self.0 {
            Backend::Local(_) => None,
            Backend::Redis(streams) => Some(streams.connections()),
        }
    }

    /// The health of the queue, for readiness. Without Redis a process is degraded, not unhealthy.
    #[must_use]
    pub fn health(&self) -> Health {
        match &self.0 {
            Backend::Local(_) => Health::local(),
            Backend::Redis(streams) => streams.health(),
        }
    }

    fn listeners(&self) -> &Arc<ListenerRegistry> {
        match &self.0 {
            Backend::Local(board) => board,
            Backend::Redis(streams) => streams.listeners(),
        }
    }
}

impl fmt::Debug for Queue {
    /// Not derived, because the connection settings contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Backend::Local(_) => "Queue(local)",
            Backend::Redis(_) => "Queue(redis)",
        })
    }
}

/// Names of the metrics.
mod metric {
    towpath_domain::metric_table! {
        pub fn describe;

        gauge UP = "towpath_redis_up", "1 while both connections to Redis answer, else 0";
        counter RECONNECTS = "towpath_redis_reconnects_total", "Reconnections to Redis after a loss";
        counter SENT = "towpath_wakes_sent_total",
            "Wakes sent within this process (local) and accepted by Redis (redis)";
        counter RECEIVED = "towpath_wakes_received_total", "Wakes received by listeners of this process";
        counter DROPPED = "towpath_hints_dropped_total", "Wakes and cancel signals not sent because Redis was down";
    }

    towpath_domain::metric_table! {
        pub fn describe_dispatch;

        gauge DISPATCH_UP = "towpath_dispatch_up",
            "1 while ids of ready jobs are taken from Redis, 0 while workers only scan the database";
        counter PUSHED = "towpath_dispatch_pushed_total",
            "Ids of ready jobs that this process sent to the queues in Redis";
        counter TAKEN = "towpath_dispatch_taken_total",
            "Ids of ready jobs that this process took from the queues in Redis";
        gauge WINDOW = "towpath_dispatch_window_ids", "Ids in the queues of the pool after the last take";
    }

    towpath_domain::metric_table! {
        pub fn describe_windows;

        gauge WINDOWS_SHARED = "towpath_limits_shared",
            "1 while rate limits are counted in Redis for all processes, 0 while each counts by itself";
        counter COUNTED_APART = "towpath_limits_counted_apart_total",
            "Requests counted only in this process because Redis was down or slow", from_start;
    }
}
