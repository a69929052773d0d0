//! Queries of trace runs.

mod criteria;
mod event_stream;
pub mod threads;
pub mod traces;
pub mod v2;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use towpath_domain::{ProjectId, Rejection, Timestamp, TraceRunId};
use towpath_query::statistics::Statistics;
use towpath_query::{Direction, Position, Reader, RunQuery, Snapshot};
use towpath_traces::prices::Pricer;
use towpath_traces::row::Row;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};
use crate::platform::names;
pub(crate) use criteria::position;
pub use criteria::{Criteria, parse};
pub(crate) use traces::usage_of;
use view::cost;
pub(crate) use view::trace_of;
use view::{Dialect, FIELDS, PageEnrichment, TraceRunView};

/// Maximum number of runs on a page of v1.
const PAGE: usize = 100;
/// Fields that v1 always returns: official clients require them.
const ALWAYS: [&str; 6] = ["id", "name", "run_type", "start_time", "trace_id", "session_id"];

/// Filters and fields of a query. Other fields are ignored.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = TraceRunQuery)]
pub struct Query {
    #[schema(value_type = Option<Vec<Uuid>>)]
    session: Option<OneOrMore<ProjectId>>,
    /// Trace runs by id, at most 1000.
    #[schema(value_type = Option<Vec<Uuid>>)]
    id: Option<OneOrMore<TraceRunId>>,
    /// Trace id.
    trace: Option<Uuid>,
    parent_run: Option<Uuid>,
    /// Example ids.
    #[schema(value_type = Option<Vec<Uuid>>)]
    reference_example: Option<OneOrMore<Uuid>>,
    /// `chain`, `llm`, `tool`, …
    run_type: Option<String>,
    /// With or without an error.
    error: Option<bool>,
    /// Root runs only, or child runs only.
    is_root: Option<bool>,
    /// Started at or after this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// Started before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    /// Text in names, errors, tags, inputs, outputs or metadata.
    query: Option<String>,
    /// Filter expression.
    filter: Option<String>,
    /// Filter expression for the root run of the trace.
    trace_filter: Option<String>,
    /// Filter expression that some run of the trace must match.
    tree_filter: Option<String>,
    /// `desc` for newest first, which is the default, or `asc`.
    #[schema(value_type = Option<names::RunOrder>)]
    order: Option<Order>,
    /// Maximum number of results, 1 to 100; default 100.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "whole")]
    limit: Option<i64>,
    /// `next` cursor of the previous page.
    cursor: Option<String>,
    /// Refused: not available in this build.
    data_source_type: Option<String>,
    /// Refused: not available in this build; use `filter`.
    search_filter: Option<String>,
    /// `1` for root runs, the only order that is stored.
    #[serde(default, deserialize_with = "whole")]
    execution_order: Option<i64>,
    /// Fields to return; by default all. Unknown names are ignored; `id`, `name`, `run_type`, `start_time`, `trace_id`
    /// and `session_id` are always returned.
    select: Option<Vec<String>>,
}

/// One value or a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn list(value: Option<Self>) -> Vec<T> {
        match value {
            None => Vec::new(),
            Some(Self::One(one)) => vec![one],
            Some(Self::More(more)) => more,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    #[default]
    Desc,
    Asc,
}

/// A page of trace runs.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceRunPage)]
pub struct Page {
    /// Selected fields of each run.
    #[schema(value_type = Vec<Object>)]
    runs: Vec<TraceRunView>,
    cursors: Cursors,
}

/// Cursors of a page.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceRunCursors)]
pub struct Cursors {
    /// Cursor of the next page; null on the last page.
    next: Option<String>,
}

/// Rejects unsupported filters: ignoring them would return too much.
fn refuse(asked: &[(&str, bool)]) -> Result<(), ApiError> {
    match asked.iter().find(|(_, there)| *there) {
        None => Ok(()),
        Some((field, _)) => Err(Rejection::unsupported(*field, format!("a query with {field}")).into()),
    }
}

impl Query {
    fn admit(&self) -> Result<(), ApiError> {
        refuse(&[
            ("data_source_type", self.data_source_type.is_some()),
            ("search_filter", self.search_filter.is_some()),
            ("execution_order", self.execution_order.is_some_and(|order| order != 1)),
        ])?;
        if self.execution_order.is_some() && self.is_root == Some(false) {
            return Err(ApiError::bad_request(
                "execution_order 1 is that of root runs: is_root must not be false",
            ));
        }
        Ok(())
    }

    fn criteria(&mut self) -> Criteria {
        Criteria {
            projects: OneOrMore::list(self.session.take()),
            ids: OneOrMore::list(self.id.take()),
            trace: self.trace,
            traces: Vec::new(),
            threads: Vec::new(),
            has_thread: false,
            parent: self.parent_run,
            references: OneOrMore::list(self.reference_example.take()),
            run_type: self.run_type.take(),
            error: self.error,
            is_root: self.is_root.or(self.execution_order.map(|_| true)),
            start: self.start_time,
            end: self.end_time,
            query: self.query.take(),
            filter: self.filter.take(),
            trace_filter: self.trace_filter.take(),
            tree_filter: self.tree_filter.take(),
        }
    }
}

struct PageOptions {
    direction: Direction,
    after: Option<Position>,
    limit: usize,
    fields: Vec<&'static str>,
    dialect: Dialect,
}

fn cursor(text: Option<&str>) -> Result<Option<Position>, ApiError> {
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| {
        text.parse::<Position>()
            .map_err(|error| ApiError::bad_request(format!("cursor: {error}")))
    })
    .transpose()
}

fn limit(asked: Option<i64>, most: usize, field: &str, default: usize) -> Result<usize, ApiError> {
    let limit = asked.map_or(Some(default), |asked| usize::try_from(asked).ok());
    if let Some(limit) = limit.filter(|limit| (1..=most).contains(limit)) {
        return Ok(limit);
    }
    let msg = format!("expected 1 to {most}");
    Err(ApiError::invalid_at(
        vec!["body".into(), field.into()],
        "value_error",
        msg,
    ))
}

/// Reads a page and shows it.
async fn read(
    app: App,
    reader: Reader,
    tenant: Tenant,
    criteria: Criteria,
    wanted: PageOptions,
) -> Result<(Vec<TraceRunView>, Option<String>), ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    let (rows, next) = read_rows(&snapshot, &criteria, &wanted).await?;
    let shown = show(&app, &snapshot, tenant, &rows, &wanted.fields, wanted.dialect).await?;
    Ok((shown, next.map(|position| position.to_string())))
}

/// Rows of a page, and where the next one continues.
type RowPage = (Vec<(ProjectId, Row)>, Option<Position>);

/// Reads a page.
async fn read_rows(snapshot: &Snapshot, criteria: &Criteria, wanted: &PageOptions) -> Result<RowPage, ApiError> {
    let resolved = criteria.resolve(snapshot).await?;
    Ok(match resolved.positions {
        None => {
            let page = snapshot
                .page(&RunQuery {
                    projects: resolved.projects,
                    range: resolved.range,
                    extent: resolved.within,
                    predicate: resolved.predicate,
                    direction: wanted.direction,
                    after: wanted.after,
                    limit: wanted.limit,
                })
                .await?;
            (page.rows, page.next)
        }
        Some(mut places) => {
            places.sort_unstable();
            if wanted.direction == Direction::Newest {
                places.reverse();
            }
            places.retain(|place| {
                wanted.after.is_none_or(|after| match wanted.direction {
                    Direction::Newest => *place < after,
                    Direction::Oldest => *place > after,
                })
            });
            let more = places.len() > wanted.limit;
            places.truncate(wanted.limit);
            let rows = snapshot.rows(&places).await?;
            let rows = snapshot.retain(rows, &resolved.predicate).await?;
            (rows, places.last().copied().filter(|_| more))
        }
    })
}

async fn show(
    app: &App,
    snapshot: &Snapshot,
    tenant: Tenant,
    rows: &[(ProjectId, Row)],
    fields: &[&'static str],
    dialect: Dialect,
) -> Result<Vec<TraceRunView>, ApiError> {
    let beside = PageEnrichment::read(snapshot, rows, fields).await?;
    let mut pricer = Pricer::new(Arc::clone(snapshot.prices()));
    rows.iter()
        .map(|(project, row)| view::show(app, tenant.id, *project, row, &beside, &mut pricer, (fields, dialect)))
        .collect()
}

/// Rows as v1 shows them, grouped by example.
pub(crate) async fn views_by_example(
    app: &App,
    snapshot: &Snapshot,
    tenant: Tenant,
    rows: &[(ProjectId, Row)],
) -> Result<HashMap<Uuid, Vec<TraceRunView>>, ApiError> {
    let shown = show(app, snapshot, tenant, rows, &FIELDS, Dialect::V1).await?;
    let mut by_example: HashMap<Uuid, Vec<TraceRunView>> = HashMap::new();
    for ((_, row), shown) in rows.iter().zip(shown) {
        if let Some(example) = row.fields().reference_example_id {
            by_example.entry(example).or_default().push(shown);
        }
    }
    Ok(by_example)
}

/// The existing runs with these ids, as v1 shows them.
pub(crate) async fn views_by_id(
    app: &App,
    tenant: Tenant,
    ids: Vec<TraceRunId>,
) -> Result<HashMap<TraceRunId, TraceRunView>, ApiError> {
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let criteria = Criteria {
            ids,
            ..Criteria::default()
        };
        let places = criteria.resolve(&snapshot).await?.positions.unwrap_or_default();
        let rows = snapshot.rows(&places).await?;
        let shown = show(&own, &snapshot, tenant, &rows, &FIELDS, Dialect::V1).await?;
        Ok(rows.iter().map(|(_, row)| row.id()).zip(shown).collect())
    });
    read.await
}

/// Query trace runs, newest first. Acknowledged runs are visible at once.
#[utoipa::path(post, path = "/runs/query", tag = "traces", request_body = Query,
    responses((status = 200, description = "A page", body = Page),
              (status = 404, description = "No such tracing project in this workspace"), ApiError))]
pub async fn query(
    State(app): State<App>,
    tenant: Tenant,
    Json(mut asked): Json<Query>,
) -> Result<Json<Page>, ApiError> {
    asked.admit()?;
    let fields = match &asked.select {
        None => FIELDS.to_vec(),
        Some(names) => FIELDS
            .into_iter()
            .filter(|field| ALWAYS.contains(field) || names.iter().any(|name| name == field))
            .collect(),
    };
    let wanted = PageOptions {
        direction: match asked.order.unwrap_or_default() {
            Order::Desc => Direction::Newest,
            Order::Asc => Direction::Oldest,
        },
        after: cursor(asked.cursor.as_deref())?,
        limit: limit(asked.limit, PAGE, "limit", PAGE)?,
        fields,
        dialect: Dialect::V1,
    };
    let criteria = asked.criteria();
    criteria.admit()?;
    let own = app.clone();
    let read = app
        .queries
        .run(move |reader| read(own, reader, tenant, criteria, wanted));
    let (runs, next) = read.await?;
    Ok(Json(Page {
        runs,
        cursors: Cursors { next },
    }))
}

/// Get one trace run.
#[utoipa::path(get, path = "/runs/{run_id}", tag = "traces",
    params(("run_id" = Uuid, Path, description = "The trace run")),
    responses((status = 200, description = "The trace run", body = Object),
              (status = 404, description = "No such trace run in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<TraceRunId>,
) -> Result<Json<TraceRunView>, ApiError> {
    one(&app, tenant, id, FIELDS.to_vec(), Dialect::V1).await.map(Json)
}

async fn one(
    app: &App,
    tenant: Tenant,
    id: TraceRunId,
    fields: Vec<&'static str>,
    dialect: Dialect,
) -> Result<TraceRunView, ApiError> {
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let criteria = Criteria {
            ids: vec![id],
            ..Criteria::default()
        };
        let places = criteria.resolve(&snapshot).await?.positions.unwrap_or_default();
        // The same id may exist in several projects; the first one is shown.
        let rows = snapshot.rows(places.get(..1).unwrap_or_default()).await?;
        show(&own, &snapshot, tenant, &rows, &fields, dialect).await
    });
    read.await?.pop().ok_or_else(|| ApiError::not_found("run"))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = FilterCheck)]
pub struct ValidateFilters {
    filter: Option<String>,
    trace_filter: Option<String>,
    tree_filter: Option<String>,
}

/// Result of the validation.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = FilterChecked)]
pub struct FilterValidation {
    /// Always true: an invalid filter is rejected with 400.
    valid: bool,
}

/// Validate filters without reading data. An invalid filter is rejected with 400 and the position of the error.
#[utoipa::path(post, path = "/runs/query/validate", tag = "traces", request_body = ValidateFilters,
    responses((status = 200, description = "The filters are valid", body = FilterValidation), ApiError))]
pub async fn validate(_: Tenant, Json(asked): Json<ValidateFilters>) -> Result<Json<FilterValidation>, ApiError> {
    parse("filter", asked.filter.as_deref())?;
    parse("trace_filter", asked.trace_filter.as_deref())?;
    parse("tree_filter", asked.tree_filter.as_deref())?;
    Ok(Json(FilterValidation { valid: true }))
}

/// Get statistics of trace runs.
#[utoipa::path(post, path = "/runs/stats", tag = "traces", request_body = Query,
    responses((status = 200, description = "Counts, sums and quantiles; quantiles are accurate to 1 %", body = Object),
              (status = 404, description = "No such tracing project in this workspace"), ApiError))]
pub async fn statistics(
    State(app): State<App>,
    tenant: Tenant,
    Json(mut asked): Json<Query>,
) -> Result<Json<Value>, ApiError> {
    asked.admit()?;
    // Not used for statistics, but rejected like in a query.
    cursor(asked.cursor.as_deref())?;
    limit(asked.limit, PAGE, "limit", PAGE)?;
    let criteria = asked.criteria();
    criteria.admit()?;
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        counted(&snapshot, &criteria).await
    });
    Ok(Json(statistics_json(&read.await?)))
}

/// Statistics of runs that match the criteria.
pub(crate) async fn counted(snapshot: &Snapshot, criteria: &Criteria) -> Result<Statistics, ApiError> {
    let resolved = criteria.resolve(snapshot).await?;
    let Some(places) = resolved.positions else {
        let within = resolved.within.as_ref();
        let counted = snapshot.statistics(&resolved.projects, resolved.range, within, &resolved.predicate);
        return Ok(counted.await?);
    };
    let rows = snapshot.rows(&places).await?;
    let rows = snapshot.retain(rows, &resolved.predicate).await?;
    Ok(Statistics::of(snapshot, &rows)?)
}

/// Statistics in the format of the clients.
pub(crate) fn statistics_json(counted: &Statistics) -> Value {
    let rate = |part: u64| (counted.runs > 0).then(|| part as f64 / counted.runs as f64);
    let [total_tokens, prompt_tokens, completion_tokens] = counted.token_sums;
    let [total_cost, prompt_cost, completion_cost] = counted.cost_sums.map(|units| cost(units, Dialect::V1));
    json!({
        "run_count": counted.runs,
        "latency_p50": counted.latency.at(0.5),
        "latency_p99": counted.latency.at(0.99),
        "first_token_p50": counted.first_token.at(0.5),
        "first_token_p99": counted.first_token.at(0.99),
        "total_tokens": total_tokens,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "median_tokens": counted.tokens.at(0.5).map(|tokens| tokens.round() as i64),
        "total_cost": total_cost,
        "prompt_cost": prompt_cost,
        "completion_cost": completion_cost,
        "last_run_start_time": counted.last_start,
        "error_rate": rate(counted.errors),
        "streaming_rate": rate(counted.streamed),
        "run_facets": counted.run_types.iter().map(|(name, count)| {
            json!({"key": "run_type", "value": name, "n": count, "query": format!("eq(run_type, {})", json!(name))})
        }).collect::<Vec<_>>(),
        "feedback_stats": Value::Null,
    })
}
