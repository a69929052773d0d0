//! Dead letters: failed jobs that need attention.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use towpath_domain::{JobId, Timestamp};
use towpath_store::jobs;

use super::jobs::Row;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal;

const PATH: &str = "/ui/dead";
const LIMIT: i64 = 50;

/// Position of the page: end of the previous page, as microseconds and id.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PageQuery {
    ended: Option<i64>,
    before: Option<JobId>,
}

#[derive(Template)]
#[template(path = "ui/dead.html")]
struct Dead {
    jobs: Vec<Row>,
    next: Option<String>,
}

pub(super) async fn page(State(app): State<App>, asked: PageRequest, Query(page): Query<PageQuery>) -> PageResult {
    let before = page.ended.map(Timestamp::from_micros).zip(page.before);
    let mut found = app
        .store
        .read(async |tx| jobs::dead(tx, before, LIMIT + 1).await)
        .await?;
    let more = found.len() as i64 > LIMIT;
    found.truncate(LIMIT as usize);
    let now = app.clock.now();
    let next = found.last().filter(|_| more).and_then(|last| {
        Some(format!(
            "{PATH}?ended={}&before={}",
            last.finished_at?.micros(),
            last.id
        ))
    });
    let jobs = found
        .into_iter()
        .map(|job| {
            let since = job.finished_at.unwrap_or(job.created_at);
            Row::new(job, since, now)
        })
        .collect();
    Ok(asked.page("Dead letters", PATH, &Dead { jobs, next }))
}

/// Retries a dead job.
pub(super) async fn retry(State(app): State<App>, Path(job): Path<String>) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("job"));
    let id: JobId = job.parse().map_err(|_| missing())?;
    internal::retry_job(&app.store, id).await?;
    Ok(back(PATH))
}
