//! Wake-ups, cancel signals and live events of threads: SQL says what, this crate says when.
//!
//! Promises: a wake or a signal reaches every listener in this process at once, and every listener of other
//! processes within about a millisecond while Redis is up. Nothing here ever blocks, fails or grows without
//! bound for its caller. Whenever something may have been missed, listeners are told to look for themselves
//! ([`Wake::All`], [`Signal::Lagged`]).
//!
//! Also counts requests in sliding windows, in this process or for all ([`Windows`]).
//!
//! Leaves to others: the truth. Everything that goes through here is already in the store and may be lost on the
//! way; the jittered scan of the workers and the renewal of their leases find it without a hint.

mod board;
mod cancels;
mod events;
mod health;
mod streams;
mod wakes;
mod windows;

use std::fmt;
use std::sync::Arc;

use towpath_domain::{JobId, ThreadId};

use crate::board::Board;
pub use crate::cancels::{Cancels, Signal};
pub use crate::events::{Event, Events};
pub use crate::health::{Health, State};
use crate::streams::Streams;
pub use crate::streams::{Error, Options};
pub use crate::wakes::{Wake, Wakes};
pub use crate::windows::{Ask, Counted, Verdict, Windows};

/// Carries hints between those who record work and those who perform it. Clones are the same queue.
#[derive(Clone)]
pub struct Queue(Backend);

#[derive(Clone)]
enum Backend {
    /// Everybody who listens is in this process.
    Local(Arc<Board>),
    /// Listeners of this process are told directly, those of other processes through Redis.
    Redis(Arc<Streams>),
}

impl Queue {
    /// A queue within this process.
    #[must_use]
    pub fn local() -> Self {
        metric::describe();
        Self(Backend::Local(Arc::default()))
    }

    /// A queue shared by every process that uses the same Redis and prefix.
    ///
    /// `uri` is `redis://` or `rediss://` `[user[:password]@]host[:port][/db]`. A Redis that is away is no error:
    /// the queue works in this process, connects in the background and says so in [`Queue::health`]. This waits
    /// for the outcome of the first attempt, half a second at most, so that a healthy start is up at once.
    ///
    /// # Errors
    /// The URI or the certificate cannot be read.
    pub async fn redis(uri: &str, options: Options) -> Result<Self, Error> {
        metric::describe();
        Ok(Self(Backend::Redis(Streams::start(uri, options).await?)))
    }

    /// Tells listeners of `pool` that there may be work. Call it after the commit. Never blocks, never fails, needs
    /// no runtime; while a wake for the pool waits to be sent, further ones are one with it.
    pub fn wake(&self, pool: &str) {
        metrics::counter!(metric::SENT, "via" => "local").increment(1);
        self.board().wake(pool);
        if let Backend::Redis(streams) = &self.0 {
            streams.outbox().wake(pool);
        }
    }

    /// Listens to `pools`. The first wake is [`Wake::All`], because what was recorded earlier woke nobody here.
    #[must_use]
    pub fn listen<P: AsRef<str>>(&self, pools: impl IntoIterator<Item = P>) -> Wakes {
        let wakes = Wakes::new(self.clone(), pools.into_iter().map(|pool| Arc::from(pool.as_ref())));
        if let Backend::Redis(streams) = &self.0 {
            // The reader may be blocked on the pools it knew; this lets it see the new ones now.
            streams.outbox().nudge();
        }
        wakes
    }

    /// Signals whoever runs one of `jobs` that it is to stop. Their rows have been marked and committed before.
    /// Never blocks, never fails, needs no runtime.
    pub fn cancel(&self, jobs: &[JobId]) {
        self.board().cancel(jobs);
        if let Backend::Redis(streams) = &self.0 {
            streams.outbox().cancel(jobs);
        }
    }

    /// Every cancel signal from now on, of this process and others.
    #[must_use]
    pub fn cancels(&self) -> Cancels {
        Cancels::new(self.clone(), self.board().signals())
    }

    /// Hands a frame to whoever reads the thread, in this process and others. Never blocks, never fails, needs no
    /// runtime; frames of one thread that are published one after another arrive in that order.
    pub fn publish(&self, thread: ThreadId, frame: impl Into<Arc<str>>) {
        let frame = frame.into();
        self.board().events.publish(thread, &frame);
        if let Backend::Redis(streams) = &self.0 {
            streams.outbox().publish(thread, &frame);
        }
    }

    /// Reads the events of a thread from now on. When this returns, whatever any process publishes from then on
    /// arrives, as long as Redis is up: so whoever subscribes before it records a run misses nothing of it.
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

    /// How the queue does, for readiness. Without Redis a process is degraded, never dead.
    #[must_use]
    pub fn health(&self) -> Health {
        match &self.0 {
            Backend::Local(_) => Health::local(),
            Backend::Redis(streams) => streams.health(),
        }
    }

    fn board(&self) -> &Arc<Board> {
        match &self.0 {
            Backend::Local(board) => board,
            Backend::Redis(streams) => streams.board(),
        }
    }
}

impl fmt::Debug for Queue {
    /// Not derived: what a connection was made from holds a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Backend::Local(_) => "Queue(local)",
            Backend::Redis(_) => "Queue(redis)",
        })
    }
}

/// Names of the metrics, in one place so that they can be searched.
mod metric {
    use metrics::Unit;

    pub const UP: &str = "towpath_redis_up";
    pub const RECONNECTS: &str = "towpath_redis_reconnects_total";
    pub const SENT: &str = "towpath_wakes_sent_total";
    pub const RECEIVED: &str = "towpath_wakes_received_total";
    pub const DROPPED: &str = "towpath_hints_dropped_total";
    pub const WINDOWS_SHARED: &str = "towpath_limits_shared";
    pub const COUNTED_APART: &str = "towpath_limits_counted_apart_total";

    pub fn describe_windows() {
        metrics::describe_gauge!(
            WINDOWS_SHARED,
            "1 while rate limits are counted in Redis for all processes, 0 while each counts by itself"
        );
        metrics::describe_counter!(
            COUNTED_APART,
            Unit::Count,
            "Requests counted in this process alone because Redis was away or slow"
        );
        metrics::counter!(COUNTED_APART).absolute(0);
    }

    pub fn describe() {
        metrics::describe_gauge!(UP, "1 while both connections to Redis answer, else 0");
        metrics::describe_counter!(RECONNECTS, Unit::Count, "Connections to Redis made again after a loss");
        metrics::describe_counter!(
            SENT,
            Unit::Count,
            "Wakes given to this process (local) and taken by Redis (redis)"
        );
        metrics::describe_counter!(RECEIVED, Unit::Count, "Wakes taken by listeners of this process");
        metrics::describe_counter!(
            DROPPED,
            Unit::Count,
            "Wakes and cancel signals not sent because Redis was away"
        );
    }
}
