//! Accepted trace data that could not be folded.

pub(super) mod bulk;
mod model;

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde::Deserialize;
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::quarantine::{self as stored, Cursor};
use towpath_workflows::quarantine::{self, Error as Failed};

use crate::app::App;
use crate::errors::{ApiError, Error};
use crate::extract::{Json, Path, Query};
use crate::internal::{cursor_of, limit, read_cursor, wrong};
use model::{Entries, Entry, EntryDetail, Usage, Usages};

pub(crate) use model::contents;

/// Frames of an entry are counted below this.
const FRAMES: i64 = 1 << 20;

/// Filter and page of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuarantine {
    /// Workspace.
    #[param(value_type = Option<Uuid>)]
    tenant: Option<TenantId>,
    /// Maximum number of results, 1 to 1000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// The `next_cursor` of the previous response.
    #[param(pattern = "^[0-9]{1,16}(_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}){2}$")]
    cursor: Option<String>,
}

/// List quarantine entries: accepted trace data that could not be flushed. By workspace, latest first.
#[utoipa::path(get, path = "/internal/quarantine", tag = "quarantine", security(("api_key" = []), ("bearer" = [])), params(ListQuarantine),
    responses((status = 200, description = "Entries", body = Entries), ApiError))]
pub(crate) async fn list(
    State(app): State<App>,
    Query(which): Query<ListQuarantine>,
) -> Result<Json<Entries>, ApiError> {
    let limit = limit(which.limit)?;
    let after = which.cursor.as_deref().map(cursor).transpose()?;
    let mut found = app
        .store
        .read(async |tx| stored::list_after(tx, which.tenant, after, limit + 1).await)
        .await?;
    let shown = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = found.len() > shown;
    found.truncate(shown);
    Ok(Json(Entries {
        next_cursor: found.last().filter(|_| more).map(cursor_after),
        items: found.into_iter().map(Entry::try_from).collect::<Result<_, _>>()?,
    }))
}

/// List how much each workspace has in quarantine. Workspaces without entries are left out.
#[utoipa::path(get, path = "/internal/quarantine/usage", tag = "quarantine", security(("api_key" = []), ("bearer" = [])),
    responses((status = 200, description = "Workspaces", body = Usages), ApiError))]
pub(crate) async fn usage(State(app): State<App>) -> Result<Json<Usages>, ApiError> {
    let found = app.store.read(async |tx| stored::usage(tx).await).await?;
    Ok(Json(Usages {
        items: found.into_iter().map(Usage::from).collect(),
    }))
}

/// Get an entry with the headers of its frames. Bodies have a route of their own.
#[utoipa::path(get, path = "/internal/quarantine/{entry_id}", tag = "quarantine", security(("api_key" = []), ("bearer" = [])),
    params(("entry_id" = Uuid, Path, description = "The entry")),
    responses((status = 200, description = "The entry", body = EntryDetail),
              (status = 404, description = "No such entry", body = Error), ApiError))]
pub(crate) async fn get(State(app): State<App>, Path(id): Path<QuarantineId>) -> Result<Json<EntryDetail>, ApiError> {
    let entry = find(&app, id).await?;
    let contents = contents(&app, &entry).await;
    EntryDetail::new(entry, contents).map(Json)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetFrame {
    /// Index of the frame, default 0. Only an entry whose object was missing can have several.
    #[param(minimum = 0, maximum = 1_048_575)]
    frame: Option<i64>,
}

/// Get the body of a frame as it was sent. It contains user data.
#[utoipa::path(get, path = "/internal/quarantine/{entry_id}/body", tag = "quarantine", security(("api_key" = []), ("bearer" = [])),
    params(("entry_id" = Uuid, Path, description = "The entry"), GetFrame),
    responses((status = 200, description = "The body with the frame's content encoding", content_type = "application/octet-stream"),
              (status = 404, description = "No such entry, or it has no such frame", body = Error),
              (status = 409, description = "The frame is damaged, or its object is missing", body = Error), ApiError))]
pub(crate) async fn body(
    State(app): State<App>,
    Path(id): Path<QuarantineId>,
    Query(which): Query<GetFrame>,
) -> Result<Response, ApiError> {
    let number = which.frame.unwrap_or(0);
    let Some(index) = usize::try_from(number).ok().filter(|_| number < FRAMES) else {
        return Err(wrong("frame", format!("expected 0 to {}", FRAMES - 1)));
    };
    let entry = find(&app, id).await?;
    let frames = quarantine::frames(&app.objects, &entry).await;
    let frames = frames.map_err(|error| of_entry(error.into()))?;
    let Some(frames) = frames else {
        let text = format!("the object {} is not in the object store", entry.path);
        return Err(ApiError::conflict(text));
    };
    let frame = frames
        .into_iter()
        .nth(index)
        .ok_or_else(|| ApiError::not_found("frame"))?;
    let frame = frame.map_err(|damage| {
        let text = format!("frame {number} is {damage}; its bytes are in the object {}", entry.path);
        ApiError::conflict(text)
    })?;
    tracing::info!(quarantine.id = %id, tenant.id = %entry.tenant_id, "an operator read a quarantined body");
    let headers = [
        (CONTENT_TYPE, "application/octet-stream"),
        // Whoever sent the body chose what is in it: it must not run as a page of ours.
        (CONTENT_DISPOSITION, "attachment"),
        (CONTENT_SECURITY_POLICY, "sandbox"),
        (CACHE_CONTROL, "private, no-store"),
    ];
    let mut response = frame.body.into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Retry an entry: it is accepted again as the latest data and leaves quarantine. If it fails again, it returns with
/// another id.
#[utoipa::path(post, path = "/internal/quarantine/{entry_id}/retry", tag = "quarantine", security(("api_key" = []), ("bearer" = [])),
    params(("entry_id" = Uuid, Path, description = "The entry")),
    responses((status = 200, description = "The entry before it left quarantine", body = Entry),
              (status = 404, description = "No such entry", body = Error),
              (status = 409, description = "Its object is missing or incomplete", body = Error), ApiError))]
pub(crate) async fn retry(State(app): State<App>, Path(id): Path<QuarantineId>) -> Result<Json<Entry>, ApiError> {
    Entry::try_from(retry_entry(&app, id).await?).map(Json)
}

/// Drop an entry permanently, with its object if nothing else needs it. The accepted data is lost.
#[utoipa::path(post, path = "/internal/quarantine/{entry_id}/drop", tag = "quarantine", security(("api_key" = []), ("bearer" = [])),
    params(("entry_id" = Uuid, Path, description = "The entry")),
    responses((status = 200, description = "The deleted entry", body = Entry),
              (status = 404, description = "No such entry", body = Error), ApiError))]
pub(crate) async fn discard(State(app): State<App>, Path(id): Path<QuarantineId>) -> Result<Json<Entry>, ApiError> {
    Entry::try_from(drop_entry(&app, id).await?).map(Json)
}

/// Retries an entry and returns it as it was. Fails with 409 and the reason if it cannot be flushed.
pub(crate) async fn retry_entry(app: &App, id: QuarantineId) -> Result<stored::Entry, ApiError> {
    let entry = quarantine::retry(&app.store, &app.objects, id)
        .await
        .map_err(of_entry)?;
    tracing::info!(
        quarantine.id = %id,
        quarantine.operations = entry.items,
        tenant.id = %entry.tenant_id,
        "an operator retried quarantined trace data"
    );
    Ok(entry)
}

/// Drops an entry permanently and returns it as it was.
pub(crate) async fn drop_entry(app: &App, id: QuarantineId) -> Result<stored::Entry, ApiError> {
    let dropped = quarantine::discard(&app.store, &app.objects, id).await;
    let entry = dropped.map_err(|error| of_entry(error.into()))?;
    tracing::warn!(
        quarantine.id = %id,
        quarantine.operations = entry.items,
        tenant.id = %entry.tenant_id,
        "an operator dropped quarantined trace data"
    );
    Ok(entry)
}

pub(crate) async fn find(app: &App, id: QuarantineId) -> Result<stored::Entry, ApiError> {
    let found = app.store.read(async |tx| stored::get(tx, id).await).await;
    found.map_err(|error| of_entry(error.into()))
}

fn of_entry(error: Failed) -> ApiError {
    match error {
        Failed::Store(store::Error::NotFound) => ApiError::not_found("quarantine entry"),
        Failed::Store(error) => error.into(),
        Failed::Objects(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the object store failed for a quarantined entry"
            );
            ApiError::unavailable("the object store is unavailable", Duration::from_secs(5))
        }
    }
}

/// Where a list of entries goes on, beside the moment: [`cursor_of`] has one id.
struct EntryPosition {
    tenant: TenantId,
    id: QuarantineId,
}

impl std::fmt::Display for EntryPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.tenant, self.id)
    }
}

impl std::str::FromStr for EntryPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (tenant, id) = text.split_once('_').ok_or(())?;
        Ok(Self {
            tenant: tenant.parse().map_err(drop)?,
            id: id.parse().map_err(drop)?,
        })
    }
}

fn cursor_after(entry: &stored::Entry) -> String {
    let (tenant, id) = (entry.tenant_id, entry.id);
    cursor_of(entry.created_at, EntryPosition { tenant, id })
}

fn cursor(text: &str) -> Result<Cursor, ApiError> {
    let (created_at, behind): (Timestamp, EntryPosition) = read_cursor(text)?;
    Ok(Cursor {
        tenant_id: behind.tenant,
        created_at,
        id: behind.id,
    })
}
