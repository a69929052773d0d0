//! Datasets: which there are, the experiments on each, and what one or two of them made of its examples.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Redirect;
use serde::Deserialize;
use towpath_domain::{DatasetId, ProjectId, TenantId};
use towpath_query::feedback::stats;
use towpath_store::datasets::examples::{self, Criteria, Example};
use towpath_store::datasets::{self, Dataset};
use towpath_store::projects::{self, Project};
use towpath_store::{self as store, feedback_configs};
use towpath_traces::row::Row as TraceRow;
use uuid::Uuid;

use super::traces::{latency, preview, tone};
use super::{Asked, Shown, Trouble, show};
use crate::app::App;
use crate::errors::ApiError;
use crate::platform::datasets::results;

const HERE: &str = "/ui/datasets";
/// Datasets of a page.
const LIMIT: i64 = 100;
/// Examples of a page.
const EXAMPLES: i64 = 50;
/// Experiments that are listed.
const EXPERIMENTS: i64 = 100;
/// Experiments beside each other.
const COMPARED: usize = 2;

/// Which datasets.
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

/// The datasets.
pub(super) async fn list(State(app): State<App>, asked: Asked, Query(query): Query<ListQuery>) -> Shown {
    let offset = query.offset.clamp(0, 1_000_000);
    let read = app
        .store
        .read(async |tx| datasets::overview(tx, &query.name, LIMIT + 1, offset).await);
    let mut found = read.await?;
    let next = (found.len() as i64 > LIMIT).then_some(offset + LIMIT);
    found.truncate(LIMIT as usize);
    let now = app.clock.now();
    let rows = found.into_iter().map(|row| Line {
        id: row.id.to_string(),
        workspace: row.tenant_id.to_string(),
        name: row.name,
        examples: show::count(row.example_count),
        age: show::relative(row.modified_at, now),
        changed: show::moment(row.modified_at),
    });
    let content = List {
        rows: rows.collect(),
        name: query.name,
        next,
    };
    Ok(asked.still("Datasets", HERE, &content))
}

/// What of a dataset.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct DetailQuery {
    workspace: String,
    /// Ids of experiments, with commas between them.
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
    /// Those that are compared.
    compared: Vec<String>,
    chosen: String,
    rows: Vec<Row>,
    next: Option<i64>,
}

struct Experiment {
    id: String,
    name: String,
    age: String,
    chosen: bool,
    /// The address of the page with this one beside the first of those that are shown.
    beside: Option<String>,
}

struct Row {
    id: String,
    input: String,
    reference: String,
    cells: Vec<Cell>,
}

/// What an experiment made of an example.
#[derive(Default)]
struct Cell {
    experiment: String,
    project: String,
    run: String,
    output: String,
    failed: bool,
    tone: &'static str,
    latency: Option<String>,
    scores: Vec<Score>,
}

struct Score {
    key: String,
    value: String,
    /// Against the first experiment.
    tone: &'static str,
}

/// The dataset of an address. Its id is unique in a workspace only.
async fn dataset(app: &App, id: &str, workspace: &str) -> Result<Dataset, Trouble> {
    let missing = || Trouble::from(ApiError::not_found("dataset"));
    let id: DatasetId = id.parse().map_err(|_| missing())?;
    let workspace = (!workspace.is_empty()).then(|| workspace.parse::<TenantId>());
    let workspace = workspace.transpose().map_err(|_| missing())?;
    let read = app.store.read(async |tx| datasets::any(tx, id, workspace).await);
    let mut found = read.await?;
    let dataset = found.pop().ok_or_else(missing)?;
    if found.is_empty() {
        return Ok(dataset);
    }
    let text = "several workspaces have a dataset of this id; open it from the list of datasets";
    Err(ApiError::bad_request(text).into())
}

/// One dataset.
pub(super) async fn detail(
    State(app): State<App>,
    asked: Asked,
    Path(id): Path<String>,
    Query(query): Query<DetailQuery>,
) -> Shown {
    let dataset = dataset(&app, &id, &query.workspace).await?;
    let tenant = dataset.tenant_id;
    let offset = query.offset.clamp(0, 1_000_000_000);
    let criteria = projects::Wanted {
        reference_dataset: Some(dataset.id.0),
        ..projects::Wanted::default()
    };
    let read = app
        .store
        .read(async |tx| projects::list(tx, tenant, &criteria, EXPERIMENTS, 0).await);
    let all = read.await?;
    let compared = chosen(&app, &dataset, &query.experiments).await?;
    let ids: Vec<ProjectId> = compared.iter().map(|project| project.id).collect();
    let mut examples = match ids.as_slice() {
        [] => {
            let criteria = Criteria {
                dataset: Some(dataset.id),
                ..Criteria::default()
            };
            let read = app
                .store
                .read(async |tx| examples::list(tx, tenant, &criteria, EXAMPLES + 1, offset).await);
            read.await?
        }
        ids => results::page(&app, tenant, dataset.id, ids, EXAMPLES + 1, offset).await?,
    };
    let next = (examples.len() as i64 > EXAMPLES).then_some(offset + EXAMPLES);
    examples.truncate(EXAMPLES as usize);
    let mut cells = cells(&app, tenant, &examples, &compared).await?;
    let now = app.clock.now();
    let first = compared.first().map(|project| project.id);
    let experiments = all.into_iter().map(|project| Experiment {
        beside: first
            .filter(|first| *first != project.id)
            .map(|first| format!("{first},{}", project.id)),
        chosen: ids.contains(&project.id),
        id: project.id.to_string(),
        name: project.name,
        age: show::relative(project.start_time, now),
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
        examples: show::count(dataset.example_count),
        experiments: experiments.collect(),
        chosen: ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        rows: rows.collect(),
        compared: compared.into_iter().map(|project| project.name).collect(),
        name: dataset.name,
        next,
    };
    Ok(asked.still("Datasets", HERE, &content))
}

/// The experiments that the address names, in its order.
async fn chosen(app: &App, dataset: &Dataset, named: &str) -> Result<Vec<Project>, Trouble> {
    let ids = named.split(',').filter(|id| !id.is_empty()).take(COMPARED);
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

/// What the experiments made of the examples: a cell for each of them and each experiment.
async fn cells(
    app: &App,
    tenant: TenantId,
    examples: &[Example],
    experiments: &[Project],
) -> Result<HashMap<Uuid, Vec<Cell>>, Trouble> {
    if experiments.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = examples.iter().map(|example| example.example_id.0).collect();
    let asked: Vec<(ProjectId, Vec<String>)> = experiments.iter().map(|one| (one.id, Vec::new())).collect();
    let read = app.reading.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant).await?;
        let rows = results::runs_of(&snapshot, &ids, &asked).await?;
        let runs: Vec<_> = rows.iter().map(|(_, row)| row.id()).collect();
        let feedback = snapshot.feedback(&runs).await?;
        Ok((rows, feedback))
    });
    let (rows, feedback) = read.await?;
    let lower = lower_is_better(app, tenant).await?;
    let mut cells: HashMap<Uuid, Vec<Cell>> = HashMap::new();
    for example in examples {
        let mut first: Option<BTreeMap<String, f64>> = None;
        for experiment in experiments {
            let same = |(project, row): &&(ProjectId, TraceRow)| {
                *project == experiment.id && row.fields().reference_example_id == Some(example.example_id.0)
            };
            // Of several repetitions the latest is shown.
            let run = rows.iter().filter(same).next_back();
            let scores = run.map(|(_, row)| {
                let own = feedback.iter().filter(|given| given.run_id == Some(row.id()));
                means(&stats(own))
            });
            let scores = scores.unwrap_or_default();
            let mut cell = run.map(|(_, row)| cell(row)).unwrap_or_default();
            cell.project = experiment.id.to_string();
            cell.experiment.clone_from(&experiment.name);
            cell.scores = scores
                .iter()
                .map(|(key, value)| Score {
                    key: key.clone(),
                    value: format!("{value:.2}"),
                    tone: change(
                        first.as_ref().and_then(|first| first.get(key)),
                        *value,
                        lower.contains(key),
                    ),
                })
                .collect();
            first.get_or_insert(scores);
            cells.entry(example.example_id.0).or_default().push(cell);
        }
    }
    Ok(cells)
}

/// Keys whose lower scores are the better ones.
async fn lower_is_better(app: &App, tenant: TenantId) -> Result<BTreeSet<String>, Trouble> {
    let read = app
        .store
        .read(async |tx| feedback_configs::list(tx, tenant, &[], None, 1000, 0).await);
    let lower = read.await?.into_iter().filter(|config| config.is_lower_score_better);
    Ok(lower.map(|config| config.feedback_key).collect())
}

/// The mean score of each key.
fn means(stats: &serde_json::Value) -> BTreeMap<String, f64> {
    let keys = stats.as_object().into_iter().flatten();
    keys.filter_map(|(key, stats)| Some((key.clone(), stats["avg"].as_f64()?)))
        .collect()
}

/// The colour of a score beside another one.
fn change(before: Option<&f64>, now: f64, lower_is_better: bool) -> &'static str {
    let Some(before) = before else { return "" };
    match now.total_cmp(before) {
        std::cmp::Ordering::Equal => "",
        ordering if ordering.is_gt() != lower_is_better => "good",
        _ => "bad",
    }
}

fn cell(row: &TraceRow) -> Cell {
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
        ..Cell::default()
    }
}

/// What the official clients append to the address of a dataset.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ClientQuery {
    #[serde(rename = "selectedSessions")]
    selected_sessions: String,
}

/// Where the official clients say that a dataset, or experiments on it, can be looked at.
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
        "{HERE}/{id}?workspace={workspace}&experiments={}",
        ids.join(",")
    ))
}

/// Where they say that a project can be looked at.
pub(super) async fn project_from_client(Path((workspace, id)): Path<(TenantId, ProjectId)>) -> Redirect {
    Redirect::to(&format!("/ui/traces/{id}?workspace={workspace}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_good_or_bad_as_the_key_says() {
        assert_eq!(change(None, 1.0, false), "");
        assert_eq!(change(Some(&1.0), 1.0, false), "");
        assert_eq!(change(Some(&0.5), 1.0, false), "good");
        assert_eq!(change(Some(&0.5), 1.0, true), "bad");
        assert_eq!(change(Some(&0.5), 0.1, true), "good");
        assert_eq!(change(Some(&0.5), 0.1, false), "bad");
    }
}
