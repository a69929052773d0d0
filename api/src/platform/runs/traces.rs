//! Queries of traces: their root runs, with the usage of all runs.

use std::collections::{BTreeSet, HashMap};

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::{ProjectId, Timestamp};
use towpath_query::{Direction, Snapshot, TraceUsage};
use towpath_traces::row::Row;
use uuid::Uuid;

use super::criteria::around;
use super::v2::{DEFAULT_RANGE, fields, required_project, selects};
use super::view::{Dialect, TraceRunView, cost, trace_of};
use super::{Criteria, PageOptions, cursor, event_stream, limit, read_rows, refuse, show};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole};

/// Maximum number of traces on a page.
const PAGE: usize = 100;
/// Traces of a page by default.
const DEFAULT_PAGE: usize = 20;
/// Maximum number of runs of one trace in an answer.
const MAX_RUNS: usize = 10_000;

/// Filters and fields of a query of traces.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = TraceQuery)]
pub struct Query {
    #[schema(value_type = Uuid)]
    project_id: ProjectId,
    /// Traces by id, at most 1000.
    trace_ids: Option<Vec<Uuid>>,
    /// Root runs that started at or after this time; by default a day ago.
    #[schema(value_type = Option<String>, format = DateTime)]
    min_start_time: Option<Timestamp>,
    /// Root runs that started before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    max_start_time: Option<Timestamp>,
    /// Filter for the root run.
    trace_filter: Option<String>,
    /// Filter for any run of the trace.
    tree_filter: Option<String>,
    /// Fields in upper case; `ID` by default. `TOTAL_TOKENS`, `TOTAL_COST` and `FIRST_TOKEN_TIME` are those of the trace.
    selects: Option<Vec<String>>,
    /// Maximum number of results, 1 to 100; default 20.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "whole")]
    page_size: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Refused: not available in this build.
    ai_search: Option<String>,
    /// Refused: not available in this build.
    sem_filter: Option<String>,
    /// Refused: not available in this build.
    #[schema(value_type = Option<String>, format = DateTime)]
    min_feedback_modified_at: Option<Timestamp>,
    /// Refused: not available in this build.
    #[schema(value_type = Option<String>, format = DateTime)]
    max_feedback_modified_at: Option<Timestamp>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Trace)]
pub struct TraceView {
    /// Selected fields of the root run.
    #[schema(value_type = Object)]
    root_run: TraceRunView,
    /// Sums over all runs of the trace, where selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_aggregates: Option<Aggregates>,
    /// Always null.
    query_metadata: Option<String>,
}

/// Sums over all runs of a trace. Fields that are not selected are left out.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceAggregates)]
pub struct Aggregates {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    total_tokens: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    total_cost: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    first_token_time: Option<Value>,
}

/// A page of traces.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TracePage)]
pub struct Page {
    items: Vec<TraceView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// Which sums over a trace are selected.
#[derive(Clone, Copy)]
struct SelectedSums {
    tokens: bool,
    cost: bool,
    first_token: bool,
}

impl SelectedSums {
    fn of(selects: Option<&[String]>) -> Self {
        let has = |name: &str| selects.is_some_and(|names| names.iter().any(|one| one.eq_ignore_ascii_case(name)));
        Self {
            tokens: has("total_tokens"),
            cost: has("total_cost"),
            first_token: has("first_token_time"),
        }
    }

    const fn any(self) -> bool {
        self.tokens || self.cost || self.first_token
    }

    /// Costs are null until a run of the trace has one.
    fn show(self, usage: &TraceUsage) -> Aggregates {
        let [tokens, ..] = usage.tokens;
        let [units, ..] = usage.costs;
        Aggregates {
            total_tokens: self.tokens.then(|| Value::from(tokens)),
            total_cost: self.cost.then(|| cost(units, Dialect::V2)),
            first_token_time: self.first_token.then(|| {
                usage
                    .first_token
                    .map_or(Value::Null, |time| Value::from(time.to_string()))
            }),
        }
    }
}

/// Usage of the traces of root runs.
pub(crate) async fn usage_of(
    snapshot: &Snapshot,
    project: ProjectId,
    rows: &[(ProjectId, Row)],
) -> Result<HashMap<Uuid, TraceUsage>, ApiError> {
    let starts = || rows.iter().filter_map(|(_, row)| row.key()).map(|key| key.sort_time);
    let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
        return Ok(HashMap::new());
    };
    let traces: BTreeSet<Uuid> = rows.iter().map(|(_, row)| trace_of(row)).collect();
    Ok(snapshot.trace_usage(project, &traces, &around(first, last)).await?)
}

/// Query traces, newest root run first.
#[utoipa::path(post, path = "/api/v2/traces/query", operation_id = "query_traces", tag = "traces-v2", request_body = Query,
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
        ("ai_search", asked.ai_search.is_some()),
        ("sem_filter", asked.sem_filter.is_some()),
        ("min_feedback_modified_at", asked.min_feedback_modified_at.is_some()),
        ("max_feedback_modified_at", asked.max_feedback_modified_at.is_some()),
    ])?;
    let sums = SelectedSums::of(asked.selects.as_deref());
    let mut root_fields = fields(asked.selects.as_deref());
    root_fields.retain(|name| !matches!(*name, "total_tokens" | "total_cost" | "first_token_time"));
    let wanted = PageOptions {
        direction: Direction::Newest,
        after: cursor(asked.cursor.as_deref())?,
        limit: limit(asked.page_size, PAGE, "page_size", DEFAULT_PAGE)?,
        fields: root_fields,
        dialect: Dialect::V2,
    };
    let day_ago = app.clock.now().minus(DEFAULT_RANGE);
    let project = asked.project_id;
    let criteria = Criteria {
        projects: vec![project],
        traces: asked.trace_ids.unwrap_or_default(),
        is_root: Some(true),
        filter: asked.trace_filter,
        tree_filter: asked.tree_filter,
        end: asked.max_start_time,
        ..Criteria::default()
    };
    let criteria = Criteria {
        start: asked.min_start_time.or(criteria.traces.is_empty().then_some(day_ago)),
        ..criteria
    };
    criteria.admit()?;
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let (rows, next) = read_rows(&snapshot, &criteria, &wanted).await?;
        let usage = if sums.any() {
            usage_of(&snapshot, project, &rows).await?
        } else {
            HashMap::new()
        };
        let shown = show(&own, &snapshot, tenant, &rows, &wanted.fields, wanted.dialect).await?;
        let items = rows.iter().zip(shown).map(|((_, row), root_run)| TraceView {
            root_run,
            trace_aggregates: sums
                .any()
                .then(|| sums.show(&usage.get(&trace_of(row)).copied().unwrap_or_default())),
            query_metadata: None,
        });
        Ok(Page {
            items: items.collect(),
            next_cursor: next.map(|position| position.to_string()),
        })
    });
    event_stream::answer(&headers, &read.await?)
}

/// Runs of a trace.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceRuns)]
pub struct Runs {
    /// Selected fields of each run.
    #[schema(value_type = Vec<Object>)]
    items: Vec<TraceRunView>,
}

/// A time of a parameter.
fn time(sent: &Pairs, name: &str) -> Result<Option<Timestamp>, ApiError> {
    Ok(sent.read::<Timestamp>(name, "a date-time")?.pop())
}

/// List the runs of a trace, oldest first.
#[utoipa::path(get, path = "/api/v2/traces/{trace_id}/runs", operation_id = "list_trace_runs", tag = "traces-v2",
    params(("trace_id" = Uuid, Path, description = "The trace"),
           ("project_id" = Uuid, Query, description = "Its tracing project"),
           ("filter" = Option<String>, Query, description = "Filter expression"),
           ("min_start_time" = Option<String>, Query, description = "Started at or after this time"),
           ("max_start_time" = Option<String>, Query, description = "Started at or before this time"),
           ("selects" = Option<Vec<String>>, Query, description = "Fields in upper case; `ID` by default")),
    responses((status = 200, description = "Trace runs, at most 10 000", body = Runs),
              (status = 404, description = "No such tracing project in this workspace"), ApiError))]
pub async fn list_runs(
    State(app): State<App>,
    tenant: Tenant,
    Path(trace): Path<Uuid>,
    sent: Pairs,
) -> Result<Json<Runs>, ApiError> {
    let selects = selects(&sent);
    let wanted = PageOptions {
        direction: Direction::Oldest,
        after: None,
        limit: MAX_RUNS,
        fields: fields(Some(selects.as_slice()).filter(|selects| !selects.is_empty())),
        dialect: Dialect::V2,
    };
    let until = time(&sent, "max_start_time")?;
    let criteria = Criteria {
        projects: vec![required_project(&sent, "project_id")?],
        trace: Some(trace),
        filter: sent.all("filter").last().map(str::to_owned),
        start: time(&sent, "min_start_time")?,
        // The bound is inclusive.
        end: until.map(|until| Timestamp::from_micros(until.micros().saturating_add(1))),
        ..Criteria::default()
    };
    criteria.admit()?;
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let (rows, next) = read_rows(&snapshot, &criteria, &wanted).await?;
        // A full page has a cursor, also where nothing follows.
        if let Some(next) = next {
            let rest = PageOptions {
                after: Some(next),
                limit: 1,
                fields: vec!["id"],
                ..wanted
            };
            let (more, _) = read_rows(&snapshot, &criteria, &rest).await?;
            if !more.is_empty() {
                let text = format!(
                    "the trace has more than {MAX_RUNS} runs, or they are larger than 64 MB together: narrow the range \
                     of start times, or use /api/v2/runs/query"
                );
                return Err(ApiError::bad_request(text));
            }
        }
        show(&own, &snapshot, tenant, &rows, &wanted.fields, wanted.dialect).await
    });
    Ok(Json(Runs { items: read.await? }))
}
