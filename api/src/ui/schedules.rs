//! Schedules and the time of their next job.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use towpath_domain::{ScheduleId, Timestamp};
use towpath_store::schedules::{self, Schedule};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal;

const PATH: &str = "/ui/schedules";
/// Maximum number of schedules on the page; the API lists all.
const LIMIT: i64 = 500;

#[derive(Template)]
#[template(path = "ui/schedules.html")]
struct Schedules {
    schedules: Vec<Row>,
}

struct Row {
    id: String,
    short: String,
    kind: String,
    pool: String,
    state: &'static str,
    tone: &'static str,
    active: bool,
    paused: bool,
    next: String,
    next_moment: String,
    job: Option<String>,
    job_short: String,
    age: String,
}

pub(super) async fn page(State(app): State<App>, asked: PageRequest) -> PageResult {
    let found = app
        .store
        .read(async |tx| schedules::list(tx, None, LIMIT).await)
        .await?;
    let now = app.clock.now();
    let schedules = found.into_iter().map(|schedule| row(schedule, now)).collect();
    Ok(asked.page("Schedules", PATH, &Schedules { schedules }))
}

fn row(schedule: Schedule, now: Timestamp) -> Row {
    let (state, tone) = match (schedule.ended_at, schedule.paused) {
        (Some(_), _) => ("ended", ""),
        (None, true) => ("paused", "wait"),
        (None, false) => ("active", "good"),
    };
    Row {
        id: schedule.id.to_string(),
        short: formatting::short(&schedule.id),
        kind: schedule.kind,
        pool: schedule.pool,
        state,
        tone,
        active: schedule.ended_at.is_none(),
        paused: schedule.paused,
        next: if schedule.paused {
            "when resumed".to_owned()
        } else {
            formatting::relative(schedule.next_at, now)
        },
        next_moment: formatting::moment(schedule.next_at),
        job: schedule.spawn_job.map(|job| job.to_string()),
        job_short: schedule.spawn_job.as_ref().map(formatting::short).unwrap_or_default(),
        age: formatting::relative(schedule.created_at, now),
    }
}

pub(super) async fn act(
    State(app): State<App>,
    Path((schedule, action)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("schedule"));
    let id: ScheduleId = schedule.parse().map_err(|_| missing())?;
    match action.as_str() {
        "pause" => internal::pause_schedule(&app.store, id).await?,
        "resume" => internal::resume_schedule(&app.store, id).await?,
        _ => return Err(missing()),
    }
    Ok(back(PATH))
}
