//! Traces: projects, the runs in each, and a trace as a tree of runs.

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
use super::{PageError, PageRequest, PageResult, formatting};
use crate::app::App;
use crate::errors::ApiError;

pub(super) const PATH: &str = "/ui/traces";
/// The smallest cost that is shown by its digits: a millionth of a dollar.
const SHOWN_UNITS: i128 = 10_i128.pow(COST_SCALE as u32 - 6);
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
    static_page(&asked, "Traces", &content)
}

/// A page that does not refresh itself: reading traces is expensive, and a page should not move while it is read.
fn static_page(asked: &PageRequest, title: &str, content: &impl Template) -> PageResult {
    let content = content.render().map_err(|error| ApiError::internal(&error))?;
    Ok(asked.framed(StatusCode::OK, title, PATH, false, &content))
}

/// The project of an address. Its id is only unique within a workspace, so links name the workspace. Without one, the
/// id must be unique.
async fn project(app: &App, id: &str, workspace: &str) -> Result<Project, PageError> {
    let missing = || PageError::from(ApiError::not_found("project"));
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
    let text = "several workspaces have a project with this id; open it from the list of projects";
    Err(ApiError::bad_request(text).into())
}

/// Color of a trace run's state.
pub(super) fn tone(status: &str) -> &'static str {
    match status {
        "success" => "good",
        "error" => "bad",
        "pending" => "busy",
        _ => "",
    }
}

/// Time from start to end; `None` if either is unknown.
pub(super) fn latency(start: Option<Timestamp>, end: Option<Timestamp>) -> Option<String> {
    let (start, end) = start.zip(end)?;
    Some(if end > start {
        formatting::span(end.since(start))
    } else {
        "0 ms".to_owned()
    })
}

/// Token count, if any.
fn tokens(derived: &Derived<'_>) -> Option<String> {
    derived.usage.total_tokens.map(formatting::count)
}

/// A cost in dollars: `$0.0042`.
pub(super) fn dollars(units: i128) -> String {
    if (1..SHOWN_UNITS).contains(&units) {
        return "< $0.000001".to_owned();
    }
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
            (10_000, "$0.000001"),
            (9_999, "< $0.000001"),
            (0, "$0.00"),
        ] {
            assert_eq!(dollars(units), text);
        }
    }
}
