//! Tools: each assistant is one.

mod names;

use std::collections::HashMap;

use http::StatusCode;
use serde_json::{Value, json};
use towpath_domain::agent::Object;
use towpath_domain::{AssistantId, Timestamp};
use towpath_runtime::Graph;
use towpath_store::assistants::{self as rows, Assistant};

use self::names::{Tool, assign_names};
use super::failure::Failure;
use super::rpc::{ErrorCode, RpcError};
use super::schema::Arguments;
use crate::agent::app::AgentApp;
use crate::agent::assistants;
use crate::agent::auth;
use crate::agent::extract::read_value;

/// Tools on a page.
const PAGE_SIZE: usize = 100;

/// Assistants that are tools. Those made later have no place: a model that chooses among thousands is helped by none.
const MAX_TOOLS: i64 = 10_000;

/// A page of the tools, the oldest first.
pub(super) async fn list(app: &AgentApp, params: &Object) -> Result<Value, Failure> {
    let all = visible_tools(app).await?;
    let begin = match params.get("cursor") {
        None | Some(Value::Null) => 0,
        Some(cursor) => page_start(&all, cursor)?,
    };
    let page = &all[begin..all.len().min(begin + PAGE_SIZE)];
    let ids: Vec<AssistantId> = page.iter().map(|tool| tool.id).collect();
    let found = app
        .store
        .read(async |tx| rows::get_each(tx, app.tenant, &ids).await)
        .await?;
    let found: HashMap<AssistantId, Assistant> = found.into_iter().map(|row| (row.id, row)).collect();
    let mut described = Vec::with_capacity(page.len());
    for tool in page {
        // One that was deleted meanwhile, or whose graph went, is none.
        let row = found.get(&tool.id);
        let Some((row, graph)) = row.and_then(|row| Some((row, app.graphs.get(&row.graph_id)?))) else {
            continue;
        };
        match auth::authorize_assistant_read(app, tool.id).await {
            Ok(()) => described.push(describe(tool, row, &graph)),
            Err(refusal) if refusal.status().is_client_error() => {}
            Err(failed) => return Err(failed.into()),
        }
    }
    let mut result = json!({"tools": described});
    if begin + page.len() < all.len()
        && let Some(last) = page.last()
    {
        result["nextCursor"] = json!(format!("{}.{}", last.created_at.micros(), last.id));
    }
    Ok(result)
}

/// A tool that is called.
pub(super) struct ResolvedTool {
    pub id: AssistantId,
    pub arguments: Arguments,
}

/// The tool of this name.
pub(super) async fn find(app: &AgentApp, name: &str) -> Result<ResolvedTool, Failure> {
    let unknown = || RpcError::new(ErrorCode::InvalidParams, format!("Unknown tool: {name:.128}"));
    let all = visible_tools(app).await?;
    let tool = all.iter().find(|tool| tool.has_name(name)).ok_or_else(unknown)?;
    if let Err(refusal) = auth::authorize_assistant_read(app, tool.id).await {
        // One that the caller does not see is not there.
        return Err(match refusal.status() {
            StatusCode::NOT_FOUND => unknown().into(),
            _ => refusal.into(),
        });
    }
    let row = match app.assistants.get(tool.id).await {
        Err(towpath_store::Error::NotFound) => return Err(unknown().into()),
        row => row?,
    };
    let graph = app.graphs.get(&row.graph_id).ok_or_else(unknown)?;
    Ok(ResolvedTool {
        id: tool.id,
        arguments: Arguments::from_input_schema(graph.schemas().input_schema),
    })
}

/// The tools that the caller may see, the oldest first.
async fn visible_tools(app: &AgentApp) -> Result<Vec<Tool>, Failure> {
    let (search, _) = auth::authorize_operation(app, ("assistants", "search"), None, Object::new()).await?;
    let field = |name: &str| search.get(name).cloned().unwrap_or_default();
    let (metadata, graph, name) = (field("metadata"), field("graph_id"), field("name"));
    let which = assistants::assistant_filter(app, read_value(metadata)?, read_value(graph)?, read_value(name)?)?;
    let found = app
        .store
        .read(async |tx| rows::names(tx, app.tenant, &which, MAX_TOOLS).await)
        .await?;
    Ok(assign_names(found))
}

/// How many tools stand before those that follow a cursor.
fn page_start(all: &[Tool], cursor: &Value) -> Result<usize, RpcError> {
    let place = cursor.as_str().and_then(|text| {
        let (made, id) = text.split_once('.')?;
        let made = Timestamp::from_micros(made.parse().ok()?);
        Some((made, id.parse::<AssistantId>().ok()?))
    });
    let Some(place) = place else {
        let text = "cursor: expected the nextCursor of an earlier page";
        return Err(RpcError::new(ErrorCode::InvalidParams, text));
    };
    Ok(all.partition_point(|tool| (tool.created_at, tool.id) <= place))
}

fn describe(tool: &Tool, row: &Assistant, graph: &Graph) -> Value {
    let description = row.description.as_deref().filter(|text| !text.is_empty());
    let description = description.map_or_else(|| format!("Runs the assistant {}.", row.name), str::to_owned);
    json!({
        "name": tool.name,
        "title": row.name,
        "description": description,
        "inputSchema": Arguments::from_input_schema(graph.schemas().input_schema).schema,
        // What a graph does, nobody knows who has not read it.
        "annotations": {
            "readOnlyHint": false,
            "destructiveHint": false,
            "idempotentHint": false,
            "openWorldHint": true,
        },
    })
}

#[cfg(test)]
mod tests {
    use towpath_store::assistants::AssistantName;

    use super::*;

    #[test]
    fn a_cursor_stands_behind_its_tool() {
        let named = |made: i64| AssistantName {
            id: AssistantId::random(),
            name: format!("n{made}"),
            created_at: Timestamp::from_micros(made),
        };
        let all = assign_names(vec![named(1), named(2), named(3)]);
        let cursor = json!(format!("2.{}", all[1].id));
        assert_eq!(page_start(&all, &cursor), Ok(2));
        // Also when it is gone.
        assert_eq!(page_start(&all[..1], &cursor), Ok(1));
        for wrong in [json!(1), json!(""), json!("1"), json!("x.y")] {
            assert_eq!(page_start(&all, &wrong).unwrap_err().code, ErrorCode::InvalidParams);
        }
    }
}
