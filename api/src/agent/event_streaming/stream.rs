//! Events of a thread as server-sent events. The request is the subscription.

use std::io;
use std::sync::Arc;

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
use towpath_domain::agent::visibility::matches;
use towpath_store::{self as store, threads};

use super::cursor::Cursor;
use super::event::{Event, Failure, ResumeGap};
use super::filter::{EventFilter, parse_number};
use crate::agent::app::AgentApp;
use crate::agent::auth::caller;
use crate::agent::errors::AgentError;
use crate::agent::extract::{Body as ObjectBody, Path};
use crate::agent::sse;
use crate::metric;

/// Filter of the stream.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "described here, read as a filter")]
pub(crate) struct EventStreamRequest {
    /// values, updates, messages, tools, lifecycle, input, tasks, checkpoints, custom, or `custom:<name>`.
    #[schema(min_items = 1, max_items = 256)]
    channels: Vec<String>,
    /// Namespace prefixes, one `node` or `node:task` for each level; by default all namespaces.
    #[schema(max_items = 256)]
    namespaces: Option<Vec<Vec<String>>>,
    /// Levels below a prefix; by default all.
    #[schema(minimum = 0)]
    depth: Option<i64>,
    /// Number of the last received event; by default all stored events are sent.
    #[schema(minimum = 0)]
    since: Option<i64>,
}

/// Stream events of a thread, starting with stored ones. The thread need not exist yet.
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
    let filter = EventFilter::parse(&request).map_err(AgentError::bad_request)?;
    let since = parse_number("since", request.get("since")).map_err(AgentError::bad_request)?;
    let mut visibility = ThreadVisibility::from_caller();
    // An existing thread is authorized before the response starts.
    visibility.check_open(&app, thread).await?;
    let every = app.settings.heartbeat;
    let mut heartbeat = interval_at(Instant::now() + every, every);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let streaming = EventStream {
        cursor: Cursor::after(&app, thread, since.unwrap_or_default()),
        draining: app.draining.clone(),
        app,
        thread,
        filter,
        visibility,
        heartbeat,
        is_resumed: false,
        is_ended: false,
        _open_stream: OpenStreamGauge::new("sse"),
    };
    let body = Body::from_stream(stream::unfold(streaming, |mut streaming| async move {
        let bytes = streaming.next().await?;
        Some((bytes, streaming))
    }));
    Ok(sse::stream_response(body))
}

struct EventStream {
    app: AgentApp,
    thread: ThreadId,
    cursor: Cursor,
    filter: EventFilter,
    visibility: ThreadVisibility,
    heartbeat: Interval,
    draining: CancellationToken,
    /// Whether it is known which events the reader missed for good.
    is_resumed: bool,
    is_ended: bool,
    _open_stream: OpenStreamGauge,
}

impl EventStream {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while !self.is_ended {
            let event = tokio::select! {
                biased;
                // Break off the connection: clients then reconnect to another process, while a complete body would mean the end.
                () = self.draining.cancelled() => {
                    self.is_ended = true;
                    return Some(Err(io::Error::other("the server is shutting down")));
                }
                event = next_part(&mut self.cursor, &mut self.is_resumed) => event,
                _ = self.heartbeat.tick() => return Some(Ok(Bytes::from_static(b": heartbeat\r\n\r\n"))),
            };
            let frame = match event {
                Ok(StreamPart::Event(event)) if !self.filter.matches(&event) => continue,
                Ok(StreamPart::Event(event)) => event_frame(&event),
                Ok(StreamPart::Gap(gap)) => sse_frame("error", gap.to_json(None).to_string().as_bytes(), None),
                Ok(StreamPart::End) => return None,
                Err(error) => return Some(self.fail(&error)),
            };
            if let Err(error) = self.visibility.check_read(&self.app, self.thread).await {
                return Some(self.fail(&error));
            }
            return Some(Ok(frame));
        }
        None
    }

    fn fail(&mut self, error: &AgentError) -> io::Result<Bytes> {
        self.is_ended = true;
        error_frame(error)
    }
}

/// What a stream sends next.
enum StreamPart {
    /// Events are missing; the stream continues with those that are stored.
    Gap(ResumeGap),
    Event(Arc<Event>),
    /// The thread was deleted.
    End,
}

/// The next part of a stream. Cancel safe.
async fn next_part(cursor: &mut Cursor, is_resumed: &mut bool) -> Result<StreamPart, AgentError> {
    if !*is_resumed {
        let gap = cursor.resume_gap().await?;
        *is_resumed = true;
        if let Some(gap) = gap {
            return Ok(StreamPart::Gap(gap));
        }
    }
    Ok(cursor.next().await?.map_or(StreamPart::End, StreamPart::Event))
}

/// Last event of a failed stream, since the head was sent. A transient error breaks off the connection instead, so that the
/// client reconnects.
fn error_frame(error: &AgentError) -> io::Result<Bytes> {
    if error.status() == StatusCode::SERVICE_UNAVAILABLE {
        return Err(io::Error::other("the database is unavailable"));
    }
    let text = Failure::new(None, "unknown_error", error.detail()).to_bytes();
    Ok(sse_frame("error", &text, None))
}

fn event_frame(event: &Event) -> Bytes {
    sse_frame(event.method(), &event.text, Some(event.seq))
}

fn sse_frame(name: &str, data: &[u8], id: Option<i64>) -> Bytes {
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

/// Visibility of a thread that may still be created by another caller.
pub(super) struct ThreadVisibility {
    /// Filter on its metadata; empty if all threads are visible.
    visible: Object,
    /// Whether the thread existed and passed.
    was_visible: bool,
}

impl ThreadVisibility {
    /// For the caller of the current request.
    pub fn from_caller() -> Self {
        let visible = caller::visible();
        Self {
            was_visible: visible.is_empty(),
            visible,
        }
    }

    /// Checks the thread before a stream is opened; it may not exist yet.
    pub async fn check_open(&mut self, app: &AgentApp, thread: ThreadId) -> Result<(), AgentError> {
        self.check_thread(app, thread).await.map(drop)
    }

    /// Checks the thread before an event is sent. Without its row, nothing is sent.
    pub async fn check_read(&mut self, app: &AgentApp, thread: ThreadId) -> Result<(), AgentError> {
        if self.check_thread(app, thread).await? {
            Ok(())
        } else {
            Err(AgentError::no_thread(thread))
        }
    }

    /// Whether the thread exists. A thread that the caller may not read is rejected.
    async fn check_thread(&mut self, app: &AgentApp, thread: ThreadId) -> Result<bool, AgentError> {
        if self.was_visible {
            return Ok(true);
        }
        let tenant = app.tenant;
        match app.store.read(async |tx| threads::get(tx, tenant, thread).await).await {
            Ok(row) => {
                let metadata = serde_json::from_str::<Object>(&row.metadata);
                if !metadata.is_ok_and(|metadata| matches(&self.visible, &metadata)) {
                    return Err(AgentError::no_thread(thread));
                }
                self.was_visible = true;
                Ok(true)
            }
            Err(store::Error::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Counts an open stream.
pub(super) struct OpenStreamGauge(metrics::Gauge);

impl OpenStreamGauge {
    pub fn new(transport: &'static str) -> Self {
        let gauge = metrics::gauge!(metric::EVENT_STREAMS, "transport" => transport);
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for OpenStreamGauge {
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
        assert!(error_frame(&AgentError::unavailable("Service Unavailable", Duration::from_secs(2))).is_err());
        let told = error_frame(&AgentError::not_found()).unwrap();
        assert!(told.starts_with(b"event: error\r\n"), "{told:?}");
    }
}
