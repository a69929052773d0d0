//! Threads: conversations whose state outlives their runs.

mod failure;
mod history;
mod lookup;
mod model;
mod select;
mod state;
mod stream;

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use towpath_domain::ThreadId;
use towpath_domain::agent::{ThreadStatus, TtlStrategy};
use towpath_runtime::{StateRef, Update};
use towpath_store::checkpoints;
use towpath_store::threads::{self as rows, Filter, NewThread, SortBy, Ttl};
use towpath_workflows::thread_state::{self, StateUpdate};
use towpath_workflows::{run_agent, thread_history};

use self::lookup::find;
pub(super) use self::model::FIELDS;
use self::model::{Thread, extracted};
use self::state::StateUpdates;
pub(super) use self::state::read as read_state;
use super::answer::{Ascending, Json, Page, Select};
use super::app::AgentApp;
use super::auth::caller;
use super::errors::AgentError;
use super::extract::{Body, Path, Query};
use crate::extract::{objects, optional_objects, whole};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(create))
        .routes(routes!(search))
        .routes(routes!(count))
        .routes(routes!(prune))
        .routes(routes!(get, update, delete))
        .routes(routes!(copy))
        .routes(routes!(storage))
        .merge(state::routes())
        .merge(stream::routes())
}

/// A thread to be made.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct NewThreadBody {
    #[schema(value_type = Option<Uuid>)]
    thread_id: Option<ThreadId>,
    metadata: Option<Map<String, Value>>,
    if_exists: Option<ThreadIfExists>,
    ttl: Option<TtlBody>,
    /// States to begin with: one checkpoint for each.
    #[serde(default, deserialize_with = "optional_objects")]
    supersteps: Option<Vec<Superstep>>,
}

/// What happens when it is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ThreadIfExists {
    /// 409.
    #[default]
    Raise,
    /// The one that is there is answered.
    DoNothing,
}

/// Updates that make one checkpoint together.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct Superstep {
    #[serde(deserialize_with = "objects")]
    updates: Vec<StateUpdates>,
}

/// Minutes, at most 100 years of them.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[schema(exclusive_minimum = 0, maximum = 52_560_000)]
pub(crate) struct Minutes(f64);

/// How long a thread lives.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum TtlBody {
    Minutes(Minutes),
    /// What happens after how long.
    Both {
        ttl: Option<Minutes>,
        #[schema(value_type = Option<TtlChoice>)]
        strategy: Option<TtlStrategy>,
    },
}

impl TtlBody {
    fn admit(self) -> Result<Option<Ttl>, AgentError> {
        let (minutes, strategy) = match self {
            Self::Minutes(minutes) => (Some(minutes), None),
            Self::Both { ttl, strategy } => (ttl, strategy),
        };
        let Some(Minutes(minutes)) = minutes else {
            return Ok(None);
        };
        if !(minutes > 0.0 && minutes <= 52_560_000.0) {
            return Err(AgentError::invalid(
                "ttl: expected minutes greater than 0, at most 52560000",
            ));
        }
        Ok(Some(Ttl {
            strategy: strategy.unwrap_or_default(),
            minutes,
        }))
    }
}

/// What happens when the time of a thread is over.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only part of the API description")]
pub(crate) enum TtlChoice {
    /// It goes.
    Delete,
    /// Its latest checkpoint stays.
    KeepLatest,
}

/// Create a thread.
#[utoipa::path(post, path = "/threads", tag = "threads", request_body = NewThreadBody,
    responses((status = 200, description = "Made, or there already", body = Thread),
              (status = 201, description = "Made, but its supersteps were refused", body = Object),
              (status = 409, description = "There already"), AgentError))]
pub(crate) async fn create(
    State(app): State<AgentApp>,
    Body(body): Body<NewThreadBody>,
) -> Result<Response, AgentError> {
    let ttl = match body.ttl {
        Some(ttl) => ttl.admit()?,
        None => app.settings.thread_ttl,
    };
    let id = body.thread_id.unwrap_or_else(ThreadId::new);
    let metadata = body.metadata.unwrap_or_default();
    let text = Value::Object(metadata.clone()).to_string();
    let new = NewThread {
        id,
        metadata: &text,
        config: "{}",
        status: ThreadStatus::Idle,
        temporary: false,
        ttl,
    };
    let made = app
        .store
        .write(async |tx| rows::insert_new(tx, app.tenant, &new).await)
        .await?;
    let read = app.store.read(async |tx| rows::get(tx, app.tenant, id).await).await;
    let row = match read {
        Ok(row) if made => row,
        Ok(row) if body.if_exists == Some(ThreadIfExists::DoNothing) && caller::sees(&row.metadata) => row,
        Ok(_) => return Err(id_conflict(id)),
        // It is another workspace's, which must look like any other that is taken.
        Err(towpath_store::Error::NotFound) => return Err(id_conflict(id)),
        Err(error) => return Err(error.into()),
    };
    let Some(supersteps) = body.supersteps.filter(|steps| made && !steps.is_empty()) else {
        return Ok(Json(Thread::of(row)?).into_response());
    };
    match fill(&app, id, &metadata, supersteps).await {
        Ok(()) => {
            let row = app.store.read(async |tx| rows::get(tx, app.tenant, id).await).await?;
            Ok(Json(Thread::of(row)?).into_response())
        }
        // The thread is there; what it was to begin with is not.
        Err(error) => {
            let detail = format!("Thread {id} was created, but its supersteps failed: {}", error.detail());
            Ok((StatusCode::CREATED, Json(json!({ "detail": detail }))).into_response())
        }
    }
}

async fn fill(
    app: &AgentApp,
    id: ThreadId,
    metadata: &Map<String, Value>,
    supersteps: Vec<Superstep>,
) -> Result<(), AgentError> {
    let graph = metadata.get("graph_id").and_then(Value::as_str).unwrap_or_default();
    let graph = state::graph(app, Some(graph))?;
    let supersteps: Vec<Vec<Update>> = supersteps
        .into_iter()
        .map(|step| step.updates.into_iter().map(StateUpdates::update).collect())
        .collect::<Result<_, _>>()?;
    let update = StateUpdate {
        thread: id,
        at: StateRef::latest(id.0),
        supersteps: &supersteps,
        metadata: Map::new(),
        events_kept: app.settings.event_retention,
    };
    let done = thread_state::update(&app.store, app.tenant, &graph, &update).await;
    done.map(drop).map_err(state::update_error)
}

fn id_conflict(id: ThreadId) -> AgentError {
    AgentError::conflict(format!("Thread with ID {id} already exists"))
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct ThreadSearch {
    #[schema(value_type = Option<Vec<Uuid>>)]
    ids: Option<Vec<ThreadId>>,
    /// Must be contained in the metadata of the thread.
    metadata: Option<Map<String, Value>>,
    /// Contained in the thread's values.
    values: Option<Map<String, Value>>,
    status: Option<ThreadStatusFilter>,
    /// 1 to 1000; default 10.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
    sort_by: Option<ThreadSortBy>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    sort_order: Ascending,
    select: Option<Vec<String>>,
    /// Alias to a path that begins with values, metadata, config or interrupts: `values.messages[-1].content`.
    extract: Option<Map<String, Value>>,
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ThreadStanding)]
pub(crate) enum ThreadStatusFilter {
    Idle,
    Busy,
    Interrupted,
    Error,
}

/// Sort order of a list.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ThreadSortBy)]
pub(crate) enum ThreadSortBy {
    ThreadId,
    Status,
    CreatedAt,
    UpdatedAt,
    StateUpdatedAt,
}

impl ThreadSearch {
    fn filter(&mut self) -> Filter {
        Filter {
            ids: self.ids.take(),
            metadata: self.metadata.take().map(Value::Object),
            values: self.values.take().map(Value::Object),
            status: self.status.map(|status| match status {
                ThreadStatusFilter::Idle => ThreadStatus::Idle,
                ThreadStatusFilter::Busy => ThreadStatus::Busy,
                ThreadStatusFilter::Interrupted => ThreadStatus::Interrupted,
                ThreadStatusFilter::Error => ThreadStatus::Error,
            }),
        }
    }
}

/// Threads, those that changed last first unless said otherwise.
#[utoipa::path(post, path = "/threads/search", tag = "threads", request_body = ThreadSearch,
    responses((status = 200, description = "A page; `X-Pagination-Next` is the offset of the next page", body = Vec<Thread>),
              AgentError))]
pub(crate) async fn search(
    State(app): State<AgentApp>,
    Body(mut body): Body<ThreadSearch>,
) -> Result<Response, AgentError> {
    let page = Page::of(body.limit, body.offset)?;
    let select = Select::of(body.select.take(), &FIELDS)?;
    let extract = model::Extract::of(body.extract.take())?;
    let wanted = rows::Search {
        filter: body.filter(),
        sort_by: match body.sort_by {
            Some(ThreadSortBy::ThreadId) => SortBy::ThreadId,
            Some(ThreadSortBy::Status) => SortBy::Status,
            Some(ThreadSortBy::CreatedAt) => SortBy::CreatedAt,
            Some(ThreadSortBy::UpdatedAt) | None => SortBy::UpdatedAt,
            Some(ThreadSortBy::StateUpdatedAt) => SortBy::StateUpdatedAt,
        },
        ascending: body.sort_order.0,
        limit: page.fetch(),
        offset: page.offset,
        with_values: select.wants("values") || select.wants("interrupts") || !extract.is_empty(),
    };
    let found = app
        .store
        .read(async |tx| rows::search(tx, app.tenant, &wanted).await)
        .await?;
    let (headers, found) = page.cut(found);
    let mut threads = Vec::with_capacity(found.len());
    for row in found {
        let more = (!extract.is_empty()).then(|| extracted(&row, &extract)).transpose()?;
        let mut thread = select.apply(&Thread::found(&row)?)?;
        if let (Value::Object(fields), Some(more)) = (&mut thread, more) {
            fields.insert("extracted".to_owned(), more);
        }
        threads.push(thread);
    }
    Ok((headers, Json(threads)).into_response())
}

/// Count matching threads.
#[utoipa::path(post, path = "/threads/count", tag = "threads", request_body = ThreadSearch,
    responses((status = 200, description = "Number of matches", body = i64, content_type = "application/json"), AgentError))]
pub(crate) async fn count(
    State(app): State<AgentApp>,
    Body(mut body): Body<ThreadSearch>,
) -> Result<Json<i64>, AgentError> {
    // It counts what a search would find, and refuses what a search would.
    Page::of(body.limit, body.offset)?;
    Select::of(body.select.take(), &FIELDS)?;
    model::Extract::of(body.extract.take())?;
    let filter = body.filter();
    let count = app
        .store
        .read(async |tx| rows::count(tx, app.tenant, &filter).await)
        .await?;
    Ok(Json(count))
}

/// Threads to cut down.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct Prune {
    #[schema(value_type = Vec<Uuid>)]
    thread_ids: Vec<ThreadId>,
    /// `delete`, or `keep_latest` to delete all but the latest checkpoint and the calls of subgraphs it waits for.
    #[schema(value_type = Option<TtlChoice>)]
    strategy: Option<TtlStrategy>,
}

/// Delete threads, or all but their latest state. Those that are not there are passed over.
#[utoipa::path(post, path = "/threads/prune", tag = "threads", request_body = Prune,
    responses((status = 200, description = "`{pruned_count}`", body = Object), AgentError))]
pub(crate) async fn prune(State(app): State<AgentApp>, Body(body): Body<Prune>) -> Result<Json<Value>, AgentError> {
    let (strategy, mut pruned) = (body.strategy.unwrap_or_default(), 0);
    for id in body.thread_ids {
        let done = app
            .store
            .write(async |tx| match strategy {
                TtlStrategy::Delete => run_agent::delete_thread(tx, app.tenant, id).await,
                TtlStrategy::KeepLatest => thread_history::keep_latest(tx, app.tenant, id).await,
            })
            .await;
        match done {
            Ok(()) => pruned += 1,
            Err(towpath_store::Error::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Json(json!({ "pruned_count": pruned })))
}

/// What is answered beside the thread.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetThread {
    /// `ttl`: how long it lives.
    include: Option<String>,
}

/// Get one thread.
#[utoipa::path(get, path = "/threads/{thread_id}", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread"), GetThread),
    responses((status = 200, description = "The thread", body = Thread),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn get(
    State(app): State<AgentApp>,
    Path(id): Path<ThreadId>,
    Query(include): Query<GetThread>,
) -> Result<Json<Thread>, AgentError> {
    let row = find(&app, id).await?;
    let with_ttl = include
        .include
        .is_some_and(|what| what.split(',').any(|part| part.trim() == "ttl"));
    let ttl = with_ttl.then(|| model::ttl(&row));
    let mut thread = Thread::of(row)?;
    thread.ttl = ttl.flatten();
    Ok(Json(thread))
}

/// What is to change about a thread.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct ThreadChange {
    /// Merged key by key.
    metadata: Option<Map<String, Value>>,
    ttl: Option<TtlBody>,
}

/// Change a thread's metadata, or how long it lives. With `Prefer: return=minimal` nothing is answered.
#[utoipa::path(patch, path = "/threads/{thread_id}", tag = "threads", request_body = ThreadChange,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "Updated", body = Thread),
              (status = 204, description = "Updated"),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn update(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(id): Path<ThreadId>,
    Body(change): Body<ThreadChange>,
) -> Result<Response, AgentError> {
    let ttl = change.ttl.map(TtlBody::admit).transpose()?.flatten();
    let more = change.metadata.unwrap_or_default();
    let row = app
        .store
        .write(async |tx| {
            let row = rows::lock(tx, app.tenant, id).await?;
            let mut metadata: Map<String, Value> = serde_json::from_str(&row.metadata)
                .map_err(|_| towpath_store::Error::corrupt("thread", "metadata", id))?;
            metadata.extend(more);
            rows::update(tx, app.tenant, id, &Value::Object(metadata).to_string(), ttl).await
        })
        .await
        .map_err(|error| AgentError::from(error).or_missing(AgentError::no_thread(id)))?;
    let minimal = headers
        .get_all("prefer")
        .iter()
        .any(|value| value.to_str().is_ok_and(|text| text.contains("return=minimal")));
    if minimal {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(Json(Thread::of(row)?).into_response())
}

/// Delete a thread with its runs, crons and checkpoints.
#[utoipa::path(delete, path = "/threads/{thread_id}", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 204, description = "Deleted"), (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn delete(State(app): State<AgentApp>, Path(id): Path<ThreadId>) -> Result<StatusCode, AgentError> {
    app.store
        .write(async |tx| run_agent::delete_thread(tx, app.tenant, id).await)
        .await
        .map_err(|error| AgentError::from(error).or_missing(AgentError::no_thread(id)))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Copy a thread with its state and history, without its runs.
#[utoipa::path(post, path = "/threads/{thread_id}/copy", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "The copy", body = Thread),
              (status = 409, description = "No such thread"), AgentError))]
pub(crate) async fn copy(State(app): State<AgentApp>, Path(id): Path<ThreadId>) -> Result<Json<Thread>, AgentError> {
    let copied = app
        .store
        .write(async |tx| thread_history::copy(tx, app.tenant, id, ThreadId::new()).await)
        .await;
    let missing = AgentError::conflict(format!("Thread with ID {id} not found"));
    let row = copied.map_err(|error| AgentError::from(error).or_missing(missing))?;
    Ok(Json(Thread::of(row)?))
}

/// What the checkpoints of a thread take in the database.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ThreadStorage {
    #[schema(value_type = Uuid)]
    thread_id: ThreadId,
    /// The sum of the three parts.
    total_bytes: i64,
    /// Checkpoints and their metadata.
    checkpoints: StoredRows,
    channel_values: StoredChannels,
    /// What tasks wrote.
    pending_writes: StoredRows,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct StoredRows {
    count: i64,
    bytes: i64,
}

/// Values of channels: a row for each version of one.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct StoredChannels {
    count: i64,
    bytes: i64,
    by_channel: BTreeMap<String, StoredVersions>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct StoredVersions {
    versions: i64,
    bytes: i64,
}

impl From<checkpoints::StoredRows> for StoredRows {
    fn from(rows: checkpoints::StoredRows) -> Self {
        Self {
            count: rows.count,
            bytes: rows.bytes,
        }
    }
}

impl From<BTreeMap<String, checkpoints::StoredRows>> for StoredChannels {
    fn from(channels: BTreeMap<String, checkpoints::StoredRows>) -> Self {
        Self {
            count: channels.values().map(|rows| rows.count).sum(),
            bytes: channels.values().map(|rows| rows.bytes).sum(),
            by_channel: channels
                .into_iter()
                .map(|(channel, rows)| {
                    let versions = StoredVersions {
                        versions: rows.count,
                        bytes: rows.bytes,
                    };
                    (channel, versions)
                })
                .collect(),
        }
    }
}

/// What a thread's checkpoints take.
#[utoipa::path(get, path = "/threads/{thread_id}/storage", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "Rows and bytes of each kind", body = ThreadStorage),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn storage(
    State(app): State<AgentApp>,
    Path(id): Path<ThreadId>,
) -> Result<Json<ThreadStorage>, AgentError> {
    find(&app, id).await?;
    let stored = app.store.read(async |tx| checkpoints::storage(tx, id).await).await?;
    let channel_values = StoredChannels::from(stored.channels);
    Ok(Json(ThreadStorage {
        thread_id: id,
        total_bytes: stored.checkpoints.bytes + channel_values.bytes + stored.pending_writes.bytes,
        checkpoints: stored.checkpoints.into(),
        channel_values,
        pending_writes: stored.pending_writes.into(),
    }))
}
