//! Queues of trace runs for review by people. Reviews are stored as feedback on the runs.

use axum::extract::State;
use http::StatusCode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::{AnnotationQueueId, Rejection, TenantId, Timestamp, TraceRunId};
use towpath_store as store;
use towpath_store::annotation_queues::{self, AnnotationQueue, AnnotationQueueFields, Filter, QueuedRun};
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Object, Pairs, Path};
use crate::platform::datasets::model::{self, JsonBody, JsonValues};
use crate::platform::paging;
use crate::platform::runs;

/// Maximum number of trace runs in one request.
const MAX_RUNS: usize = 1000;

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = AnnotationQueue)]
pub struct AnnotationQueueView {
    #[schema(value_type = Uuid)]
    id: AnnotationQueueId,
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    name: String,
    description: Option<String>,
    rubric_instructions: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    rubric_items: Option<Box<RawValue>>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl TryFrom<AnnotationQueue> for AnnotationQueueView {
    type Error = ApiError;

    fn try_from(row: AnnotationQueue) -> Result<Self, ApiError> {
        let items = row.rubric_items.map(RawValue::from_string).transpose();
        let items = items.map_err(|_| store::Error::corrupt("annotation_queue", "rubric_items", row.id))?;
        Ok(Self {
            id: row.id,
            tenant_id: row.tenant_id,
            name: row.name,
            description: row.description,
            rubric_instructions: row.rubric_instructions,
            rubric_items: items,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// Fields of a queue. Other fields are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = AnnotationQueueText)]
pub struct AnnotationQueueInput {
    /// Only for a new queue.
    #[schema(value_type = Option<Uuid>)]
    id: Option<AnnotationQueueId>,
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    name: Option<String>,
    #[schema(pattern = r"^[^\u0000]*$")]
    description: Option<String>,
    #[schema(pattern = r"^[^\u0000]*$")]
    rubric_instructions: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    rubric_items: Option<Box<RawValue>>,
}

impl AnnotationQueueInput {
    fn admit(self) -> Result<AnnotationQueueFields, Rejection> {
        if let Some(items) = &self.rubric_items {
            model::check_depth("rubric_items", items)?;
        }
        let are_objects = |items: &RawValue| serde_json::from_str::<Vec<Object<IgnoredAny>>>(items.get()).is_ok();
        if self.rubric_items.as_deref().is_some_and(|items| !are_objects(items)) {
            return Err(Rejection::invalid("rubric_items", "expected a list of objects"));
        }
        Ok(AnnotationQueueFields {
            name: self.name,
            description: model::check_text_field("description", self.description)?,
            rubric_instructions: model::check_text_field("rubric_instructions", self.rubric_instructions)?,
            rubric_items: self.rubric_items,
        })
    }
}

/// Create a queue.
#[utoipa::path(post, path = "/annotation-queues", tag = "annotation-queues", request_body = AnnotationQueueInput,
    responses((status = 200, description = "Created", body = AnnotationQueueView),
              (status = 409, description = "The name or the id is already in use"), ApiError))]
pub async fn create(
    State(app): State<App>,
    tenant: Tenant,
    JsonBody(new): JsonBody<AnnotationQueueInput>,
) -> Result<Json<AnnotationQueueView>, ApiError> {
    let id = new.id.unwrap_or_else(AnnotationQueueId::new);
    let new = new.admit()?;
    let made = app
        .store
        .write(async |tx| annotation_queues::create(tx, tenant.id, id, &new).await);
    Ok(Json(made.await?.try_into()?))
}

/// List queues, newest first.
#[utoipa::path(get, path = "/annotation-queues", tag = "annotation-queues",
    params(("ids" = Option<Vec<Uuid>>, Query, description = "Queue ids"),
           ("name" = Option<String>, Query, description = "Exact name"),
           ("name_contains" = Option<String>, Query, description = "Text in the name, in any case"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Queues", body = Vec<AnnotationQueueView>), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    sent: Pairs,
) -> Result<Json<Vec<AnnotationQueueView>>, ApiError> {
    sent.only(&["ids", "name", "name_contains", "limit", "offset"])?;
    let criteria = Filter {
        ids: sent
            .read::<Uuid>("ids", "a UUID")?
            .into_iter()
            .map(AnnotationQueueId)
            .collect(),
        name: sent.all("name").last().map(str::to_owned),
        name_contains: sent.all("name_contains").last().map(str::to_owned),
    };
    let (limit, offset) = paging::of(&sent)?;
    let read = app
        .store
        .read(async |tx| annotation_queues::list(tx, tenant.id, &criteria, limit, offset).await);
    let shown = read.await?.into_iter().map(AnnotationQueueView::try_from);
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

/// Get one queue.
#[utoipa::path(get, path = "/annotation-queues/{queue_id}", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = AnnotationQueueView),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
) -> Result<Json<AnnotationQueueView>, ApiError> {
    let read = app
        .store
        .read(async |tx| annotation_queues::get(tx, tenant.id, id).await);
    Ok(Json(read.await.map_err(queue_not_found)?.try_into()?))
}

/// Change a queue; null and omitted fields stay unchanged.
#[utoipa::path(patch, path = "/annotation-queues/{queue_id}", tag = "annotation-queues", request_body = AnnotationQueueInput,
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "Updated", body = AnnotationQueueView),
              (status = 404, description = "No such queue in this workspace"),
              (status = 409, description = "The name is already in use"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    JsonBody(change): JsonBody<AnnotationQueueInput>,
) -> Result<Json<AnnotationQueueView>, ApiError> {
    let change = change.admit()?;
    let changed = app
        .store
        .write(async |tx| annotation_queues::update(tx, tenant.id, id, &change).await);
    Ok(Json(changed.await.map_err(queue_not_found)?.try_into()?))
}

/// Delete a queue. The trace runs in it stay.
#[utoipa::path(delete, path = "/annotation-queues/{queue_id}", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn delete(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
) -> Result<StatusCode, ApiError> {
    let gone = app
        .store
        .write(async |tx| annotation_queues::delete(tx, tenant.id, id).await);
    gone.await.map_err(queue_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Adds trace runs to a queue.
async fn add_runs(
    app: &App,
    tenant: Tenant,
    queue: AnnotationQueueId,
    runs: &[TraceRunId],
) -> Result<Json<Value>, ApiError> {
    if runs.len() > MAX_RUNS {
        return Err(ApiError::bad_request(format!("expected at most {MAX_RUNS} runs")));
    }
    let added = app
        .store
        .write(async |tx| annotation_queues::add(tx, tenant.id, queue, runs).await);
    added.await.map_err(queue_not_found)?;
    Ok(Json(json!({"message": "Runs added"})))
}

/// Add trace runs to the end of a queue. They need not exist yet. A run that is already queued keeps its position.
#[utoipa::path(post, path = "/annotation-queues/{queue_id}/runs", tag = "annotation-queues", request_body = Vec<Uuid>,
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "Added", body = Object),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn add(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    JsonValues(runs): JsonValues<TraceRunId>,
) -> Result<Json<Value>, ApiError> {
    add_runs(&app, tenant, id, &runs).await
}

/// Identifies a trace run. Only its id is used here.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = TraceRunKey)]
pub struct RunKey {
    #[schema(value_type = Uuid)]
    run_id: TraceRunId,
}

/// Add trace runs to a queue, each identified by more than its id.
#[utoipa::path(post, path = "/annotation-queues/{queue_id}/runs/by-key", tag = "annotation-queues",
    request_body = Vec<RunKey>,
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "Added", body = Object),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn add_by_key(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    model::JsonList(runs): model::JsonList<RunKey>,
) -> Result<Json<Value>, ApiError> {
    let runs: Vec<TraceRunId> = runs.into_iter().map(|key| key.run_id).collect();
    add_runs(&app, tenant, id, &runs).await
}

/// Queued runs as v1 shows them, with the time they were added. Runs that no longer exist are left out.
async fn queued_run_views(app: &App, tenant: Tenant, queued: Vec<QueuedRun>) -> Result<Vec<Value>, ApiError> {
    if queued.is_empty() {
        return Ok(Vec::new());
    }
    let ids = queued.iter().map(|queued| queued.run_id).collect();
    let mut found = runs::views_by_id(app, tenant, ids).await?;
    let mut shown = Vec::with_capacity(queued.len());
    for QueuedRun { run_id, added_at } in queued {
        let Some(run) = found.remove(&run_id) else { continue };
        let mut run = serde_json::to_value(&run).map_err(|error| ApiError::internal(&error))?;
        run["added_at"] = json!(added_at);
        run["last_reviewed_time"] = Value::Null;
        shown.push(run);
    }
    Ok(shown)
}

/// List the trace runs of a queue, oldest first.
#[utoipa::path(get, path = "/annotation-queues/{queue_id}/runs", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Trace runs", body = Vec<Object>),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn list_runs(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    sent: Pairs,
) -> Result<Json<Vec<Value>>, ApiError> {
    sent.only(&["limit", "offset", "status"])?;
    model::refuse_parameters(&sent, &["status"])?;
    let (limit, offset) = paging::of(&sent)?;
    let read = app
        .store
        .read(async |tx| annotation_queues::runs(tx, tenant.id, id, limit, offset).await);
    let queued = read.await.map_err(queue_not_found)?;
    queued_run_views(&app, tenant, queued).await.map(Json)
}

/// Get the trace run at a position of a queue, starting at 0.
#[utoipa::path(get, path = "/annotation-queues/{queue_id}/run/{index}", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue"),
           ("index" = i64, Path, minimum = 0, maximum = 1_000_000_000, description = "The position")),
    responses((status = 200, description = "The trace run", body = Object),
              (status = 404, description = "No such queue in this workspace, or no run at that position"), ApiError))]
pub async fn get_run(
    State(app): State<App>,
    tenant: Tenant,
    Path((id, index)): Path<(AnnotationQueueId, u32)>,
) -> Result<Json<Value>, ApiError> {
    let read = app
        .store
        .read(async |tx| annotation_queues::runs(tx, tenant.id, id, 1, i64::from(index)).await);
    let queued = read.await.map_err(queue_not_found)?;
    let found = queued_run_views(&app, tenant, queued).await?.pop();
    found.map(Json).ok_or_else(|| ApiError::not_found("run"))
}

/// Remove a trace run from a queue.
#[utoipa::path(delete, path = "/annotation-queues/{queue_id}/runs/{queue_run_id}", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue"),
           ("queue_run_id" = Uuid, Path, description = "The trace run")),
    responses((status = 204, description = "Gone"),
              (status = 404, description = "No such queue in this workspace, or no such run in it"), ApiError))]
pub async fn delete_run(
    State(app): State<App>,
    tenant: Tenant,
    Path((id, run)): Path<(AnnotationQueueId, TraceRunId)>,
) -> Result<StatusCode, ApiError> {
    let gone = app
        .store
        .write(async |tx| annotation_queues::remove(tx, tenant.id, id, run).await);
    gone.await.map_err(queue_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}

fn queue_not_found(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("annotation queue"),
        error => error.into(),
    }
}
