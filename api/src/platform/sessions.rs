//! Tracing projects, which the official clients call sessions.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use towpath_domain::{ProjectId, Rejection, TenantId, Timestamp};
use towpath_query::feedback::stats;
use towpath_store::projects::{self, NewProject, Project, ProjectChange};
use towpath_workflows::delete_project;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, Query};
use crate::platform::datasets::results::{self, UsageOfTraces};
use crate::platform::paging;
use crate::platform::runs;

/// A tracing project.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = TracingProject)]
pub struct Session {
    #[schema(value_type = Uuid)]
    id: ProjectId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    name: String,
    description: Option<String>,
    #[schema(value_type = Option<Object>)]
    extra: Option<Box<RawValue>>,
    reference_dataset_id: Option<Uuid>,
    #[schema(value_type = String, format = DateTime)]
    start_time: Timestamp,
    /// When it ended, if a client set it.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    /// Statistics of its trace runs, if requested.
    #[serde(flatten)]
    #[schema(ignore)]
    statistics: Option<Value>,
}

impl TryFrom<Project> for Session {
    type Error = ApiError;

    fn try_from(project: Project) -> Result<Self, ApiError> {
        let extra = project.extra.map(RawValue::from_string).transpose();
        let extra = extra.map_err(|_| towpath_store::Error::corrupt("project", "extra", project.id))?;
        Ok(Self {
            id: project.id,
            tenant_id: project.tenant_id,
            name: project.name,
            description: project.description,
            extra,
            reference_dataset_id: project.reference_dataset_id,
            start_time: project.start_time,
            end_time: project.end_time,
            statistics: None,
        })
    }
}

/// A project to create. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewTracingProject)]
pub struct NewSession {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    name: String,
    #[schema(value_type = Option<Uuid>)]
    id: Option<ProjectId>,
    #[schema(pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    extra: Option<Map<String, Value>>,
    reference_dataset_id: Option<Uuid>,
    #[schema(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
}

/// Options of the request.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CreateSessionQuery {
    /// Change an existing project with this name instead of responding with 409.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    upsert: Flag,
}

/// A boolean in a query: Python sends `True`, JavaScript `true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(Self(true)),
            "false" | "0" | "" => Ok(Self(false)),
            _ => Err(serde::de::Error::custom("expected true or false")),
        }
    }
}

/// Create a tracing project. Ingest creates projects by name, too.
#[utoipa::path(post, path = "/sessions", tag = "sessions", request_body = NewSession, params(CreateSessionQuery),
    responses((status = 200, description = "Created or updated", body = Session),
              (status = 409, description = "The name or the id is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Query(how): Query<CreateSessionQuery>,
    Json(new): Json<NewSession>,
) -> Result<Json<Session>, ApiError> {
    let new = NewProject {
        id: new.id,
        name: new.name,
        description: described(new.description)?,
        extra: raw(new.extra)?,
        reference_dataset_id: new.reference_dataset_id,
        start_time: new.start_time,
    };
    let made = app.store.write(async |tx| match how.upsert {
        Flag(true) => projects::upsert(tx, tenant.id, &new).await,
        Flag(false) => projects::create(tx, tenant.id, &new).await,
    });
    Ok(Json(made.await?.try_into()?))
}

/// Parameters of the list.
const PARAMETERS: [&str; 13] = [
    "id",
    "name",
    "name_contains",
    "reference_dataset",
    "reference_free",
    "metadata",
    "include_stats",
    "limit",
    "offset",
    "dataset_version",
    "sort_by",
    "sort_by_desc",
    "facets",
];

/// List tracing projects, newest first. Unknown filters are rejected.
#[utoipa::path(get, path = "/sessions", tag = "sessions",
    params(("id" = Option<Vec<Uuid>>, Query, description = "Project ids"),
           ("name" = Option<String>, Query, description = "Exact name"),
           ("name_contains" = Option<String>, Query, description = "Text in the name, in any case"),
           ("reference_dataset" = Option<Uuid>, Query, description = "Experiments of this dataset"),
           ("reference_free" = Option<bool>, Query, description = "Without a dataset, or with one"),
           ("metadata" = Option<String>, Query, description = "A JSON object that `extra.metadata` contains"),
           ("include_stats" = Option<bool>, Query,
            description = "Include statistics, for at most 10 projects; by default those of an experiment that `name` names"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Tracing projects", body = Vec<Session>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Session>>, ApiError> {
    sent.only(&PARAMETERS)?;
    for field in ["dataset_version", "sort_by", "facets"] {
        if sent.all(field).any(|value| !value.is_empty() && value != "start_time") {
            return Err(Rejection::unsupported(field, format!("a list of projects with {field}")).into());
        }
    }
    let metadata = match sent.all("metadata").last() {
        None => None,
        Some(text) => {
            let object = serde_json::from_str(text).ok().filter(Value::is_object);
            Some(object.ok_or_else(|| ApiError::bad_request("metadata: expected a JSON object"))?)
        }
    };
    let wanted = projects::Filter {
        ids: sent.read::<Uuid>("id", "a UUID")?.into_iter().map(ProjectId).collect(),
        name: sent.all("name").last().map(str::to_owned),
        name_contains: sent.all("name_contains").last().map(str::to_owned),
        reference_dataset: sent.read("reference_dataset", "a UUID")?.pop(),
        without_reference: sent.flag("reference_free")?,
        metadata,
    };
    let statistics = sent.flag("include_stats")?;
    let (limit, offset) = paging::of(&sent)?;
    let found = app
        .store
        .read(async |tx| projects::list(tx, tenant.id, &wanted, limit, offset).await)
        .await?;
    let mut sessions = found
        .into_iter()
        .map(Session::try_from)
        .collect::<Result<Vec<_>, _>>()?;
    for session in sessions.iter_mut().take(MAX_COUNTED_PROJECTS) {
        // To compare experiments, the JavaScript client needs their statistics, but does not request them.
        let is_named_experiment = wanted.name.is_some() && session.reference_dataset_id.is_some();
        if statistics.unwrap_or(is_named_experiment) {
            session.statistics = Some(session_stats(&app, tenant, session).await?);
        }
    }
    Ok(Json(sessions))
}

/// Maximum number of projects with statistics in one list.
const MAX_COUNTED_PROJECTS: usize = 10;

async fn session_stats(app: &App, tenant: Tenant, session: &Session) -> Result<Value, ApiError> {
    let (id, is_experiment) = (session.id, session.reference_dataset_id.is_some());
    let counted = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        let criteria = runs::Criteria {
            projects: vec![id],
            ..runs::Criteria::default()
        };
        let counted = runs::counted(&snapshot, &criteria).await?;
        if !is_experiment {
            return Ok((counted, None));
        }
        let criteria = runs::Criteria {
            is_root: Some(true),
            ..criteria
        };
        let roots = runs::counted(&snapshot, &criteria).await?.runs;
        // Only for experiments: other projects may have very many runs.
        let feedback = results::feedback(reader, tenant.id, id, UsageOfTraces::Skip).await?;
        Ok((counted, Some((roots, feedback))))
    });
    let (counted, of_experiment) = counted.await?;
    let mut numbers = runs::statistics_json(&counted);
    if let Some((roots, feedback)) = of_experiment {
        // Clients compare it with the number of results.
        numbers["run_count"] = roots.into();
        numbers["feedback_stats"] = stats(feedback.on_runs.iter());
        numbers["session_feedback_stats"] = stats(feedback.on_experiment.iter());
    }
    Ok(numbers)
}

/// Get one tracing project.
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path, description = "The project"),
           ("include_stats" = Option<bool>, Query, description = "Include statistics of its trace runs")),
    responses((status = 200, description = "The project", body = Session),
              (status = 404, description = "No such project in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ProjectId>,
    sent: Pairs,
) -> Result<Json<Session>, ApiError> {
    let statistics = sent.flag("include_stats")?.unwrap_or(false);
    let project = app
        .store
        .read(async |tx| projects::get(tx, tenant.id, id).await)
        .await
        .map_err(missing)?;
    let mut session = Session::try_from(project)?;
    if statistics {
        session.statistics = Some(session_stats(&app, tenant, &session).await?);
    }
    Ok(Json(session))
}

/// Changes of a project; null and omitted fields stay unchanged. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = TracingProjectChange)]
pub struct UpdateSession {
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    name: Option<String>,
    #[schema(pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    extra: Option<Map<String, Value>>,
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
}

/// Change a tracing project.
#[utoipa::path(patch, path = "/sessions/{session_id}", tag = "sessions", request_body = UpdateSession,
    params(("session_id" = Uuid, Path, description = "The project")),
    responses((status = 200, description = "Updated", body = Session),
              (status = 404, description = "No such project in this workspace"),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ProjectId>,
    Json(change): Json<UpdateSession>,
) -> Result<Json<Session>, ApiError> {
    let change = ProjectChange {
        name: change.name,
        description: described(change.description)?,
        extra: raw(change.extra)?,
        end_time: change.end_time,
    };
    let changed = app
        .store
        .write(async |tx| projects::update(tx, tenant.id, id, &change).await)
        .await
        .map_err(missing)?;
    Ok(Json(changed.try_into()?))
}

fn described(description: Option<String>) -> Result<Option<String>, ApiError> {
    if description.as_deref().is_some_and(|text| text.contains('\0')) {
        let text = "a description must not contain a NUL character";
        return Err(Rejection::invalid("description", text).into());
    }
    Ok(description)
}

fn raw(extra: Option<Map<String, Value>>) -> Result<Option<Box<RawValue>>, ApiError> {
    let raw = extra.map(|extra| to_raw_value(&extra)).transpose();
    raw.map_err(|error| ApiError::internal(&error))
}

fn missing(error: towpath_store::Error) -> ApiError {
    match error {
        towpath_store::Error::NotFound => ApiError::not_found("session"),
        error => error.into(),
    }
}

/// Delete a tracing project with its trace runs and scheduled exports. Running exports continue.
#[utoipa::path(delete, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path, description = "The project")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such project in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<ProjectId>) -> Result<StatusCode, ApiError> {
    app.store
        .write(async |tx| delete_project::delete(tx, tenant.id, id).await)
        .await
        .map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}
