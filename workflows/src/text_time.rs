//! Times as text.

use towpath_domain::Timestamp;

/// A time in the format of the agent server's clients.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.to_utc().to_rfc3339_opts(chrono::SecondsFormat::Micros, false)
}
