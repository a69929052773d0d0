//! Named places where a test can make the process die.
//!
//! A kill at a random moment seldom hits the few instructions between two writes; a named point always does. Unarmed,
//! which is every process outside the kill drills, a point costs one relaxed atomic load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

struct Failpoint {
    name: String,
    remaining: AtomicU32,
}

static ARMED: OnceLock<Failpoint> = OnceLock::new();

/// Arms the point `name[:n]`: the process aborts, as if killed, when it comes there for the n-th time (the first
/// without `:n`). Once per process; a second call is ignored.
pub fn arm(spec: &str) {
    let (name, nth) = spec
        .rsplit_once(':')
        .map_or((spec, 1), |(name, nth)| (name, nth.parse().unwrap_or(1)));
    let _ = ARMED.set(Failpoint {
        name: name.to_owned(),
        remaining: AtomicU32::new(nth),
    });
}

/// A named point. Aborts the process when it is armed and its turn has come.
#[inline]
pub fn hit(name: &str) {
    if let Some(armed) = ARMED.get() {
        exit_if_reached(armed, name);
    }
}

#[cold]
fn exit_if_reached(armed: &Failpoint, name: &str) {
    if armed.name == name && armed.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
        // No unwinding, no destructors, no flushing: the nearest thing to SIGKILL from inside.
        std::process::abort();
    }
}
