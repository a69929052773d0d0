//! Time is handed in, so that tests can stop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::Timestamp;

/// Where code asks what time it is. Everything that several hosts compare (due, lease, deadline) asks the database
/// instead, see `towpath_now()` in `store`.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Stopped(Arc<AtomicI64>),
}

/// How far the machine's clock is ahead in this process, in microseconds. Not 0 only where a test of a whole server waits
/// for a time of day; reading it costs one relaxed atomic load.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// Moves the machine's clock as this process sees it. The clock of PostgreSQL is not moved.
pub fn set_offset(micros: i64) {
    OFFSET.store(micros, Ordering::Relaxed);
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands at `time` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn stopped(time: Timestamp) -> Self {
        Self(Source::Stopped(Arc::new(AtomicI64::new(time.micros()))))
    }

    /// Now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                let machine: Timestamp = chrono::Utc::now().into();
                Timestamp::from_micros(machine.micros().saturating_add(OFFSET.load(Ordering::Relaxed)))
            }
            Source::Stopped(micros) => Timestamp::from_micros(micros.load(Ordering::SeqCst)),
        }
    }

    /// Moves a stopped clock forward. On the machine's clock it does nothing.
    pub fn advance(&self, span: Duration) {
        if let Source::Stopped(micros) = &self.0 {
            let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            micros.fetch_add(span, Ordering::SeqCst);
        }
    }
}
