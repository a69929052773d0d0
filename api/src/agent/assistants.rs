//! Assistants: graphs with settings, and their versions.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::AssistantId;
use towpath_domain::agent::CancelAction;
use towpath_domain::agent::merge::drop_reserved_configurable;
use towpath_domain::agent::request::check_config;
use towpath_runtime::{Graph, Schemas, Xray};
use towpath_store::assistants::{self as rows, AssistantContent, Filter, Order};
use towpath_workflows::run_agent;
use uuid::Uuid;

use super::answer::{Ascending, Json, Page, Select, Time, raw};
use super::app::AgentApp;
use super::auth::caller;
use super::errors::AgentError;
use super::extract::{Body, Flag, Path, PathValue as _, Query};
use crate::extract::{whole, whole_number};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default()
        .routes(routes!(create))
        .routes(routes!(search))
        .routes(routes!(count))
        .routes(routes!(get, update, delete))
        .routes(routes!(graph))
        .routes(routes!(schemas))
        .routes(routes!(subgraphs))
        .routes(routes!(subgraphs_of))
        .routes(routes!(versions))
        .routes(routes!(latest))
}

/// A graph with its settings.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Assistant {
    #[schema(value_type = Uuid)]
    assistant_id: AssistantId,
    graph_id: String,
    #[schema(value_type = Object)]
    config: Box<RawValue>,
    #[schema(value_type = Object)]
    context: Box<RawValue>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    version: i64,
    name: String,
    description: Option<String>,
}

pub(super) const FIELDS: [&str; 10] = [
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "created_at",
    "updated_at",
    "metadata",
    "version",
];

impl TryFrom<rows::Assistant> for Assistant {
    type Error = AgentError;

    fn try_from(row: rows::Assistant) -> Result<Self, AgentError> {
        Ok(Self {
            assistant_id: row.id,
            graph_id: row.graph_id,
            config: raw(&row.config)?,
            context: raw(&row.context)?,
            created_at: Time(row.created_at),
            updated_at: Time(row.updated_at),
            metadata: raw(&row.metadata)?,
            version: row.version,
            name: row.name,
            description: row.description,
        })
    }
}

/// An assistant to create.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct NewAssistant {
    graph_id: String,
    #[schema(value_type = Option<Uuid>)]
    assistant_id: Option<AssistantId>,
    config: Option<Map<String, Value>>,
    context: Option<Map<String, Value>>,
    metadata: Option<Map<String, Value>>,
    if_exists: Option<IfExists>,
    name: Option<String>,
    description: Option<String>,
}

/// What to do if it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IfExists {
    /// Respond with 409.
    #[default]
    Raise,
    /// Return the existing one.
    DoNothing,
}

/// Changes of an assistant. Absent and null fields stay unchanged.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct AssistantChange {
    graph_id: Option<String>,
    config: Option<Map<String, Value>>,
    context: Option<Map<String, Value>>,
    /// Merged key by key.
    metadata: Option<Map<String, Value>>,
    name: Option<String>,
    description: Option<String>,
}

/// Filters and page of the list.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct AssistantSearch {
    /// Must be contained in the metadata of the assistant.
    metadata: Option<Map<String, Value>>,
    graph_id: Option<String>,
    /// Part of the name, in any case.
    name: Option<String>,
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
#[schema(as = AssistantSortBy)]
pub(crate) enum SortBy {
    AssistantId,
    CreatedAt,
    UpdatedAt,
    Name,
    GraphId,
}

/// Filters and page of versions.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct VersionSearch {
    metadata: Option<Map<String, Value>>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
}

/// The version to make current.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct SetLatestVersion {
    #[serde(deserialize_with = "whole_number")]
    version: i64,
}

/// Create an assistant.
#[utoipa::path(post, path = "/assistants", tag = "assistants", request_body = NewAssistant,
    responses((status = 200, description = "Created, or the existing one", body = Assistant),
              (status = 404, description = "No such graph"), (status = 409, description = "It already exists"), AgentError))]
pub(crate) async fn create(
    State(app): State<AgentApp>,
    Body(new): Body<NewAssistant>,
) -> Result<Json<Assistant>, AgentError> {
    known_graph(&app, &new.graph_id)?;
    let (config, context) = settings(new.config.unwrap_or_default(), new.context.unwrap_or_default())?;
    let content = AssistantContent {
        graph_id: new.graph_id,
        name: new.name.unwrap_or_else(|| "Untitled".to_owned()),
        description: new.description,
        config: text(config),
        context: text(context),
        metadata: text(new.metadata.unwrap_or_default()),
    };
    let id = new.assistant_id.unwrap_or_else(AssistantId::random);
    let tenant = app.tenant;
    let made = app
        .store
        .write(async |tx| match rows::create(tx, tenant, id, &content).await? {
            Some(made) => Ok(Some(made)),
            None if new.if_exists == Some(IfExists::DoNothing) => {
                let there = rows::get(tx, tenant, id).await?;
                Ok(Some(there).filter(|there| caller::sees_assistant(&there.metadata)))
            }
            None => Ok(None),
        })
        .await?;
    let made = made.ok_or_else(|| AgentError::conflict(format!("Assistant {id} already exists")))?;
    Ok(Json(made.try_into()?))
}

/// List assistants, newest first by default.
#[utoipa::path(post, path = "/assistants/search", tag = "assistants", request_body = AssistantSearch,
    responses((status = 200, description = "A page; `X-Pagination-Next` is the offset of the next page", body = Vec<Assistant>),
              (status = 404, description = "No such graph"), AgentError))]
pub(crate) async fn search(
    State(app): State<AgentApp>,
    Body(search): Body<AssistantSearch>,
) -> Result<Response, AgentError> {
    let page = Page::of(search.limit, search.offset)?;
    let select = Select::of(search.select, &FIELDS)?;
    let which = assistant_filter(&app, search.metadata, search.graph_id, search.name)?;
    let order = match search.sort_by {
        Some(SortBy::AssistantId) => Order::Id,
        Some(SortBy::UpdatedAt) => Order::Updated,
        Some(SortBy::Name) => Order::Name,
        Some(SortBy::GraphId) => Order::Graph,
        Some(SortBy::CreatedAt) | None => Order::Created,
    };
    let Ascending(ascending) = search.sort_order;
    let found = app
        .store
        .read(async |tx| rows::search(tx, app.tenant, &which, order, ascending, page.fetch(), page.offset).await)
        .await?;
    let (headers, found) = page.cut(found);
    Ok((headers, Json(select.apply_all::<Assistant, _>(found)?)).into_response())
}

/// Count matching assistants.
#[utoipa::path(post, path = "/assistants/count", tag = "assistants", request_body = AssistantSearch,
    responses((status = 200, description = "Number of matches", body = i64, content_type = "application/json"),
              (status = 404, description = "No such graph"), AgentError))]
pub(crate) async fn count(
    State(app): State<AgentApp>,
    Body(search): Body<AssistantSearch>,
) -> Result<Json<i64>, AgentError> {
    // Rejects what a search would reject.
    Page::of(search.limit, search.offset)?;
    Select::of(search.select, &FIELDS)?;
    let which = assistant_filter(&app, search.metadata, search.graph_id, search.name)?;
    let count = app
        .store
        .read(async |tx| rows::count(tx, app.tenant, &which).await)
        .await?;
    Ok(Json(count))
}

/// Get one assistant.
#[utoipa::path(get, path = "/assistants/{assistant_id}", tag = "assistants",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "The assistant", body = Assistant),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn get(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
) -> Result<Json<Assistant>, AgentError> {
    Ok(Json(find(&app, id).await?.try_into()?))
}

/// Change an assistant. Creates a version.
#[utoipa::path(patch, path = "/assistants/{assistant_id}", tag = "assistants", request_body = AssistantChange,
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "Updated", body = Assistant),
              (status = 404, description = "No such assistant, or no such graph"), AgentError))]
pub(crate) async fn update(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Body(change): Body<AssistantChange>,
) -> Result<Json<Assistant>, AgentError> {
    if let Some(graph) = &change.graph_id {
        known_graph(&app, graph)?;
    }
    let given = |object: Option<Map<String, Value>>| object.filter(|object| !object.is_empty());
    let (config, context) = (given(change.config), given(change.context));
    let settings = if config.is_some() || context.is_some() {
        Some(settings(config.unwrap_or_default(), context.unwrap_or_default())?)
    } else {
        None
    };
    let metadata = change.metadata.unwrap_or_default();
    let updated = app
        .store
        .write(async |tx| {
            rows::update(tx, app.tenant, id, |current| {
                let (config, context) = match settings {
                    Some((config, context)) => (text(config), text(context)),
                    None => (current.config.clone(), current.context.clone()),
                };
                let mut merged: Map<String, Value> = serde_json::from_str(&current.metadata)
                    .map_err(|_| towpath_store::Error::corrupt("assistant", "metadata", id))?;
                merged.extend(metadata);
                Ok(AssistantContent {
                    graph_id: change.graph_id.unwrap_or_else(|| current.graph_id.clone()),
                    name: change.name.unwrap_or_else(|| current.name.clone()),
                    description: change.description.or_else(|| current.description.clone()),
                    config,
                    context,
                    metadata: text(merged),
                })
            })
            .await
        })
        .await?;
    Ok(Json(updated.try_into()?))
}

/// Options of the deletion.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteAssistant {
    /// Also delete the threads that were last used with it.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    delete_threads: Flag,
}

impl DeleteAssistant {
    /// Whether threads go, too.
    pub(super) const fn threads(&self) -> bool {
        self.delete_threads.0
    }
}

/// Delete an assistant with its versions and crons. Its active runs are interrupted.
#[utoipa::path(delete, path = "/assistants/{assistant_id}", tag = "assistants",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph"), DeleteAssistant),
    responses((status = 204, description = "Deleted"), (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn delete(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Query(how): Query<DeleteAssistant>,
) -> Result<StatusCode, AgentError> {
    app.store
        .write(async |tx| {
            rows::get(tx, app.tenant, id).await?;
            let doomed = if how.threads() {
                caller::deletable(run_agent::threads_of(tx, app.tenant, id).await?)
            } else {
                Vec::new()
            };
            let open = run_agent::lock_threads(tx, app.tenant, id, &doomed).await?;
            run_agent::cancel(tx, app.tenant, &open, CancelAction::Interrupt).await?;
            for thread in doomed {
                match run_agent::delete_thread(tx, app.tenant, thread).await {
                    // A temporary thread was deleted with its run.
                    Ok(()) | Err(towpath_store::Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            // Its crons are deleted too; their jobs end when they find no cron.
            rows::delete(tx, app.tenant, id).await
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a graph is drawn.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetGraph {
    /// Include subgraphs: true, false, or the depth.
    #[param(pattern = "^([Tt]rue|[Ff]alse|[1-9][0-9]{0,8})$")]
    xray: Option<String>,
}

/// Get the graph as nodes and edges.
#[utoipa::path(get, path = "/assistants/{assistant_id}/graph", tag = "assistants",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph"), GetGraph),
    responses((status = 200, description = "Nodes and edges", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn graph(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Query(drawn): Query<GetGraph>,
) -> Result<Response, AgentError> {
    let xray = drawn.xray.map_or(Ok(Xray::No), |text| {
        text.to_ascii_lowercase()
            .parse::<Xray>()
            .map_err(|_| AgentError::invalid("Invalid xray value: expected true, false, or a positive integer"))
    })?;
    let row = find(&app, id).await?;
    let drawing = graph_of(&app, &row)?
        .drawing(xray)
        .await
        .map_err(|error| AgentError::invalid(error.message))?;
    Ok(Json(drawing).into_response())
}

/// Get the JSON schemas of the graph.
#[utoipa::path(get, path = "/assistants/{assistant_id}/schemas", tag = "assistants",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "Schemas", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn schemas(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
) -> Result<Json<Schemas>, AgentError> {
    let row = find(&app, id).await?;
    Ok(Json(graph_of(&app, &row)?.schemas()))
}

/// Options of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListSubgraphs {
    /// Include subgraphs of subgraphs.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    recurse: Flag,
}

/// Get the JSON schemas of the graph's subgraphs, by namespace.
#[utoipa::path(get, path = "/assistants/{assistant_id}/subgraphs", tag = "assistants",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph"), ListSubgraphs),
    responses((status = 200, description = "Schemas by namespace", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn subgraphs(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Query(depth): Query<ListSubgraphs>,
) -> Result<Json<BTreeMap<String, Schemas>>, AgentError> {
    let row = find(&app, id).await?;
    let found = graph_of(&app, &row)?.subgraphs(None, depth.recurse.0).await;
    Ok(Json(found.map_err(|error| AgentError::invalid(error.message))?))
}

/// Get the JSON schemas of the subgraphs at and below a namespace.
#[utoipa::path(get, path = "/assistants/{assistant_id}/subgraphs/{namespace}", tag = "assistants",
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph"),
           ("namespace" = String, Path, description = "Names of nodes, joined by |"), ListSubgraphs),
    responses((status = 200, description = "Schemas by namespace", body = Object),
              (status = 404, description = "No such assistant"), AgentError))]
pub(crate) async fn subgraphs_of(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Path((_assistant, namespace)): Path<(String, String)>,
    Query(depth): Query<ListSubgraphs>,
) -> Result<Json<BTreeMap<String, Schemas>>, AgentError> {
    let row = find(&app, id).await?;
    let found = graph_of(&app, &row)?.subgraphs(Some(&namespace), depth.recurse.0).await;
    Ok(Json(found.map_err(|error| AgentError::invalid(error.message))?))
}

/// List the versions of an assistant, newest first.
#[utoipa::path(post, path = "/assistants/{assistant_id}/versions", tag = "assistants", request_body = VersionSearch,
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "The assistant in each version", body = Vec<Assistant>),
              (status = 404, description = "No such assistant, or no version matches"), AgentError))]
pub(crate) async fn versions(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Body(search): Body<VersionSearch>,
) -> Result<Json<Vec<Assistant>>, AgentError> {
    let page = Page::of(search.limit, search.offset)?;
    let metadata = search.metadata.unwrap_or_default();
    let found = app
        .store
        .read(async |tx| rows::versions(tx, app.tenant, id, &metadata, page.limit, page.offset).await)
        .await?;
    if found.is_empty() {
        return Err(AgentError::not_found());
    }
    Ok(Json(
        found.into_iter().map(Assistant::try_from).collect::<Result<_, _>>()?,
    ))
}

/// Make a version current.
#[utoipa::path(post, path = "/assistants/{assistant_id}/latest", tag = "assistants", request_body = SetLatestVersion,
    params(("assistant_id" = String, Path, description = "The assistant, or the name of a graph")),
    responses((status = 200, description = "Updated", body = Assistant),
              (status = 404, description = "No such assistant, or no such version"), AgentError))]
pub(crate) async fn latest(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
    Body(latest): Body<SetLatestVersion>,
) -> Result<Json<Assistant>, AgentError> {
    let row = app
        .store
        .write(async |tx| rows::set_latest(tx, app.tenant, id, latest.version).await)
        .await?;
    Ok(Json(row.try_into()?))
}

/// The assistant in the path, by its id or by the name of a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssistantPath(pub(super) AssistantId);

impl FromRequestParts<AgentApp> for AssistantPath {
    type Rejection = AgentError;

    async fn from_request_parts(parts: &mut Parts, app: &AgentApp) -> Result<Self, AgentError> {
        let Path(name) = Path::<String>::from_request_parts(parts, app).await?;
        resolve_assistant(app, &name).map(Self)
    }
}

/// The assistant with this id, or the default assistant of the graph with this name.
pub(super) fn resolve_assistant(app: &AgentApp, name: &str) -> Result<AssistantId, AgentError> {
    if name.parse::<Uuid>().is_err() && app.graphs.contains(name) {
        Ok(AssistantId::of_graph(name))
    } else {
        AssistantId::read(name)
    }
}

/// The assistant that a body names: by its id, or by the name of a graph.
pub(super) fn named_assistant(app: &AgentApp, text: &str) -> Result<AssistantId, AgentError> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    if app.graphs.contains(text) {
        return Ok(AssistantId::of_graph(text));
    }
    let graphs = app.graphs.current();
    let known: Vec<&str> = graphs.ids().collect();
    Err(AgentError::invalid(format!(
        "Invalid assistant: '{text}'. Must be either: - A valid assistant UUID, or - One of the registered graphs: {}",
        known.join(", ")
    )))
}

pub(super) async fn find(app: &AgentApp, id: AssistantId) -> Result<rows::Assistant, AgentError> {
    Ok(app.store.read(async |tx| rows::get(tx, app.tenant, id).await).await?)
}

/// The graph of an assistant. A graph that is no longer configured counts as missing.
pub(super) fn graph_of(app: &AgentApp, row: &rows::Assistant) -> Result<Graph, AgentError> {
    app.graphs
        .get(&row.graph_id)
        .ok_or_else(|| no_graph(app, &row.graph_id))
}

fn known_graph(app: &AgentApp, graph: &str) -> Result<(), AgentError> {
    if app.graphs.contains(graph) {
        Ok(())
    } else {
        Err(no_graph(app, graph))
    }
}

fn no_graph(app: &AgentApp, graph: &str) -> AgentError {
    let graphs = app.graphs.current();
    let known: Vec<&str> = graphs.ids().collect();
    AgentError::missing(format!(
        "Graph '{graph}' not found. Expected one of: {}",
        known.join(", ")
    ))
}

/// Only assistants of graphs that this server has: the database may be shared.
pub(super) fn assistant_filter(
    app: &AgentApp,
    metadata: Option<Map<String, Value>>,
    graph_id: Option<String>,
    name: Option<String>,
) -> Result<Filter, AgentError> {
    if let Some(graph) = &graph_id {
        known_graph(app, graph)?;
    }
    Ok(Filter {
        graph_id,
        graphs: app.graphs.current().ids().map(str::to_owned).collect(),
        name: name.filter(|name| !name.is_empty()),
        metadata: metadata.unwrap_or_default(),
    })
}

type Config = Map<String, Value>;
type Context = Map<String, Value>;

/// Checks the settings of an assistant. Context and `configurable` mirror each other for graphs written for either; setting
/// both would be ambiguous.
fn settings(mut config: Config, mut context: Context) -> Result<(Config, Context), AgentError> {
    check_config(&mut config)?;
    if let Some(Value::Object(configurable)) = config.get_mut("configurable") {
        drop_reserved_configurable(configurable);
    }
    drop_reserved_configurable(&mut context);
    let configurable = match config.get("configurable") {
        Some(Value::Object(configurable)) => configurable.clone(),
        _ => Map::new(),
    };
    match (configurable.is_empty(), context.is_empty()) {
        (false, false) if configurable != context => {
            return Err(AgentError::bad_request(
                "Cannot specify both configurable and context. Prefer setting context alone.",
            ));
        }
        (false, true) => context = configurable,
        (true, false) => {
            config.insert("configurable".to_owned(), Value::Object(context.clone()));
        }
        _ => {}
    }
    Ok((config, context))
}

fn text(object: Map<String, Value>) -> String {
    Value::Object(object).to_string()
}
