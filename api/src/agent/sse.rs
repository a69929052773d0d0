//! Streams as they go over the wire.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use towpath_domain::agent::{EventId, Frame, StreamMode};
use towpath_domain::{RunId, ThreadId};

use super::answer::without_nul;
use super::app::AgentApp;
use super::errors::AgentError;
use super::live::{Reader, StreamItem, cut};
use super::runs::cancel::CancelOnDrop;

const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a stream shows of what it reads.
pub(crate) struct StreamOptions {
    /// Only these modes; all that there is when absent.
    pub modes: Option<Vec<StreamMode>>,
    /// Events carry their ids: whoever reads can resume.
    pub ids: bool,
    /// Which stream it is.
    pub kind: StreamKind,
}

/// Which stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Of one run: it ends with the run.
    Run,
    /// Of a thread: it ends with the thread.
    Thread(ThreadModes),
}

/// What a thread's stream shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadModes {
    /// What its runs stream.
    pub runs: bool,
    /// When runs begin and end.
    pub lifecycle: bool,
    /// Updates of its state from outside.
    pub updates: bool,
}

/// The answer that streams.
pub(crate) fn respond(
    app: &AgentApp,
    reader: Reader,
    show: StreamOptions,
    headers: HeaderMap,
    guard: Option<CancelOnDrop>,
) -> Response {
    let state = SseStream {
        reader: HeartbeatReader::new(app, reader),
        options: show,
        guard,
        ended: false,
        buffered: VecDeque::new(),
    };
    let body = Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    }));
    let mut response = stream_response(body);
    response.headers_mut().extend(headers);
    response
}

/// The head of a stream around its body.
pub(super) fn stream_response(body: Body) -> Response {
    let mut response = body.into_response();
    let own = response.headers_mut();
    own.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    own.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    own.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    own.insert(BUFFERING, HeaderValue::from_static("no"));
    response
}

/// One event of a stream, as its fields stand on the wire.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only part of the API description")]
pub(crate) struct Event {
    /// A mode, perhaps with a namespace after `|`; `metadata`; `error`.
    event: String,
    /// JSON.
    data: String,
    /// Where a reader may come back to, in streams that can be resumed.
    id: Option<String>,
}

/// What becomes due first: something to read, a heartbeat, or the end of this process.
pub(super) struct HeartbeatReader {
    reader: Reader,
    heartbeat: Interval,
    draining: CancellationToken,
}

/// What is due.
pub(super) enum ReaderEvent {
    Item(Result<Option<StreamItem>, AgentError>),
    /// A comment that keeps the connection open.
    Heartbeat(Bytes),
    /// The process drains. The run goes on, and its readers come back to another process.
    Drain,
}

impl HeartbeatReader {
    pub(super) fn new(app: &AgentApp, reader: Reader) -> Self {
        Self {
            reader,
            heartbeat: heartbeat_ticker(app),
            draining: app.draining.clone(),
        }
    }

    pub(super) async fn next(&mut self) -> ReaderEvent {
        tokio::select! {
            biased;
            item = self.reader.next() => ReaderEvent::Item(item),
            _ = self.heartbeat.tick() => ReaderEvent::Heartbeat(Bytes::from_static(b": heartbeat\r\n\r\n")),
            () = self.draining.cancelled() => ReaderEvent::Drain,
        }
    }
}

/// Ticks as often as a connection that waits is to be kept open.
pub(super) fn heartbeat_ticker(app: &AgentApp) -> Interval {
    let every = app.settings.heartbeat;
    let mut beat = interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    beat
}

struct SseStream {
    reader: HeartbeatReader,
    options: StreamOptions,
    guard: Option<CancelOnDrop>,
    ended: bool,
    buffered: VecDeque<Bytes>,
}

impl SseStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.buffered.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            let item = match self.reader.next().await {
                ReaderEvent::Item(item) => item,
                ReaderEvent::Heartbeat(beat) => return Some(beat),
                ReaderEvent::Drain => {
                    // It is not the reader who left.
                    self.disarm();
                    return None;
                }
            };
            match item {
                Ok(Some(item)) => self.show(item),
                Ok(None) => {
                    self.disarm();
                    return None;
                }
                Err(error) => {
                    // The head is sent, so the body says it.
                    self.disarm();
                    self.ended = true;
                    let error = json!({"error": "HTTPException", "message": error.detail()});
                    self.buffered.push_back(event("error", &error.to_string(), None));
                }
            }
        }
    }

    fn disarm(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.disarm();
        }
    }

    fn show(&mut self, item: StreamItem) {
        match item {
            StreamItem::Frame(text) => {
                let Some(frame) = Frame::decode(&text) else { return };
                if self.wants(&frame) {
                    let id = self.options.ids.then_some(frame.id);
                    self.buffered.push_back(event(frame.event, frame.data, id));
                }
            }
            StreamItem::End(run, ..) if matches!(self.options.kind, StreamKind::Thread(_)) => {
                let done = json!({"status": "run_done", "run_id": run});
                self.buffered.push_back(event("metadata", &done.to_string(), None));
            }
            StreamItem::End(..) => {
                self.disarm();
                self.ended = true;
            }
            // The end of the body alone looks like that of a run that did well. Coming back does not help: what is missing
            // here is kept nowhere. The stream of a thread goes on with what comes.
            StreamItem::Cut => {
                let cut = cut("Events were lost on their way to this reader, and are not kept");
                self.buffered.push_back(event("error", &cut, None));
                if self.options.kind == StreamKind::Run {
                    self.disarm();
                    self.ended = true;
                }
            }
        }
    }

    fn wants(&self, frame: &Frame<'_>) -> bool {
        if let StreamKind::Thread(modes) = self.options.kind {
            let lifecycle = frame.event == "metadata";
            return match frame.event {
                "state_update" => modes.updates,
                _ => modes.runs || (modes.lifecycle && lifecycle),
            };
        }
        match (&self.options.modes, StreamMode::of_event(frame.event)) {
            (Some(wanted), Some(mode)) => wanted.contains(&mode),
            // Not of a mode: metadata, errors.
            _ => true,
        }
    }
}

/// One event. Clients split at the blank line; data never holds a line break, because JSON does not.
pub(super) fn event(name: &str, data: &str, id: Option<EventId>) -> Bytes {
    let data = without_nul(Bytes::copy_from_slice(data.as_bytes()));
    let mut text = Vec::with_capacity(name.len() + data.len() + 64);
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\r\ndata: ");
    text.extend_from_slice(&data);
    if let Some(id) = id {
        text.extend_from_slice(b"\r\nid: ");
        text.extend_from_slice(id.to_string().as_bytes());
    }
    text.extend_from_slice(b"\r\n\r\n");
    text.into()
}

/// Where this server is reached: what a proxy took off the path, and what it is mounted at.
pub(crate) fn prefix(app: &AgentApp, headers: &HeaderMap) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    let forwarded = headers
        .get("x-forwarded-prefix")
        .and_then(|value| value.to_str().ok())
        .filter(|text| text.starts_with('/') && text.len() <= 256 && text.bytes().all(plain))
        .unwrap_or_default();
    let mounted = app.settings.mount_prefix.trim_end_matches('/');
    format!("{}{mounted}", forwarded.trim_end_matches('/'))
}

/// `Location` and `Content-Location`, below whatever prefix this server is reached at.
pub(crate) fn locations(base: &str, thread: Option<ThreadId>, run: RunId, then: Option<&str>) -> HeaderMap {
    let place = match thread {
        Some(thread) => format!("{base}/threads/{thread}/runs/{run}"),
        None => format!("{base}/runs/{run}"),
    };
    let mut headers = HeaderMap::new();
    if let Some(then) = then
        && let Ok(value) = HeaderValue::from_str(&format!("{place}/{then}"))
    {
        headers.insert(http::header::LOCATION, value);
    }
    if let Ok(value) = HeaderValue::from_str(&place) {
        headers.insert(http::header::CONTENT_LOCATION, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_framed_as_clients_know_it() {
        let id = EventId { ms: 17, seq: 2 };
        assert_eq!(
            &event("values", r#"{"a":1}"#, Some(id))[..],
            b"event: values\r\ndata: {\"a\":1}\r\nid: 17-2\r\n\r\n"
        );
        assert_eq!(&event("error", "{}", None)[..], b"event: error\r\ndata: {}\r\n\r\n");
    }
}
