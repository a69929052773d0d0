//! What a graph says about itself: schemas and a drawing.

use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// JSON schemas of a graph. Absent ones are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schemas {
    /// The graph; absent for subgraphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_id: Option<String>,
    /// What a run takes.
    pub input_schema: Option<Value>,
    /// What a run gives.
    pub output_schema: Option<Value>,
    pub state_schema: Option<Value>,
    /// Keys of `config.configurable`.
    pub config_schema: Option<Value>,
    pub context_schema: Option<Value>,
}

/// How deep a drawing goes into subgraphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xray {
    /// Subgraphs are one node.
    #[default]
    No,
    /// All levels.
    All,
    /// So many levels.
    Levels(u32),
}

impl FromStr for Xray {
    type Err = ParseXray;

    fn from_str(text: &str) -> Result<Self, ParseXray> {
        match text {
            "false" | "False" => Ok(Self::No),
            "true" | "True" => Ok(Self::All),
            number => match number.parse::<u32>() {
                Ok(levels) if levels > 0 => Ok(Self::Levels(levels)),
                _ => Err(ParseXray),
            },
        }
    }
}

/// Not a depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("xray must be true, false or a positive integer")]
pub struct ParseXray;

/// Nodes and edges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drawing {
    /// In order of declaration, start first, end last.
    pub nodes: Vec<DrawnNode>,
    pub edges: Vec<DrawnEdge>,
}

/// A node of a drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawnNode {
    /// Name; in an opened subgraph `parent:name`.
    pub id: String,
    /// What it is; absent for the end.
    pub data: Option<NodeData>,
}

/// What a drawn node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeData {
    /// Something that runs, by its name.
    Runnable(String),
    /// A graph, by its name.
    Graph(String),
}

impl Serialize for DrawnNode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct SerializedNode<'a> {
            id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none", rename = "type")]
            sort: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<Value>,
        }
        // The paths are those of langgraph's own drawings: clients choose icons by them.
        let data = self.data.as_ref().map(|data| match data {
            NodeData::Runnable(name) => {
                serde_json::json!({"id": ["langgraph", "_internal", "_runnable", "RunnableCallable"], "name": name})
            }
            NodeData::Graph(name) => {
                serde_json::json!({"id": ["langgraph", "graph", "state", "CompiledStateGraph"], "name": name})
            }
        });
        SerializedNode {
            id: &self.id,
            sort: data.is_some().then_some("runnable"),
            data,
        }
        .serialize(to)
    }
}

/// An edge of a drawing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrawnEdge {
    pub source: String,
    pub target: String,
    /// Label of the condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Taken or not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub conditional: bool,
}
