//! Traces: the projects there are, what ran in each, and a trace as a tree of its runs.

mod content;
mod runs;
mod trace;

use askama::Template;
use axum::extract::{Query, State};
use http::StatusCode;
use serde::Deserialize;
use towpath_domain::{ProjectId, TenantId, Timestamp};
use towpath_store::projects::{Project, overview};
use towpath_store::quarantine;
use towpath_traces::derive::{COST_SCALE, Derived};

pub(super) use content::preview;
pub(super) use runs::page as runs;
pub(super) use trace::page as trace;

use super::quarantine::Banner;
use super::{Asked, Shown, Trouble, show};
use crate::app::App;
use crate::errors::ApiError;

pub(super) const HERE: &str = "/ui/traces";
/// Projects of a page.
const LIMIT: i64 = 100;

/// Which projects.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Which {
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

/// The projects.
pub(super) async fn projects(State(app): State<App>, asked: Asked, Query(which): Query<Which>) -> Shown {
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
        runs: show::count(project.rows),
        days: show::count(project.days),
        last: project
            .last_run
            .map(|last| (show::relative(last, now), show::moment(last))),
        began: show::moment(project.start_time),
    });
    let content = Projects {
        banner: Banner::of(&quarantined),
        rows: rows.collect(),
        name: which.name,
        next,
    };
    still(&asked, "Traces", &content)
}

/// A page that does not renew itself: reading traces is work, and what is read in peace should not move.
fn still(asked: &Asked, title: &str, content: &impl Template) -> Shown {
    let content = content.render().map_err(|error| ApiError::internal(&error))?;
    Ok(asked.framed(StatusCode::OK, title, HERE, false, &content))
}

/// The project of an address. Its id is unique in a workspace only, which links therefore name; without one an id will do
/// that no other workspace has.
async fn project(app: &App, id: &str, workspace: &str) -> Result<Project, Trouble> {
    let missing = || Trouble::from(ApiError::not_found("project"));
    let id: ProjectId = id.parse().map_err(|_| missing())?;
    let workspace = (!workspace.is_empty()).then(|| workspace.parse::<TenantId>());
    let workspace = workspace.transpose().map_err(|_| missing())?;
    let mut found = app
        .store
        .read(async |tx| overview::any(tx, id, workspace).await)
        .await?;
    let project = found.pop().ok_or_else(missing)?;
    if found.is_empty() {
        return Ok(project);
    }
    let text = "several workspaces have a project of this id; open it from the list of projects";
    Err(ApiError::bad_request(text).into())
}

/// The colour of a trace run's state.
pub(super) fn tone(status: &str) -> &'static str {
    match status {
        "success" => "good",
        "error" => "bad",
        "pending" => "busy",
        _ => "",
    }
}

/// From start to end; `None` where either is not known.
pub(super) fn latency(start: Option<Timestamp>, end: Option<Timestamp>) -> Option<String> {
    let (start, end) = start.zip(end)?;
    Some(if end > start {
        show::span(end.since(start))
    } else {
        "0 ms".to_owned()
    })
}

/// Tokens, where any were counted.
fn tokens(derived: &Derived<'_>) -> Option<String> {
    derived.usage.total_tokens.map(show::count)
}

/// A cost in dollars: `$0.0042`.
fn dollars(units: i128) -> String {
    let value = units as f64 / 10_f64.powi(i32::from(COST_SCALE));
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0');
    let digits = text.rsplit('.').next().map_or(0, str::len);
    // Cents at least.
    format!("${text}{}", "0".repeat(2_usize.saturating_sub(digits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_shown_in_dollars() {
        for (units, text) in [
            (42_000_000, "$0.0042"),
            (15_000_000_000, "$1.50"),
            (20_000_000_000, "$2.00"),
        ] {
            assert_eq!(dollars(units), text);
        }
    }
}
