//! Sliding windows: from idle, at most so many pass in any span of a window's length, and nobody else is refused.
//!
//! A log of the moments of those who passed is kept for each window and identity. Whoever is refused leaves no trace in
//! it. In one process the log is in memory; over Redis one script looks at every window of a request by the server's
//! clock, so that all processes share them. While Redis is away or slow, each process counts by itself at the same
//! rate: a limit is no reason for an outage.

mod memory;
mod remote;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_domain::Clock;

use self::memory::Memory;
use self::remote::Remote;
use crate::{Error, Options, metric};

/// A place in a window that is asked for.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The window's number in this process.
    pub slot: u16,
    /// Its name in every process: letters, digits, `_` and `-`.
    pub name: &'a str,
    /// Whose place it is, as a digest.
    pub who: [u8; 16],
    /// How many may stand in the window at once, at least one.
    pub count: u32,
    /// How long the window is.
    pub length: Duration,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many stand in each window now, in the order in which they were asked for. With the request where it passed.
    pub counts: Vec<u32>,
    /// Which window refuses for the longest time, and how long. `None` where the request passed.
    pub refused: Option<(usize, Duration)>,
}

impl Verdict {
    /// From how many stand in each window, and how many microseconds it refuses for.
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

/// Where windows are counted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// In this process, which is the only one.
    Here,
    /// In Redis, for all processes.
    Shared,
    /// In this process, though they ought to be shared: Redis is away or slow.
    Apart,
}

/// The windows of one process, or of all that use the same Redis.
pub struct Windows {
    local: Memory,
    clock: Clock,
    remote: Option<Remote>,
    /// Requests counted here that ought to have been shared.
    apart: AtomicU64,
}

impl Windows {
    /// Windows within this process.
    #[must_use]
    pub fn local(clock: Clock) -> Self {
        Self {
            local: Memory::default(),
            clock,
            remote: None,
            apart: AtomicU64::new(0),
        }
    }

    /// Windows shared by every process that uses the same Redis and prefix. A Redis that is away is no error. This
    /// waits for the outcome of the first attempt, half a second at most.
    ///
    /// # Errors
    /// The URI or the certificate cannot be read.
    pub async fn redis(uri: &str, options: Options) -> Result<Self, Error> {
        metric::describe_windows();
        let clock = options.clock.clone();
        Ok(Self {
            local: Memory::default(),
            clock,
            remote: Some(Remote::start(uri, options).await?),
            apart: AtomicU64::new(0),
        })
    }

    /// Takes a place in each window, or in none where one of them refuses.
    pub async fn take(&self, asked: &[Ask<'_>]) -> Verdict {
        if asked.is_empty() {
            return Verdict::of([]);
        }
        if let Some(remote) = &self.remote {
            if let Some(verdict) = remote.take(asked).await {
                return verdict;
            }
            metrics::counter!(metric::COUNTED_APART).increment(1);
            self.apart.fetch_add(1, Ordering::Relaxed);
        }
        self.local.take(asked, self.clock.now().micros())
    }

    /// Where they are counted now.
    #[must_use]
    pub fn counted(&self) -> Counted {
        match &self.remote {
            None => Counted::Here,
            Some(remote) if remote.is_up() => Counted::Shared,
            Some(_) => Counted::Apart,
        }
    }

    /// How many requests were counted in this process though they ought to be shared.
    #[must_use]
    pub fn counted_apart(&self) -> u64 {
        self.apart.load(Ordering::Relaxed)
    }

    /// How many identities have a log in this process.
    #[must_use]
    pub fn identities(&self) -> usize {
        self.local.identities()
    }
}

impl fmt::Debug for Windows {
    /// Not derived: what a connection was made from holds a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Windows({:?})", self.counted())
    }
}
