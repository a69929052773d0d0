//! An injectable clock, so that tests can stop time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::Timestamp;

/// The source of the current time. Times that several hosts compare (due, lease, deadline) come from the database
/// instead, see `towpath_now()` in `store`.
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug, Default)]
enum ClockSource {
    #[default]
    System,
    Stopped(Arc<AtomicI64>),
}

/// Offset of the machine's clock in this process, in microseconds. Only tests of a whole server set it; reading it
/// costs one relaxed atomic load.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// Shifts the machine's clock for this process. The clock of PostgreSQL does not change.
pub fn set_offset(micros: i64) {
    OFFSET.store(micros, Ordering::Relaxed);
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stays at `time` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn stopped(time: Timestamp) -> Self {
        Self(ClockSource::Stopped(Arc::new(AtomicI64::new(time.micros()))))
    }

    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::System => {
                let machine: Timestamp = chrono::Utc::now().into();
                Timestamp::from_micros(machine.micros().saturating_add(OFFSET.load(Ordering::Relaxed)))
            }
            ClockSource::Stopped(micros) => Timestamp::from_micros(micros.load(Ordering::SeqCst)),
        }
    }

    /// Moves a stopped clock forward; no effect on the machine's clock.
    pub fn advance(&self, span: Duration) {
        if let ClockSource::Stopped(micros) = &self.0 {
            let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            micros.fetch_add(span, Ordering::SeqCst);
        }
    }
}
