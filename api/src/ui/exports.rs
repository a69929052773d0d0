//! Exports: progress, and a calendar of days.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use towpath_domain::export::Compression;
use towpath_domain::{ExportId, Timestamp};
use towpath_store::exports::overview::{self, Overview};
use towpath_store::exports::runs::{self, ExportRun};
use towpath_store::{destinations, exports, projects};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult};
use crate::app::App;
use crate::errors::ApiError;

pub(super) const PATH: &str = "/ui/exports";
const LIMIT: i64 = 50;

/// Position of the page.
#[derive(Deserialize)]
pub(super) struct PageQuery {
    before: Option<ExportId>,
}

#[derive(Template)]
#[template(path = "ui/exports.html")]
struct List {
    rows: Vec<Row>,
    next: Option<String>,
}

struct Row {
    id: String,
    short: String,
    status: &'static str,
    tone: &'static str,
    project: String,
    destination: String,
    from: String,
    to: String,
    runs: i64,
    over: i64,
    meter_max: i64,
    rows: String,
    bytes: String,
    created: String,
    age: String,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(page): Query<PageQuery>) -> PageResult {
    let found = app
        .store
        .read(async |tx| overview::list(tx, page.before, LIMIT).await)
        .await?;
    let now = app.clock.now();
    let next = found
        .last()
        .filter(|_| found.len() as i64 == LIMIT)
        .map(|last| last.id.to_string());
    let rows = found.into_iter().map(|export| row(export, now)).collect();
    Ok(asked.page("Exports", PATH, &List { rows, next }))
}

fn row(export: Overview, now: Timestamp) -> Row {
    let status = export.status.as_str();
    Row {
        id: export.id.to_string(),
        short: formatting::short(&export.id),
        status,
        tone: formatting::tone(status),
        project: export.project.unwrap_or_else(|| "deleted project".to_owned()),
        destination: export.destination.unwrap_or_else(|| "deleted destination".to_owned()),
        from: day(export.start_time),
        to: day(export.end_time),
        runs: export.runs,
        over: export.runs_over,
        meter_max: export.runs.max(1),
        rows: formatting::count(export.rows_written),
        bytes: formatting::bytes(export.bytes_written),
        created: formatting::moment(export.created_at),
        age: formatting::relative(export.created_at, now),
    }
}

#[derive(Template)]
#[template(path = "ui/export.html")]
struct Detail {
    id: String,
    project: String,
    destination: String,
    status: &'static str,
    tone: &'static str,
    job: String,
    error: Option<String>,
    rows: String,
    bytes: String,
    files: String,
    missing: Option<String>,
    over: usize,
    took: String,
    took_is: &'static str,
    from: String,
    to: String,
    compression: &'static str,
    fields: String,
    created: String,
    tenant: String,
    runs: Vec<Run>,
}

struct Run {
    id: String,
    job: String,
    day: String,
    day_short: String,
    mark: &'static str,
    status: &'static str,
    tone: &'static str,
    rows: String,
    bytes: String,
    files: i64,
    retries: i64,
    changed: String,
    error: Option<String>,
}

pub(super) async fn detail(State(app): State<App>, asked: PageRequest, Path(id): Path<String>) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("export"));
    let id: ExportId = id.parse().map_err(|_| missing())?;
    let found = app.store.read(async |tx| {
        let Some(tenant) = overview::owner(tx, id).await? else {
            return Ok(None);
        };
        let export = exports::get(tx, tenant, id).await?;
        let runs = runs::list(tx, tenant, id).await?;
        // Either may have been deleted.
        let project = projects::get(tx, tenant, export.project_id).await.ok();
        let destination = destinations::get(tx, tenant, export.destination_id).await.ok();
        Ok(Some((export, runs, project, destination)))
    });
    let (export, runs, project, destination) = found.await?.ok_or_else(missing)?;
    let now = app.clock.now();
    let status = export.status.as_str();
    let sum = |of: fn(&ExportRun) -> i64| runs.iter().map(of).sum::<i64>();
    let fields = export.fields()?;
    let (took, took_is) = match (export.started_at, export.finished_at) {
        (Some(started), Some(finished)) => (formatting::span(finished.since(started)), "took"),
        (Some(started), None) => (formatting::span(now.since(started)), "running for"),
        (None, Some(_)) => ("–".to_owned(), "never started"),
        (None, None) => (formatting::span(now.since(export.created_at)), "waiting for"),
    };
    let detail = Detail {
        id: export.id.to_string(),
        project: project.map_or_else(|| "deleted project".to_owned(), |project| project.name),
        destination: destination.map_or_else(
            || "deleted destination".to_owned(),
            |destination| destination.display_name,
        ),
        status,
        tone: formatting::tone(status),
        job: export.job_id.to_string(),
        error: export.error.clone(),
        rows: formatting::count(sum(|run| run.rows_written)),
        bytes: formatting::bytes(sum(|run| run.bytes_written)),
        files: formatting::count(sum(|run| run.files_written)),
        missing: (export.missing_operations > 0).then(|| formatting::count(export.missing_operations)),
        over: runs.iter().filter(|run| run.finished_at.is_some()).count(),
        took,
        took_is,
        from: formatting::moment(export.start_time),
        to: formatting::moment(export.end_time),
        compression: compression(export.compression),
        fields: fields.map_or_else(|| "all".to_owned(), |fields| format!("{} chosen", fields.len())),
        created: formatting::moment(export.created_at),
        tenant: export.tenant_id.to_string(),
        // The store returns the latest first; the calendar begins with the first day.
        runs: runs.iter().rev().map(|run| self::run(run, now)).collect(),
    };
    Ok(asked.page("Export", PATH, &detail))
}

fn run(run: &ExportRun, now: Timestamp) -> Run {
    let status = run.status.as_str();
    let errors: BTreeMap<String, String> = serde_json::from_str(&run.errors).unwrap_or_default();
    // Sort by number: `retry_10` comes after `retry_9`.
    let number = |name: &str| name.rsplit('_').next().and_then(|n| n.parse::<u32>().ok());
    let last = errors.into_iter().max_by_key(|(name, _)| number(name));
    let start = run.start_time.to_utc();
    Run {
        id: run.id.to_string(),
        job: run.job_id.to_string(),
        day: day(run.start_time),
        day_short: start.format("%d %b").to_string(),
        mark: match formatting::tone(status) {
            "good" => "✓",
            "bad" => "✕",
            "busy" => "…",
            _ => "·",
        },
        status,
        tone: formatting::tone(status),
        rows: formatting::count(run.rows_written),
        bytes: formatting::bytes(run.bytes_written),
        files: run.files_written,
        retries: run.retry_number,
        changed: formatting::relative(run.updated_at, now),
        error: last.map(|(_, text)| text),
    }
}

const fn compression(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Snappy => "snappy",
        Compression::Zstandard => "zstandard",
    }
}

fn day(time: Timestamp) -> String {
    time.to_utc().format("%Y-%m-%d").to_string()
}
