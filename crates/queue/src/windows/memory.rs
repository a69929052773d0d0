//! Windows in memory: a log for each identity, in shards with a lock each.
//!
//! What is kept is bounded by what passed within the windows, and by a number of identities for each window. Identities
//! beyond that share one log: nobody who invents identities gets more than that.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Ask, Verdict};

const SHARDS: usize = 64;
/// Identities with a log of their own, of one window and shard; 32,768 of a window.
const IDENTITIES: usize = 512;
/// While so many moments of one window and shard are kept, no identity gets a new log.
const MOMENTS: usize = 16_384;
/// Logs in which nobody stands any more are looked for this often, in microseconds.
const SWEEP: i64 = 1_000_000;
/// A log that had as much room is given less when it is nearly empty.
const ROOM: usize = 64;

/// All shards.
pub struct Memory {
    shards: [Mutex<Shard>; SHARDS],
    /// The shard that is swept beside the ones a request is about.
    next: AtomicUsize,
    /// Nobody can choose an identity so that it comes into a certain shard.
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    /// By window, and identity; `None` is everybody without a log.
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
    /// Of those who passed, the oldest first, in microseconds.
    moments: VecDeque<i64>,
    length: i64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicUsize::new(0),
            hasher: RandomState::new(),
        }
    }
}

impl Memory {
    /// Takes a place in each window, or in none where one of them refuses.
    pub fn take(&self, asked: &[Ask<'_>], now: i64) -> Verdict {
        self.sweep_one(now);
        // In the order of shards, so that two requests never wait for each other.
        let places: Vec<usize> = asked.iter().map(|ask| self.place_of(ask)).collect();
        let mut order = places.clone();
        order.sort_unstable();
        order.dedup();
        let mut held: Vec<(usize, MutexGuard<'_, Shard>)> =
            order.into_iter().map(|place| (place, self.lock(place))).collect();
        let mut looks = Vec::with_capacity(asked.len());
        for (ask, &place) in asked.iter().zip(&places) {
            looks.push(shard_in(&mut held, place).look(ask, now));
        }
        let passes = looks.iter().all(|look| look.wait == 0);
        if passes {
            for ((ask, &place), look) in asked.iter().zip(&places).zip(&mut looks) {
                shard_in(&mut held, place).push(ask, look);
                look.held += 1;
            }
        }
        Verdict::of(looks.iter().map(|look| (look.held, look.wait)))
    }

    /// How many logs there are.
    pub fn identities(&self) -> usize {
        (0..SHARDS).map(|place| self.lock(place).logs.len()).sum()
    }

    /// Sweeps one shard after the other, so that requests of anybody empty the logs of everybody.
    fn sweep_one(&self, now: i64) {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        if let Ok(mut shard) = self.shards[place].try_lock() {
            shard.sweep(now);
        }
    }

    fn place_of(&self, ask: &Ask<'_>) -> usize {
        let hash = self.hasher.hash_one((ask.slot, ask.who));
        usize::try_from(hash % SHARDS as u64).unwrap_or(0)
    }

    fn lock(&self, place: usize) -> MutexGuard<'_, Shard> {
        // Nothing in here panics half way through a change.
        self.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shard_in<'h>(held: &'h mut [(usize, MutexGuard<'_, Shard>)], place: usize) -> &'h mut Shard {
    let found = held.iter_mut().find(|(at, _)| *at == place);
    &mut found.expect("the shards of all windows were locked").1
}

/// What a window says to a request.
struct Look {
    /// Whose log it stands in.
    of: Option<[u8; 16]>,
    /// The moment that is kept if it passes.
    moment: i64,
    held: i64,
    wait: i64,
}

impl Shard {
    fn look(&mut self, ask: &Ask<'_>, now: i64) -> Look {
        let slot = usize::from(ask.slot);
        if self.sizes.len() <= slot {
            self.sizes.resize(slot + 1, Size::default());
        }
        let size = &mut self.sizes[slot];
        let own = self.logs.contains_key(&(ask.slot, Some(ask.who)));
        let room = size.identities < IDENTITIES && size.moments < MOMENTS;
        let of = (own || room).then_some(ask.who);
        let length = i64::try_from(ask.length.as_micros()).unwrap_or(i64::MAX);
        let Some(log) = self.logs.get_mut(&(ask.slot, of)) else {
            return Look {
                of,
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
        let count = usize::try_from(ask.count).unwrap_or(usize::MAX);
        let wait = match held.checked_sub(count) {
            // At least a microsecond: 0 lets in.
            Some(index) => log
                .moments
                .get(index)
                .map_or(0, |oldest| (oldest.saturating_add(length) - now).max(1)),
            None => 0,
        };
        Look {
            of,
            moment,
            held: i64::try_from(held).unwrap_or(i64::MAX),
            wait,
        }
    }

    fn push(&mut self, ask: &Ask<'_>, look: &Look) {
        let size = &mut self.sizes[usize::from(ask.slot)];
        let log = self.logs.entry((ask.slot, look.of)).or_insert_with(|| {
            size.identities += 1;
            Log {
                moments: VecDeque::new(),
                length: i64::try_from(ask.length.as_micros()).unwrap_or(i64::MAX),
            }
        });
        log.moments.push_back(look.moment);
        size.moments += 1;
    }

    /// Drops the logs in which nobody stands any more.
    fn sweep(&mut self, now: i64) {
        // A clock that was set back must not end it.
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
    /// Drops the moments that left the window. Gives the moment that counts as now: where the clock was set back a
    /// little it stands still until it is there again, and where it was set back by more than the window it begins anew.
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

    fn ask(who: u128, count: u32) -> Ask<'static> {
        Ask {
            slot: 0,
            name: "window",
            who: who.to_be_bytes(),
            count,
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
        // One identity that goes on, long after.
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
        // Who was there before is not touched by it.
        assert!(memory.take(&[ask(0, 2)], 1).refused.is_none());
    }

    #[test]
    fn a_clock_that_was_set_back_refuses_nobody_for_longer_than_a_window() {
        let memory = Memory::default();
        let hour = 3600 * SECOND;
        assert_eq!(memory.take(&[ask(1, 1)], hour).refused, None);
        // A little: time stands still until it is there again.
        let wait = memory.take(&[ask(1, 1)], hour - SECOND).refused;
        assert_eq!(wait, Some((0, Duration::from_secs(11))));
        assert_eq!(memory.take(&[ask(1, 1)], hour + 10 * SECOND).refused, None);
        // By more than the window: what was kept says nothing.
        assert_eq!(memory.take(&[ask(1, 1)], 0).refused, None);
    }
}
