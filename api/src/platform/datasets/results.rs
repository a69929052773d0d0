//! What experiments made of the examples of their dataset.

use std::collections::{HashMap, HashSet};

use axum::extract::State;
use serde::Deserialize;
use towpath_domain::{DatasetId, ProjectId, Rejection, TenantId, Timestamp};
use towpath_query::{Direction, Question, Reader, Snapshot};
use towpath_store::datasets::examples::{self, Example};
use towpath_store::projects;
use towpath_traces::row::Row;
use uuid::Uuid;

use super::examples::{Shown, without_links};
use super::missing;
use super::model::Sent;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};
use crate::platform::exports::MAX_OFFSET;
use crate::platform::runs::{self, Criteria};

/// Examples of a page.
const PAGE: i64 = 100;
/// Experiments that are asked for at once.
const MOST_EXPERIMENTS: usize = 20;
/// Trace runs of one page: each example may have run many times.
const MOST_RUNS: usize = 10_000;
/// Trace runs that are read at once.
const RUNS_AT_ONCE: usize = 100;

/// Which results. Fields that are not here are ignored: official clients send more.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ExperimentResultQuery)]
pub struct Query {
    /// Experiments of the dataset, at most 20.
    #[schema(value_type = Vec<Uuid>)]
    session_ids: Vec<ProjectId>,
    /// At most so many examples, 1 to 100, which is the default.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "whole")]
    limit: Option<i64>,
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    #[serde(default, deserialize_with = "whole")]
    offset: Option<i64>,
    /// By experiment, filters that a trace run has to pass; examples without such a run are left out then.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    filters: Option<HashMap<Uuid, Vec<String>>>,
}

fn within(
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

/// Examples of a dataset, each with the roots of the traces that the experiments made of it. One experiment is shown with the
/// version of the dataset that it ran on.
#[utoipa::path(post, path = "/datasets/{dataset_id}/runs", tag = "datasets", request_body = Query,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 200, description = "Examples with their runs", body = Vec<Object>),
              (status = 404, description = "No such dataset, or no such experiment of it, in this workspace"), ApiError))]
pub async fn query(
    State(app): State<App>,
    tenant: Tenant,
    Path(dataset): Path<DatasetId>,
    Sent(asked): Sent<Query>,
) -> Result<Json<Vec<Shown>>, ApiError> {
    let limit = within("limit", asked.limit, 1..=PAGE, PAGE)?;
    let offset = within("offset", asked.offset, 0..=MAX_OFFSET, 0)?;
    let mut filters = asked.filters.unwrap_or_default();
    let chosen = !filters.is_empty();
    let mut experiments = Vec::new();
    for id in asked.session_ids {
        experiments.push((id, filters.remove(&id.0).unwrap_or_default()));
    }
    if experiments.is_empty() || experiments.len() > MOST_EXPERIMENTS {
        let text = format!("expected 1 to {MOST_EXPERIMENTS} experiments");
        return Err(Rejection::invalid("session_ids", text).into());
    }
    if let Some(id) = filters.keys().next() {
        return Err(Rejection::rule("filters", format!("{id} is not among session_ids")).into());
    }
    let ids: Vec<ProjectId> = experiments.iter().map(|(id, _)| *id).collect();
    let rows = page(&app, tenant.id, dataset, &ids, limit, offset).await?;
    let examples: Vec<Uuid> = rows.iter().map(|row| row.example_id.0).collect();
    let own = app.clone();
    let read = app.reading.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let found = runs_of(&snapshot, &examples, &experiments).await?;
        runs::shown_by_example(&own, &snapshot, tenant, &found).await
    });
    let mut made = read.await?;
    let fields = without_links();
    let mut shown = Vec::with_capacity(rows.len());
    for row in &rows {
        let runs = made.remove(&row.example_id.0).unwrap_or_default();
        if chosen && runs.is_empty() {
            continue;
        }
        shown.push(Shown::new(&app, tenant.id, row, &fields)?.with("runs", &runs)?);
    }
    Ok(Json(shown))
}

/// A page of the examples that experiments ran on.
pub(crate) async fn page(
    app: &App,
    tenant: TenantId,
    dataset: DatasetId,
    experiments: &[ProjectId],
    limit: i64,
    offset: i64,
) -> Result<Vec<Example>, ApiError> {
    let read = app.store.read(async |tx| {
        towpath_store::datasets::get(tx, tenant, dataset).await?;
        let criteria = projects::Wanted {
            ids: experiments.to_vec(),
            reference_dataset: Some(dataset.0),
            ..projects::Wanted::default()
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
            [one] => version(one.extra.as_deref()),
            _ => None,
        };
        let criteria = examples::Criteria {
            dataset: Some(dataset),
            as_of: at,
            ..examples::Criteria::default()
        };
        examples::list(tx, tenant, &criteria, limit, offset).await
    });
    read.await.map_err(missing)
}

/// The version of the dataset that an experiment ran on, where its client said so.
fn version(extra: Option<&str>) -> Option<Timestamp> {
    let extra: serde_json::Value = serde_json::from_str(extra?).ok()?;
    let version = extra.get("metadata")?.get("dataset_version")?.as_str()?;
    Timestamp::parse(version).ok()
}

/// The roots of the traces that experiments made of examples.
pub(crate) async fn runs_of(
    snapshot: &Snapshot,
    examples: &[Uuid],
    experiments: &[(ProjectId, Vec<String>)],
) -> Result<Vec<(ProjectId, Row)>, ApiError> {
    let mut all = Vec::new();
    if examples.is_empty() {
        return Ok(all);
    }
    for (experiment, filters) in experiments {
        let criteria = Criteria {
            projects: vec![*experiment],
            references: examples.to_vec(),
            is_root: Some(true),
            filter: joined(filters),
            ..Criteria::default()
        };
        let resolved = criteria.resolve(snapshot).await?;
        let mut question = Question {
            projects: resolved.projects,
            range: resolved.range,
            within: resolved.within,
            predicate: resolved.predicate,
            direction: Direction::Oldest,
            after: None,
            limit: RUNS_AT_ONCE,
        };
        loop {
            let page = snapshot.page(&question).await?;
            all.extend(page.rows);
            if all.len() > MOST_RUNS {
                let text = format!("the examples ran more than {MOST_RUNS} times: ask for fewer at once");
                return Err(ApiError::bad_request(text));
            }
            match page.next {
                None => break,
                next => question.after = next,
            }
        }
    }
    Ok(all)
}

/// Filters of which all have to hold.
fn joined(filters: &[String]) -> Option<String> {
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

/// Feedback of an experiment, by key: on the roots of its traces, and on the experiment itself.
pub(crate) async fn feedback(
    reader: Reader,
    tenant: TenantId,
    experiment: ProjectId,
) -> Result<(serde_json::Value, serde_json::Value), ApiError> {
    let snapshot = reader.snapshot(tenant).await?;
    let criteria = Criteria {
        projects: vec![experiment],
        is_root: Some(true),
        ..Criteria::default()
    };
    let resolved = criteria.resolve(&snapshot).await?;
    let mut question = Question {
        projects: resolved.projects,
        range: resolved.range,
        within: resolved.within,
        predicate: resolved.predicate,
        direction: Direction::Newest,
        after: None,
        limit: RUNS_AT_ONCE,
    };
    let mut ids = HashSet::new();
    loop {
        let page = snapshot.page(&question).await?;
        ids.extend(page.rows.iter().map(|(_, row)| row.id()));
        match page.next {
            // Numbers of the newest runs: an experiment has a run for each example, and examples are bounded by pages.
            Some(_) if ids.len() >= MOST_RUNS => break,
            None => break,
            next => question.after = next,
        }
    }
    let ids: Vec<_> = ids.into_iter().collect();
    let on_runs = snapshot.feedback(&ids).await?;
    let on_experiment = snapshot.project_feedback(experiment).await?;
    Ok((
        towpath_query::feedback::stats(on_runs.iter()),
        towpath_query::feedback::stats(on_experiment.iter()),
    ))
}
