//! Selects the child for a run or a question, and decides when another one is needed.

use std::sync::Arc;
use std::time::Duration;

use super::child::Child;
use super::options::Options;
use super::pool::PoolInner;

/// What a child is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Run,
    /// A suspect run, which shares its child with at most this many others of its kind.
    Suspect {
        shared_limit: usize,
    },
    Question,
}

/// The chosen child, and whether another one should be started.
pub(super) struct Selection {
    pub(super) child: Option<Arc<Child>>,
    pub(super) start_another: bool,
}

impl PoolInner {
    /// How long the event loop of a child has been blocked.
    pub(super) fn lag(&self, child: &Child) -> Duration {
        let health = child.connection.health();
        // Pings are answered by a separate thread; if even that is blocked, the child is silent.
        let silent = health.last_pong.elapsed().saturating_sub(self.options.ping_every);
        health.loop_lag.max(silent)
    }

    /// Whether new runs had better go elsewhere.
    pub(super) fn is_blocked(&self, child: &Child) -> bool {
        self.lag(child) >= self.options.blocked_after
    }

    /// Finds a child for a purpose among those that serve.
    pub(super) fn find(&self, purpose: Purpose, serving: &[Arc<Child>], starting: usize) -> Selection {
        match purpose {
            Purpose::Run | Purpose::Question => self.find_shared(purpose, serving, starting),
            Purpose::Suspect { shared_limit: company } => self.find_isolated(serving, starting, company),
        }
    }

    /// For a run or a question that may be beside any others.
    fn find_shared(&self, purpose: Purpose, serving: &[Arc<Child>], starting: usize) -> Selection {
        let run = matches!(purpose, Purpose::Run);
        let Options {
            children,
            slots,
            spread,
            ..
        } = self.options;
        let usual = serving.iter().filter(|child| child.shared_limit() == 0);
        let (blocked, free): (Vec<_>, Vec<_>) = usual.partition(|child| self.is_blocked(child));
        let best = free
            .iter()
            .copied()
            .filter(|child| !run || child.runs() < slots)
            .min_by_key(|child| child.runs())
            // Better slow than not at all.
            .or_else(|| serving.iter().filter(|_| !run).min_by_key(|child| self.lag(child)));
        // A blocked child keeps its runs; another one may stand in for it.
        let most = children + blocked.len().min(children);
        let room = free.len() + blocked.len() + starting < most;
        let wanted = match best {
            Some(best) => run && best.runs() >= spread && starting == 0,
            None => true,
        };
        Selection {
            child: best.cloned(),
            start_another: wanted && room,
        }
    }

    /// For a run whose process ended while others were in it.
    fn find_isolated(&self, serving: &[Arc<Child>], starting: usize, company: usize) -> Selection {
        let apart = serving.iter().filter(|child| child.shared_limit() > 0).count();
        let more = apart < self.options.suspects.max(1);
        let free: Vec<&Arc<Child>> = serving.iter().filter(|child| !self.is_blocked(child)).collect();
        let together = |child: &&Arc<Child>| child.shared_limit() == company && child.runs() < company;
        let idle = |child: &&Arc<Child>| more && child.shared_limit() == 0 && child.runs() == 0;
        let best = free
            .iter()
            .copied()
            .find(together)
            .or_else(|| free.iter().copied().find(idle));
        Selection {
            child: best.cloned(),
            start_another: best.is_none() && more && starting == 0,
        }
    }
}
