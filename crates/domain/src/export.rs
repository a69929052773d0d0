//! Bulk exports: states, limits, and the split of a range into day partitions.

mod destination;
mod field;
mod request;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Rejection, Timestamp};

pub use destination::{
    AddressingStyle, Credentials, DestinationConfig, DestinationKind, DestinationRequest, S3Options, check_prefix,
};
pub use field::Field;
pub use request::{AdmittedExport, ExportEnd, ExportRequest, ExportSpec};

/// Concurrent export runs of one export.
pub const RUNS_PER_EXPORT: u32 = 45;
/// Concurrent exports of one workspace; further ones stay `CREATED`.
pub const EXPORTS_PER_WORKSPACE: u32 = 15;
/// Time limit of an export, from when it began to run.
pub const EXPORT_LIMIT: Duration = Duration::from_secs(72 * 60 * 60);
/// Time limit of one attempt of an export run.
pub const RUN_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);
pub const RUN_RETRIES: u32 = 20;
/// Default pause before a retry of an export run.
pub const RUN_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Delay after the end of an interval of a scheduled export, to include late data.
pub const SPAWN_DELAY: Duration = Duration::from_secs(10 * 60);
/// Limit of the range of an export: ten years. Each day is a job, all recorded in one transaction.
pub const MAX_DAYS: i64 = 3_660;

/// Concurrency and time limits of exports. An operator may change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub per_workspace: u32,
    pub runs_per_export: u32,
    pub export: Duration,
    pub run_retry: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_workspace: EXPORTS_PER_WORKSPACE,
            runs_per_export: RUNS_PER_EXPORT,
            export: EXPORT_LIMIT,
            run_retry: RUN_RETRY_DELAY,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "UPPERCASE")]
#[sqlx(type_name = "text", rename_all = "UPPERCASE")]
pub enum ExportStatus {
    /// Accepted; waits for a slot.
    Created,
    /// Running, or between two attempts.
    Running,
    Completed,
    Failed,
    /// Cancelled on request, or because a sibling failed.
    Cancelled,
    TimedOut,
}

impl ExportStatus {
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::TimedOut => "TIMEDOUT",
        }
    }

    /// The status in a PATCH: only `Cancelled`, in either spelling.
    pub fn admit_change(text: &str) -> Result<Self, Rejection> {
        match text {
            "Cancelled" | "CANCELLED" => Ok(Self::Cancelled),
            _ => Err(Rejection::invalid("status", "status can only be set to Cancelled")),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Compression {
    None,
    Gzip,
    Snappy,
    /// Zstandard: what the segments have.
    #[default]
    Zstandard,
}

impl Compression {
    pub const NAMES: [&'static str; 4] = ["none", "gzip", "snappy", "zstandard"];

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "gzip" => Some(Self::Gzip),
            "snappy" => Some(Self::Snappy),
            "zstandard" => Some(Self::Zstandard),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[sqlx(type_name = "text")]
pub enum FormatVersion {
    /// Times in nanoseconds without a zone; a folder named `runs`.
    #[default]
    #[serde(rename = "v1")]
    #[sqlx(rename = "v1")]
    V1,
    /// Times in microseconds, adjusted to UTC; every folder is a key and a value.
    #[serde(rename = "v2_beta")]
    #[sqlx(rename = "v2_beta")]
    V2Beta,
}

impl FormatVersion {
    pub const NAMES: [&'static str; 2] = ["v1", "v2_beta"];

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "v1" => Some(Self::V1),
            "v2_beta" => Some(Self::V2Beta),
            _ => None,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2Beta => "v2_beta",
        }
    }
}

/// A part of an export: at most one UTC day. Start inclusive, end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    pub start: Timestamp,
    pub end: Timestamp,
}

/// Cuts `start..end` at each UTC midnight. Empty when `start` is not before `end`.
#[must_use]
pub fn day_partitions(start: Timestamp, end: Timestamp) -> Vec<Partition> {
    let mut partitions = Vec::new();
    let mut from = start;
    while from < end {
        // The last day of the calendar has no next midnight; without this the loop would not end.
        let midnight = from.next_midnight();
        let to = if midnight > from { midnight.min(end) } else { end };
        partitions.push(Partition { start: from, end: to });
        from = to;
    }
    partitions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn a_range_is_cut_at_midnight() {
        let cut = day_partitions(time("2026-01-31T22:00:00Z"), time("2026-02-02T00:00:00Z"));
        let expected = [
            Partition {
                start: time("2026-01-31T22:00:00Z"),
                end: time("2026-02-01"),
            },
            Partition {
                start: time("2026-02-01"),
                end: time("2026-02-02"),
            },
        ];
        assert_eq!(cut, expected);
        assert!(day_partitions(time("2026-02-02"), time("2026-02-02")).is_empty());
    }

    #[test]
    fn versions_are_named_as_on_the_wire() {
        for name in FormatVersion::NAMES {
            let version = FormatVersion::parse(name).unwrap();
            assert_eq!(version.as_str(), name);
            assert_eq!(serde_json::to_value(version).unwrap(), name);
        }
        assert_eq!(FormatVersion::parse("v2"), None);
    }

    #[test]
    fn statuses_are_upper_case_on_the_wire() {
        for status in [
            ExportStatus::Created,
            ExportStatus::Running,
            ExportStatus::Completed,
            ExportStatus::Failed,
            ExportStatus::Cancelled,
            ExportStatus::TimedOut,
        ] {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        assert!(ExportStatus::admit_change("Cancelled").is_ok());
        assert!(ExportStatus::admit_change("CANCELLED").is_ok());
        assert_eq!(ExportStatus::admit_change("Completed").unwrap_err().field, "status");
    }

    proptest! {
        #[test]
        fn partitions_cover_the_range_once_and_never_cross_midnight(
            start in 0_i64..4_000_000_000_000_000, span in 1_i64..3_000_000_000_000,
        ) {
            let (start, end) = (Timestamp::from_micros(start), Timestamp::from_micros(start + span));
            let cut = day_partitions(start, end);
            prop_assert_eq!(cut[0].start, start);
            prop_assert_eq!(cut[cut.len() - 1].end, end);
            for pair in cut.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert_eq!(pair[0].end, pair[0].start.next_midnight());
            }
            for piece in &cut {
                prop_assert!(piece.start < piece.end);
                let last = Timestamp::from_micros(piece.end.micros() - 1);
                prop_assert_eq!(piece.start.day(), last.day());
            }
        }
    }
}
