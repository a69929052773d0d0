//! Queues of trace runs that people are asked to judge. What they say is feedback on the runs.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::{AnnotationQueueId, Rejection, TenantId, Timestamp, TraceRunId};
use towpath_store as store;
use towpath_store::annotation_queues::{self, AnnotationQueue, AnnotationQueueText, Criteria, QueuedRun};
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::datasets::model::{self, Sent, SentValues};
use crate::platform::exports::MAX_OFFSET;
use crate::platform::runs;

/// Trace runs of one request.
const MOST_RUNS: usize = 1000;

/// A queue.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = AnnotationQueue)]
pub struct Shown {
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

impl TryFrom<AnnotationQueue> for Shown {
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

/// What is said of a queue. Further fields that the official clients send are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = AnnotationQueueText)]
pub struct Text {
    /// Of a new queue.
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

impl Text {
    fn admit(self) -> Result<AnnotationQueueText, Rejection> {
        if self
            .rubric_items
            .as_ref()
            .is_some_and(|items| !items.get().starts_with('['))
        {
            return Err(Rejection::invalid("rubric_items", "expected a list"));
        }
        Ok(AnnotationQueueText {
            name: self.name,
            description: model::text("description", self.description)?,
            rubric_instructions: model::text("rubric_instructions", self.rubric_instructions)?,
            rubric_items: self.rubric_items,
        })
    }
}

/// Create a queue.
#[utoipa::path(post, path = "/annotation-queues", tag = "annotation-queues", request_body = Text,
    responses((status = 200, description = "Created", body = Shown),
              (status = 409, description = "The name or the id is taken"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, Sent(new): Sent<Text>) -> Result<Json<Shown>, ApiError> {
    let id = new.id.unwrap_or_else(AnnotationQueueId::new);
    let new = new.admit()?;
    let made = app
        .store
        .write(async |tx| annotation_queues::create(tx, tenant.id, id, &new).await);
    Ok(Json(made.await?.try_into()?))
}

/// Queues, newest first.
#[utoipa::path(get, path = "/annotation-queues", tag = "annotation-queues",
    params(("ids" = Option<Vec<Uuid>>, Query, description = "One of these"),
           ("name" = Option<String>, Query, description = "Exactly this name"),
           ("name_contains" = Option<String>, Query, description = "With this in its name, in upper or lower case"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Queues", body = Vec<Shown>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Shown>>, ApiError> {
    sent.only(&["ids", "name", "name_contains", "limit", "offset"])?;
    let criteria = Criteria {
        ids: sent
            .read::<Uuid>("ids", "a UUID")?
            .into_iter()
            .map(AnnotationQueueId)
            .collect(),
        name: sent.all("name").last().map(str::to_owned),
        name_contains: sent.all("name_contains").last().map(str::to_owned),
    };
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let read = app
        .store
        .read(async |tx| annotation_queues::list(tx, tenant.id, &criteria, limit, offset).await);
    let shown = read.await?.into_iter().map(Shown::try_from);
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

/// One queue.
#[utoipa::path(get, path = "/annotation-queues/{queue_id}", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = Shown),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
) -> Result<Json<Shown>, ApiError> {
    let read = app
        .store
        .read(async |tx| annotation_queues::get(tx, tenant.id, id).await);
    Ok(Json(read.await.map_err(missing)?.try_into()?))
}

/// Change a queue; null and what is not sent stay.
#[utoipa::path(patch, path = "/annotation-queues/{queue_id}", tag = "annotation-queues", request_body = Text,
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "Changed", body = Shown),
              (status = 404, description = "No such queue in this workspace"),
              (status = 409, description = "The name is taken"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    Sent(change): Sent<Text>,
) -> Result<Json<Shown>, ApiError> {
    let change = change.admit()?;
    let changed = app
        .store
        .write(async |tx| annotation_queues::update(tx, tenant.id, id, &change).await);
    Ok(Json(changed.await.map_err(missing)?.try_into()?))
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
    gone.await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Adds trace runs to a queue.
async fn append(
    app: &App,
    tenant: Tenant,
    queue: AnnotationQueueId,
    runs: &[TraceRunId],
) -> Result<Json<Value>, ApiError> {
    if runs.len() > MOST_RUNS {
        return Err(ApiError::bad_request(format!("at most {MOST_RUNS} runs at once")));
    }
    let added = app
        .store
        .write(async |tx| annotation_queues::add(tx, tenant.id, queue, runs).await);
    added.await.map_err(missing)?;
    Ok(Json(json!({"message": "Runs added"})))
}

/// Add trace runs to the end of a queue. They need not be there yet; one that is in the queue stays where it is.
#[utoipa::path(post, path = "/annotation-queues/{queue_id}/runs", tag = "annotation-queues", request_body = Vec<Uuid>,
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "Added", body = Object),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn add(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    SentValues(runs): SentValues<TraceRunId>,
) -> Result<Json<Value>, ApiError> {
    append(&app, tenant, id, &runs).await
}

/// A trace run by all that tells where it is. Only its id is needed here.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = TraceRunKey)]
pub struct RunKey {
    #[schema(value_type = Uuid)]
    run_id: TraceRunId,
}

/// The same, where clients say more of each trace run.
#[utoipa::path(post, path = "/annotation-queues/{queue_id}/runs/by-key", tag = "annotation-queues",
    request_body = Vec<RunKey>,
    params(("queue_id" = Uuid, Path, description = "The queue")),
    responses((status = 200, description = "Added", body = Object),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn add_by_key(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    model::SentList(runs): model::SentList<RunKey>,
) -> Result<Json<Value>, ApiError> {
    let runs: Vec<TraceRunId> = runs.into_iter().map(|key| key.run_id).collect();
    append(&app, tenant, id, &runs).await
}

/// Queued runs as v1 shows them, with when they came; one that is not there any more is left out.
async fn show(app: &App, tenant: Tenant, queued: Vec<QueuedRun>) -> Result<Vec<Value>, ApiError> {
    let ids = queued.iter().map(|queued| queued.run_id).collect();
    let mut found = runs::shown_by_id(app, tenant, ids).await?;
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

/// Trace runs of a queue, those that came first first.
#[utoipa::path(get, path = "/annotation-queues/{queue_id}/runs", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Trace runs", body = Vec<Object>),
              (status = 404, description = "No such queue in this workspace"), ApiError))]
pub async fn list_runs(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<AnnotationQueueId>,
    sent: Pairs,
) -> Result<Json<Vec<Value>>, ApiError> {
    sent.only(&["limit", "offset", "status"])?;
    model::refuse(&sent, &["status"])?;
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let read = app
        .store
        .read(async |tx| annotation_queues::runs(tx, tenant.id, id, limit, offset).await);
    let queued = read.await.map_err(missing)?;
    show(&app, tenant, queued).await.map(Json)
}

/// The trace run at a place of a queue, from 0.
#[utoipa::path(get, path = "/annotation-queues/{queue_id}/run/{index}", tag = "annotation-queues",
    params(("queue_id" = Uuid, Path, description = "The queue"),
           ("index" = i64, Path, minimum = 0, maximum = 1_000_000_000, description = "The place")),
    responses((status = 200, description = "The trace run", body = Object),
              (status = 404, description = "No such queue in this workspace, or nothing at that place"), ApiError))]
pub async fn get_run(
    State(app): State<App>,
    tenant: Tenant,
    Path((id, index)): Path<(AnnotationQueueId, u32)>,
) -> Result<Json<Value>, ApiError> {
    let read = app
        .store
        .read(async |tx| annotation_queues::runs(tx, tenant.id, id, 1, i64::from(index)).await);
    let queued = read.await.map_err(missing)?;
    let found = show(&app, tenant, queued).await?.pop();
    found.map(Json).ok_or_else(|| ApiError::not_found("run"))
}

/// Take a trace run out of a queue.
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
    gone.await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}

fn missing(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("annotation queue"),
        error => error.into(),
    }
}
