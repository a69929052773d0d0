//! Nodes of sandboxes on the page of sandboxes: drain, resume, and removal of lost ones.

use axum::extract::{Path, State};
use axum::response::Response;
use towpath_domain::Timestamp;
use towpath_store::sandboxes::nodes::{self, Node, NodeState};
use towpath_workflows::sandbox_nodes::lost;
use uuid::Uuid;

use super::formatting;
use super::page::{PageError, back};
use crate::app::App;
use crate::errors::ApiError;

pub(super) struct NodeRow {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) state: &'static str,
    pub(super) tone: &'static str,
    /// Why it cannot start sandboxes.
    pub(super) why: String,
    pub(super) boxes: String,
    pub(super) memory: String,
    pub(super) seen: String,
    pub(super) can_drain: bool,
    pub(super) can_resume: bool,
    pub(super) can_remove: bool,
}

impl NodeRow {
    pub(super) fn new(node: Node, now: Timestamp) -> Self {
        let state = node.state();
        Self {
            id: node.id.to_string(),
            state: state.as_str(),
            tone: match state {
                NodeState::Active if node.trouble.is_some() => "bad",
                NodeState::Active => "good",
                NodeState::Draining => "wait",
                NodeState::Lost => "bad",
            },
            boxes: match node.max_boxes {
                0 => node.live_boxes.to_string(),
                most => format!("{} of {most}", node.live_boxes),
            },
            memory: format!(
                "{} of {}",
                formatting::bytes(node.free_memory_bytes),
                formatting::bytes(node.memory_bytes)
            ),
            seen: formatting::relative(node.seen_at, now),
            can_drain: state == NodeState::Active,
            can_resume: state == NodeState::Draining,
            can_remove: state == NodeState::Lost,
            address: node.address.unwrap_or_default(),
            why: node.trouble.unwrap_or_default(),
            name: node.name,
        }
    }
}

/// Drains or resumes a node, or removes a lost one.
pub(super) async fn act(
    State(app): State<App>,
    Path((node, action)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("node"));
    let id: Uuid = node.parse().map_err(|_| missing())?;
    let done = match action.as_str() {
        "drain" => app.store.write(async |tx| nodes::drain(tx, id).await).await?,
        "resume" => app.store.write(async |tx| nodes::resume(tx, id).await).await?,
        "remove" => lost::remove(&app.store, id).await?,
        _ => false,
    };
    if !done {
        return Err(missing());
    }
    tracing::info!(node.id = %id, action, "changed a node of sandboxes from the dashboard");
    Ok(back("/ui/sandboxes"))
}
