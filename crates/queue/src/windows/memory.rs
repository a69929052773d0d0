//! Windows in memory: a log for each identity, in shards with a lock each.
//!
//! Memory is bounded by the passed requests within the windows, and by a number of identities for each window. Further
//! identities share one log, so inventing identities does not raise a limit.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::{WindowDecision, WindowRequest};

const SHARDS: usize = 64;
/// Identities with their own log per window and shard; 32,768 per window.
const IDENTITIES: usize = 512;
/// Maximum number of recorded times per window and shard; beyond it no identity gets a new log.
const MOMENTS: usize = 16_384;
/// Interval at which empty logs are removed, in microseconds.
const SWEEP: i64 = 1_000_000;
/// A log with this capacity shrinks when it is nearly empty.
const ROOM: usize = 64;

pub struct Memory {
    shards: [Mutex<Shard>; SHARDS],
    /// The next shard to sweep in addition to those of a request.
    next_swept: AtomicUsize,
    /// Randomized, so that nobody can choose the shard of an identity.
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    /// By window and identity; `None` is the shared log.
    logs: HashMap<(u16, Option<[u8; 16]>), Log>,
    /// By window.
    sizes: Vec<Size>,
    swept_at: i64,
}

#[derive(Clone, Default)]
struct Size {
    identities: usize,
    moments: usize,
}

struct Log {
    /// Times of passed requests in microseconds, the oldest first.
    moments: VecDeque<i64>,
    length: i64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            next_swept: AtomicUsize::new(0),
            hasher: RandomState::new(),
        }
    }
}

impl Memory {
    /// Takes a slot in each window, or in none if one of them refuses.
    pub fn take(&self, asked: &[WindowRequest<'_>], now: i64) -> WindowDecision {
        self.sweep_one(now);
        // Locked in the order of shards, to avoid deadlocks.
        let places: Vec<usize> = asked.iter().map(|ask| self.shard_of(ask)).collect();
        let mut order = places.clone();
        order.sort_unstable();
        order.dedup();
        let mut held: Vec<(usize, MutexGuard<'_, Shard>)> = order
            .into_iter()
            .map(|place| (place, self.shards[place].lock()))
            .collect();
        let mut looks = Vec::with_capacity(asked.len());
        for (ask, &place) in asked.iter().zip(&places) {
            looks.push(locked_shard(&mut held, place).check(ask, now));
        }
        let passes = looks.iter().all(|look| look.wait == 0);
        if passes {
            for ((ask, &place), look) in asked.iter().zip(&places).zip(&mut looks) {
                locked_shard(&mut held, place).push(ask, look);
                look.held += 1;
            }
        }
        WindowDecision::of(looks.iter().map(|look| (look.held, look.wait)))
    }

    pub fn identities(&self) -> usize {
        (0..SHARDS).map(|place| self.shards[place].lock().logs.len()).sum()
    }

    /// Sweeps one shard at a time, so that requests of any identity clean up the logs of all.
    fn sweep_one(&self, now: i64) {
        let place = self.next_swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
        if let Some(mut shard) = self.shards[place].try_lock() {
            shard.sweep(now);
        }
    }

    fn shard_of(&self, ask: &WindowRequest<'_>) -> usize {
        let hash = self.hasher.hash_one((ask.window, ask.identity));
        usize::try_from(hash % SHARDS as u64).unwrap_or(0)
    }
}

fn locked_shard<'h>(held: &'h mut [(usize, MutexGuard<'_, Shard>)], place: usize) -> &'h mut Shard {
    let found = held.iter_mut().find(|(at, _)| *at == place);
    &mut found.expect("the shards of all windows were locked").1
}

/// State of a window for one request.
struct WindowState {
    /// The identity whose log is used.
    identity: Option<[u8; 16]>,
    /// The time that is recorded if the request passes.
    moment: i64,
    held: i64,
    wait: i64,
}

impl Shard {
    fn check(&mut self, ask: &WindowRequest<'_>, now: i64) -> WindowState {
        let slot = usize::from(ask.window);
        if self.sizes.len() <= slot {
            self.sizes.resize(slot + 1, Size::default());
        }
        let size = &mut self.sizes[slot];
        let own = self.logs.contains_key(&(ask.window, Some(ask.identity)));
        let room = size.identities < IDENTITIES && size.moments < MOMENTS;
        let of = (own || room).then_some(ask.identity);
        let length = i64::try_from(ask.length.as_micros()).unwrap_or(i64::MAX);
        let Some(log) = self.logs.get_mut(&(ask.window, of)) else {
            return WindowState {
                identity: of,
                moment: now,
                held: 0,
                wait: 0,
            };
        };
        log.length = length;
        let before = log.moments.len();
        let moment = log.retire(now);
        size.moments -= before - log.moments.len();
        let held = log.moments.len();
        let count = usize::try_from(ask.limit).unwrap_or(usize::MAX);
        let wait = match held.checked_sub(count) {
            // At least a microsecond, because 0 means passed.
            Some(index) => log
                .moments
                .get(index)
                .map_or(0, |oldest| (oldest.saturating_add(length) - now).max(1)),
            None => 0,
        };
        WindowState {
            identity: of,
            moment,
            held: i64::try_from(held).unwrap_or(i64::MAX),
            wait,
        }
    }

    fn push(&mut self, ask: &WindowRequest<'_>, look: &WindowState) {
        let size = &mut self.sizes[usize::from(ask.window)];
        let log = self.logs.entry((ask.window, look.identity)).or_insert_with(|| {
            size.identities += 1;
            Log {
                moments: VecDeque::new(),
                length: i64::try_from(ask.length.as_micros()).unwrap_or(i64::MAX),
            }
        });
        log.moments.push_back(look.moment);
        size.moments += 1;
    }

    /// Removes empty logs.
    fn sweep(&mut self, now: i64) {
        // A clock that was set back must not stop the sweep.
        if (now - self.swept_at).abs() < SWEEP {
            return;
        }
        self.swept_at = now;
        let sizes = &mut self.sizes;
        self.logs.retain(|(slot, _), log| {
            let before = log.moments.len();
            log.retire(now);
            let size = &mut sizes[usize::from(*slot)];
            size.moments -= before - log.moments.len();
            if log.moments.is_empty() {
                size.identities -= 1;
                return false;
            }
            if log.moments.capacity() > ROOM && log.moments.len() < log.moments.capacity() / 4 {
                log.moments.shrink_to(log.moments.len() * 2);
            }
            true
        });
        if self.logs.capacity() > ROOM && self.logs.len() < self.logs.capacity() / 4 {
            self.logs.shrink_to(self.logs.len() * 2);
        }
    }
}

impl Log {
    /// Removes times that left the window, and returns the current time. If the clock was set back a little, time
    /// stands still until it catches up; if it was set back by more than the window, the log is reset.
    fn retire(&mut self, now: i64) -> i64 {
        let moment = match self.moments.back() {
            Some(&last) if last.saturating_sub(now) > self.length => {
                self.moments.clear();
                now
            }
            Some(&last) => last.max(now),
            None => now,
        };
        let gone = moment.saturating_sub(self.length);
        while self.moments.front().is_some_and(|&oldest| oldest <= gone) {
            self.moments.pop_front();
        }
        moment
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn ask(who: u128, count: u32) -> WindowRequest<'static> {
        WindowRequest {
            window: 0,
            name: "window",
            identity: who.to_be_bytes(),
            limit: count,
            length: Duration::from_secs(10),
        }
    }

    #[test]
    fn logs_of_the_idle_go_by_themselves() {
        let memory = Memory::default();
        for who in 0..5_000 {
            memory.take(&[ask(who, 3)], 0);
        }
        assert!(memory.identities() > 4_000, "{}", memory.identities());
        // One identity continues much later.
        for moment in 0..SHARDS as i64 {
            memory.take(&[ask(1, 3)], 100 * SECOND + moment);
        }
        assert_eq!(memory.identities(), 1);
    }

    #[test]
    fn invented_identities_share_one_log_and_take_no_more_memory() {
        let memory = Memory::default();
        let passed = (0..100_000_u128).filter(|&who| memory.take(&[ask(who, 1)], 0).refused.is_none());
        let passed = passed.count();
        // Each shard has its identities and one shared log.
        assert!(passed <= SHARDS * (IDENTITIES + 1), "{passed}");
        assert!(memory.identities() <= SHARDS * (IDENTITIES + 1));
        // Existing identities are not affected.
        assert!(memory.take(&[ask(0, 2)], 1).refused.is_none());
    }

    #[test]
    fn a_clock_that_was_set_back_refuses_nobody_for_longer_than_a_window() {
        let memory = Memory::default();
        let hour = 3600 * SECOND;
        assert_eq!(memory.take(&[ask(1, 1)], hour).refused, None);
        // A little: time stands still until the clock catches up.
        let wait = memory.take(&[ask(1, 1)], hour - SECOND).refused;
        assert_eq!(wait, Some((0, Duration::from_secs(11))));
        assert_eq!(memory.take(&[ask(1, 1)], hour + 10 * SECOND).refused, None);
        // By more than the window: the log is reset.
        assert_eq!(memory.take(&[ask(1, 1)], 0).refused, None);
    }
}
