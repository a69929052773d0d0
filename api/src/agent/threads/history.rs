//! The history of a thread, read and sent part by part: of a long one neither this server nor a graph's process holds more
//! than a part at a time.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::{future, stream};
use http::header::CONTENT_TYPE;
use serde_json::Value;
use towpath_domain::ThreadId;
use towpath_runtime::{Graph, GraphError, HistoryQuery, StateRef, StateSnapshot};
use towpath_store::Store;
use towpath_workflows::thread_state::StateHost;

use super::failure::graph_error;
use super::select::StateSelect;
use crate::agent::answer::{Json, without_nul};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Bytes of stored values in a part. Read, they take several times that.
const PART_BYTES: u64 = 4 << 20;

/// What is left to answer.
pub(super) struct History {
    store: Store,
    graph: Graph,
    at: StateRef,
    query: HistoryQuery,
    select: StateSelect,
    finished: bool,
}

impl History {
    pub(super) fn new(app: &AgentApp, graph: Graph, at: StateRef, query: HistoryQuery, select: StateSelect) -> Self {
        Self {
            store: app.store.clone(),
            graph,
            at,
            query,
            select,
            finished: false,
        }
    }

    /// The states as a JSON list: whole where one part holds them, else as they are read. What fails later breaks the answer
    /// off, since its head is sent by then.
    pub(super) async fn respond(mut self) -> Result<Response, AgentError> {
        let first = self.next().await.map_err(|error| graph_error(&error))?;
        if self.finished {
            if self.select.is_all() {
                return Ok(Json(first).into_response());
            }
            let selected: Result<Vec<_>, _> = first.iter().map(|state| self.selected(state)).collect();
            return Ok(Json(selected?).into_response());
        }
        let first = without_nul(self.listed("[", &first)?);
        let rest = stream::try_unfold(Some(self), |history| async move {
            let Some(mut history) = history else {
                return Ok(None);
            };
            let states = history.next().await.map_err(|error| {
                tracing::warn!(thread.id = %history.at.thread_id, error = %error, "the rest of a history cannot be read");
                graph_error(&error)
            })?;
            let mut part = history.listed(",", &states)?;
            let over = history.finished;
            part.push_str(if over { "]" } else { "" });
            Ok::<_, AgentError>(Some((without_nul(part), (!over).then_some(history))))
        });
        let parts = stream::once(future::ready(Ok::<Bytes, AgentError>(first))).chain(rest);
        Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response())
    }

    async fn next(&mut self) -> Result<Vec<StateSnapshot>, GraphError> {
        let host = StateHost::new(&self.store, ThreadId(self.at.thread_id)).with_part_bytes(PART_BYTES);
        let states = self.graph.history(&self.at, &self.query, &host).await?;
        let last = states.last().and_then(|state| state.checkpoint.checkpoint_id.clone());
        let left = self.query.limit.map(|limit| limit.saturating_sub(states.len()));
        self.finished = !host.is_truncated() || last.is_none() || left == Some(0);
        self.query.limit = left;
        self.query.before = last;
        Ok(states)
    }

    fn selected(&self, state: &StateSnapshot) -> Result<Value, AgentError> {
        let state = serde_json::to_value(state).map_err(|error| AgentError::internal(&error))?;
        Ok(self.select.apply(state))
    }

    /// States as members of a list, `sign` before the first of them; nothing where there are none.
    fn listed(&self, sign: &str, states: &[StateSnapshot]) -> Result<String, AgentError> {
        let mut text = String::new();
        for (nth, state) in states.iter().enumerate() {
            text.push_str(if nth == 0 { sign } else { "," });
            let state = if self.select.is_all() {
                serde_json::to_string(state).map_err(|error| AgentError::internal(&error))?
            } else {
                self.selected(state)?.to_string()
            };
            text.push_str(&state);
        }
        Ok(text)
    }
}
