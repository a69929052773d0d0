//! Lists, shows and deletes sandboxes.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::Rejection;
use towpath_domain::sandbox::BoxStatus;
use towpath_store::sandboxes::boxes::{self, Filter};
use towpath_store::sandboxes::network;
use towpath_workflows::delete_box;

use super::model::{PageParameters, PageRequest, Sandbox, missing};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, Pairs, Path};

/// Default page size.
const DEFAULT_LIMIT: i64 = 1000;
/// Maximum number of sandboxes in one deletion.
const MAX_DELETIONS: usize = 100;

/// Sandboxes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SandboxList {
    sandboxes: Vec<Sandbox>,
    /// Number of skipped sandboxes.
    offset: i64,
    /// Value of `cursor` for the next page.
    next_cursor: Option<String>,
}

/// List the sandboxes of the workspace, newest first.
#[utoipa::path(get, path = "/v2/sandboxes/boxes", tag = "sandboxes",
    params(PageParameters,
           ("name_contains" = Option<String>, Query, description = "Text in the name, in any case"),
           ("status" = Option<String>, Query, description = "provisioning, ready, stopped or failed"),
           ("template_name" = Option<String>, Query, description = "Name of the template or snapshot"),
           ("created_by" = Option<String>, Query, description = "`me`, or the id of a key"),
           ("sort_direction" = Option<String>, Query, description = "`asc` or `desc`, by creation time")),
    responses((status = 200, description = "Sandboxes", body = SandboxList), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, pairs: Pairs) -> Result<Json<SandboxList>, ApiError> {
    let page = PageRequest::parse(&pairs, DEFAULT_LIMIT)?;
    let last = |name: &str| pairs.all(name).last().map(str::to_owned);
    let refused = |name: &str, text: &str| {
        ApiError::invalid_at(
            vec![LocSegment::from("query"), LocSegment::from(name)],
            "value_error",
            text,
        )
    };
    let status = match last("status").as_deref() {
        None => None,
        Some("provisioning") => Some(BoxStatus::Provisioning),
        Some("ready") => Some(BoxStatus::Ready),
        Some("stopped") => Some(BoxStatus::Stopped),
        Some("failed") => Some(BoxStatus::Failed),
        Some(_) => return Err(refused("status", "expected provisioning, ready, stopped or failed")),
    };
    let direction = last("sort_direction").or_else(|| last("sort_order"));
    let ascending = match direction.as_deref() {
        None | Some("desc" | "DESC") => false,
        Some("asc" | "ASC") => true,
        Some(_) => return Err(refused("sort_direction", "expected asc or desc")),
    };
    for name in ["label", "tag_value_id"] {
        if last(name).is_some() {
            return Err(Rejection::unsupported(name, format!("a filter by {name}")).into());
        }
    }
    let created_by = last("created_by").map(|key| if key == "me" { tenant.key.to_string() } else { key });
    let filter = Filter {
        name_contains: last("name_contains"),
        status,
        template_name: last("template_name"),
        created_by,
        ascending,
    };
    let (rows, mounted, networks) = app
        .store
        .read(async |tx| {
            let rows = boxes::list(tx, tenant.id, &filter, page.limit, page.offset).await?;
            let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            let mounted = boxes::volumes_of(tx, &ids).await?;
            let networks = network::of_boxes(tx, &ids).await?;
            Ok((rows, mounted, networks))
        })
        .await?;
    let next_cursor = page.next_cursor(rows.len());
    let sandboxes = rows
        .into_iter()
        .map(|row| Sandbox::from_row(&app, row, &mounted, &networks));
    Ok(Json(SandboxList {
        sandboxes: sandboxes.collect::<Result<_, _>>()?,
        offset: page.offset,
        next_cursor,
    }))
}

/// Get one sandbox by its name or its id.
#[utoipa::path(get, path = "/v2/sandboxes/boxes/{name}", tag = "sandboxes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "The sandbox", body = Sandbox),
              (status = 404, description = "No such sandbox in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<Json<Sandbox>, ApiError> {
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    Ok(Json(Sandbox::load(&app, row).await?))
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct SandboxStatus {
    #[schema(value_type = String, example = "ready")]
    status: BoxStatus,
    status_message: Option<String>,
}

/// Get the status of a sandbox.
#[utoipa::path(get, path = "/v2/sandboxes/boxes/{name}/status", tag = "sandboxes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 200, description = "Its status", body = SandboxStatus),
              (status = 404, description = "No such sandbox in this workspace"), ApiError))]
pub async fn status(
    State(app): State<App>,
    tenant: Tenant,
    Path(name): Path<String>,
) -> Result<Json<SandboxStatus>, ApiError> {
    let found = app.store.read(async |tx| boxes::find(tx, tenant.id, &name).await).await;
    let row = found.map_err(missing("Sandbox", &name))?;
    Ok(Json(SandboxStatus {
        status: row.status,
        status_message: row.status_message,
    }))
}

/// Delete a sandbox with its files. Its name can be reused at once. Volumes and snapshots remain.
#[utoipa::path(delete, path = "/v2/sandboxes/boxes/{name}", tag = "sandboxes",
    params(("name" = String, Path, description = "Name or id")),
    responses((status = 204, description = "Deleted"),
              (status = 404, description = "No such sandbox in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    remove(&app, tenant, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(app: &App, tenant: Tenant, name: &str) -> Result<(), ApiError> {
    let removed = app.store.write(async |tx| {
        let row = boxes::find(tx, tenant.id, name).await?;
        delete_box::delete(tx, tenant.id, row.id).await
    });
    removed.await.map_err(missing("Sandbox", name))?;
    Ok(())
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DeleteSandboxes)]
pub struct DeleteSandboxes {
    /// Names or ids.
    #[schema(max_items = 100)]
    pub(super) names: Vec<String>,
}

/// Result of the deletion.
#[derive(Serialize, utoipa::ToSchema)]
pub struct DeletedMany {
    deleted: Vec<String>,
    skipped: Vec<Skipped>,
}

/// A sandbox that was not deleted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Skipped {
    name: String,
    reason: String,
}

impl DeletedMany {
    /// An empty result; rejects too many names.
    pub(super) fn for_names(names: &[String]) -> Result<Self, ApiError> {
        if names.len() > MAX_DELETIONS {
            return Err(Rejection::invalid("names", format!("expected at most {MAX_DELETIONS} names")).into());
        }
        Ok(Self {
            deleted: Vec::new(),
            skipped: Vec::new(),
        })
    }

    /// Records the result of one deletion. A server error ends the whole request.
    pub(super) fn record(&mut self, name: String, outcome: Result<(), ApiError>) -> Result<(), ApiError> {
        match outcome {
            Ok(()) => self.deleted.push(name),
            Err(error) if error.status().is_server_error() => return Err(error),
            Err(error) => self.skipped.push(Skipped {
                name,
                reason: error.plain(),
            }),
        }
        Ok(())
    }
}

/// Delete several sandboxes.
#[utoipa::path(post, path = "/v2/sandboxes/boxes/batch-delete", tag = "sandboxes", request_body = DeleteSandboxes,
    responses((status = 200, description = "Deleted and skipped sandboxes", body = DeletedMany), ApiError))]
pub async fn delete_many(
    State(app): State<App>,
    tenant: Tenant,
    Json(asked): Json<DeleteSandboxes>,
) -> Result<Json<DeletedMany>, ApiError> {
    let mut done = DeletedMany::for_names(&asked.names)?;
    for name in asked.names {
        let outcome = remove(&app, tenant, &name).await;
        done.record(name, outcome)?;
    }
    Ok(Json(done))
}
