//! Numbers of events.
//!
//! A number combines the id of the event's frame, in milliseconds since 2025, with a counter within the millisecond. So it
//! depends neither on the retention of the log nor on the process, and is an exact JavaScript number until 2164.

use towpath_domain::agent::EventId;

/// 2025-01-01T00:00:00Z in Unix milliseconds.
const EPOCH_MS: i64 = 1_735_689_600_000;
/// Bits below the milliseconds.
const COUNTER_BITS: u32 = 11;

/// Generates increasing numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    last: i64,
}

impl Sequence {
    /// The next number of an event of this frame.
    pub fn next(&mut self, id: EventId) -> i64 {
        self.last = first_number(id).max(self.last + 1);
        self.last
    }
}

/// The smallest number of an event of this frame.
pub(super) fn first_number(id: EventId) -> i64 {
    let ms = (id.ms - EPOCH_MS).clamp(0, i64::MAX >> (COUNTER_BITS + 1));
    (ms << COUNTER_BITS) + id.seq.clamp(0, (1 << COUNTER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_do_not_depend_on_what_came_long_before() {
        let id = |ms, seq| EventId { ms: EPOCH_MS + ms, seq };
        let mut whole = Sequence::default();
        let first = [id(5, 0), id(5, 0), id(5, 1), id(4, 0)].map(|id| whole.next(id));
        assert!(first.is_sorted_by(|a, b| a < b), "{first:?}");
        let mut later = Sequence::default();
        assert_eq!(whole.next(id(900, 3)), later.next(id(900, 3)));
        assert!(Sequence::default().next(EventId { ms: 1000, seq: 0 }) >= 1);
        let in_100_years = Sequence::default().next(id(100 * 365 * 86_400_000, 0));
        assert!(in_100_years < 1 << 53);
    }
}
