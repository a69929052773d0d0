//! Test switches of whole processes. They are not settings: operators have no use for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_domain::{clock, failpoint};

use super::environment::{CLOCK_OFFSET_FILE, FAILPOINT};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The switches of this process, all off outside of tests.
#[derive(Debug, Default)]
pub struct TestSwitches {
    failpoint: Option<String>,
    clock_offset: Option<PathBuf>,
}

impl TestSwitches {
    pub(super) fn read(environment: &[(String, String)]) -> Self {
        let value = |switch: &str| {
            let mut found = environment.iter().filter(|(name, _)| name == switch);
            found.next().map(|(_, value)| value.clone())
        };
        Self {
            failpoint: value(FAILPOINT),
            clock_offset: value(CLOCK_OFFSET_FILE).map(PathBuf::from),
        }
    }

    /// Turns the switches on and logs them. Must be called within a runtime.
    pub fn apply(&self) {
        if let Some(point) = &self.failpoint {
            tracing::warn!(point, "test switch: this process will die at a failpoint");
            failpoint::arm(point);
        }
        if let Some(file) = self.clock_offset.clone() {
            tracing::warn!(file = %file.display(), "test switch: this process follows the clock offset in a file");
            tokio::spawn(async move {
                let mut offset_ms = 0;
                loop {
                    offset_ms = follow(&file, offset_ms).await;
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            });
        }
    }
}

/// Moves the clock if the file contains another offset than `before`, in milliseconds. Returns the current offset.
async fn follow(file: &Path, before: i64) -> i64 {
    let text = tokio::fs::read_to_string(file).await.unwrap_or_default();
    // A file that is being written may be incomplete.
    let offset_ms = text.trim().parse().unwrap_or(before);
    if offset_ms != before {
        clock::set_offset(offset_ms.saturating_mul(1000));
        tracing::warn!(offset_ms, "the clock of this process moved");
    }
    offset_ms
}
