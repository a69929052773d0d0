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
    /// A child is replaced when this many of its threads still work for finished runs; 0 is never.
    pub max_stray_threads: u64,
    /// The maximum number of additional children for suspect runs, whose process crashed while shared.
    pub suspects: usize,
    /// Time for a cancelled run to end; after it, its child gets no new runs and is stopped once it has no others.
    pub cancel_grace: Duration,
    /// How long a question to a child may take.
    pub question_limit: Duration,
    /// How often children are asked whether they live.
    pub ping_every: Duration,
    /// A child whose event loop is blocked for this long gets no new runs until it is responsive.
    pub blocked_after: Duration,
    /// A child that is blocked for this long and keeps a cancelled run from ending is stopped, with all its runs.
    pub stuck_after: Duration,
    /// A child that does not answer pings for this long is stopped.
    pub silent_after: Duration,
    /// A child beyond the first that has been idle for this long is stopped; also one that stood in for a blocked one,
    /// this long after its start.
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

/// Runs whose process crashed once while shared are run in groups of this size; from the second crash on, each runs
/// alone.
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

    /// How many runs may share the child of a run after this many shared crashes.
    pub(super) fn shared_limit(&self, shared_crashes: u32) -> usize {
        match shared_crashes {
            0 => self.slots,
            1 => self.slots.min(GROUP),
            _ => 1,
        }
    }
}
