//! Waiting for something to become true, with a bound.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::environment;

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

/// Below those that Linux gives to outgoing connections (`ip_local_port_range`): one of these took a port between the
/// look and its use.
const PORTS: std::ops::Range<u16> = 10_000..32_768;

/// A loopback address that is free at this moment, and that no other test of the same run was given.
#[must_use]
pub fn free_address() -> SocketAddr {
    loop {
        // Another one in each process: its keys are random.
        let chance = RandomState::new().hash_one(());
        let port = PORTS.start + u16::try_from(chance % PORTS.len() as u64).unwrap_or_default();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if std::net::TcpListener::bind(address).is_ok() && claim(port) {
            return address;
        }
    }
}

/// Whether `port` was not given before. Tests may be processes of their own, so each port of a run of `scripts/test` is
/// a file in its folder.
fn claim(port: u16) -> bool {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    if !GIVEN.lock().expect("nobody panicked").insert(port) {
        return false;
    }
    let Some(run) = environment("TOWPATH_TEST_RUN") else {
        return true;
    };
    let claimed = std::fs::File::create_new(Path::new(&run).join("ports").join(port.to_string()));
    !claimed.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
}
