//! Waiting for something to become true, with a bound.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// Asks until there is an answer and returns it. For what only shows from outside (a row, an HTTP status); where a
/// channel or a child's exit can be awaited, that is better.
///
/// # Panics
/// When `limit` is over; `what` says in the message what never came.
pub async fn until<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain: {what}");
    }
}

/// A loopback address that is free at this moment, and that nobody else was given here. Another program may take it
/// before it is used; with the kernel's range of ephemeral ports that has not been seen.
///
/// # Panics
/// If the machine has no free port.
#[must_use]
pub fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        if GIVEN.lock().expect("nobody panicked").insert(address.port()) {
            return address;
        }
    }
}
