//! Agents: assistants under the names of the Agent Protocol.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use towpath_domain::AssistantId;
use towpath_runtime::Graph;
use towpath_store::assistants::{self as rows, Order};

use crate::agent::answer::{Json, Page, raw};
use crate::agent::app::AgentApp;
use crate::agent::assistants::{AssistantPath, assistant_filter, find, graph_of};
use crate::agent::errors::AgentError;
use crate::agent::extract::Body;
use crate::extract::whole;

/// An assistant, as an agent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Agent {
    #[schema(value_type = Uuid)]
    agent_id: AssistantId,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    capabilities: Capabilities,
}

/// What an agent supports.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Capabilities {
    /// Its input has `messages`.
    #[serde(rename = "ap.io.messages")]
    messages: bool,
    #[serde(rename = "ap.io.streaming")]
    streaming: bool,
}

/// Schemas of an agent. Those that its graph does not state allow everything.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct AgentSchema {
    #[schema(value_type = Uuid)]
    agent_id: AssistantId,
    #[schema(value_type = Object)]
    input_schema: Value,
    #[schema(value_type = Object)]
    output_schema: Value,
    #[schema(value_type = Object)]
    state_schema: Value,
    #[schema(value_type = Object)]
    config_schema: Value,
}

/// Filters and page of the list.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub(crate) struct AgentSearch {
    /// Part of the name, in any case.
    name: Option<String>,
    /// Must be contained in the metadata of the agent.
    metadata: Option<Map<String, Value>>,
    /// 1 to 1000; default 10.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 0)]
    offset: Option<i64>,
}

/// List agents, newest first.
#[utoipa::path(post, path = "/agents/search", tag = "agents", request_body = AgentSearch,
    responses((status = 200, description = "A page; `X-Pagination-Next` is the offset of the next page", body = Vec<Agent>),
              AgentError))]
pub(crate) async fn search(
    State(app): State<AgentApp>,
    Body(search): Body<AgentSearch>,
) -> Result<Response, AgentError> {
    let page = Page::of(search.limit, search.offset)?;
    let which = assistant_filter(&app, search.metadata, None, search.name)?;
    let found = app
        .store
        .read(async |tx| rows::search(tx, app.tenant, &which, Order::Created, false, page.fetch(), page.offset).await)
        .await?;
    let (headers, found) = page.cut(found);
    // A graph draws up its schemas each time it is asked.
    let mut takes: HashMap<String, bool> = HashMap::new();
    let agents: Result<Vec<Agent>, AgentError> = found
        .into_iter()
        .map(|row| {
            let known = takes.get(&row.graph_id).copied();
            let messages = known.unwrap_or_else(|| {
                app.graphs
                    .get(&row.graph_id)
                    .is_some_and(|graph| takes_messages(&graph))
            });
            takes.insert(row.graph_id.clone(), messages);
            agent(row, messages)
        })
        .collect();
    Ok((headers, Json(agents?)).into_response())
}

/// Get one agent.
#[utoipa::path(get, path = "/agents/{agent_id}", tag = "agents",
    params(("agent_id" = String, Path, description = "The agent, or the name of a graph")),
    responses((status = 200, description = "The agent", body = Agent),
              (status = 404, description = "No such agent"), AgentError))]
pub(crate) async fn get(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
) -> Result<Json<Agent>, AgentError> {
    let row = find(&app, id).await?;
    let messages = takes_messages(&graph_of(&app, &row)?);
    Ok(Json(agent(row, messages)?))
}

/// Get the JSON schemas of an agent.
#[utoipa::path(get, path = "/agents/{agent_id}/schemas", tag = "agents",
    params(("agent_id" = String, Path, description = "The agent, or the name of a graph")),
    responses((status = 200, description = "Schemas", body = AgentSchema),
              (status = 404, description = "No such agent"), AgentError))]
pub(crate) async fn schemas(
    State(app): State<AgentApp>,
    AssistantPath(id): AssistantPath,
) -> Result<Json<AgentSchema>, AgentError> {
    let row = find(&app, id).await?;
    let schemas = graph_of(&app, &row)?.schemas();
    let object = |schema: Option<Value>| schema.filter(Value::is_object).unwrap_or_else(|| json!({}));
    Ok(Json(AgentSchema {
        agent_id: row.id,
        input_schema: object(schemas.input_schema),
        output_schema: object(schemas.output_schema),
        state_schema: object(schemas.state_schema),
        config_schema: object(schemas.config_schema),
    }))
}

fn agent(row: rows::Assistant, messages: bool) -> Result<Agent, AgentError> {
    Ok(Agent {
        agent_id: row.id,
        name: row.name,
        description: row.description,
        metadata: raw(&row.metadata)?,
        capabilities: Capabilities {
            messages,
            streaming: true,
        },
    })
}

fn takes_messages(graph: &Graph) -> bool {
    let input = graph.schemas().input_schema.unwrap_or_default();
    input.pointer("/properties/messages").is_some()
}
