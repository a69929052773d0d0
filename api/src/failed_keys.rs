//! Keys that open nothing, counted by the address they come from.
//!
//! Whoever tries keys is told to slow down. A key that opens something is never refused for it: others may stand behind the
//! same address, and a key is too long to be guessed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::client::{Client, network};

/// What the limit is counted over.
const MINUTE: Duration = Duration::from_secs(60);
/// Addresses remembered at most. Further ones share one count.
const MAX_ADDRESSES: usize = 10_000;
/// Looking for those that can be forgotten takes a look at all.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How many keys of each address opened nothing of late.
pub(crate) struct FailedKeys {
    /// What each of them costs; nothing where they are not limited.
    interval: Option<Duration>,
    seen: Mutex<FailureWindow>,
}

struct FailureWindow {
    /// When all that came from an address would have come at the pace of the limit.
    until: HashMap<IpAddr, Instant>,
    /// The same of addresses that found no room.
    overflow_until: Instant,
    tidied: Instant,
}

impl FailedKeys {
    /// An address may fail so often in a minute; 0 is no limit.
    pub(crate) fn new(per_minute: u32) -> Self {
        let now = Instant::now();
        Self {
            interval: MINUTE.checked_div(per_minute),
            seen: Mutex::new(FailureWindow {
                until: HashMap::new(),
                overflow_until: now,
                tidied: now,
            }),
        }
    }

    /// Counts one more from where this client is.
    ///
    /// # Errors
    /// There were too many: how long until one more is counted.
    pub(crate) fn fail(&self, client: Client) -> Result<(), Duration> {
        let (Some(pause), Some(address)) = (self.interval, client.address) else {
            return Ok(());
        };
        let now = Instant::now();
        let mut seen = self.seen.lock();
        let until = seen.until(network(address), now);
        let next = (*until).max(now) + pause;
        let ahead = next - now;
        if ahead > MINUTE {
            return Err(ahead - MINUTE);
        }
        *until = next;
        Ok(())
    }
}

impl FailureWindow {
    fn until(&mut self, network: IpAddr, now: Instant) -> &mut Instant {
        let is_new = !self.until.contains_key(&network);
        if is_new && self.until.len() >= MAX_ADDRESSES && now - self.tidied >= TIDY_EVERY {
            self.tidied = now;
            self.until.retain(|_, until| *until > now);
        }
        if is_new && self.until.len() >= MAX_ADDRESSES {
            return &mut self.overflow_until;
        }
        self.until.entry(network).or_insert(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> Client {
        Client {
            address: Some(address.parse().unwrap()),
            ..Client::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_may_fail_so_often_in_a_minute() {
        let guesses = FailedKeys::new(3);
        for _ in 0..3 {
            assert_eq!(guesses.fail(client("192.0.2.1")), Ok(()));
        }
        assert_eq!(guesses.fail(client("192.0.2.1")), Err(Duration::from_secs(20)));
        assert_eq!(guesses.fail(client("192.0.2.2")), Ok(()), "another address");
        assert_eq!(guesses.fail(Client::default()), Ok(()), "a call in the process");
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(guesses.fail(client("192.0.2.1")), Ok(()));
        assert!(guesses.fail(client("192.0.2.1")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_network_is_one_address() {
        let guesses = FailedKeys::new(1);
        assert_eq!(guesses.fail(client("2001:db8::1")), Ok(()));
        assert!(guesses.fail(client("2001:db8::2")).is_err());
        assert_eq!(guesses.fail(client("2001:db8:0:1::1")), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let guesses = FailedKeys::new(1);
        let of = |number: usize| {
            let number = u32::try_from(number).unwrap();
            client(&std::net::Ipv4Addr::from_bits(number).to_string())
        };
        for number in 0..MAX_ADDRESSES {
            assert_eq!(guesses.fail(of(number)), Ok(()));
        }
        assert_eq!(guesses.fail(of(MAX_ADDRESSES)), Ok(()), "the first of the others");
        assert!(guesses.fail(of(MAX_ADDRESSES + 1)).is_err(), "they share a count");
        assert_eq!(guesses.seen.lock().until.len(), MAX_ADDRESSES);
        // Whose minute is over is forgotten.
        tokio::time::advance(MINUTE).await;
        assert_eq!(guesses.fail(of(MAX_ADDRESSES + 1)), Ok(()));
        assert_eq!(guesses.seen.lock().until.len(), 1);
    }

    #[test]
    fn nothing_is_no_limit() {
        let guesses = FailedKeys::new(0);
        assert!((0..1000).all(|_| guesses.fail(client("192.0.2.1")).is_ok()));
    }
}
