//! What a request for an export may ask.

use super::{Compression, Field, FormatVersion, MAX_DAYS};
use crate::filter::Filter;
use crate::{DestinationId, ProjectId, Rejection, Timestamp};

/// A request for an export, of the right shape but not yet judged.
#[derive(Clone, Debug)]
pub struct ExportRequest {
    pub destination: DestinationId,
    pub project: ProjectId,
    /// First moment to export.
    pub start_time: Timestamp,
    /// Exclusive.
    pub end_time: Option<Timestamp>,
    /// Filter expression.
    pub filter: Option<String>,
    /// File format.
    pub format: Option<String>,
    /// Version of layout and column types.
    pub format_version: Option<String>,
    /// Compression by name.
    pub compression: Option<String>,
    /// Makes the export a schedule.
    pub interval_hours: Option<i64>,
    /// Subset of the fields.
    pub export_fields: Option<Vec<String>>,
}

/// A request that may be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedExport {
    /// What is exported, whatever the range.
    pub spec: ExportSpec,
    /// First moment to export.
    pub start_time: Timestamp,
    /// Where the range ends, or how it continues.
    pub end: ExportEnd,
}

/// What is exported and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    pub destination: DestinationId,
    pub project: ProjectId,
    /// Layout and column types.
    pub format_version: FormatVersion,
    pub compression: Compression,
    /// The fields asked for, in the order of the columns; `None` is all of them.
    pub fields: Option<Vec<Field>>,
    /// Which trace runs, in the filter language; `None` is all of them.
    pub filter: Option<String>,
}

/// The end of what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportEnd {
    /// One export, up to the first moment that is not exported.
    At(Timestamp),
    /// A schedule: one export for each so many hours, on and on.
    Every { hours: u32 },
}

impl ExportRequest {
    /// Judges the request: first each field alone, then fields together, last what this build does not have.
    pub fn admit(self) -> Result<AdmittedExport, Rejection> {
        let fields = self.export_fields.as_deref().map(admit_fields).transpose()?;
        let compression = match self.compression.as_deref() {
            None => Compression::default(),
            Some(name) => Compression::parse(name).ok_or_else(|| one_of("compression", &Compression::NAMES))?,
        };
        let hours = self.interval_hours.map(admit_hours).transpose()?;
        if !matches!(self.format.as_deref(), None | Some("Parquet")) {
            return Err(one_of("format", &["Parquet"]));
        }
        let format_version = match self.format_version.as_deref() {
            None => FormatVersion::default(),
            Some(name) => FormatVersion::parse(name).ok_or_else(|| one_of("format_version", &FormatVersion::NAMES))?,
        };

        let ends = match (self.end_time, hours) {
            (Some(_), Some(_)) => {
                return Err(Rejection::rule(
                    "end_time",
                    "end_time must be omitted when interval_hours is set",
                ));
            }
            (None, Some(hours)) => ExportEnd::Every { hours },
            (None, None) => return Err(Rejection::rule("end_time", "end_time is required for a one-off export")),
            (Some(end), None) => {
                check_range(self.start_time, end)?;
                ExportEnd::At(end)
            }
        };

        let filter = self.filter.filter(|filter| !filter.trim().is_empty());
        if let Some(filter) = &filter {
            Filter::parse(filter).map_err(|error| Rejection::rule("filter", format!("filter: {error}")))?;
        }
        Ok(AdmittedExport {
            spec: ExportSpec {
                destination: self.destination,
                project: self.project,
                format_version,
                compression,
                fields,
                filter,
            },
            start_time: self.start_time,
            end: ends,
        })
    }
}

fn admit_hours(hours: i64) -> Result<u32, Rejection> {
    u32::try_from(hours)
        .ok()
        .filter(|hours| (1..=168).contains(hours))
        .ok_or_else(|| Rejection::invalid("interval_hours", "interval_hours must be from 1 to 168"))
}

fn check_range(start: Timestamp, end: Timestamp) -> Result<(), Rejection> {
    if start >= end {
        return Err(Rejection::rule("end_time", "start_time must be before end_time"));
    }
    if (end.day() - start.day()).num_days() >= MAX_DAYS {
        return Err(Rejection::rule(
            "end_time",
            format!("an export spans at most {MAX_DAYS} days; split a longer range into several exports"),
        ));
    }
    Ok(())
}

/// Duplicates are taken once, and the order is always that of the columns: the same set gives the same file.
fn admit_fields(names: &[String]) -> Result<Vec<Field>, Rejection> {
    if names.is_empty() {
        return Err(Rejection::invalid(
            "export_fields",
            "export_fields must name at least one field; omit it for all",
        ));
    }
    let mut fields = Vec::with_capacity(names.len());
    for name in names {
        let field = Field::parse(name)
            .ok_or_else(|| Rejection::invalid("export_fields", format!("{name:?} is not an exportable field")))?;
        fields.push(field);
    }
    fields.sort_unstable();
    fields.dedup();
    Ok(fields)
}

fn one_of(field: &str, names: &[&str]) -> Rejection {
    Rejection::invalid(field, format!("{field} must be one of: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RejectionKind;

    fn request() -> ExportRequest {
        ExportRequest {
            destination: DestinationId::nil(),
            project: ProjectId::nil(),
            start_time: Timestamp::parse("2026-01-01").unwrap(),
            end_time: Timestamp::parse("2026-01-03").ok(),
            filter: None,
            format: None,
            format_version: None,
            compression: None,
            interval_hours: None,
            export_fields: None,
        }
    }

    fn refusal(change: impl FnOnce(&mut ExportRequest)) -> (RejectionKind, String) {
        let mut asked = request();
        change(&mut asked);
        let refused = asked.admit().unwrap_err();
        (refused.kind, refused.field)
    }

    #[test]
    fn a_plain_request_gets_the_defaults() {
        let admitted = request().admit().unwrap();
        assert_eq!(admitted.spec.compression, Compression::Zstandard);
        assert_eq!(admitted.spec.format_version, FormatVersion::V1);
        assert_eq!(admitted.spec.fields, None);
        assert_eq!(admitted.end, ExportEnd::At(Timestamp::parse("2026-01-03").unwrap()));
    }

    #[test]
    fn a_schedule_has_no_end_and_one_to_168_hours() {
        for hours in [1, 24, 168] {
            let mut asked = request();
            (asked.interval_hours, asked.end_time) = (Some(hours), None);
            let ends = asked.admit().unwrap().end;
            assert_eq!(
                i64::from(match ends {
                    ExportEnd::Every { hours } => hours,
                    ExportEnd::At(_) => 0,
                }),
                hours
            );
        }
    }

    #[test]
    fn fields_are_put_in_column_order_once() {
        let mut asked = request();
        asked.export_fields = Some(["outputs", "id", "outputs"].map(str::to_owned).to_vec());
        assert_eq!(
            asked.admit().unwrap().spec.fields,
            Some(vec![Field::Id, Field::Outputs])
        );
    }

    #[test]
    fn a_field_alone_is_invalid_and_fields_together_are_a_rule() {
        let text = |name: &str| Some(name.to_owned());
        let cases: [(RejectionKind, &str, (RejectionKind, String)); 12] = [
            (
                RejectionKind::Invalid,
                "export_fields",
                refusal(|r| r.export_fields = Some(vec![])),
            ),
            (
                RejectionKind::Invalid,
                "export_fields",
                refusal(|r| r.export_fields = Some(vec!["serialized".to_owned()])),
            ),
            (
                RejectionKind::Invalid,
                "compression",
                refusal(|r| r.compression = text("lz4")),
            ),
            (RejectionKind::Invalid, "format", refusal(|r| r.format = text("CSV"))),
            (
                RejectionKind::Invalid,
                "format_version",
                refusal(|r| r.format_version = text("v3")),
            ),
            (
                RejectionKind::Invalid,
                "interval_hours",
                refusal(|r| r.interval_hours = Some(0)),
            ),
            (
                RejectionKind::Invalid,
                "interval_hours",
                refusal(|r| r.interval_hours = Some(169)),
            ),
            (RejectionKind::Rule, "end_time", refusal(|r| r.end_time = None)),
            (
                RejectionKind::Rule,
                "end_time",
                refusal(|r| r.end_time = Some(r.start_time)),
            ),
            (
                RejectionKind::Rule,
                "end_time",
                refusal(|r| r.interval_hours = Some(24)),
            ),
            (
                RejectionKind::Rule,
                "end_time",
                refusal(|r| r.end_time = Timestamp::parse("2036-12-31").ok()),
            ),
            (
                RejectionKind::Rule,
                "filter",
                refusal(|r| r.filter = text("eq(nam, 3)")),
            ),
        ];
        for (why, field, got) in cases {
            assert_eq!(got, (why, field.to_owned()));
        }
    }
}
