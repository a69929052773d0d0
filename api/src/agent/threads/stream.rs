//! Whatever happens on a thread, as a stream that ends with the thread.

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;

use super::lookup::find;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::event_streaming::{EventStreamRequest, events};
use crate::agent::extract::{Body, Path, Query};
use crate::agent::live::Reader;
use crate::agent::runs::since;
use crate::agent::sse::{self, StreamKind, StreamOptions, ThreadModes};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes<AgentApp> {
    Routes::default().routes(routes!(stream, stream_events))
}

/// Events of all runs of a thread, and of its state.
#[utoipa::path(get, path = "/threads/{thread_id}/stream", tag = "threads",
    params(("thread_id" = Uuid, Path, description = "The thread"),
           ("stream_modes" = Option<String>, Query, pattern = "^((run_modes|lifecycle|state_update)(,(run_modes|lifecycle|state_update))*)?$", description = "run_modes, lifecycle, state_update; several by commas"),
           ("Last-Event-ID" = Option<String>, Header, pattern = r"^(-|-1|[0-9]{1,15}(-([0-9]{1,15}|\*))?)$", description = "Id of the last received event; - for all stored events")),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = sse::Event),
              (status = 404, description = "No such thread"), AgentError))]
pub(crate) async fn stream(
    State(app): State<AgentApp>,
    headers: HeaderMap,
    Path(thread): Path<ThreadId>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, AgentError> {
    // One client says stream_modes, another stream_mode.
    let asked = query
        .iter()
        .filter(|(name, _)| name == "stream_modes" || name == "stream_mode");
    let modes = modes(asked.map(|(_, value)| value.as_str()))?;
    let since = since(&headers)?;
    find(&app, thread).await?;
    let reader = Reader::of_thread(&app, thread, since).await?;
    let show = StreamOptions {
        modes: None,
        ids: true,
        kind: StreamKind::Thread(modes),
    };
    Ok(sse::respond(&app, reader, show, HeaderMap::new(), None))
}

/// Stream events of a thread, starting with stored ones: the path of the Agent Protocol for
/// `/threads/{thread_id}/stream/events`.
#[utoipa::path(post, path = "/threads/{thread_id}/stream", tag = "threads", request_body = EventStreamRequest,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "Events, each with its number as id", content_type = "text/event-stream",
               body = sse::Event),
              (status = 400, description = "No such channel"), AgentError))]
pub(crate) async fn stream_events(
    app: State<AgentApp>,
    thread: Path<ThreadId>,
    request: Body<Object>,
) -> Result<Response, AgentError> {
    events(app, thread, request).await
}

fn modes<'a>(asked: impl Iterator<Item = &'a str>) -> Result<ThreadModes, AgentError> {
    let mut modes = ThreadModes::default();
    for text in asked {
        let list = serde_json::from_str::<Vec<String>>(text)
            .unwrap_or_else(|_| text.split(',').map(|mode| mode.trim().to_owned()).collect());
        for mode in list.iter().filter(|mode| !mode.is_empty()) {
            match mode.as_str() {
                "run_modes" => modes.runs = true,
                "lifecycle" => modes.lifecycle = true,
                "state_update" => modes.updates = true,
                _ => {
                    return Err(AgentError::invalid(format!(
                        "stream_modes: {mode:?} is not one of run_modes, lifecycle, state_update"
                    )));
                }
            }
        }
    }
    if modes == ThreadModes::default() {
        modes.runs = true;
    }
    Ok(modes)
}
