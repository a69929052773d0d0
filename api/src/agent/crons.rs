//! Crons: recurring runs, each on its own thread or all on one.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use towpath_domain::agent::RunRequest;
use towpath_domain::agent::cron::{Schedule, zone};
use towpath_domain::{AssistantId, CronId, Patch, ThreadId, Timestamp};
use towpath_store::crons::{self as rows, Order};
use towpath_store::{assistants, threads};
use towpath_workflows::fire_cron;

use super::answer::{Ascending, Json, Page, Select, Time, raw};
use super::app::AgentApp;
use super::assistants::named_assistant;
use super::auth::caller;
use super::errors::AgentError;
use super::extract::{Body, Path, read_value};
use crate::extract::whole;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(create))
        .routes(routes!(create_on_thread))
        .routes(routes!(search))
        .routes(routes!(count))
        .routes(routes!(get, update, delete))
}

/// A recurring run.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Cron {
    #[schema(value_type = Uuid)]
    cron_id: CronId,
    #[schema(value_type = Uuid)]
    assistant_id: AssistantId,
    #[schema(value_type = Option<Uuid>)]
    thread_id: Option<ThreadId>,
    user_id: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Option<Time>,
    schedule: String,
    timezone: Option<String>,
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    #[schema(value_type = Option<String>, format = DateTime)]
    next_run_date: Option<Time>,
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    on_run_completed: Option<String>,
    enabled: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

pub(super) const FIELDS: [&str; 14] = [
    "cron_id",
    "assistant_id",
    "thread_id",
    "on_run_completed",
    "end_time",
    "schedule",
    "timezone",
    "created_at",
    "updated_at",
    "user_id",
    "payload",
    "next_run_date",
    "metadata",
    "enabled",
];

impl TryFrom<rows::Cron> for Cron {
    type Error = AgentError;

    fn try_from(row: rows::Cron) -> Result<Self, AgentError> {
        Ok(Self {
            cron_id: row.id,
            assistant_id: row.assistant_id,
            thread_id: row.thread_id,
            user_id: row.user_id,
            end_time: row.end_time.map(Time),
            schedule: row.schedule,
            timezone: row.timezone,
            payload: raw(&row.payload)?,
            next_run_date: row.next_run_date.map(Time),
            metadata: raw(&row.metadata)?,
            on_run_completed: row.on_run_completed,
            enabled: row.enabled,
            created_at: Time(row.created_at),
            updated_at: Time(row.updated_at),
        })
    }
}

/// Schedule of a cron. All other fields are those of a run.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = CronRequest)]
pub(crate) struct CronRequest {
    /// An assistant's id, or the name of a graph.
    assistant_id: Option<String>,
    /// Minute, hour, day of month, month, day of week; optionally second and year.
    schedule: Option<String>,
    /// IANA name; null means UTC.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    timezone: Patch<String>,
    /// No run starts after this time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    end_time: Patch<Timestamp>,
    metadata: Option<Map<String, Value>>,
    /// What happens to the thread that was created for a run.
    on_run_completed: Option<OnRunCompleted>,
    enabled: Option<bool>,
}

/// What happens to the thread that was created for a run.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnRunCompleted {
    /// Delete it after the run.
    Delete,
    Keep,
}

impl OnRunCompleted {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Keep => "keep",
        }
    }
}

/// Filters and page of the list.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct CronSearch {
    /// An assistant's id, or the name of a graph.
    assistant_id: Option<String>,
    #[schema(value_type = Option<Uuid>)]
    thread_id: Option<ThreadId>,
    enabled: Option<bool>,
    metadata: Option<Map<String, Value>>,
    /// 1 to 1000; default 10.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
    sort_by: Option<SortBy>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    sort_order: Ascending,
    select: Option<Vec<String>>,
}

/// Sort order of a list.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CronSortBy)]
pub(crate) enum SortBy {
    CronId,
    AssistantId,
    ThreadId,
    NextRunDate,
    EndTime,
    CreatedAt,
    UpdatedAt,
}

/// Create a recurring run; each run has its own thread.
#[utoipa::path(post, path = "/runs/crons", tag = "crons", request_body = CronRequest,
    responses((status = 200, description = "Created", body = Cron),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn create(
    State(app): State<AgentApp>,
    Body(body): Body<Map<String, Value>>,
) -> Result<Json<Cron>, AgentError> {
    make(&app, None, body).await
}

/// Create a recurring run on one thread.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/crons", tag = "crons", request_body = CronRequest,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "Created", body = Cron),
              (status = 404, description = "No such thread or assistant"), AgentError))]
pub(crate) async fn create_on_thread(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Body(body): Body<Map<String, Value>>,
) -> Result<Json<Cron>, AgentError> {
    make(&app, Some(thread), body).await
}

async fn make(app: &AgentApp, thread: Option<ThreadId>, body: Map<String, Value>) -> Result<Json<Cron>, AgentError> {
    let asked: CronRequest = read_value(Value::Object(body.clone()))?;
    let schedule = asked
        .schedule
        .ok_or_else(|| AgentError::invalid("schedule: field required"))?;
    let assistant = asked
        .assistant_id
        .ok_or_else(|| AgentError::invalid("assistant_id: field required"))?;
    let timezone = match asked.timezone {
        Patch::Value(name) => Some(name),
        Patch::Absent | Patch::Null => None,
    };
    check_recurrence(&schedule, timezone.as_deref())?;
    let assistant_id = named_assistant(app, &assistant)?;
    let id = CronId::new();
    let payload = payload(body, id, assistant_id);
    check_run(&payload, thread)?;
    let now = app.clock.now();
    let row = rows::Cron {
        id,
        tenant_id: app.tenant,
        assistant_id,
        thread_id: thread,
        schedule_id: None,
        user_id: caller::identity(),
        schedule,
        timezone,
        end_time: match asked.end_time {
            Patch::Value(time) => Some(time),
            Patch::Absent | Patch::Null => None,
        },
        payload: Value::Object(payload).to_string(),
        metadata: Value::Object(asked.metadata.unwrap_or_default()).to_string(),
        next_run_date: None,
        on_run_completed: match thread {
            None => Some(
                asked
                    .on_run_completed
                    .unwrap_or(OnRunCompleted::Delete)
                    .as_str()
                    .to_owned(),
            ),
            Some(_) => None,
        },
        enabled: asked.enabled.unwrap_or(true),
        created_at: now,
        updated_at: now,
        caller: caller::record(),
    };
    let made = app
        .store
        .write(async |tx| {
            assistants::get(tx, app.tenant, assistant_id).await?;
            if let Some(thread) = thread {
                threads::get(tx, app.tenant, thread).await?;
            }
            fire_cron::create(tx, row).await
        })
        .await
        .map_err(|error| AgentError::from(error).or_missing(AgentError::no_thread_or_assistant()))?;
    Ok(Json(made.try_into()?))
}

/// List crons, newest first by default.
#[utoipa::path(post, path = "/runs/crons/search", tag = "crons", request_body = CronSearch,
    responses((status = 200, description = "A page; `X-Pagination-Next` is the offset of the next page", body = Vec<Cron>),
              AgentError))]
pub(crate) async fn search(
    State(app): State<AgentApp>,
    Body(search): Body<CronSearch>,
) -> Result<Response, AgentError> {
    let page = Page::of(search.limit, search.offset)?;
    let select = Select::of(search.select.clone(), &FIELDS)?;
    let order = match search.sort_by {
        Some(SortBy::CronId) => Order::Id,
        Some(SortBy::AssistantId) => Order::Assistant,
        Some(SortBy::ThreadId) => Order::Thread,
        Some(SortBy::NextRunDate) => Order::NextRunDate,
        Some(SortBy::EndTime) => Order::EndTime,
        Some(SortBy::UpdatedAt) => Order::Updated,
        Some(SortBy::CreatedAt) | None => Order::Created,
    };
    let Ascending(ascending) = search.sort_order;
    let which = cron_filter(&app, search)?;
    let found = app
        .store
        .read(async |tx| rows::search(tx, app.tenant, &which, order, ascending, page.fetch(), page.offset).await)
        .await?;
    let (headers, found) = page.cut(found);
    Ok((headers, Json(select.apply_all::<Cron, _>(found)?)).into_response())
}

/// Count matching crons.
#[utoipa::path(post, path = "/runs/crons/count", tag = "crons", request_body = CronSearch,
    responses((status = 200, description = "Number of matches", body = i64, content_type = "application/json"), AgentError))]
pub(crate) async fn count(
    State(app): State<AgentApp>,
    Body(search): Body<CronSearch>,
) -> Result<Json<i64>, AgentError> {
    // Rejects what a search would reject.
    Page::of(search.limit, search.offset)?;
    Select::of(search.select.clone(), &FIELDS)?;
    let which = cron_filter(&app, search)?;
    let count = app
        .store
        .read(async |tx| rows::count(tx, app.tenant, &which).await)
        .await?;
    Ok(Json(count))
}

/// Get one cron.
#[utoipa::path(get, path = "/runs/crons/{cron_id}", tag = "crons",
    params(("cron_id" = Uuid, Path, description = "The cron")),
    responses((status = 200, description = "The cron", body = Cron),
              (status = 404, description = "No such cron"), AgentError))]
pub(crate) async fn get(State(app): State<AgentApp>, Path(id): Path<CronId>) -> Result<Json<Cron>, AgentError> {
    let row = app.store.read(async |tx| rows::get(tx, app.tenant, id).await).await?;
    Ok(Json(row.try_into()?))
}

/// Change a cron. Absent fields stay unchanged; null clears `end_time` and `timezone`; the assistant cannot be changed.
#[utoipa::path(patch, path = "/runs/crons/{cron_id}", tag = "crons", request_body = CronRequest,
    params(("cron_id" = Uuid, Path, description = "The cron")),
    responses((status = 200, description = "Updated", body = Cron),
              (status = 404, description = "No such cron"), AgentError))]
pub(crate) async fn update(
    State(app): State<AgentApp>,
    Path(id): Path<CronId>,
    Body(body): Body<Map<String, Value>>,
) -> Result<Json<Cron>, AgentError> {
    if body.is_empty() {
        return Err(AgentError::bad_request(
            "At least one field must be provided for update.",
        ));
    }
    let asked: CronRequest = read_value(Value::Object(body.clone()))?;
    let mut body = body;
    // The assistant cannot be changed: the payload contains it.
    body.remove("assistant_id");
    let changed = app
        .store
        .write(async |tx| {
            let mut cron = fire_cron::disarm(tx, app.tenant, id).await?;
            change(&mut cron, asked, body)?;
            cron.updated_at = tx.now();
            fire_cron::arm(tx, &mut cron).await?;
            rows::replace(tx, &cron).await?;
            Ok(cron)
        })
        .await?;
    Ok(Json(changed.try_into()?))
}

/// Delete a cron. Runs that it has started continue.
#[utoipa::path(delete, path = "/runs/crons/{cron_id}", tag = "crons",
    params(("cron_id" = Uuid, Path, description = "The cron")),
    responses((status = 204, description = "Deleted"), (status = 404, description = "No such cron"), AgentError))]
pub(crate) async fn delete(State(app): State<AgentApp>, Path(id): Path<CronId>) -> Result<StatusCode, AgentError> {
    app.store
        .write(async |tx| {
            fire_cron::disarm(tx, app.tenant, id).await?;
            rows::delete(tx, app.tenant, id).await
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

fn change(cron: &mut rows::Cron, asked: CronRequest, body: Map<String, Value>) -> Result<(), towpath_store::Error> {
    let corrupt = |column| towpath_store::Error::corrupt("cron", column, cron.id);
    let mut payload: Map<String, Value> = serde_json::from_str(&cron.payload).map_err(|_| corrupt("payload"))?;
    let mut metadata: Map<String, Value> = serde_json::from_str(&cron.metadata).map_err(|_| corrupt("metadata"))?;
    payload.extend(body);
    let payload = self::payload(payload, cron.id, cron.assistant_id);
    fire_cron::request(&payload, cron.thread_id)?;
    cron.payload = Value::Object(payload).to_string();
    metadata.extend(asked.metadata.unwrap_or_default());
    cron.metadata = Value::Object(metadata).to_string();
    if let Some(schedule) = asked.schedule {
        cron.schedule = schedule;
    }
    match asked.timezone {
        Patch::Value(name) => cron.timezone = Some(name),
        Patch::Null => cron.timezone = None,
        Patch::Absent => {}
    }
    match asked.end_time {
        Patch::Value(time) => cron.end_time = Some(time),
        Patch::Null => cron.end_time = None,
        Patch::Absent => {}
    }
    if let (None, Some(what)) = (cron.thread_id, asked.on_run_completed) {
        cron.on_run_completed = Some(what.as_str().to_owned());
    }
    if let Some(enabled) = asked.enabled {
        cron.enabled = enabled;
    }
    cron.schedule.parse::<Schedule>()?;
    zone(cron.timezone.as_deref())?;
    Ok(())
}

fn check_recurrence(schedule: &str, timezone: Option<&str>) -> Result<(), AgentError> {
    schedule.parse::<Schedule>()?;
    zone(timezone)?;
    Ok(())
}

/// The stored request, with the metadata of its runs.
fn payload(mut body: Map<String, Value>, id: CronId, assistant: AssistantId) -> Map<String, Value> {
    body.insert("assistant_id".to_owned(), json!(assistant));
    let config = body.entry("config").or_insert_with(|| json!({}));
    if config.is_null() {
        *config = json!({});
    }
    if let Some(config) = config.as_object_mut() {
        let configurable = config.entry("configurable").or_insert_with(|| json!({}));
        if configurable.is_null() {
            *configurable = json!({});
        }
        if let Some(configurable) = configurable.as_object_mut() {
            configurable.insert("cron_id".to_owned(), json!(id));
        }
    }
    body
}

/// Rejects a cron whose runs could never start.
fn check_run(payload: &Map<String, Value>, thread: Option<ThreadId>) -> Result<(), AgentError> {
    let _: RunRequest = read_value(Value::Object(payload.clone()))?;
    fire_cron::request(payload, thread)?;
    Ok(())
}

fn cron_filter(app: &AgentApp, search: CronSearch) -> Result<rows::Filter, AgentError> {
    let assistant = search
        .assistant_id
        .map(|text| named_assistant(app, &text))
        .transpose()?;
    Ok(rows::Filter {
        assistant_id: assistant,
        thread_id: search.thread_id,
        enabled: search.enabled,
        metadata: search.metadata.unwrap_or_default(),
    })
}
