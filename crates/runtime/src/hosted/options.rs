//! How a pool of children behaves.

use std::time::Duration;

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
    /// A child is replaced when so many of its threads are still at work for runs that are over; 0 is never.
    pub max_stray_threads: u64,
    /// At most so many more children serve runs whose process ended while others were in it.
    pub suspects: usize,
    /// How long a cancelled run may take to end before its child gets no more runs, and is ended once nothing else is in it.
    pub cancel_grace: Duration,
    /// How long a question to a child may take.
    pub question_limit: Duration,
    /// How often children are asked whether they live.
    pub ping_every: Duration,
    /// A child whose event loop is blocked for this long gets no new runs until it is free.
    pub blocked_after: Duration,
    /// A child that is blocked for this long and keeps a cancelled run from ending is ended, whatever else is in it.
    pub stuck_after: Duration,
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
            max_stray_threads: 32,
            // Enough for 64 runs that lost a process together: seven groups, and each of the eighth alone.
            suspects: 16,
            cancel_grace: Duration::from_secs(10),
            question_limit: Duration::from_secs(120),
            ping_every: Duration::from_secs(1),
            blocked_after: Duration::from_secs(1),
            stuck_after: Duration::from_secs(60),
            silent_after: Duration::from_secs(300),
            idle_after: Duration::from_secs(300),
        }
    }
}

/// Runs whose process ended once while others were in it share a child in groups of this size; from the second time on
/// each is alone.
const GROUP: usize = 8;

impl Options {
    /// One run for each child at a time, `slots` children.
    #[must_use]
    pub fn isolated(mut self, slots: usize) -> Self {
        self.children = slots;
        self.slots = 1;
        self.spread = usize::MAX;
        self
    }

    /// How many runs may share the child of one whose process ended so often while others were in it.
    pub(super) fn company(&self, shared_crashes: u32) -> usize {
        match shared_crashes {
            0 => self.slots,
            1 => self.slots.min(GROUP),
            _ => 1,
        }
    }
}
