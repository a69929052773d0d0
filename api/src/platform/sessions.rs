//! Tracing projects, which the official clients call sessions.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use towpath_domain::{ProjectId, Rejection, TenantId, Timestamp};
use towpath_store::projects::{self, NewProject, Project};
use towpath_workflows::delete_project;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query};
use crate::platform::exports::MAX_OFFSET;

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
    /// Always null: a project stays open.
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
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
            end_time: None,
        })
    }
}

/// A project to be made. Further fields that the official clients send are ignored.
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

/// What to do about a name that is taken.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Upsert {
    /// Change the project of that name in place of refusing with 409.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    upsert: Flag,
}

/// Which projects. A filter that is not here is refused, not ignored.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Exactly this name.
    name: Option<String>,
    /// At most so many, 1 to 100, which is the default.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// Skip so many.
    #[param(minimum = 0, maximum = 1_000_000_000)]
    offset: Option<i64>,
    /// Accepted, and without effect: there are no statistics yet.
    #[serde(default, rename = "include_stats")]
    #[param(value_type = Option<bool>)]
    _include_stats: Flag,
}

/// A yes or no as the clients write it: Python sends `True`, JavaScript `true`.
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

/// Make a tracing project. Trace runs also make theirs, by name.
#[utoipa::path(post, path = "/sessions", tag = "sessions", request_body = NewSession, params(Upsert),
    responses((status = 200, description = "Made, or changed", body = Session),
              (status = 409, description = "The name or the id is taken"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Query(how): Query<Upsert>,
    Json(new): Json<NewSession>,
) -> Result<Json<Session>, ApiError> {
    if new.description.as_deref().is_some_and(|text| text.contains('\0')) {
        let text = "a description must not contain a NUL character";
        return Err(Rejection::invalid("description", text).into());
    }
    let extra = new
        .extra
        .map(|extra| to_raw_value(&extra))
        .transpose()
        .map_err(|error| ApiError::internal(&error))?;
    let new = NewProject {
        id: new.id,
        name: new.name,
        description: new.description,
        extra,
        reference_dataset_id: new.reference_dataset_id,
        start_time: new.start_time,
    };
    let made = app.store.write(async |tx| match how.upsert {
        Flag(true) => projects::upsert(tx, tenant.id, &new).await,
        Flag(false) => projects::create(tx, tenant.id, &new).await,
    });
    Ok(Json(made.await?.try_into()?))
}

/// Tracing projects, newest first.
#[utoipa::path(get, path = "/sessions", tag = "sessions", params(Which),
    responses((status = 200, description = "Tracing projects", body = Vec<Session>), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Query(which): Query<Which>,
) -> Result<Json<Vec<Session>>, ApiError> {
    let limit = which.limit.unwrap_or(100);
    let offset = which.offset.unwrap_or(0);
    if !(1..=100).contains(&limit) {
        return Err(ApiError::invalid_at(
            vec!["query".into(), "limit".into()],
            "value_error",
            "expected 1 to 100",
        ));
    }
    if !(0..=MAX_OFFSET).contains(&offset) {
        return Err(ApiError::invalid_at(
            vec!["query".into(), "offset".into()],
            "value_error",
            format!("expected 0 to {MAX_OFFSET}"),
        ));
    }
    let found = app
        .store
        .read(async |tx| projects::list(tx, tenant.id, which.name.as_deref(), limit, offset).await)
        .await?;
    Ok(Json(
        found.into_iter().map(Session::try_from).collect::<Result<_, _>>()?,
    ))
}

/// One tracing project.
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path, description = "The project")),
    responses((status = 200, description = "The project", body = Session),
              (status = 404, description = "No such project in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(id): Path<ProjectId>) -> Result<Json<Session>, ApiError> {
    let project = app
        .store
        .read(async |tx| projects::get(tx, tenant.id, id).await)
        .await
        .map_err(|error| match error {
            towpath_store::Error::NotFound => ApiError::not_found("session"),
            error => error.into(),
        })?;
    Ok(Json(project.try_into()?))
}

/// Delete a tracing project with its trace runs and its scheduled exports. Exports that have begun go on.
#[utoipa::path(delete, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = Uuid, Path, description = "The project")),
    responses((status = 204, description = "Nobody sees it any more"),
              (status = 404, description = "No such project in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<ProjectId>) -> Result<StatusCode, ApiError> {
    app.store
        .write(async |tx| delete_project::delete(tx, tenant.id, id).await)
        .await
        .map_err(|error| match error {
            towpath_store::Error::NotFound => ApiError::not_found("session"),
            error => error.into(),
        })?;
    Ok(StatusCode::NO_CONTENT)
}
