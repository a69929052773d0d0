//! Which child gets a run or a question, and when there has to be another one.

use std::sync::Arc;
use std::time::Duration;

use super::child::Child;
use super::options::Options;
use super::pool::Inner;

/// What a child is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// A run.
    Run,
    /// A run that shares its child with at most so many others of its kind: their processes ended while others were in them.
    Suspect { company: usize },
    /// A question.
    Question,
}

/// A child for a purpose, and whether another one is to be started.
pub(super) struct Found {
    pub(super) child: Option<Arc<Child>>,
    pub(super) start: bool,
}

impl Inner {
    /// How long the event loop of a child has been blocked.
    pub(super) fn lag(&self, child: &Child) -> Duration {
        let health = child.connection.health();
        // A thread of its own answers pings; what keeps even that from answering is no better.
        let silent = health.heard.elapsed().saturating_sub(self.options.ping_every);
        health.loop_lag.max(silent)
    }

    /// Whether new runs had better go elsewhere.
    pub(super) fn blocked(&self, child: &Child) -> bool {
        self.lag(child) >= self.options.blocked_after
    }

    /// Finds a child for a purpose among those that serve.
    pub(super) fn find(&self, purpose: Purpose, serving: &[Arc<Child>], starting: usize) -> Found {
        match purpose {
            Purpose::Run => self.find_any(serving, starting, true),
            Purpose::Question => self.find_any(serving, starting, false),
            Purpose::Suspect { company } => self.find_apart(serving, starting, company),
        }
    }

    /// For a run or a question that may be beside any others.
    fn find_any(&self, serving: &[Arc<Child>], starting: usize, run: bool) -> Found {
        let Options {
            children,
            slots,
            spread,
            ..
        } = self.options;
        let usual = serving.iter().filter(|child| child.company() == 0);
        let (blocked, free): (Vec<_>, Vec<_>) = usual.partition(|child| self.blocked(child));
        let best = free
            .iter()
            .copied()
            .filter(|child| !run || child.runs() < slots)
            .min_by_key(|child| child.runs())
            // Better slow than not at all.
            .or_else(|| serving.iter().filter(|_| !run).min_by_key(|child| self.lag(child)));
        // A blocked child still works on what it has; another one may stand in for it.
        let most = children + blocked.len().min(children);
        let room = free.len() + blocked.len() + starting < most;
        let wanted = match best {
            Some(best) => run && best.runs() >= spread && starting == 0,
            None => true,
        };
        Found {
            child: best.cloned(),
            start: wanted && room,
        }
    }

    /// For a run whose process ended while others were in it.
    fn find_apart(&self, serving: &[Arc<Child>], starting: usize, company: usize) -> Found {
        let apart = serving.iter().filter(|child| child.company() > 0).count();
        let more = apart < self.options.suspects.max(1);
        let free: Vec<&Arc<Child>> = serving.iter().filter(|child| !self.blocked(child)).collect();
        let together = |child: &&Arc<Child>| child.company() == company && child.runs() < company;
        let idle = |child: &&Arc<Child>| more && child.company() == 0 && child.runs() == 0;
        let best = free
            .iter()
            .copied()
            .find(together)
            .or_else(|| free.iter().copied().find(idle));
        Found {
            child: best.cloned(),
            start: best.is_none() && more && starting == 0,
        }
    }
}
