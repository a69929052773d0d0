//! Questions of the host and their answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::run::Raised;
use super::value::Json;

/// Answer to a question. `T` is absent or nil if nothing was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer<T> {
    /// What was asked.
    pub value: Option<T>,
    /// Why there is none.
    pub error: Option<Raised>,
}

/// A question about a thread or a graph. Unused fields are omitted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Question {
    /// Key of the graph.
    pub graph: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns: Option<String>,
    /// Checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// STATE_GET: with the state of subgraphs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subgraphs: bool,
    /// STATE_UPDATE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supersteps: Option<Json>,
    /// STATE_UPDATE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
    /// HISTORY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// HISTORY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// HISTORY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Json>,
    /// DRAW.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xray: Option<Depth>,
    /// SUBGRAPHS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// SUBGRAPHS.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recurse: bool,
    /// What a factory is called with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Json>,
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How deep a drawing goes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Depth {
    /// Not at all, or all levels.
    All(bool),
    /// So many levels.
    Levels(u32),
}

/// Who calls?
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Authenticate {
    /// `GET`, …
    pub method: String,
    /// Of the request.
    pub path: String,
    /// Of the request.
    pub query: String,
    /// Of the request.
    pub headers: Vec<(String, String)>,
    /// Of the route.
    pub path_params: BTreeMap<String, String>,
}

/// May they?
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Authorize {
    /// `threads`, …
    pub resource: String,
    /// `create`, …
    pub action: String,
    /// What it is about.
    pub value: Json,
    /// Who.
    pub user: Json,
}

/// What are the vectors of these texts?
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Embed {
    /// One vector each.
    pub texts: Vec<String>,
}

/// They may, or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Authorized {
    /// Whether.
    pub allowed: bool,
    /// Only rows whose metadata have this.
    pub filter: Option<Json>,
    /// What the handlers made of the value.
    pub value: Option<Json>,
}
