//! Sliding windows: at most `limit` requests pass within any span of a window's length, and requests below that are
//! never refused.
//!
//! For each window and identity there is a log of the times of passed requests; refused ones are not recorded. In one
//! process the log is in memory. With Redis, one script checks all windows of a request by the server's clock, so that
//! all processes share them. While Redis is unavailable or slow, each process counts by itself with the same limits: a
//! rate limit must not cause an outage.

mod memory;
mod remote;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_domain::Clock;

use self::memory::Memory;
use self::remote::Remote;
use crate::{Error, Options, metric};

/// A request for a slot in a window.
#[derive(Clone, Debug)]
pub struct WindowRequest<'a> {
    /// Number of the window in this process.
    pub window: u16,
    /// Name of the window in every process: letters, digits, `_` and `-`.
    pub name: &'a str,
    /// Digest of the identity.
    pub identity: [u8; 16],
    /// Maximum number of requests in the window, at least one.
    pub limit: u32,
    pub length: Duration,
}

/// Decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowDecision {
    /// Current count of each requested window, including the request if it passed.
    pub counts: Vec<u32>,
    /// The window that refuses for the longest time, and that time. `None` if the request passed.
    pub refused: Option<(usize, Duration)>,
}

impl WindowDecision {
    /// From the count of each window, and the microseconds for which it refuses.
    fn of(windows: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut counts = Vec::new();
        let mut refused: Option<(usize, Duration)> = None;
        for (index, (held, wait)) in windows.into_iter().enumerate() {
            counts.push(u32::try_from(held).unwrap_or(u32::MAX));
            let wait = Duration::from_micros(u64::try_from(wait).unwrap_or(0));
            if !wait.is_zero() && refused.is_none_or(|(_, longest)| wait > longest) {
                refused = Some((index, wait));
            }
        }
        Self { counts, refused }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingMode {
    /// In this process, which is the only one.
    Local,
    /// In Redis, for all processes.
    Shared,
    /// In this process although shared counters are configured: Redis is unavailable or slow.
    Degraded,
}

/// The windows of one process, or of all processes that share a Redis.
pub struct Windows {
    local: Memory,
    clock: Clock,
    remote: Option<Remote>,
    /// Requests counted here instead of in Redis.
    degraded_requests: AtomicU64,
}

impl Windows {
    /// Connections of a process to Redis, for shared windows.
    pub const CONNECTIONS: u32 = 1;

    #[must_use]
    pub fn local(clock: Clock) -> Self {
        Self {
            local: Memory::default(),
            clock,
            remote: None,
            degraded_requests: AtomicU64::new(0),
        }
    }

    /// Windows shared by all processes with the same Redis and prefix. An unavailable Redis is not an error. The call
    /// waits for the first attempt, half a second at most.
    pub async fn redis(uri: &str, options: Options) -> Result<Self, Error> {
        metric::describe_windows();
        let clock = options.clock.clone();
        Ok(Self {
            local: Memory::default(),
            clock,
            remote: Some(Remote::start(uri, options).await?),
            degraded_requests: AtomicU64::new(0),
        })
    }

    /// Takes a slot in each window, or in none if one of them refuses.
    pub async fn take(&self, asked: &[WindowRequest<'_>]) -> WindowDecision {
        if asked.is_empty() {
            return WindowDecision::of([]);
        }
        if let Some(remote) = &self.remote {
            if let Some(verdict) = remote.take(asked).await {
                return verdict;
            }
            metrics::counter!(metric::COUNTED_APART).increment(1);
            self.degraded_requests.fetch_add(1, Ordering::Relaxed);
        }
        self.local.take(asked, self.clock.now().micros())
    }

    #[must_use]
    pub fn counting_mode(&self) -> CountingMode {
        match &self.remote {
            None => CountingMode::Local,
            Some(remote) if remote.is_up() => CountingMode::Shared,
            Some(_) => CountingMode::Degraded,
        }
    }

    /// Requests counted in this process although shared counters are configured.
    #[must_use]
    pub fn degraded_requests(&self) -> u64 {
        self.degraded_requests.load(Ordering::Relaxed)
    }

    /// Identities with a log in this process.
    #[must_use]
    pub fn identities(&self) -> usize {
        self.local.identities()
    }
}

impl fmt::Debug for Windows {
    /// Not derived, because the connection settings contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Windows({:?})", self.counting_mode())
    }
}
