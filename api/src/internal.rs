//! What operators see and do: pools, jobs, workers, schedules, dead letters, keys, quarantined trace data, of every
//! workspace.
//!
//! A handler that changes something is a function of [`actions`] with an address; the pages of the dashboard call the same.

mod actions;
mod bulk;
mod jobs;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod model;
pub(crate) mod quarantine;
mod queues;
mod schedules;
mod workers;

use axum::extract::FromRef;
use towpath_domain::{JobId, RunId, Timestamp};
use towpath_store::{self as store, Store, jobs as stored, runs};

use crate::app::App;
use crate::errors::{ApiError, LocSegment};
use crate::routes::{Routes, routes};

pub(crate) use actions::{cancel_job, pause_schedule, resume_schedule, retry_job};

/// The database whose jobs are seen: that of the platform, or of an agent server.
#[derive(Clone)]
pub(crate) struct JobStores {
    pub(crate) store: Store,
    /// Of the agent server in the same process.
    pub(crate) agents: Option<Store>,
}

impl JobStores {
    /// Where a job is, and which one is meant: a run of an agent server stands for the job that does it, for its id is
    /// what callers of graphs know.
    pub(crate) async fn find_job(&self, id: JobId) -> store::Result<(Store, JobId)> {
        for store in [&self.store].into_iter().chain(&self.agents) {
            let found = store.read(async |tx| {
                Ok(match stored::get(tx, id).await? {
                    Some(job) => Some(job.id),
                    None => runs::job_of(tx, RunId(id.0)).await?,
                })
            });
            if let Some(found) = found.await? {
                return Ok((store.clone(), found));
            }
        }
        Ok((self.store.clone(), id))
    }
}

impl FromRef<App> for JobStores {
    fn from_ref(app: &App) -> Self {
        Self {
            store: app.store.clone(),
            agents: app.agents.clone(),
        }
    }
}

/// The routes, on whichever surface.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Routes<S>
where
    JobStores: FromRef<S>,
{
    Routes::default()
        .routes(routes!(queues::list))
        .routes(routes!(queues::get))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::drain))
        .routes(routes!(queues::scaling))
        .routes(routes!(jobs::list))
        .routes(routes!(bulk::bulk))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::dead))
        .routes(routes!(jobs::retry_dead))
        .routes(routes!(workers::list))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::resume))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
}

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
