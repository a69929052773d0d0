//! Dead letters: jobs that ended badly and are worth a look.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use towpath_domain::{JobId, Timestamp};
use towpath_store::jobs;

use super::jobs::Row;
use super::{Asked, Shown, Trouble, back};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal;

const HERE: &str = "/ui/dead";
const LIMIT: i64 = 50;

/// Which page: the last one's end, as microseconds and id.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Before {
    ended: Option<i64>,
    before: Option<JobId>,
}

#[derive(Template)]
#[template(path = "ui/dead.html")]
struct Dead {
    jobs: Vec<Row>,
    next: Option<String>,
}

/// The list.
pub(super) async fn page(State(app): State<App>, asked: Asked, Query(page): Query<Before>) -> Shown {
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
            "{HERE}?ended={}&before={}",
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
    Ok(asked.page("Dead letters", HERE, &Dead { jobs, next }))
}

/// Lets a dead job live again.
pub(super) async fn retry(State(app): State<App>, Path(job): Path<String>) -> Result<Response, Trouble> {
    let missing = || Trouble::from(ApiError::not_found("job"));
    let id: JobId = job.parse().map_err(|_| missing())?;
    internal::retry_job(&app.store, id).await?;
    Ok(back(HERE))
}
