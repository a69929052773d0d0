//! Traces: projects, the runs in each, and a trace as a tree of runs.

mod content;
mod figures;
mod project;
mod runs;
mod trace;

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;
use towpath_store::projects::overview;
use towpath_store::quarantine;

pub(super) use content::preview;
pub(super) use figures::{dollars, latency, tone};
pub(super) use runs::page as runs;
pub(super) use trace::page as trace;

use super::formatting;
use super::page::{PageRequest, PageResult, TRACES};
use super::quarantine::Banner;
use crate::app::App;

/// Projects of a page.
const LIMIT: i64 = 100;

/// Filter of the list.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListProjects {
    name: String,
    offset: i64,
}

#[derive(Template)]
#[template(path = "ui/traces.html")]
struct Projects {
    name: String,
    banner: Option<Banner>,
    rows: Vec<Row>,
    next: Option<i64>,
}

struct Row {
    id: String,
    workspace: String,
    name: String,
    runs: String,
    days: String,
    last: Option<(String, String)>,
    began: String,
}

pub(super) async fn projects(
    State(app): State<App>,
    asked: PageRequest,
    Query(which): Query<ListProjects>,
) -> PageResult {
    let offset = which.offset.clamp(0, 1_000_000);
    let read = app.store.read(async |tx| {
        let found = overview::list(tx, &which.name, LIMIT + 1, offset).await?;
        Ok((found, quarantine::usage(tx).await?))
    });
    let (mut found, quarantined) = read.await?;
    let next = (found.len() as i64 > LIMIT).then_some(offset + LIMIT);
    found.truncate(LIMIT as usize);
    let now = app.clock.now();
    let rows = found.into_iter().map(|project| Row {
        id: project.id.to_string(),
        workspace: project.tenant_id.to_string(),
        name: project.name,
        runs: formatting::count(project.rows),
        days: formatting::count(project.days),
        last: project
            .last_run
            .map(|last| (formatting::relative(last, now), formatting::moment(last))),
        began: formatting::moment(project.start_time),
    });
    let content = Projects {
        banner: Banner::of(&quarantined),
        rows: rows.collect(),
        name: which.name,
        next,
    };
    asked.static_page("Traces", TRACES, &content)
}
