//! What tests that start whole processes ask of them. These are no settings: an operator has no use for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_domain::{clock, failpoint};

use super::environment::{CLOCK_OFFSET_FILE, FAILPOINT};

/// How often the file of the clock is read.
const LOOK: Duration = Duration::from_millis(20);

/// The switches of this process, all off outside of tests.
#[derive(Debug, Default)]
pub struct Switches {
    failpoint: Option<String>,
    clock_offset: Option<PathBuf>,
}

impl Switches {
    /// Reads them from the environment.
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

    /// Turns on what was asked for, and says so in the log. Within a runtime.
    pub fn apply(&self) {
        if let Some(point) = &self.failpoint {
            tracing::warn!(point, "this process was told to die at a point");
            failpoint::arm(point);
        }
        if let Some(file) = self.clock_offset.clone() {
            tracing::warn!(file = %file.display(), "this process was told to move its clock as a file says");
            tokio::spawn(async move {
                let mut offset_ms = 0;
                loop {
                    offset_ms = follow(&file, offset_ms).await;
                    tokio::time::sleep(LOOK).await;
                }
            });
        }
    }
}

/// Moves the clock where the file says another offset than `before`, in milliseconds; gives the offset there is now.
async fn follow(file: &Path, before: i64) -> i64 {
    let text = tokio::fs::read_to_string(file).await.unwrap_or_default();
    // A file that is being written says nothing yet.
    let offset_ms = text.trim().parse().unwrap_or(before);
    if offset_ms != before {
        clock::set_offset(offset_ms.saturating_mul(1000));
        tracing::warn!(offset_ms, "the clock of this process was moved");
    }
    offset_ms
}
