//! What operators see and do: pools, jobs, workers, schedules, dead letters, keys, quarantined trace data, of every
//! workspace.
//!
//! A handler that changes something is a function of [`actions`] with an address; the pages of the dashboard call the same.

mod actions;
mod bulk;
mod job_stores;
mod jobs;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod model;
pub(crate) mod quarantine;
mod queues;
pub(crate) mod routes;
mod schedules;
mod workers;

use towpath_domain::Timestamp;

use crate::errors::{ApiError, LocSegment};

pub(crate) use actions::{cancel_job, pause_schedule, resume_schedule, retry_job};
pub(crate) use job_stores::JobStores;

/// The default and the largest number of rows in one answer.
const LIMITS: (i64, i64) = (100, 1000);

fn limit(asked: Option<i64>) -> Result<i64, ApiError> {
    let limit = asked.unwrap_or(LIMITS.0);
    if (1..=LIMITS.1).contains(&limit) {
        Ok(limit)
    } else {
        Err(wrong("limit", format!("expected 1 to {}", LIMITS.1)))
    }
}

/// No name of ours has a NUL in it, and PostgreSQL takes none.
fn plain(place: &str, field: &str, text: Option<&str>) -> Result<(), ApiError> {
    match text {
        Some(text) if text.contains('\0') => Err(ApiError::invalid_at(
            vec![place.into(), field.into()],
            "value_error",
            "expected no NUL character",
        )),
        _ => Ok(()),
    }
}

fn wrong(field: &str, msg: impl Into<String>) -> ApiError {
    ApiError::invalid_at(vec![LocSegment::from("query"), field.into()], "value_error", msg)
}

/// A cursor over a list that goes by moments and, within one, by ids.
pub(crate) fn cursor_of(moment: Timestamp, id: impl std::fmt::Display) -> String {
    format!("{}_{id}", moment.micros())
}

pub(crate) fn read_cursor<Id: std::str::FromStr>(text: &str) -> Result<(Timestamp, Id), ApiError> {
    text.split_once('_')
        .and_then(|(moment, id)| Some((Timestamp::from_micros(moment.parse().ok()?), id.parse().ok()?)))
        // What no database can hold as a moment is not one of ours either.
        .filter(|(moment, _)| (0..=9_999_999_999_999_999).contains(&moment.micros()))
        .ok_or_else(|| wrong("cursor", "expected the next_cursor of an earlier response"))
}
