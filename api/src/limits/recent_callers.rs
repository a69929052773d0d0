//! Who is near a limit, and who was refused, as this process saw it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_domain::Timestamp;

use super::identity::LimitIdentity;

/// Callers remembered at most; one that comes when there are as many is not shown.
const MAX_CALLERS: usize = 1024;
/// How long a refusal is shown.
const REFUSAL_TTL: Duration = Duration::from_secs(3600);
/// Those of whom nothing is shown any more are forgotten this often.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

/// What is shown.
#[derive(Default)]
pub(super) struct RecentCallers(Mutex<RecentCallersState>);

#[derive(Default)]
struct RecentCallersState {
    callers: HashMap<(u16, [u8; 16]), Caller>,
    forgot_at: Option<Timestamp>,
}

/// A caller as it was when its last request was counted.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) limit: u16,
    pub(super) identity: String,
    /// Its requests in the window.
    pub(super) count: u32,
    pub(super) at: Timestamp,
    /// Requests refused since it is shown.
    pub(super) refused: u64,
    pub(super) refused_at: Option<Timestamp>,
    length: Duration,
}

impl Caller {
    /// Whether its count still says something.
    pub(super) fn is_near(&self, now: Timestamp) -> bool {
        now.since(self.at) < self.length
    }

    /// Whether it was refused a short while ago.
    pub(super) fn was_refused(&self, now: Timestamp) -> bool {
        self.refused_at.is_some_and(|at| now.since(at) < REFUSAL_TTL)
    }
}

/// A request that was counted.
pub(super) struct CountedRequest<'a> {
    pub(super) limit: u16,
    pub(super) identity: &'a LimitIdentity,
    pub(super) count: u32,
    pub(super) allowed: u32,
    pub(super) length: Duration,
    pub(super) refused: bool,
}

impl RecentCallers {
    /// Remembers those who used half of what they may, and those who were refused.
    pub(super) fn record(&self, noted: &CountedRequest<'_>, now: Timestamp) {
        if !noted.refused && noted.count < noted.allowed.div_ceil(2) {
            return;
        }
        let key = (noted.limit, noted.identity.digest());
        let mut shown = self.0.lock();
        if shown.callers.len() >= MAX_CALLERS && !shown.callers.contains_key(&key) {
            shown.remove_expired(now);
            if shown.callers.len() >= MAX_CALLERS {
                return;
            }
        }
        let caller = shown.callers.entry(key).or_insert_with(|| Caller {
            limit: noted.limit,
            identity: noted.identity.to_string(),
            count: 0,
            at: now,
            refused: 0,
            refused_at: None,
            length: noted.length,
        });
        caller.count = noted.count;
        caller.at = now;
        if noted.refused {
            caller.refused += 1;
            caller.refused_at = Some(now);
        }
    }

    /// Everybody of whom something is shown.
    pub(super) fn callers(&self, now: Timestamp) -> Vec<Caller> {
        let shown = self.0.lock();
        let callers = shown.callers.values();
        let mut callers: Vec<Caller> = callers
            .filter(|caller| caller.is_near(now) || caller.was_refused(now))
            .cloned()
            .collect();
        callers.sort_by(|a, b| (a.limit, &a.identity).cmp(&(b.limit, &b.identity)));
        callers
    }
}

impl RecentCallersState {
    fn remove_expired(&mut self, now: Timestamp) {
        if self
            .forgot_at
            .is_some_and(|at| at <= now && now.since(at) < CLEANUP_INTERVAL)
        {
            return;
        }
        self.forgot_at = Some(now);
        self.callers
            .retain(|_, caller| caller.is_near(now) || caller.was_refused(now));
    }
}
