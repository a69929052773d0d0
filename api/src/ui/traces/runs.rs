//! Runs of a project, newest first, with a filter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Path, Query, State};
use http::StatusCode;
use serde::Deserialize;
use towpath_domain::filter::{Filter, FilterError};
use towpath_domain::{ProjectId, Timestamp};
use towpath_query::{Direction, Position, RunQuery, Snapshot, TraceUsage, UsageTotal};
use towpath_store::quarantine;
use towpath_traces::derive::derive_priced;
use towpath_traces::prices::Pricer;
use towpath_traces::row::Row;

use super::content::preview;
use super::figures::{dollars, latency, tokens, tone};
use super::project::find_project;
use crate::app::App;
use crate::errors::ApiError;
use crate::platform::runs::{self, Criteria};
use crate::ui::formatting;
use crate::ui::page::{PageRequest, PageResult, TRACES};
use crate::ui::quarantine::Banner;

/// Trace runs of a page.
const LIMIT: usize = 50;
/// Example filters with their labels.
const IDEAS: [(&str, &str); 5] = [
    ("Failed", "neq(error, null)"),
    ("Slower than 5 s", r#"gt(latency, "5s")"#),
    ("Still open", r#"eq(status, "pending")"#),
    ("Model calls", r#"eq(run_type, "llm")"#),
    ("Many tokens", "gt(total_tokens, 10000)"),
];

/// Periods of the totals, in days, with their labels. The first one is the default.
const PERIODS: [(u32, &str); 3] = [(1, "24 hours"), (7, "7 days"), (30, "30 days")];
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Filter and position of the page.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(in crate::ui) struct ListTraceRuns {
    workspace: String,
    filter: String,
    /// `all`, or root runs only.
    runs: String,
    cursor: String,
    /// Period of the totals.
    days: String,
}

#[derive(Template)]
#[template(path = "ui/project.html")]
struct Page {
    id: String,
    workspace: String,
    name: String,
    banner: Option<Banner>,
    filter: String,
    all: bool,
    any: bool,
    ideas: [(&'static str, &'static str); 5],
    mistake: Option<FilterProblem>,
    days: u32,
    periods: Vec<Period>,
    totals: Option<Totals>,
    /// Why there are no totals.
    without_totals: &'static str,
    rows: Vec<RunRow>,
    next: Option<String>,
    later: bool,
}

struct Period {
    days: u32,
    label: &'static str,
    chosen: bool,
}

/// Sums over the runs of a period that the filter selects; of whole traces, over all of their runs. Usage that runs
/// above model calls repeat counts once. They are on the first page only: they read the whole period.
struct Totals {
    runs: String,
    tokens: String,
    cost: Option<String>,
}

/// Position and text of an error in a filter.
struct FilterProblem {
    before: String,
    /// The rest of the filter from the error on; a blank at the end.
    at: String,
    position: usize,
    text: String,
}

impl FilterProblem {
    fn new(filter: &str, error: FilterError) -> Self {
        let split = filter.char_indices().nth(error.position.saturating_sub(1));
        let (before, at) = filter.split_at(split.map_or(filter.len(), |(at, _)| at));
        Self {
            before: before.to_owned(),
            at: if at.is_empty() { " ".to_owned() } else { at.to_owned() },
            position: error.position,
            text: error.message,
        }
    }
}

struct RunRow {
    id: String,
    name: String,
    kind: String,
    status: String,
    tone: &'static str,
    input: String,
    outcome: String,
    failed: bool,
    latency: Option<String>,
    tokens: Option<String>,
    cost: Option<String>,
    started: String,
    age: String,
}

pub(in crate::ui) async fn page(
    State(app): State<App>,
    asked: PageRequest,
    Path(id): Path<String>,
    Query(which): Query<ListTraceRuns>,
) -> PageResult {
    let project = find_project(&app, &id, &which.workspace).await?;
    let filter = which.filter.trim().to_owned();
    let all = which.runs == "all";
    let mistake = match filter.as_str() {
        "" => None,
        text => Filter::parse(text).err().map(|error| FilterProblem::new(text, error)),
    };
    let after = (!which.cursor.is_empty()).then(|| which.cursor.parse::<Position>());
    let after = after
        .transpose()
        .map_err(|error| ApiError::bad_request(format!("cursor: {error}")))?;
    let period = which.days.parse::<u32>().ok();
    let days = period.filter(|days| PERIODS.iter().any(|(known, _)| known == days));
    let days = days.unwrap_or(PERIODS[0].0);
    let (mut rows, mut next, mut totals, mut without_totals) = (Vec::new(), None, None, "");
    if mistake.is_none() {
        let criteria = Criteria {
            projects: vec![project.id],
            is_root: (!all).then_some(true),
            filter: Some(filter.clone()),
            ..Criteria::default()
        };
        let now = app.clock.now();
        let summed = Criteria {
            projects: vec![project.id],
            start: Some(now.minus(DAY * days)),
            filter: all.then(|| filter.clone()),
            trace_filter: (!all).then(|| filter.clone()),
            ..Criteria::default()
        };
        let (tenant, of) = (project.tenant_id, project.id);
        let read = app.queries.run(move |reader| async move {
            let snapshot = reader.snapshot(tenant).await?;
            let resolved = criteria.resolve(&snapshot).await?;
            let question = RunQuery {
                projects: resolved.projects,
                range: resolved.range,
                extent: resolved.within,
                predicate: resolved.predicate,
                direction: Direction::Newest,
                after,
                limit: LIMIT,
            };
            let page = snapshot.page(&question).await?;
            let usage = match all {
                true => HashMap::new(),
                false => runs::usage_of(&snapshot, of, &page.rows).await?,
            };
            let totals = match after {
                None => Some(sum(&snapshot, of, &summed).await),
                Some(_) => None,
            };
            Ok((page, usage, totals, Pricer::new(Arc::clone(snapshot.prices()))))
        });
        let (page, usage, summed, mut pricer) = read.await?;
        let shown = page.rows.iter().map(|(_, row)| {
            let trace = (!all).then(|| usage.get(&runs::trace_of(row))).flatten();
            line(row, trace, now, &mut pricer)
        });
        rows = shown.collect();
        match summed {
            Some(Ok(total)) => totals = Some(Totals::new(&total)),
            Some(Err(reason)) => without_totals = reason,
            None => {}
        }
        next = page.next.map(|next| next.to_string());
    }
    let tenant = project.tenant_id;
    let quarantined = app
        .store
        .read(async |tx| quarantine::usage_of(tx, tenant).await)
        .await?;
    let periods = PERIODS.into_iter().map(|(period, label)| Period {
        days: period,
        label,
        chosen: period == days,
    });
    let content = Page {
        id: project.id.to_string(),
        workspace: project.tenant_id.to_string(),
        banner: Banner::of(&[quarantined]),
        name: project.name,
        any: all || !filter.is_empty(),
        filter,
        all,
        ideas: IDEAS,
        mistake,
        days,
        periods: periods.collect(),
        totals,
        without_totals,
        rows,
        next,
        later: after.is_some(),
    };
    asked.static_page("Traces", TRACES, &content)
}

impl Totals {
    fn new(total: &UsageTotal) -> Self {
        Self {
            runs: match total.runs {
                1 => "1 run".to_owned(),
                runs => format!("{} runs", formatting::count(i64::try_from(runs).unwrap_or(i64::MAX))),
            },
            tokens: formatting::count(total.tokens.unwrap_or_default()),
            cost: total.cost.map(dollars),
        }
    }
}

/// Usage of runs of a project, or the reason that it is not shown: the list is of use without it.
async fn sum(snapshot: &Snapshot, project: ProjectId, criteria: &Criteria) -> Result<UsageTotal, &'static str> {
    let read = async {
        let resolved = criteria.resolve(snapshot).await?;
        let within = resolved.within.as_ref();
        let total = snapshot.usage_total(project, resolved.range, within, &resolved.predicate);
        Ok::<_, ApiError>(total.await?)
    };
    read.await.map_err(|error| {
        if error.status() == StatusCode::BAD_REQUEST {
            return "There are too many traces to add them up.";
        }
        tracing::warn!(project.id = %project, %error, "no totals of a project");
        "The totals could not be read."
    })
}

/// A run with its own usage, or with that of its trace.
fn line(row: &Row, trace: Option<&TraceUsage>, now: Timestamp, pricer: &mut Pricer) -> RunRow {
    let said = row.fields();
    let derived = derive_priced(row, pricer);
    let error = said.error.as_deref().filter(|error| !error.is_empty());
    RunRow {
        id: row.id().to_string(),
        name: said
            .name
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "unnamed".to_owned()),
        kind: said.run_type.clone().unwrap_or_else(|| "chain".to_owned()),
        tone: tone(&derived.status),
        input: preview(said.inputs.as_deref()),
        outcome: error.map_or_else(
            || preview(said.outputs.as_deref()),
            |error| first_line(error).to_owned(),
        ),
        failed: error.is_some(),
        latency: latency(derived.start_time, said.end_time),
        tokens: match trace {
            Some(trace) => trace.tokens[0].map(formatting::count),
            None => tokens(&derived),
        },
        cost: trace
            .map_or(derived.usage.total_cost, |trace| trace.costs[0])
            .map(dollars),
        started: derived.start_time.map(formatting::moment).unwrap_or_default(),
        age: derived
            .start_time
            .map(|start| formatting::relative(start, now))
            .unwrap_or_default(),
        status: derived.status.into_owned(),
    }
}

fn first_line(text: &str) -> &str {
    let line = text.trim_start().lines().next().unwrap_or_default();
    line.char_indices().nth(200).map_or(line, |(end, _)| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_shown_where_it_is() {
        for (filter, before, at) in [
            (r#"eq(nam, "x")"#, "eq(", r#"nam, "x")"#),
            ("and(eq(name, \"é\"), ", "and(eq(name, \"é\"), ", " "),
        ] {
            let mistake = FilterProblem::new(filter, Filter::parse(filter).unwrap_err());
            assert_eq!(
                (mistake.before.as_str(), mistake.at.as_str()),
                (before, at),
                "{}",
                mistake.text
            );
        }
        for (_, idea) in IDEAS {
            Filter::parse(idea).unwrap();
        }
    }
}
