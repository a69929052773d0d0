//! Bulk exports: their states, limits, and how a range falls into day partitions.

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
pub use request::{Admitted, Content, Ends, ExportRequest};

/// Export runs of one export at work at the same time.
pub const RUNS_PER_EXPORT: u32 = 45;
/// Exports of one workspace at work at the same time; further ones stay `CREATED`.
pub const EXPORTS_PER_WORKSPACE: u32 = 15;
/// An export is over after this long, counted from when it began to run.
pub const EXPORT_LIMIT: Duration = Duration::from_secs(72 * 60 * 60);
/// One attempt of an export run may take this long.
pub const RUN_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);
/// Retries of an export run after its first attempt.
pub const RUN_RETRIES: u32 = 20;
/// Before each retry of an export run, where the operator says nothing else.
pub const RUN_RETRY_DELAY: Duration = Duration::from_secs(30);
/// After the end of an interval of a scheduled export: what arrives a little late is in it.
pub const SPAWN_DELAY: Duration = Duration::from_secs(10 * 60);
/// Days one export may span: ten years. Each is a job of its own, recorded in one transaction.
pub const MAX_DAYS: i64 = 3_660;

/// How many exports and runs work at the same time, how long an export may take, and how soon a run is tried again. The
/// operator may say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Exports of one workspace at work at the same time.
    pub per_workspace: u32,
    /// Export runs of one export at work at the same time.
    pub runs_per_export: u32,
    /// How long an export may take, counted from when it began to run.
    pub export: Duration,
    /// Before each retry of an export run.
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

/// Where an export or an export run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "UPPERCASE")]
#[sqlx(type_name = "text", rename_all = "UPPERCASE")]
pub enum ExportStatus {
    /// Accepted; waits for a place.
    Created,
    /// At work, or between two attempts.
    Running,
    /// Everything is written.
    Completed,
    /// Ended badly.
    Failed,
    /// Ended because somebody asked, or because a sibling failed.
    Cancelled,
    /// Ended because its time was up.
    TimedOut,
}

impl ExportStatus {
    /// Whether nothing changes any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// As it stands in the database and in answers.
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

    /// What a PATCH of `status` may say: only `Cancelled`, in either spelling.
    ///
    /// # Errors
    /// A rejection of the field `status` for every other text.
    pub fn admit_change(text: &str) -> Result<Self, Rejection> {
        match text {
            "Cancelled" | "CANCELLED" => Ok(Self::Cancelled),
            _ => Err(Rejection::invalid("status", "status can only be set to Cancelled")),
        }
    }
}

/// How the columns of an exported file are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Compression {
    /// As they are.
    None,
    /// Gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// Zstandard: what the segments have.
    #[default]
    Zstandard,
}

impl Compression {
    /// Every one, as it stands on the wire.
    pub const NAMES: [&'static str; 4] = ["none", "gzip", "snappy", "zstandard"];

    /// By its name on the wire.
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

/// Column types of the files, and how their folders are named.
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
    /// Every one, as it stands on the wire.
    pub const NAMES: [&'static str; 2] = ["v1", "v2_beta"];

    /// By its name on the wire.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "v1" => Some(Self::V1),
            "v2_beta" => Some(Self::V2Beta),
            _ => None,
        }
    }

    /// As it stands in the database and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2Beta => "v2_beta",
        }
    }
}

/// A piece of an export: at most one UTC day. Start inclusive, end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// First moment that belongs to it.
    pub start: Timestamp,
    /// First moment that does not.
    pub end: Timestamp,
}

/// Cuts `start..end` at each UTC midnight. Empty when `start` is not before `end`.
#[must_use]
pub fn day_partitions(start: Timestamp, end: Timestamp) -> Vec<Partition> {
    let mut partitions = Vec::new();
    let mut from = start;
    while from < end {
        // At the end of the calendar there is no next midnight: one last piece, or this would never end.
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
