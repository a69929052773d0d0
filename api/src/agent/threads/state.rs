//! The state of a thread, its history, and updates from outside.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use towpath_domain::ThreadId;
use towpath_domain::agent::merge::drop_reserved_metadata;
use towpath_runtime::{Command, Graph, HistoryQuery, StateRef, StateSnapshot, Update};
use towpath_store::query::check_filter;
use towpath_workflows::thread_state::{self, StateHost, StateUpdate, UpdateError};
use uuid::Uuid;

use super::failure::graph_error;
use super::history::History;
use super::lookup::find;
use super::select::StateSelect;
use crate::agent::answer::{Json, Time};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body, Pairs, Path, Query, number, one_or_list, read_value, yes};
use crate::extract::{object, optional_object, whole};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(get, update))
        .routes(routes!(get_at))
        .routes(routes!(get_checkpoint))
        .routes(routes!(history, search_history))
}

/// The graph of this name.
pub(super) fn graph(app: &AgentApp, name: Option<&str>) -> Result<Graph, AgentError> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(AgentError::bad_request(
            "The thread has no graph yet: run it once, or create it with metadata.graph_id.",
        ));
    };
    app.graphs
        .get(name)
        .ok_or_else(|| AgentError::missing(format!("Graph '{name}' not found")))
}

/// A refusal of the graph, or of the database.
pub(super) fn update_error(error: UpdateError) -> AgentError {
    match error {
        UpdateError::Graph(error) => graph_error(&error),
        UpdateError::Store(error) => error.into(),
    }
}

/// What of a state is returned.
#[derive(Debug, Default, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetState {
    /// Whether states of subgraphs are part of their tasks.
    #[param(value_type = Option<String>)]
    subgraphs: bool,
    /// Only these fields; `values.KEY` for a single value.
    #[param(value_type = Option<Vec<String>>)]
    select: StateSelect,
}

impl GetState {
    fn of(query: Pairs) -> Result<Self, AgentError> {
        let (mut subgraphs, mut select) = (false, Vec::new());
        for (name, value) in query {
            match name.as_str() {
                "subgraphs" => subgraphs = yes(&value),
                "select" => select.extend(one_or_list(&value)),
                _ => {}
            }
        }
        Ok(Self {
            subgraphs,
            select: StateSelect::of(Some(select))?,
        })
    }
}

/// The state of a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/state", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread"), GetState),
    responses((status = 200, description = "The state", body = Object),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn get(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Query(query): Query<Pairs>,
) -> Result<Json<Value>, AgentError> {
    let GetState { subgraphs, select } = GetState::of(query)?;
    let Json(state) = read(&app, StateRef::latest(thread.0), thread, subgraphs).await?;
    Ok(Json(select.apply(state)))
}

/// The state of a thread at a checkpoint.
#[utoipa::path(get, path = "/threads/{thread_id}/state/{checkpoint_id}", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread"),
           ("checkpoint_id" = Uuid, Path, description = "The checkpoint"), GetState),
    responses((status = 200, description = "The state", body = Object),
              (status = 404, description = "No such thread or checkpoint"), AgentError))]
pub(crate) async fn get_at(
    State(app): State<AgentApp>,
    Path((thread, checkpoint)): Path<(ThreadId, Uuid)>,
    Query(query): Query<Pairs>,
) -> Result<Json<Value>, AgentError> {
    let GetState { subgraphs, select } = GetState::of(query)?;
    let at = StateRef {
        id: Some(checkpoint.to_string()),
        ..StateRef::latest(thread.0)
    };
    let Json(state) = read(&app, at, thread, subgraphs).await?;
    Ok(Json(select.apply(state)))
}

/// A checkpoint, as clients name it.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct CheckpointName {
    /// Of the graph itself when empty; `node:task` of a subgraph.
    checkpoint_ns: Option<String>,
    /// The latest unless said.
    checkpoint_id: Option<String>,
    /// Namespace to checkpoint id.
    checkpoint_map: Option<Map<String, Value>>,
}

impl CheckpointName {
    fn at(self, thread: ThreadId) -> StateRef {
        let ns = self.checkpoint_ns.unwrap_or_default();
        let mapped = self.checkpoint_map.as_ref().and_then(|map| map.get(&ns));
        let mapped = mapped.and_then(Value::as_str).map(str::to_owned);
        StateRef {
            thread_id: thread.0,
            ns,
            id: self.checkpoint_id.filter(|id| !id.is_empty()).or(mapped),
        }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct StateAt {
    #[serde(deserialize_with = "object")]
    checkpoint: CheckpointName,
    subgraphs: Option<bool>,
    /// Only these fields; `values.KEY` for a single value.
    #[schema(max_items = 1000)]
    select: Option<Vec<String>>,
}

/// The state of a thread, or of a subgraph of it, at a checkpoint.
#[utoipa::path(post, path = "/threads/{thread_id}/state/checkpoint", tag = "threads", request_body = StateAt,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "The state", body = Object),
              (status = 404, description = "No such thread or checkpoint"), AgentError))]
pub(crate) async fn get_checkpoint(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Body(body): Body<StateAt>,
) -> Result<Json<Value>, AgentError> {
    let select = StateSelect::of(body.select)?;
    let at = body.checkpoint.at(thread);
    let Json(state) = read(&app, at, thread, body.subgraphs.unwrap_or_default()).await?;
    Ok(Json(select.apply(state)))
}

pub(in crate::agent) async fn read(
    app: &AgentApp,
    at: StateRef,
    thread: ThreadId,
    subgraphs: bool,
) -> Result<Json<Value>, AgentError> {
    let row = find(app, thread).await?;
    let Some(name) = thread_state::graph_of(&row) else {
        return Ok(Json(empty(thread, &Time(row.created_at))));
    };
    let graph = graph(app, Some(&name))?;
    let host = StateHost::new(&app.store, thread);
    let state = if subgraphs {
        graph.state_with_subgraphs(&at, &host).await
    } else {
        graph.state(&at, &host).await
    };
    let state = state.map_err(|error| {
        // As langgraph says it; the name may be without the ids of its tasks.
        let nowhere = error.message.starts_with("Subgraph ") && error.message.ends_with(" not found");
        if nowhere {
            AgentError::missing(error.message)
        } else {
            graph_error(&error)
        }
    })?;
    match (state, at.id) {
        (Some(state), _) => serde_json::to_value(state)
            .map(Json)
            .map_err(|error| AgentError::internal(&error)),
        (None, None) => Ok(Json(empty(thread, &Time(row.created_at)))),
        (None, Some(id)) => Err(AgentError::missing(format!("Checkpoint {id} not found"))),
    }
}

/// Of a thread that nothing ran on.
fn empty(thread: ThreadId, created_at: &Time) -> Value {
    json!({
        "values": {}, "next": [], "tasks": [], "metadata": null, "created_at": created_at,
        "checkpoint": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": null}, "parent_checkpoint": null,
        "interrupts": [], "checkpoint_id": null, "parent_checkpoint_id": null,
    })
}

#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct StateUpdates {
    /// As a node would write them.
    #[serde(default)]
    values: Option<Value>,
    /// In place of values.
    command: Option<Map<String, Value>>,
    /// The node it counts as; the last that ran unless said.
    as_node: Option<String>,
}

impl StateUpdates {
    pub(super) fn update(self) -> Result<Update, AgentError> {
        let command: Option<Command> = self
            .command
            .map(|command| read_value(Value::Object(command)))
            .transpose()?;
        Ok(Update {
            values: self.values.unwrap_or_default(),
            as_node: self.as_node,
            command,
        })
    }
}

/// An update of the state, and where it starts.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct StateChange {
    #[serde(flatten)]
    #[schema(inline)]
    update: StateUpdates,
    checkpoint: Option<CheckpointName>,
    /// Older form of `checkpoint`.
    checkpoint_id: Option<String>,
}

/// Update the state of a thread that no run is at work on.
#[utoipa::path(post, path = "/threads/{thread_id}/state", tag = "threads", request_body = StateChange,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "The checkpoint that was made", body = Object),
              (status = 404, description = "No such thread"),
              (status = 409, description = "A run is at work on the thread"), AgentError))]
pub(crate) async fn update(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Body(change): Body<StateChange>,
) -> Result<Json<Value>, AgentError> {
    let row = find(&app, thread).await?;
    let mut metadata: Map<String, Value> =
        serde_json::from_str(&row.metadata).map_err(|error| AgentError::internal(&error))?;
    // A checkpoint that bears the id of a run goes when that run is taken back. The assistant is the server's own entry.
    let assistant = metadata.remove_entry("assistant_id");
    drop_reserved_metadata(&mut metadata);
    metadata.extend(assistant);
    let graph = graph(&app, thread_state::graph_of(&row).as_deref())?;
    let mut at = change.checkpoint.unwrap_or_default().at(thread);
    at.id = at.id.or(change.checkpoint_id.filter(|id| !id.is_empty()));
    let supersteps = [vec![change.update.update()?]];
    let update = StateUpdate {
        thread,
        at,
        supersteps: &supersteps,
        metadata,
        events_kept: app.settings.event_retention,
    };
    let made = thread_state::update(&app.store, app.tenant, &graph, &update)
        .await
        .map_err(|error| update_error(error).or_missing(AgentError::no_thread(thread)))?;
    let place = json!({
        "thread_id": thread, "checkpoint_ns": made.checkpoint_ns, "checkpoint_id": made.checkpoint_id,
    });
    Ok(Json(json!({
        "checkpoint": place, "configurable": place, "checkpoint_id": made.checkpoint_id,
    })))
}

/// How much history.
#[derive(Debug, Default, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetHistory {
    /// Default 10.
    #[param(minimum = 1)]
    limit: Option<i64>,
    /// Only what came before this checkpoint.
    before: Option<String>,
    /// Only these fields; `values.KEY` for a single value.
    #[param(value_type = Option<Vec<String>>)]
    select: StateSelect,
}

impl GetHistory {
    fn of(query: Pairs) -> Result<Self, AgentError> {
        let (mut limit, mut before, mut select) = (None, None, Vec::new());
        for (name, value) in query {
            match name.as_str() {
                "limit" => limit = Some(number("limit", &value)?),
                "before" => before = Some(value),
                "select" => select.extend(one_or_list(&value)),
                _ => {}
            }
        }
        Ok(Self {
            limit,
            before,
            select: StateSelect::of(Some(select))?,
        })
    }
}

/// States of a thread, newest first.
#[utoipa::path(get, path = "/threads/{thread_id}/history", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread"), GetHistory),
    responses((status = 200, description = "States", body = Vec<Object>),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn history(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Query(query): Query<Pairs>,
) -> Result<Response, AgentError> {
    let past = GetHistory::of(query)?;
    let limit = past.limit.unwrap_or(10);
    if limit < 1 {
        return Err(AgentError::invalid("limit: expected 1 or more"));
    }
    let query = HistoryQuery {
        limit: usize::try_from(limit).ok(),
        before: past.before.filter(|before| !before.is_empty()),
        filter: Map::new(),
    };
    history_response(&app, thread, StateRef::latest(thread.0), query, past.select).await
}

/// Which states.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct HistorySearch {
    /// 1 to 1000; default 1.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "whole")]
    limit: Option<i64>,
    /// A checkpoint, or its id.
    before: Option<Before>,
    /// Must be contained in the metadata of the checkpoint.
    metadata: Option<Map<String, Value>>,
    /// Whose: a subgraph's, by its namespace.
    #[serde(default, deserialize_with = "optional_object")]
    checkpoint: Option<CheckpointName>,
    /// Only these fields; `values.KEY` for a single value.
    #[schema(max_items = 1000)]
    select: Option<Vec<String>>,
}

/// A checkpoint, or its id.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum Before {
    Id(String),
    /// `{configurable: {checkpoint_id}}`. Before the next form, which fits every object.
    Config {
        configurable: CheckpointName,
    },
    Named(CheckpointName),
}

impl Before {
    fn id(self) -> Option<String> {
        match self {
            Self::Id(id) => Some(id),
            Self::Named(name) | Self::Config { configurable: name } => name.checkpoint_id,
        }
        .filter(|id| !id.is_empty())
    }
}

/// States of a thread, or of a subgraph of it, newest first.
#[utoipa::path(post, path = "/threads/{thread_id}/history", tag = "threads", request_body = HistorySearch,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "States", body = Vec<Object>),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn search_history(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    Body(search): Body<HistorySearch>,
) -> Result<Response, AgentError> {
    let limit = search.limit.unwrap_or(1);
    if !(1..=1000).contains(&limit) {
        return Err(AgentError::invalid("limit: expected 1 to 1000"));
    }
    let select = StateSelect::of(search.select)?;
    let at = search.checkpoint.unwrap_or_default().at(thread);
    let filter = search.metadata.unwrap_or_default();
    check_filter("metadata", &Value::Object(filter.clone()))?;
    let query = HistoryQuery {
        limit: usize::try_from(limit).ok(),
        before: search.before.and_then(Before::id),
        filter,
    };
    history_response(&app, thread, at, query, select).await
}

async fn history_response(
    app: &AgentApp,
    thread: ThreadId,
    at: StateRef,
    query: HistoryQuery,
    select: StateSelect,
) -> Result<Response, AgentError> {
    let row = find(app, thread).await?;
    let Some(name) = thread_state::graph_of(&row) else {
        return Ok(Json(Vec::<StateSnapshot>::new()).into_response());
    };
    let graph = graph(app, Some(&name))?;
    History::new(app, graph, at, query, select).respond().await
}
