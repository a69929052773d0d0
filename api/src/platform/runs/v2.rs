//! Version 2 of trace queries: other names and larger pages. Layers around the handlers convert errors to problem
//! details.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use towpath_query::{Direction, Snapshot};
use towpath_traces::row::Row;
use uuid::Uuid;

use super::criteria::around;
use super::view::{Dialect, FIELDS, TraceRunView, USAGE_FIELDS, V2_FIELDS, trace_of};
use super::{Criteria, PageOptions, cursor, event_stream, limit, one, read_rows, refuse, show};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, whole};

/// Maximum number of runs on a page.
const PAGE: usize = 1000;
/// What is shown by default.
const DEFAULT: [&str; 1] = ["ID"];
/// Default time range of a query.
pub(super) const DEFAULT_RANGE: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Filters and fields of a query.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = TraceRunQueryV2)]
pub struct Query {
    #[schema(value_type = Option<Vec<Uuid>>)]
    project_ids: Option<Vec<ProjectId>>,
    /// Trace runs by id, at most 1000.
    #[schema(value_type = Option<Vec<Uuid>>)]
    ids: Option<Vec<TraceRunId>>,
    trace_id: Option<Uuid>,
    /// Started at or after this time; by default a day ago.
    #[schema(value_type = Option<String>, format = DateTime)]
    min_start_time: Option<Timestamp>,
    /// Started before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    max_start_time: Option<Timestamp>,
    has_error: Option<bool>,
    is_root: Option<bool>,
    /// In upper or lower case.
    run_type: Option<String>,
    filter: Option<String>,
    trace_filter: Option<String>,
    tree_filter: Option<String>,
    /// Example ids.
    reference_examples: Option<Vec<Uuid>>,
    /// Fields in upper case; `ID` by default.
    selects: Option<Vec<String>>,
    /// Maximum number of results, 1 to 1000; default 100.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "whole")]
    page_size: Option<i64>,
    /// `next` cursor of the previous page.
    cursor: Option<String>,
    /// Selected tokens, costs and `FIRST_TOKEN_TIME` of a run include those of all runs below it.
    include_subtree_usage: Option<bool>,
    /// Refused: not available in this build.
    ai_search: Option<String>,
    /// Refused: not available in this build.
    sem_filter: Option<String>,
    /// Refused: not available in this build.
    reference_dataset_id: Option<Uuid>,
    /// Refused: not available in this build.
    #[schema(value_type = Option<String>, format = DateTime)]
    min_feedback_modified_at: Option<Timestamp>,
    /// Refused: not available in this build.
    #[schema(value_type = Option<String>, format = DateTime)]
    max_feedback_modified_at: Option<Timestamp>,
}

/// A page of trace runs.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceRunPageV2)]
pub struct Page {
    /// Selected fields of each run.
    #[schema(value_type = Vec<Object>)]
    items: Vec<TraceRunView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

pub(super) fn fields(selects: Option<&[String]>) -> Vec<&'static str> {
    let asked = |field: &str| {
        let shown = if field == "session_id" { "project_id" } else { field };
        match selects {
            Some(names) => names.iter().any(|name| name.eq_ignore_ascii_case(shown)),
            None => DEFAULT.iter().any(|name| name.eq_ignore_ascii_case(shown)),
        }
    };
    FIELDS
        .into_iter()
        .chain(V2_FIELDS)
        .filter(|field| *field == "id" || asked(field))
        .collect()
}

/// Fields that the parameters of an address select.
pub(super) fn selects(sent: &Pairs) -> Vec<String> {
    let sent = sent.all("selects").chain(sent.all("selects[]"));
    sent.flat_map(|value| value.split(',')).map(str::to_owned).collect()
}

/// Query trace runs, newest first.
#[utoipa::path(post, path = "/api/v2/runs/query", tag = "traces-v2", request_body = Query,
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
        ("reference_dataset_id", asked.reference_dataset_id.is_some()),
        ("min_feedback_modified_at", asked.min_feedback_modified_at.is_some()),
        ("max_feedback_modified_at", asked.max_feedback_modified_at.is_some()),
    ])?;
    let known = asked.ids.is_some() || asked.trace_id.is_some();
    let wanted = PageOptions {
        direction: Direction::Newest,
        after: cursor(asked.cursor.as_deref())?,
        limit: limit(asked.page_size, PAGE, "page_size", 100)?,
        fields: fields(asked.selects.as_deref()),
        dialect: Dialect::V2,
    };
    let day_ago = app.clock.now().minus(DEFAULT_RANGE);
    let criteria = Criteria {
        projects: asked.project_ids.unwrap_or_default(),
        ids: asked.ids.unwrap_or_default(),
        trace: asked.trace_id,
        references: asked.reference_examples.unwrap_or_default(),
        run_type: asked.run_type.map(|name| name.to_lowercase()),
        error: asked.has_error,
        is_root: asked.is_root,
        start: asked.min_start_time.or((!known).then_some(day_ago)),
        end: asked.max_start_time,
        filter: asked.filter,
        trace_filter: asked.trace_filter,
        tree_filter: asked.tree_filter,
        ..Criteria::default()
    };
    criteria.admit()?;
    let with_subtrees =
        asked.include_subtree_usage == Some(true) && wanted.fields.iter().any(|name| USAGE_FIELDS.contains(name));
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let (rows, next) = read_rows(&snapshot, &criteria, &wanted).await?;
        let mut items = show(&own, &snapshot, tenant, &rows, &wanted.fields, wanted.dialect).await?;
        if with_subtrees {
            replace_usage(&snapshot, &rows, &mut items).await?;
        }
        Ok(Page {
            items,
            next_cursor: next.map(|position| position.to_string()),
        })
    });
    event_stream::answer(&headers, &read.await?)
}

/// The runs of a page in one project.
struct PageRuns {
    traces: BTreeSet<Uuid>,
    ids: HashSet<Uuid>,
    first: Timestamp,
    last: Timestamp,
}

/// Replaces the usage of runs that have runs below them by that of both.
async fn replace_usage(
    snapshot: &Snapshot,
    rows: &[(ProjectId, Row)],
    items: &mut [TraceRunView],
) -> Result<(), ApiError> {
    let mut projects: BTreeMap<ProjectId, PageRuns> = BTreeMap::new();
    for (project, row) in rows {
        let Some(start) = row.key().map(|key| key.sort_time) else {
            continue;
        };
        let runs = projects.entry(*project).or_insert_with(|| PageRuns {
            traces: BTreeSet::new(),
            ids: HashSet::new(),
            first: start,
            last: start,
        });
        runs.traces.insert(trace_of(row));
        runs.ids.insert(row.id().0);
        runs.first = runs.first.min(start);
        runs.last = runs.last.max(start);
    }
    let mut usage = HashMap::new();
    for (project, runs) in projects {
        let range = around(runs.first, runs.last);
        let found = snapshot.subtree_usage(project, &runs.traces, &runs.ids, &range).await?;
        usage.extend(found.into_iter().map(|(run, usage)| ((project, run), usage)));
    }
    for ((project, row), item) in rows.iter().zip(items) {
        if let Some(usage) = usage.get(&(*project, row.id().0)) {
            item.replace_usage(usage, Dialect::V2)?;
        }
    }
    Ok(())
}

/// Get one trace run. `project_id` and `start_time` are accepted but not needed.
#[utoipa::path(get, path = "/api/v2/runs/{run_id}", tag = "traces-v2",
    params(("run_id" = Uuid, Path, description = "The trace run"),
           ("selects" = Option<Vec<String>>, Query, description = "Fields in upper case; `ID` by default")),
    responses((status = 200, description = "The trace run", body = Object),
              (status = 404, description = "No such trace run in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<TraceRunId>,
    sent: Pairs,
) -> Result<Json<TraceRunView>, ApiError> {
    let selects = selects(&sent);
    let fields = fields(Some(selects.as_slice()).filter(|selects| !selects.is_empty()));
    Ok(Json(one(&app, tenant, id, fields, Dialect::V2).await?))
}

/// Address of a trace run.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TraceRunUrl)]
pub struct RunUrl {
    url: String,
}

/// Get the address of a trace run in the dashboard.
#[utoipa::path(get, path = "/api/v2/runs/{run_id}/url", operation_id = "get_url", tag = "traces-v2",
    params(("run_id" = Uuid, Path, description = "The trace run"),
           ("project_id" = Uuid, Query, description = "Its tracing project")),
    responses((status = 200, description = "The address", body = RunUrl),
              (status = 404, description = "No such trace run in this workspace"), ApiError))]
pub async fn url(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<TraceRunId>,
    sent: Pairs,
) -> Result<Json<RunUrl>, ApiError> {
    let project = required_project(&sent, "project_id")?;
    one(&app, tenant, id, vec!["id"], Dialect::V2).await?;
    let url = format!(
        "{}/ui/traces/{project}/{id}?workspace={}",
        app.settings.public_url, tenant.id
    );
    Ok(Json(RunUrl { url }))
}

/// The tracing project that a parameter of an address names.
pub(super) fn required_project(sent: &Pairs, name: &'static str) -> Result<ProjectId, ApiError> {
    let missing = || ApiError::invalid_at(vec!["query".into(), name.into()], "missing", "field required");
    sent.read::<ProjectId>(name, "a UUID")?.pop().ok_or_else(missing)
}
