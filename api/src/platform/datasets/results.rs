//! Results of experiments on the examples of their dataset.

use std::collections::{HashMap, HashSet};

use axum::extract::State;
use serde::Deserialize;
use towpath_domain::{DatasetId, ExampleId, ProjectId, Rejection, TenantId, Timestamp, TraceRunId};
use towpath_query::{Direction, Reader, RunQuery, Snapshot, TraceUsage};
use towpath_store::datasets::examples::{self, Example};
use towpath_store::datasets::versions::AsOf;
use towpath_store::feedback::Feedback;
use towpath_store::projects;
use towpath_traces::row::Row;
use uuid::Uuid;

use super::dataset_not_found;
use super::examples::{ExampleView, fields_without_links};
use super::model::JsonBody;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};
use crate::platform::paging::MAX_OFFSET;
use crate::platform::runs::{self, Criteria};

/// Maximum number of examples on a page.
const MAX_PAGE_SIZE: i64 = 100;
/// Maximum number of experiments in one request.
const MAX_EXPERIMENTS: usize = 20;
/// Maximum number of trace runs on one page: each example may have run many times.
const MAX_RUNS: usize = 10_000;
/// Maximum size of the trace runs of one page.
const MAX_BYTES: usize = 512 << 20;
/// Number of trace runs read at once.
const RUN_BATCH_SIZE: usize = 100;

/// Selects results. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ExperimentResultQuery)]
pub struct QueryResults {
    /// Experiments of the dataset, at most 20.
    #[schema(value_type = Vec<Uuid>)]
    session_ids: Vec<ProjectId>,
    /// Maximum number of examples, 1 to 100; default 100.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "whole")]
    limit: Option<i64>,
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    #[serde(default, deserialize_with = "whole")]
    offset: Option<i64>,
    /// Filters by experiment. Examples without a trace run that passes are left out.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    filters: Option<HashMap<Uuid, Vec<String>>>,
}

fn check_range(
    field: &str,
    number: Option<i64>,
    range: std::ops::RangeInclusive<i64>,
    default: i64,
) -> Result<i64, ApiError> {
    let number = number.unwrap_or(default);
    if range.contains(&number) {
        return Ok(number);
    }
    let text = format!("expected {} to {}", range.start(), range.end());
    Err(Rejection::invalid(field, text).into())
}

/// List examples of a dataset, each with the root trace runs of the experiments. A single experiment is shown with the
/// version of the dataset that it ran on.
#[utoipa::path(post, path = "/datasets/{dataset_id}/runs", tag = "datasets", request_body = QueryResults,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 200, description = "Examples with their runs", body = Vec<Object>),
              (status = 404, description = "No such dataset or experiment in this workspace"), ApiError))]
pub async fn query(
    State(app): State<App>,
    tenant: Tenant,
    Path(dataset): Path<DatasetId>,
    JsonBody(asked): JsonBody<QueryResults>,
) -> Result<Json<Vec<ExampleView>>, ApiError> {
    let limit = check_range("limit", asked.limit, 1..=MAX_PAGE_SIZE, MAX_PAGE_SIZE)?;
    let offset = check_range("offset", asked.offset, 0..=MAX_OFFSET, 0)?;
    let mut filters = asked.filters.unwrap_or_default();
    let chosen = !filters.is_empty();
    let mut experiments = Vec::new();
    for id in asked.session_ids {
        if experiments.iter().all(|(known, _)| *known != id) {
            experiments.push((id, filters.remove(&id.0).unwrap_or_default()));
        }
    }
    if experiments.is_empty() || experiments.len() > MAX_EXPERIMENTS {
        let text = format!("expected 1 to {MAX_EXPERIMENTS} experiments");
        return Err(Rejection::invalid("session_ids", text).into());
    }
    if let Some(id) = filters.keys().next() {
        return Err(Rejection::rule("filters", format!("{id} is not in session_ids")).into());
    }
    let ids: Vec<ProjectId> = experiments.iter().map(|(id, _)| *id).collect();
    let among = if chosen {
        Some(filter_examples(&app, tenant.id, &experiments).await?)
    } else {
        None
    };
    let rows = example_page(&app, tenant.id, dataset, &ids, among, limit, offset).await?;
    let examples: Vec<Uuid> = rows.iter().map(|row| row.example_id.0).collect();
    let own = app.clone();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let found = root_runs(&snapshot, &examples, &experiments).await?;
        runs::views_by_example(&own, &snapshot, tenant, &found).await
    });
    let mut made = read.await?;
    let fields = fields_without_links();
    let mut shown = Vec::with_capacity(rows.len());
    for row in &rows {
        let runs = made.remove(&row.example_id.0).unwrap_or_default();
        shown.push(ExampleView::new(&app, tenant.id, row, &fields)?.with_field("runs", &runs)?);
    }
    Ok(Json(shown))
}

/// Examples that have a root trace run which passes the filters. Pages are cut after filtering, since clients treat a
/// short page as the last one.
async fn filter_examples(
    app: &App,
    tenant: TenantId,
    experiments: &[(ProjectId, Vec<String>)],
) -> Result<Vec<ExampleId>, ApiError> {
    let experiments = experiments.to_vec();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant).await?;
        let mut passing = HashSet::new();
        let mut seen = 0;
        for (experiment, filters) in &experiments {
            for_each_root(&snapshot, *experiment, filters, &[], |row| {
                seen += 1;
                if seen > MAX_RUNS {
                    let text = format!("filters: more than {MAX_RUNS} trace runs match; narrow the filters");
                    return Err(ApiError::bad_request(text));
                }
                passing.extend(row.fields().reference_example_id.map(ExampleId));
                Ok(())
            })
            .await?;
        }
        Ok(passing.into_iter().collect())
    });
    read.await
}

/// A page of the examples that experiments ran on, or of the given examples only.
pub(crate) async fn example_page(
    app: &App,
    tenant: TenantId,
    dataset: DatasetId,
    experiments: &[ProjectId],
    among: Option<Vec<ExampleId>>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Example>, ApiError> {
    let none = among.as_ref().is_some_and(Vec::is_empty);
    let read = app.store.read(async |tx| {
        towpath_store::datasets::get(tx, tenant, dataset).await?;
        let criteria = projects::Filter {
            ids: experiments.to_vec(),
            reference_dataset: Some(dataset.0),
            ..projects::Filter::default()
        };
        let most = i64::try_from(experiments.len()).unwrap_or(i64::MAX);
        let found = projects::list(tx, tenant, &criteria, most, 0).await?;
        if experiments
            .iter()
            .any(|id| found.iter().all(|project| project.id != *id))
        {
            return Err(Rejection::not_found("experiment").into());
        }
        let at = match found.as_slice() {
            [one] => experiment_version(one.extra.as_deref()),
            _ => None,
        };
        let ids = among.unwrap_or_default();
        if none {
            return Ok(Vec::new());
        }
        let criteria = examples::Filter {
            dataset: Some(dataset),
            ids,
            as_of: at,
            ..examples::Filter::default()
        };
        examples::list(tx, tenant, &criteria, limit, offset).await
    });
    read.await.map_err(dataset_not_found)
}

/// The version of the dataset that an experiment ran on, if its client recorded it.
fn experiment_version(extra: Option<&str>) -> Option<Timestamp> {
    let extra: serde_json::Value = serde_json::from_str(extra?).ok()?;
    let version = extra.get("metadata")?.get("dataset_version")?.as_str()?;
    match AsOf::parse(version) {
        AsOf::Time(time) => Some(time),
        AsOf::Tag(_) => None,
    }
}

/// The root trace runs that experiments produced for examples.
pub(crate) async fn root_runs(
    snapshot: &Snapshot,
    examples: &[Uuid],
    experiments: &[(ProjectId, Vec<String>)],
) -> Result<Vec<(ProjectId, Row)>, ApiError> {
    let mut all = Vec::new();
    if examples.is_empty() {
        return Ok(all);
    }
    let mut bytes = 0;
    for (experiment, filters) in experiments {
        for_each_root(snapshot, *experiment, filters, examples, |row| {
            bytes += row.weight();
            if all.len() >= MAX_RUNS || bytes > MAX_BYTES {
                let text = format!(
                    "the examples have more than {MAX_RUNS} runs, or runs of more than {MAX_BYTES} bytes; request \
                     fewer examples"
                );
                return Err(ApiError::bad_request(text));
            }
            all.push((*experiment, row));
            Ok(())
        })
        .await?;
    }
    Ok(all)
}

/// Passes each root trace run of an experiment to a callback, oldest first; only those of the given examples, if any.
async fn for_each_root(
    snapshot: &Snapshot,
    experiment: ProjectId,
    filters: &[String],
    examples: &[Uuid],
    mut take: impl FnMut(Row) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let criteria = Criteria {
        projects: vec![experiment],
        references: examples.to_vec(),
        is_root: Some(true),
        filter: join_filters(filters),
        ..Criteria::default()
    };
    let resolved = criteria.resolve(snapshot).await?;
    let mut question = RunQuery {
        projects: resolved.projects,
        range: resolved.range,
        extent: resolved.within,
        predicate: resolved.predicate,
        direction: Direction::Oldest,
        after: None,
        limit: RUN_BATCH_SIZE,
    };
    loop {
        let page = snapshot.page(&question).await?;
        for (_, row) in page.rows {
            take(row)?;
        }
        match page.next {
            None => return Ok(()),
            next => question.after = next,
        }
    }
}

/// Joins filters with `and`.
fn join_filters(filters: &[String]) -> Option<String> {
    let filters: Vec<&str> = filters
        .iter()
        .map(String::as_str)
        .filter(|text| !text.trim().is_empty())
        .collect();
    match filters.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        several => Some(format!("and({})", several.join(", "))),
    }
}

/// Feedback of an experiment, and which examples it is about.
pub(crate) struct ExperimentFeedback {
    /// On its newest root trace runs.
    pub(crate) on_runs: Vec<Feedback>,
    pub(crate) on_experiment: Vec<Feedback>,
    /// The example that each of these trace runs belongs to.
    pub(crate) examples: HashMap<TraceRunId, Uuid>,
    /// Of the traces of these trace runs; nothing if it was not asked for.
    pub(crate) usage: TraceUsage,
}

/// Whether the usage of traces is read with the feedback: that reads all their runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageOfTraces {
    Read,
    Skip,
}

/// Reads the feedback of an experiment.
pub(crate) async fn feedback(
    reader: Reader,
    tenant: TenantId,
    experiment: ProjectId,
    usage_of_traces: UsageOfTraces,
) -> Result<ExperimentFeedback, ApiError> {
    let snapshot = reader.snapshot(tenant).await?;
    let criteria = Criteria {
        projects: vec![experiment],
        is_root: Some(true),
        ..Criteria::default()
    };
    let resolved = criteria.resolve(&snapshot).await?;
    let mut question = RunQuery {
        projects: resolved.projects,
        range: resolved.range,
        extent: resolved.within,
        predicate: resolved.predicate,
        direction: Direction::Newest,
        after: None,
        limit: RUN_BATCH_SIZE,
    };
    let mut ids = HashSet::new();
    let mut examples = HashMap::new();
    let mut usage = TraceUsage::default();
    loop {
        let page = snapshot.page(&question).await?;
        if usage_of_traces == UsageOfTraces::Read {
            let of_page = runs::usage_of(&snapshot, experiment, &page.rows).await?;
            for of_trace in of_page.values() {
                usage.add(of_trace);
            }
        }
        for (_, row) in &page.rows {
            ids.insert(row.id());
            examples.extend(row.fields().reference_example_id.map(|example| (row.id(), example)));
        }
        match page.next {
            // Only the newest runs count: an experiment has a run for each example.
            Some(_) if ids.len() >= MAX_RUNS => break,
            None => break,
            next => question.after = next,
        }
    }
    let ids: Vec<_> = ids.into_iter().collect();
    Ok(ExperimentFeedback {
        on_runs: snapshot.feedback(&ids).await?,
        on_experiment: snapshot.project_feedback(experiment).await?,
        examples,
        usage,
    })
}
