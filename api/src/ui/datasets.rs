//! Datasets, their experiments, and results of one or two experiments.

mod scores;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Redirect;
use serde::Deserialize;
use towpath_domain::{DatasetId, ProjectId, TenantId};
use towpath_query::TraceUsage;
use towpath_query::feedback::stats;
use towpath_store::datasets::examples::{self, Example, Filter};
use towpath_store::datasets::{self, Dataset};
use towpath_store::projects::{self, Project};
use towpath_store::{self as store, feedback_configs};
use towpath_traces::row::Row as TraceRow;
use uuid::Uuid;

use super::formatting;
use super::page::{PageError, PageRequest, PageResult};
use super::traces::{dollars, latency, preview, tone};
use crate::app::App;
use crate::errors::ApiError;
use crate::platform::datasets::results;
use crate::platform::runs;
use scores::{Score, compared_scores, mean_scores};
use summary::{Summary, summaries};

const PATH: &str = "/ui/datasets";
/// Datasets of a page.
const PAGE_SIZE: i64 = 100;
/// Examples of a page.
const EXAMPLES_PER_PAGE: i64 = 50;
/// Experiments that are listed.
const MAX_EXPERIMENTS: i64 = 100;
/// Maximum number of compared experiments.
const MAX_COMPARED: usize = 2;

/// Filter of the list.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListQuery {
    name: String,
    offset: i64,
}

#[derive(Template)]
#[template(path = "ui/datasets.html")]
struct List {
    name: String,
    rows: Vec<Line>,
    next: Option<i64>,
}

struct Line {
    id: String,
    workspace: String,
    name: String,
    examples: String,
    age: String,
    changed: String,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(query): Query<ListQuery>) -> PageResult {
    let offset = query.offset.clamp(0, 1_000_000);
    let read = app
        .store
        .read(async |tx| datasets::overview(tx, &query.name, PAGE_SIZE + 1, offset).await);
    let mut found = read.await?;
    let next = (found.len() as i64 > PAGE_SIZE).then_some(offset + PAGE_SIZE);
    found.truncate(PAGE_SIZE as usize);
    let now = app.clock.now();
    let rows = found.into_iter().map(|row| Line {
        id: row.id.to_string(),
        workspace: row.tenant_id.to_string(),
        name: row.name,
        examples: formatting::count(row.example_count),
        age: formatting::relative(row.modified_at, now),
        changed: formatting::moment(row.modified_at),
    });
    let content = List {
        rows: rows.collect(),
        name: query.name,
        next,
    };
    Ok(asked.still("Datasets", PATH, &content))
}

/// Selection on the page of a dataset.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct DetailQuery {
    workspace: String,
    /// Ids of experiments, separated by commas.
    experiments: String,
    offset: i64,
}

#[derive(Template)]
#[template(path = "ui/dataset.html")]
struct Detail {
    id: String,
    workspace: String,
    name: String,
    description: String,
    examples: String,
    experiments: Vec<Experiment>,
    /// Names of the compared experiments.
    compared: Vec<String>,
    /// On the first page of examples only: they read each run of the experiments.
    summaries: Vec<Summary>,
    chosen: String,
    rows: Vec<Row>,
    next: Option<i64>,
}

struct Experiment {
    id: String,
    name: String,
    age: String,
    chosen: bool,
    /// Address of the page that compares this experiment with the first selected one.
    beside: Option<String>,
}

struct Row {
    id: String,
    input: String,
    reference: String,
    cells: Vec<Cell>,
}

/// Result of an experiment for an example.
#[derive(Default)]
struct Cell {
    experiment: String,
    project: String,
    run: String,
    output: String,
    failed: bool,
    tone: &'static str,
    latency: Option<String>,
    /// Of the whole trace.
    cost: Option<String>,
    scores: Vec<Score>,
}

/// The dataset of an address. Its id is only unique within a workspace.
async fn find_dataset(app: &App, id: &str, workspace: &str) -> Result<Dataset, PageError> {
    let missing = || PageError::from(ApiError::not_found("dataset"));
    let id: DatasetId = id.parse().map_err(|_| missing())?;
    let workspace = (!workspace.is_empty()).then(|| workspace.parse::<TenantId>());
    let workspace = workspace.transpose().map_err(|_| missing())?;
    let read = app
        .store
        .read(async |tx| datasets::find_in_any_workspace(tx, id, workspace).await);
    let mut found = read.await?;
    let dataset = found.pop().ok_or_else(missing)?;
    if found.is_empty() {
        return Ok(dataset);
    }
    let text = "several workspaces have a dataset with this id; open it from the list of datasets";
    Err(ApiError::bad_request(text).into())
}

pub(super) async fn detail(
    State(app): State<App>,
    asked: PageRequest,
    Path(id): Path<String>,
    Query(query): Query<DetailQuery>,
) -> PageResult {
    let dataset = find_dataset(&app, &id, &query.workspace).await?;
    let tenant = dataset.tenant_id;
    let offset = query.offset.clamp(0, 1_000_000_000);
    let criteria = projects::Filter {
        reference_dataset: Some(dataset.id.0),
        ..projects::Filter::default()
    };
    let read = app
        .store
        .read(async |tx| projects::list(tx, tenant, &criteria, MAX_EXPERIMENTS, 0).await);
    let all = read.await?;
    let compared = named_experiments(&app, &dataset, &query.experiments).await?;
    let ids: Vec<ProjectId> = compared.iter().map(|project| project.id).collect();
    let mut examples = match ids.as_slice() {
        [] => {
            let criteria = Filter {
                dataset: Some(dataset.id),
                ..Filter::default()
            };
            let read = app
                .store
                .read(async |tx| examples::list(tx, tenant, &criteria, EXAMPLES_PER_PAGE + 1, offset).await);
            read.await?
        }
        ids => results::example_page(&app, tenant, dataset.id, ids, None, EXAMPLES_PER_PAGE + 1, offset).await?,
    };
    let next = (examples.len() as i64 > EXAMPLES_PER_PAGE).then_some(offset + EXAMPLES_PER_PAGE);
    examples.truncate(EXAMPLES_PER_PAGE as usize);
    let lower = lower_is_better_keys(&app, tenant).await?;
    let mut cells = cells(&app, tenant, &examples, &compared, &lower).await?;
    let summaries = match offset {
        0 => summaries(&app, tenant, &compared, &lower).await?,
        _ => Vec::new(),
    };
    let now = app.clock.now();
    let first = compared.first().map(|project| project.id);
    let experiments = all.into_iter().map(|project| Experiment {
        beside: first
            .filter(|first| *first != project.id)
            .map(|first| format!("{first},{}", project.id)),
        chosen: ids.contains(&project.id),
        id: project.id.to_string(),
        name: project.name,
        age: formatting::relative(project.start_time, now),
    });
    let rows = examples.into_iter().map(|example| Row {
        input: preview(Some(&example.inputs)),
        reference: preview(example.outputs.as_deref()),
        cells: cells.remove(&example.example_id.0).unwrap_or_default(),
        id: example.example_id.to_string(),
    });
    let content = Detail {
        id: dataset.id.to_string(),
        workspace: tenant.to_string(),
        description: dataset.description.unwrap_or_default(),
        examples: formatting::count(dataset.example_count),
        experiments: experiments.collect(),
        chosen: ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        rows: rows.collect(),
        summaries,
        compared: compared.into_iter().map(|project| project.name).collect(),
        name: dataset.name,
        next,
    };
    Ok(asked.still("Datasets", PATH, &content))
}

/// Experiments selected in the address, in its order.
async fn named_experiments(app: &App, dataset: &Dataset, named: &str) -> Result<Vec<Project>, PageError> {
    let ids = named.split(',').filter(|id| !id.is_empty()).take(MAX_COMPARED);
    let ids = ids.map(|id| id.parse::<ProjectId>().map_err(|_| ApiError::not_found("experiment")));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let tenant = dataset.tenant_id;
    let read = app.store.read(async |tx| {
        let mut found = Vec::with_capacity(ids.len());
        for id in &ids {
            found.push(projects::get(tx, tenant, *id).await?);
        }
        Ok(found)
    });
    let found = read.await.map_err(|error| match error {
        store::Error::NotFound => ApiError::not_found("experiment"),
        error => error.into(),
    })?;
    if found
        .iter()
        .any(|project| project.reference_dataset_id != Some(dataset.id.0))
    {
        return Err(ApiError::not_found("experiment").into());
    }
    Ok(found)
}

/// One cell for each example and experiment.
async fn cells(
    app: &App,
    tenant: TenantId,
    examples: &[Example],
    experiments: &[Project],
    lower: &BTreeSet<String>,
) -> Result<HashMap<Uuid, Vec<Cell>>, PageError> {
    if experiments.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = examples.iter().map(|example| example.example_id.0).collect();
    let asked: Vec<(ProjectId, Vec<String>)> = experiments.iter().map(|one| (one.id, Vec::new())).collect();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant).await?;
        let rows = results::root_runs(&snapshot, &ids, &asked).await?;
        let run_ids: Vec<_> = rows.iter().map(|(_, row)| row.id()).collect();
        let feedback = snapshot.feedback(&run_ids).await?;
        let mut usage = HashMap::new();
        for of_project in rows.chunk_by(|(project, _), (next, _)| project == next) {
            let Some((project, _)) = of_project.first() else {
                continue;
            };
            let found = runs::usage_of(&snapshot, *project, of_project).await?;
            usage.extend(found.into_iter().map(|(trace, usage)| ((*project, trace), usage)));
        }
        Ok((rows, feedback, usage))
    });
    let (rows, feedback, usage) = read.await?;
    let mut cells: HashMap<Uuid, Vec<Cell>> = HashMap::new();
    for example in examples {
        let mut first: Option<BTreeMap<String, f64>> = None;
        for experiment in experiments {
            let same = |(project, row): &&(ProjectId, TraceRow)| {
                *project == experiment.id && row.fields().reference_example_id == Some(example.example_id.0)
            };
            // Of several repetitions, the latest is shown.
            let run = rows.iter().rfind(same);
            let scores = run.map(|(_, row)| {
                let own = feedback.iter().filter(|given| given.run_id == Some(row.id()));
                mean_scores(&stats(own))
            });
            let scores = scores.unwrap_or_default();
            let cell = run.map(|(project, row)| run_cell(row, usage.get(&(*project, runs::trace_of(row)))));
            let mut cell = cell.unwrap_or_default();
            cell.project = experiment.id.to_string();
            cell.experiment.clone_from(&experiment.name);
            cell.scores = compared_scores(&scores, first.as_ref(), lower);
            first.get_or_insert(scores);
            cells.entry(example.example_id.0).or_default().push(cell);
        }
    }
    Ok(cells)
}

/// Feedback keys for which lower scores are better.
async fn lower_is_better_keys(app: &App, tenant: TenantId) -> Result<BTreeSet<String>, PageError> {
    let read = app
        .store
        .read(async |tx| feedback_configs::list(tx, tenant, &[], None, 1000, 0).await);
    let lower = read.await?.into_iter().filter(|config| config.is_lower_score_better);
    Ok(lower.map(|config| config.feedback_key).collect())
}

fn run_cell(row: &TraceRow, usage: Option<&TraceUsage>) -> Cell {
    let said = row.fields();
    let derived = towpath_traces::derive::derive(row);
    let error = said.error.as_deref().filter(|error| !error.is_empty());
    Cell {
        run: row.id().to_string(),
        output: error.map_or_else(
            || preview(said.outputs.as_deref()),
            |error| error.lines().next().unwrap_or_default().chars().take(200).collect(),
        ),
        failed: error.is_some(),
        tone: tone(&derived.status),
        latency: latency(derived.start_time, said.end_time),
        cost: usage.and_then(|usage| usage.costs[0]).map(dollars),
        ..Cell::default()
    }
}

/// Parameters that official clients append to the address of a dataset.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ClientQuery {
    #[serde(rename = "selectedSessions")]
    selected_sessions: String,
}

/// Address of a dataset or an experiment that official clients print.
pub(super) async fn from_client(
    Path((workspace, id)): Path<(TenantId, DatasetId)>,
    Query(query): Query<ClientQuery>,
) -> Redirect {
    let ids = query
        .selected_sessions
        .split(',')
        .filter_map(|id| id.parse::<ProjectId>().ok());
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    Redirect::to(&format!(
        "{PATH}/{id}?workspace={workspace}&experiments={}",
        ids.join(",")
    ))
}

/// Address of a project that official clients print.
pub(super) async fn project_from_client(Path((workspace, id)): Path<(TenantId, ProjectId)>) -> Redirect {
    Redirect::to(&format!("/ui/traces/{id}?workspace={workspace}"))
}
