//! Queries of threads: traces whose root runs name the same thread in their metadata.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use towpath_query::feedback::stats;
use towpath_query::statistics::Quantiles;
use towpath_query::{Direction, Position, Snapshot, ThreadSummary, TraceUsage};
use towpath_traces::row::Row;
use uuid::Uuid;

use super::criteria::around;
use super::traces::usage_of;
use super::v2::{DEFAULT_RANGE, required_project, selects};
use super::view::{Dialect, TraceRunView, cost, preview, trace_of};
use super::{Criteria, PageOptions, counted, cursor, event_stream, limit, read_rows, refuse, show};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole};

/// Maximum number of threads or traces on a page.
const PAGE: usize = 100;
/// Threads or traces of a page by default.
const DEFAULT_PAGE: usize = 20;

/// Filters of a query of threads.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ThreadQuery)]
pub struct Query {
    #[schema(value_type = Uuid)]
    project_id: ProjectId,
    /// Traces that started at or after this time; by default a day ago.
    #[schema(value_type = Option<String>, format = DateTime)]
    min_start_time: Option<Timestamp>,
    /// Traces that started before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    max_start_time: Option<Timestamp>,
    /// Threads with a trace whose root run matches.
    filter: Option<String>,
    /// Threads with a trace whose root run matches, like `filter`.
    trace_filter: Option<String>,
    /// Threads with a trace of which some run matches.
    tree_filter: Option<String>,
    /// Maximum number of results, 1 to 100; default 20.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "whole")]
    page_size: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Refused: not available in this build.
    thread_filter: Option<String>,
    /// Refused: not available in this build.
    ai_search: Option<String>,
    /// Refused: not available in this build.
    sem_filter: Option<String>,
}

/// A thread. Costs are null until a run of its traces has one.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceThread)]
pub struct ThreadView {
    thread_id: String,
    /// Number of traces.
    count: u64,
    /// Traces whose root run failed.
    num_errored_turns: u64,
    /// Start of the latest trace.
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    min_start_time: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    max_start_time: Timestamp,
    latency_p50: Option<f64>,
    latency_p99: Option<f64>,
    trace_id: Option<Uuid>,
    first_trace_id: Option<Uuid>,
    last_trace_id: Option<Uuid>,
    /// Beginning of the inputs of the first trace.
    #[schema(value_type = Option<String>)]
    first_inputs: Value,
    /// Beginning of the outputs of the last trace.
    #[schema(value_type = Option<String>)]
    last_outputs: Value,
    /// Beginning of the error of the last failed trace.
    #[schema(value_type = Option<String>)]
    last_error: Value,
    /// Of all runs of the traces.
    total_tokens: Option<i64>,
    #[schema(value_type = Option<f64>)]
    total_cost: Value,
    /// Of the root runs.
    #[schema(value_type = Option<Object>)]
    feedback_stats: Value,
}

/// A page of threads.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceThreadPage)]
pub struct Page {
    items: Vec<ThreadView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// The usage of several threads, by the ids of their traces.
async fn usage_of_threads<'a>(
    snapshot: &Snapshot,
    project: ProjectId,
    threads: impl Iterator<Item = &'a ThreadSummary> + Clone,
) -> Result<HashMap<Uuid, TraceUsage>, ApiError> {
    let first = threads.clone().map(|thread| thread.first).min();
    let last = threads.clone().map(|thread| thread.last).max();
    let (Some(first), Some(last)) = (first, last) else {
        return Ok(HashMap::new());
    };
    let traces: BTreeSet<Uuid> = threads.flat_map(|thread| thread.traces.iter().copied()).collect();
    let range = around(first.key.sort_time, last.key.sort_time);
    Ok(snapshot.trace_usage(project, &traces, &range).await?)
}

/// The usage of all traces of a thread.
fn sum(thread: &ThreadSummary, usage: &HashMap<Uuid, TraceUsage>) -> TraceUsage {
    let mut sum = TraceUsage::default();
    for own in thread.traces.iter().filter_map(|trace| usage.get(trace)) {
        sum.add(own);
    }
    sum
}

/// Threads with their newest matching run, the newest first.
async fn newest_first(snapshot: &Snapshot, criteria: &Criteria) -> Result<Vec<(Position, String)>, ApiError> {
    let resolved = criteria.resolve(snapshot).await?;
    let within = resolved.within.as_ref();
    let activity = snapshot.thread_activity(&resolved.projects, &resolved.range, within, &resolved.predicate);
    let mut threads: Vec<(Position, String)> = activity.await?.into_iter().map(|(id, at)| (at, id)).collect();
    threads.sort_unstable();
    threads.reverse();
    Ok(threads)
}

/// What is known of threads, from all of their traces that match.
async fn summaries(snapshot: &Snapshot, criteria: &Criteria) -> Result<BTreeMap<String, ThreadSummary>, ApiError> {
    let resolved = criteria.resolve(snapshot).await?;
    let within = resolved.within.as_ref();
    let found = snapshot.thread_summaries(&resolved.projects, &resolved.range, within, &resolved.predicate);
    Ok(found.await?)
}

/// Shows threads in their order.
async fn show_threads(
    snapshot: &Snapshot,
    project: ProjectId,
    threads: Vec<(String, ThreadSummary)>,
) -> Result<Vec<ThreadView>, ApiError> {
    let usage = usage_of_threads(snapshot, project, threads.iter().map(|(_, thread)| thread)).await?;
    let shown = threads
        .iter()
        .flat_map(|(_, thread)| [Some(thread.first), Some(thread.last), thread.last_error]);
    let mut positions: Vec<Position> = shown.flatten().collect();
    positions.sort_unstable();
    positions.dedup();
    let rows = snapshot.rows(&positions).await?;
    let rows: HashMap<TraceRunId, Row> = rows.into_iter().map(|(_, row)| (row.id(), row)).collect();
    let roots: Vec<TraceRunId> = threads
        .iter()
        .flat_map(|(_, thread)| thread.roots.iter().copied())
        .collect();
    let feedback = snapshot.feedback(&roots).await?;
    let views = threads.into_iter().map(|(thread_id, thread)| {
        let row = |at: Position| rows.get(&at.key.id);
        let (first, last) = (row(thread.first), row(thread.last));
        let total = sum(&thread, &usage);
        let [total_tokens, ..] = total.tokens;
        let [units, ..] = total.costs;
        let given = feedback.iter();
        let given = given.filter(|given| given.run_id.is_some_and(|run| thread.roots.contains(&run)));
        let last_error = thread.last_error.and_then(row);
        ThreadView {
            count: thread.turns,
            num_errored_turns: thread.errors,
            start_time: thread.last.key.sort_time,
            min_start_time: thread.first.key.sort_time,
            max_start_time: thread.last.key.sort_time,
            latency_p50: thread.latency.at(0.5),
            latency_p99: thread.latency.at(0.99),
            trace_id: last.map(trace_of),
            first_trace_id: first.map(trace_of),
            last_trace_id: last.map(trace_of),
            first_inputs: preview(first.and_then(|row| row.fields().inputs.as_deref())),
            last_outputs: preview(last.and_then(|row| row.fields().outputs.as_deref())),
            last_error: preview(last_error.and_then(|row| row.fields().error.as_deref())),
            total_tokens,
            total_cost: cost(units, Dialect::V2),
            feedback_stats: stats(given),
            thread_id,
        }
    });
    Ok(views.collect())
}

/// Query threads, those with the newest matching trace first. Figures are those of all traces of a thread in the range of
/// start times.
#[utoipa::path(post, path = "/api/v2/threads/query", operation_id = "query_threads", tag = "traces-v2",
    request_body = Query,
    responses((status = 200, description = "A page; as a stream, one JSON Patch that adds it",
               content((Page = "application/json"), (event_stream::Patch = "text/event-stream"))),
              (status = 404, description = "No such tracing project in this workspace"), ApiError))]
pub async fn query(
    State(app): State<App>,
    tenant: Tenant,
    headers: HeaderMap,
    Json(asked): Json<Query>,
) -> Result<Response, ApiError> {
    refuse(&[
        ("thread_filter", asked.thread_filter.is_some()),
        ("ai_search", asked.ai_search.is_some()),
        ("sem_filter", asked.sem_filter.is_some()),
    ])?;
    let after = cursor(asked.cursor.as_deref())?;
    let limit = limit(asked.page_size, PAGE, "page_size", DEFAULT_PAGE)?;
    let project = asked.project_id;
    let day_ago = app.clock.now().minus(DEFAULT_RANGE);
    let window = Criteria {
        projects: vec![project],
        is_root: Some(true),
        start: asked.min_start_time.or(Some(day_ago)),
        end: asked.max_start_time,
        ..Criteria::default()
    };
    let matching = Criteria {
        filter: asked.filter,
        trace_filter: asked.trace_filter,
        tree_filter: asked.tree_filter,
        ..window.clone()
    };
    matching.admit()?;
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let mut order = newest_first(&snapshot, &matching).await?;
        order.retain(|(at, _)| after.is_none_or(|after| *at < after));
        let more = order.len() > limit;
        order.truncate(limit);
        let next = order.last().map(|(at, _)| at.to_string()).filter(|_| more);
        if order.is_empty() {
            return Ok(Page {
                items: Vec::new(),
                next_cursor: None,
            });
        }
        let own = Criteria {
            threads: order.iter().map(|(_, thread)| thread.clone()).collect(),
            ..window
        };
        let mut found = summaries(&snapshot, &own).await?;
        let threads = order.into_iter().filter_map(|(_, thread)| found.remove_entry(&thread));
        Ok(Page {
            items: show_threads(&snapshot, project, threads.collect()).await?,
            next_cursor: next,
        })
    });
    event_stream::answer(&headers, &read.await?)
}

/// A page of the traces of a thread.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ThreadTracePage)]
pub struct TracePage {
    /// Selected fields of each trace.
    #[schema(value_type = Vec<Object>)]
    items: Vec<TraceRunView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// Fields of a trace that are those of its root run.
const TRACE_FIELDS: [&str; 10] = [
    "trace_id",
    "thread_id",
    "name",
    "start_time",
    "end_time",
    "inputs",
    "outputs",
    "error",
    "inputs_preview",
    "outputs_preview",
];

/// List the traces of a thread, newest first. Tokens and costs are those of all runs of a trace.
#[utoipa::path(get, path = "/api/v2/threads/{thread_id}/traces", operation_id = "list_thread_traces", tag = "traces-v2",
    params(("thread_id" = String, Path, description = "The thread"),
           ("project_id" = Uuid, Query, description = "The tracing project"),
           ("filter" = Option<String>, Query, description = "Filter for the root run"),
           ("trace_filter" = Option<String>, Query, description = "Filter for the root run, like `filter`"),
           ("tree_filter" = Option<String>, Query, description = "Filter for any run of the trace"),
           ("selects" = Option<Vec<String>>, Query, description = "Fields in upper case; `TRACE_ID` by default"),
           ("page_size" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 20"),
           ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page")),
    responses((status = 200, description = "A page", body = TracePage),
              (status = 404, description = "No such tracing project in this workspace"), ApiError))]
pub async fn list_traces(
    State(app): State<App>,
    tenant: Tenant,
    Path(thread): Path<String>,
    sent: Pairs,
) -> Result<Json<TracePage>, ApiError> {
    let selects: Vec<String> = selects(&sent).iter().map(|name| name.to_lowercase()).collect();
    let has = |name: &str| selects.iter().any(|one| one == name);
    let project = required_project(&sent, "project_id")?;
    let text = |name| sent.all(name).last().map(str::to_owned);
    let mut fields: Vec<&'static str> = TRACE_FIELDS.into_iter().filter(|name| has(name)).collect();
    if !fields.contains(&"trace_id") {
        fields.insert(0, "trace_id");
    }
    fields.extend(has("error_preview").then_some("error_preview"));
    let page_size = sent.number("page_size", 1..=PAGE as i64)?;
    let wanted = PageOptions {
        direction: Direction::Newest,
        after: cursor(text("cursor").as_deref())?,
        limit: page_size.map_or(DEFAULT_PAGE, |size| usize::try_from(size).unwrap_or(DEFAULT_PAGE)),
        fields,
        dialect: Dialect::V2,
    };
    let criteria = Criteria {
        projects: vec![project],
        threads: vec![thread],
        is_root: Some(true),
        filter: text("filter"),
        trace_filter: text("trace_filter"),
        tree_filter: text("tree_filter"),
        ..Criteria::default()
    };
    criteria.admit()?;
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let (rows, next) = read_rows(&snapshot, &criteria, &wanted).await?;
        let usage = usage_of(&snapshot, project, &rows).await?;
        let shown = show(&own, &snapshot, tenant, &rows, &wanted.fields, wanted.dialect).await?;
        let items = rows.iter().zip(shown).map(|((_, row), view)| {
            let usage = usage.get(&trace_of(row)).copied().unwrap_or_default();
            with_figures(view, row, &usage, &selects)
        });
        Ok(TracePage {
            items: items.collect::<Result<_, _>>()?,
            next_cursor: next.map(|position| position.to_string()),
        })
    });
    Ok(Json(read.await?))
}

/// Adds the selected tokens, costs and times of a trace to its root run. Costs are null until a run has one.
fn with_figures(
    view: TraceRunView,
    row: &Row,
    usage: &TraceUsage,
    selects: &[String],
) -> Result<TraceRunView, ApiError> {
    let [total_tokens, prompt_tokens, completion_tokens] = usage.tokens;
    let [total_cost, prompt_cost, completion_cost] = usage.costs.map(|units| cost(units, Dialect::V2));
    let end = row.fields().end_time.zip(row.key());
    let latency = end.map(|(end, key)| end.micros().saturating_sub(key.sort_time.micros()) as f64 / 1e6);
    let figures = [
        ("total_tokens", json!(total_tokens)),
        ("prompt_tokens", json!(prompt_tokens)),
        ("completion_tokens", json!(completion_tokens)),
        ("total_cost", total_cost),
        ("prompt_cost", prompt_cost),
        ("completion_cost", completion_cost),
        ("first_token_time", json!(usage.first_token)),
        ("latency", json!(latency)),
    ];
    let selected = figures
        .into_iter()
        .filter(|(name, _)| selects.iter().any(|one| one == name));
    let mut view = view;
    for (name, value) in selected {
        view = view.with(name, &value)?;
    }
    Ok(view)
}

/// The selected ones of some figures. At least one has to be selected.
fn select(
    figures: Vec<(&'static str, Value)>,
    selects: &[String],
    loc: &[&str],
) -> Result<Map<String, Value>, ApiError> {
    if selects.is_empty() {
        let loc = loc.iter().map(|part| (*part).into()).collect();
        return Err(ApiError::invalid_at(loc, "missing", "expected at least one field"));
    }
    let selected = figures.into_iter().filter(|(name, _)| {
        let matches = |one: &String| {
            let one = one.to_lowercase();
            // The quantiles are shown with their unit.
            one == *name || Some(one.as_str()) == name.strip_suffix("_seconds")
        };
        selects.iter().any(matches)
    });
    Ok(selected.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Tokens and costs. Costs are null until a run has one.
fn usage_figures(usage: &TraceUsage) -> [(&'static str, Value); 6] {
    let [total_tokens, prompt_tokens, completion_tokens] = usage.tokens;
    let [total_cost, prompt_cost, completion_cost] = usage.costs.map(|units| cost(units, Dialect::V2));
    [
        ("total_tokens", json!(total_tokens)),
        ("prompt_tokens", json!(prompt_tokens)),
        ("completion_tokens", json!(completion_tokens)),
        ("total_cost", total_cost),
        ("prompt_cost", prompt_cost),
        ("completion_cost", completion_cost),
    ]
}

/// Get figures of one thread, over all of its traces.
#[utoipa::path(get, path = "/api/v2/threads/{thread_id}/stats", operation_id = "thread_statistics", tag = "traces-v2",
    params(("thread_id" = String, Path, description = "The thread"),
           ("session_id" = Uuid, Query, description = "The tracing project"),
           ("selects" = Vec<String>, Query, description = "Figures in upper case, at least one"),
           ("filter" = Option<String>, Query, description = "Filter for root runs")),
    responses((status = 200, description = "The selected figures", body = Object),
              (status = 404, description = "No such tracing project in this workspace, or no trace of such a thread"),
              ApiError))]
pub async fn statistics(
    State(app): State<App>,
    tenant: Tenant,
    Path(thread): Path<String>,
    sent: Pairs,
) -> Result<Json<Map<String, Value>>, ApiError> {
    let project = required_project(&sent, "session_id")?;
    let selects = selects(&sent);
    let criteria = Criteria {
        projects: vec![project],
        threads: vec![thread],
        is_root: Some(true),
        filter: sent.all("filter").last().map(str::to_owned),
        ..Criteria::default()
    };
    criteria.admit()?;
    select(Vec::new(), &selects, &["query", "selects"])?;
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let found = summaries(&snapshot, &criteria).await?;
        let thread = found
            .into_values()
            .next()
            .ok_or_else(|| ApiError::not_found("thread"))?;
        let usage = usage_of_threads(&snapshot, project, std::iter::once(&thread)).await?;
        let feedback = snapshot
            .feedback(&thread.roots.iter().copied().collect::<Vec<_>>())
            .await?;
        let mut figures = vec![
            ("turns", json!(thread.turns)),
            ("first_start_time", json!(thread.first.key.sort_time)),
            ("last_start_time", json!(thread.last.key.sort_time)),
            ("last_end_time", json!(thread.last_end)),
            ("latency_p50_seconds", json!(thread.latency.at(0.5))),
            ("latency_p99_seconds", json!(thread.latency.at(0.99))),
            ("feedback_stats", stats(feedback.iter())),
        ];
        figures.extend(usage_figures(&sum(&thread, &usage)));
        select(figures, &selects, &[])
    });
    Ok(Json(read.await?))
}

/// Figures over the threads of a project.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = ThreadStatisticsQuery)]
pub struct StatisticsQuery {
    #[schema(value_type = Uuid)]
    project_id: ProjectId,
    /// Figures in upper case, at least one.
    select: Vec<String>,
    /// Traces that started at or after this time; by default a day ago.
    #[schema(value_type = Option<String>, format = DateTime)]
    min_start_time: Option<Timestamp>,
    /// Traces that started before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    max_start_time: Option<Timestamp>,
    /// Only traces whose root run matches.
    filter: Option<String>,
    /// Only traces whose root run matches, like `filter`.
    trace_filter: Option<String>,
    /// Only traces of which some run matches.
    tree_filter: Option<String>,
    /// Refused: not available in this build.
    thread_filter: Option<String>,
    /// Refused: not available in this build.
    #[schema(value_type = Option<Object>)]
    stride: Option<Value>,
}

/// Get figures over the threads of a project.
#[utoipa::path(post, path = "/api/v2/threads/stats", operation_id = "threads_statistics", tag = "traces-v2",
    request_body = StatisticsQuery,
    responses((status = 200, description = "The selected figures; quantiles are accurate to 1 %", body = Object),
              (status = 404, description = "No such tracing project in this workspace"), ApiError))]
pub async fn statistics_of_all(
    State(app): State<App>,
    tenant: Tenant,
    Json(asked): Json<StatisticsQuery>,
) -> Result<Json<Map<String, Value>>, ApiError> {
    refuse(&[
        ("thread_filter", asked.thread_filter.is_some()),
        ("stride", asked.stride.is_some()),
    ])?;
    let project = asked.project_id;
    let day_ago = app.clock.now().minus(DEFAULT_RANGE);
    let criteria = Criteria {
        projects: vec![project],
        is_root: Some(true),
        has_thread: true,
        start: asked.min_start_time.or(Some(day_ago)),
        end: asked.max_start_time,
        filter: asked.filter,
        trace_filter: asked.trace_filter,
        tree_filter: asked.tree_filter,
        ..Criteria::default()
    };
    criteria.admit()?;
    let selects = asked.select;
    select(Vec::new(), &selects, &["body", "select"])?;
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let roots = counted(&snapshot, &criteria).await?;
        let threads = summaries(&snapshot, &criteria).await?;
        let usage = usage_of_threads(&snapshot, project, threads.values()).await?;
        let mut total = TraceUsage::default();
        let mut tokens = Quantiles::default();
        for own in usage.values() {
            total.add(own);
            if let [Some(count), ..] = own.tokens {
                tokens.add(count as f64);
            }
        }
        let rate = |part: u64| (roots.runs > 0).then(|| part as f64 / roots.runs as f64);
        let mut figures = vec![
            ("thread_count", json!(threads.len())),
            ("trace_count", json!(roots.runs)),
            ("error_rate", json!(rate(roots.errors))),
            ("streaming_rate", json!(rate(roots.streamed))),
            ("latency_p50_seconds", json!(roots.latency.at(0.5))),
            ("latency_p99_seconds", json!(roots.latency.at(0.99))),
            ("first_token_p50_seconds", json!(roots.first_token.at(0.5))),
            ("first_token_p99_seconds", json!(roots.first_token.at(0.99))),
            ("median_tokens", json!(tokens.at(0.5).map(|count| count.round() as i64))),
        ];
        figures.extend(usage_figures(&total));
        select(figures, &selects, &[])
    });
    Ok(Json(read.await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_selected_by_their_names_in_upper_case() {
        let figures = || {
            vec![
                ("turns", json!(2)),
                ("latency_p50_seconds", json!(1.5)),
                ("total_tokens", json!(7)),
            ]
        };
        let selected = ["TURNS", "LATENCY_P50", "NOTHING"].map(str::to_owned);
        let shown = select(figures(), &selected, &[]).unwrap();
        assert_eq!(Value::from(shown), json!({"turns": 2, "latency_p50_seconds": 1.5}));
        assert_eq!(select(figures(), &[], &["query", "selects"]).unwrap_err().status(), 422);
    }
}
