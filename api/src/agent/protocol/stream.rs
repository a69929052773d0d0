//! Events of a thread as a stream of server-sent events. The request is the subscription.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::stream;
use http::StatusCode;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;
use towpath_domain::agent::visibility::passes;
use towpath_store::{self as store, threads};

use super::cursor::Cursor;
use super::event::{Event, Failure};
use super::filter::{Filter, number};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body as ObjectBody, Path};
use crate::agent::{auth, sse};
use crate::metric;

/// Which events of a thread.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "described here, read as a filter")]
pub(crate) struct EventStreamRequest {
    /// values, updates, messages, tools, lifecycle, input, tasks, checkpoints, custom, or `custom:<name>`.
    #[schema(min_items = 1, max_items = 256)]
    channels: Vec<String>,
    /// Prefixes of namespaces, one `node` or `node:task` for each level; every namespace unless said.
    #[schema(max_items = 256)]
    namespaces: Option<Vec<Vec<String>>>,
    /// Levels below a prefix; all of them unless said.
    #[schema(minimum = 0)]
    depth: Option<i64>,
    /// The number of the last event seen: those behind it come. All that are kept unless said.
    #[schema(minimum = 0)]
    since: Option<i64>,
}

/// Stream events of a thread, which need not exist yet. What is kept comes first.
#[utoipa::path(post, path = "/threads/{thread_id}/stream/events", tag = "threads", request_body = EventStreamRequest,
    params(("thread_id" = Uuid, Path, description = "The thread")),
    responses((status = 200, description = "Events, each with its number as id", content_type = "text/event-stream",
               body = sse::Event),
              (status = 400, description = "No such channel"), AgentError))]
pub(crate) async fn events(
    State(app): State<AgentApp>,
    Path(thread): Path<ThreadId>,
    ObjectBody(request): ObjectBody<Object>,
) -> Result<Response, AgentError> {
    let filter = Filter::read(&request).map_err(AgentError::bad_request)?;
    let since = number("since", request.get("since")).map_err(AgentError::bad_request)?;
    let mut visibility = Visibility::of_caller();
    // A thread that is there is judged before anything is answered.
    visibility.may_open(&app, thread).await?;
    let every = app.settings.heartbeat;
    let mut beat = interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let streaming = Streaming {
        cursor: Cursor::after(&app, thread, since.unwrap_or_default()),
        draining: app.draining.clone(),
        app,
        thread,
        filter,
        visibility,
        beat,
        ended: false,
        _counted: Counted::new("sse"),
    };
    let body = Body::from_stream(stream::unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next().await?;
        Some((bytes, streaming))
    }));
    Ok(sse::open(body))
}

/// A stream that is open.
struct Streaming {
    app: AgentApp,
    thread: ThreadId,
    cursor: Cursor,
    filter: Filter,
    visibility: Visibility,
    beat: Interval,
    draining: CancellationToken,
    ended: bool,
    _counted: Counted,
}

impl Streaming {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while !self.ended {
            let event = tokio::select! {
                biased;
                // Readers come back, to another process, and go on behind the number they had. A body that ended would
                // tell them that nothing more comes.
                () = self.draining.cancelled() => {
                    self.ended = true;
                    return Some(Err(io::Error::other("the server is shutting down")));
                }
                event = self.cursor.next() => event,
                _ = self.beat.tick() => return Some(Ok(Bytes::from_static(b": heartbeat\r\n\r\n"))),
            };
            let event = match event {
                Ok(Some(event)) if !self.filter.takes(&event) => continue,
                Ok(event) => event?,
                Err(error) => return Some(self.fail(&error)),
            };
            if let Err(error) = self.visibility.may_read(&self.app, self.thread).await {
                return Some(self.fail(&error));
            }
            return Some(Ok(frame(&event)));
        }
        None
    }

    fn fail(&mut self, error: &AgentError) -> io::Result<Bytes> {
        self.ended = true;
        failure(error)
    }
}

/// What a stream ends with that fails. The head is sent, so the body says it. One that can be read a moment later is broken
/// off, and its reader comes back.
fn failure(error: &AgentError) -> io::Result<Bytes> {
    if error.status() == StatusCode::SERVICE_UNAVAILABLE {
        return Err(io::Error::other("the database does not answer"));
    }
    let text = Failure::new(None, "unknown_error", error.detail()).to_bytes();
    Ok(written("error", &text, None))
}

fn frame(event: &Event) -> Bytes {
    written(event.method(), &event.text, Some(event.seq))
}

fn written(name: &str, data: &[u8], id: Option<i64>) -> Bytes {
    let mut text = BytesMut::with_capacity(name.len() + data.len() + 64);
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\r\ndata: ");
    text.extend_from_slice(data);
    if let Some(id) = id {
        text.extend_from_slice(b"\r\nid: ");
        text.extend_from_slice(id.to_string().as_bytes());
    }
    text.extend_from_slice(b"\r\n\r\n");
    text.freeze()
}

/// Whether a caller may read a thread that may still be made, by somebody else.
pub(super) struct Visibility {
    /// What its metadata must pass; empty where everything may be read.
    visible: Object,
    /// It was there, and passed.
    judged: bool,
}

impl Visibility {
    /// Of the caller of the request at hand.
    pub fn of_caller() -> Self {
        let visible = auth::visible();
        Self {
            judged: visible.is_empty(),
            visible,
        }
    }

    /// Judges the thread before a stream of it is opened; it may still be made.
    pub async fn may_open(&mut self, app: &AgentApp, thread: ThreadId) -> Result<(), AgentError> {
        self.judge(app, thread).await.map(drop)
    }

    /// Judges the thread before an event of it is shown. Without its row nobody can be judged, so nobody is shown anything.
    pub async fn may_read(&mut self, app: &AgentApp, thread: ThreadId) -> Result<(), AgentError> {
        if self.judge(app, thread).await? {
            Ok(())
        } else {
            Err(AgentError::no_thread(thread))
        }
    }

    /// Whether the thread is there. One that the caller may not read is refused.
    async fn judge(&mut self, app: &AgentApp, thread: ThreadId) -> Result<bool, AgentError> {
        if self.judged {
            return Ok(true);
        }
        let tenant = app.tenant;
        match app.store.read(async |tx| threads::get(tx, tenant, thread).await).await {
            Ok(row) => {
                let metadata = serde_json::from_str::<Object>(&row.metadata);
                if !metadata.is_ok_and(|metadata| passes(&self.visible, &metadata)) {
                    return Err(AgentError::no_thread(thread));
                }
                self.judged = true;
                Ok(true)
            }
            Err(store::Error::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Counts a stream as long as it is open.
pub(super) struct Counted(metrics::Gauge);

impl Counted {
    pub fn new(transport: &'static str) -> Self {
        let gauge = metrics::gauge!(metric::EVENT_STREAMS, "transport" => transport);
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stream_that_fails_for_a_moment_is_broken_off() {
        assert!(failure(&AgentError::unavailable("Service Unavailable", Duration::from_secs(2))).is_err());
        let told = failure(&AgentError::not_found()).unwrap();
        assert!(told.starts_with(b"event: error\r\n"), "{told:?}");
    }
}
