//! Listeners: processes that run deployments on a compute backend.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::deployment::BUILT_IN_LISTENER;
use towpath_domain::{ListenerId, Rejection, Timestamp};
use towpath_store::{self as store, listeners};

use super::paging;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, Query, object, optional_object};
use crate::platform::names;

/// Maximum number of namespaces of a listener.
const MOST_NAMESPACES: usize = 100;

#[derive(Serialize, utoipa::ToSchema)]
pub struct Listener {
    #[schema(value_type = Uuid)]
    id: ListenerId,
    version: &'static str,
    #[schema(value_type = names::ComputeType)]
    compute_type: String,
    /// Which backend of that type.
    compute_id: String,
    compute_config: ComputeConfigAnswer,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ComputeConfigAnswer)]
pub struct ComputeConfigAnswer {
    k8s_namespaces: Vec<String>,
}

/// A page of listeners.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ListenerList {
    resources: Vec<Listener>,
    /// Offset of the next page.
    offset: i64,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ComputeConfig)]
pub struct NewComputeConfig {
    /// DNS labels.
    #[schema(min_items = 1, max_items = 100)]
    k8s_namespaces: Vec<String>,
}

/// A listener to register.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewListener)]
pub struct CreateListener {
    /// `k8s`.
    #[schema(pattern = "^k8s$")]
    compute_type: String,
    /// The cluster; unique in the workspace.
    #[schema(min_length = 1, max_length = 255)]
    compute_id: String,
    #[serde(deserialize_with = "object")]
    compute_config: NewComputeConfig,
}

/// Changes of a listener.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ListenerChange)]
pub struct UpdateListener {
    #[serde(default, deserialize_with = "optional_object")]
    compute_config: Option<NewComputeConfig>,
}

impl NewComputeConfig {
    fn admit(self) -> Result<Vec<String>, Rejection> {
        let mut names = self.k8s_namespaces;
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let label = |name: &String| {
            (1..=63).contains(&name.len())
                && name.bytes().all(|byte| inner(byte) || byte == b'-')
                && !name.starts_with('-')
                && !name.ends_with('-')
        };
        if !(1..=MOST_NAMESPACES).contains(&names.len()) || !names.iter().all(label) {
            return Err(Rejection::invalid(
                "compute_config.k8s_namespaces",
                "expected 1 to 100 DNS labels: at most 63 lower-case letters, digits and inner dashes",
            ));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

fn listener_answer(row: listeners::Listener) -> Result<Listener, ApiError> {
    Ok(Listener {
        compute_config: ComputeConfigAnswer {
            k8s_namespaces: row.namespaces()?,
        },
        id: row.id,
        version: env!("CARGO_PKG_VERSION"),
        compute_type: row.compute_type,
        compute_id: row.compute_id,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}

/// The listener of the platform itself.
fn built_in() -> Listener {
    Listener {
        id: BUILT_IN_LISTENER,
        version: env!("CARGO_PKG_VERSION"),
        compute_type: "process".to_owned(),
        compute_id: "built-in".to_owned(),
        compute_config: ComputeConfigAnswer {
            k8s_namespaces: Vec::new(),
        },
        created_at: Timestamp::from_micros(0),
        updated_at: Timestamp::from_micros(0),
    }
}

/// Page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListListeners {
    /// Maximum number of results.
    #[serde(default)]
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<i64>,
    /// Number of results to skip.
    #[serde(default)]
    #[param(minimum = 0, maximum = 1000000000, default = 0)]
    offset: Option<i64>,
}

/// List listeners, oldest first, starting with the built-in one.
#[utoipa::path(get, path = "/v2/listeners", tag = "listeners", params(ListListeners),
    responses((status = 200, description = "Listeners", body = ListenerList), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Query(asked): Query<ListListeners>,
) -> Result<Json<ListenerList>, ApiError> {
    let (limit, offset) = paging::check(asked.limit, asked.offset, 20, 100)?;
    let mut resources: Vec<_> = (offset == 0).then(built_in).into_iter().collect();
    let (left, skipped) = if offset == 0 {
        (limit - 1, 0)
    } else {
        (limit, offset - 1)
    };
    let rows = app
        .store
        .read(async |tx| listeners::list(tx, tenant.id, left, skipped).await)
        .await?;
    for row in rows {
        resources.push(listener_answer(row)?);
    }
    Ok(Json(ListenerList {
        offset: offset + resources.len() as i64,
        resources,
    }))
}

/// Register a listener. This build only runs deployments on the built-in one.
#[utoipa::path(post, path = "/v2/listeners", tag = "listeners", request_body = CreateListener,
    responses((status = 201, description = "Recorded", body = Listener),
              (status = 409, description = "The workspace already has a listener for this compute id"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    Json(new): Json<CreateListener>,
) -> Result<(StatusCode, Json<Listener>), ApiError> {
    if new.compute_type != "k8s" {
        return Err(Rejection::invalid("compute_type", "expected k8s").into());
    }
    let id = new.compute_id;
    if id.trim().is_empty() || id.chars().count() > 255 || id.chars().any(char::is_control) {
        return Err(Rejection::invalid("compute_id", "expected 1 to 255 characters, no control characters").into());
    }
    let namespaces = new.compute_config.admit()?;
    let row = app
        .store
        .write(async |tx| listeners::insert(tx, tenant.id, &id, &namespaces).await)
        .await
        .map_err(|error| match error {
            store::Error::Conflict { .. } => {
                ApiError::conflict("compute_id: this workspace already has a listener for this compute id")
            }
            error => error.into(),
        })?;
    Ok((StatusCode::CREATED, Json(listener_answer(row)?)))
}

/// Get one listener.
#[utoipa::path(get, path = "/v2/listeners/{listener_id}", tag = "listeners",
    params(("listener_id" = Uuid, Path, description = "The listener")),
    responses((status = 200, description = "The listener", body = Listener),
              (status = 404, description = "No such listener in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ListenerId>,
) -> Result<Json<Listener>, ApiError> {
    if id == BUILT_IN_LISTENER {
        return Ok(Json(built_in()));
    }
    let row = app.store.read(async |tx| listeners::get(tx, tenant.id, id).await).await;
    Ok(Json(listener_answer(row.map_err(missing(id))?)?))
}

/// Change a listener.
#[utoipa::path(patch, path = "/v2/listeners/{listener_id}", tag = "listeners",
    params(("listener_id" = Uuid, Path, description = "The listener")), request_body = UpdateListener,
    responses((status = 200, description = "Updated", body = Listener),
              (status = 404, description = "No such listener in this workspace"),
              (status = 409, description = "The built-in listener cannot be changed"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ListenerId>,
    Json(change): Json<UpdateListener>,
) -> Result<Json<Listener>, ApiError> {
    refuse_built_in(id)?;
    let namespaces = change.compute_config.map(NewComputeConfig::admit).transpose()?;
    let row = app.store.write(async |tx| match &namespaces {
        Some(namespaces) => listeners::update(tx, tenant.id, id, namespaces).await,
        None => listeners::get(tx, tenant.id, id).await,
    });
    Ok(Json(listener_answer(row.await.map_err(missing(id))?)?))
}

/// Delete a listener.
#[utoipa::path(delete, path = "/v2/listeners/{listener_id}", tag = "listeners",
    params(("listener_id" = Uuid, Path, description = "The listener")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such listener in this workspace"),
              (status = 409, description = "The built-in listener cannot be deleted"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ListenerId>,
) -> Result<StatusCode, ApiError> {
    refuse_built_in(id)?;
    app.store
        .write(async |tx| listeners::delete(tx, tenant.id, id).await)
        .await
        .map_err(missing(id))?;
    Ok(StatusCode::NO_CONTENT)
}

fn refuse_built_in(id: ListenerId) -> Result<(), Rejection> {
    if id == BUILT_IN_LISTENER {
        return Err(Rejection::conflict(
            "listener_id",
            "the built-in listener cannot be changed or deleted",
        ));
    }
    Ok(())
}

fn missing(id: ListenerId) -> impl Fn(store::Error) -> ApiError {
    move |error| match error {
        store::Error::NotFound => ApiError::new(StatusCode::NOT_FOUND, format!("Listener ID {id} not found.")),
        error => error.into(),
    }
}
