//! HTTP/2 on one connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Uri, Version, header};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::unread_body::{self, BODY_TIMEOUT};
use super::write_timeout::{WRITE_TIMEOUT, WriteTimeout};
use crate::client::Proxies;

/// Requests of one connection that are open at once.
const STREAMS: u32 = 100;
/// The most bytes the header list of a request may have; more is 431.
const HEAD_BYTES: u32 = 128 * 1024;
/// What one stream keeps that its client has not taken yet.
const SEND_BYTES: usize = 64 * 1024;
/// A client that is silent for so long is asked whether it is still there …
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// … and let go when it does not say so within this.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the connection is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Speaks HTTP/2 on one connection until it ends, or until drained or cut. Without a request for `idle` it is closed.
pub(super) async fn connection<S>(
    stream: S,
    (peer, proxies): (SocketAddr, Proxies),
    router: Router,
    idle: Duration,
    draining: CancellationToken,
    cut: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // One that a proxy does not read is one client's, and its connection many clients'.
    let is_shared = proxies.contains(peer.ip().to_canonical());
    let streams = Streams::new();
    let opening = streams.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let client = proxies.client(peer, true, request.headers());
        let mut request = as_http1(request);
        request.extensions_mut().insert(client);
        let router = router.clone();
        let open = opening.open();
        async move {
            let (request, unread) = unread_body::share_body(request, BODY_TIMEOUT);
            let mut answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            unread.discard_rest(&mut answer).await;
            // It is of HTTP/1.1 alone: here a request that is left unread takes no other along.
            answer.headers_mut().remove(header::CONNECTION);
            Ok::<_, Infallible>(answer.map(|body| ResponseBody { body, open }))
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES)
        .max_send_buf_size(SEND_BYTES)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT)), service);
    let mut connection = pin!(connection);
    let mut told = false;
    let mut look = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, client.address = %peer, "a connection broke off");
                }
                return;
            }
            // Requests in flight are answered; the client begins no others.
            () = draining.cancelled(), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut.cancelled() => return,
            now = look.tick() => {
                let quiet = streams.idle_time(now);
                // Time for what is left of the last answer, and then for nothing more: also a client that never said
                // that it speaks HTTP/2 ends here.
                let rest = if streams.is_unused() { Duration::ZERO } else { WRITE_TIMEOUT };
                if (!is_shared && streams.is_stalled(now)) || quiet > idle + rest {
                    tracing::debug!(client.address = %peer, "a client neither asks nor reads");
                    return;
                }
                if quiet > idle && !told {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// The request as HTTP/1.1 would have brought it, which is what everything behind this reads: the host in a header, a
/// path alone, all cookies in one line.
fn as_http1(mut request: Request<Incoming>) -> Request<Incoming> {
    let uri = request.uri();
    let host = uri.authority().map(|host| HeaderValue::from_str(host.as_str()));
    let path = uri.path_and_query().cloned();
    if let Some(Ok(host)) = host {
        request.headers_mut().insert(header::HOST, host);
    }
    *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    *request.version_mut() = Version::HTTP_11;
    join_cookies(request.headers_mut());
    request
}

fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.len() < 2 {
        return;
    }
    let joined = HeaderValue::from_bytes(&lines.join(&b"; "[..]));
    if let Ok(joined) = joined {
        headers.insert(header::COOKIE, joined);
    }
}

/// The open requests of a connection.
#[derive(Clone)]
struct Streams(Arc<Mutex<StreamsState>>);

struct StreamsState {
    next: u64,
    /// Since when a client has had a part of its answer without asking for more. `None`: it waits for us.
    open: HashMap<u64, Option<Instant>>,
    /// When the last of them ended.
    idle_since: Instant,
}

/// One of them; over when dropped.
struct OpenStream {
    streams: Streams,
    id: u64,
}

impl Streams {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(StreamsState {
            next: 0,
            open: HashMap::new(),
            idle_since: Instant::now(),
        })))
    }

    fn open(&self) -> OpenStream {
        let mut state = self.0.lock();
        let id = state.next;
        state.next += 1;
        state.open.insert(id, None);
        drop(state);
        OpenStream {
            streams: self.clone(),
            id,
        }
    }

    /// Whether there was no request yet.
    fn is_unused(&self) -> bool {
        self.0.lock().next == 0
    }

    /// How long no request has been open.
    fn idle_time(&self, now: Instant) -> Duration {
        let state = self.0.lock();
        if state.open.is_empty() {
            now.saturating_duration_since(state.idle_since)
        } else {
            Duration::ZERO
        }
    }

    /// Whether a client has not read its answer for too long. HTTP/2 has a window for each request, so that the connection
    /// itself moves on meanwhile.
    fn is_stalled(&self, now: Instant) -> bool {
        let state = self.0.lock();
        let mut waiting = state.open.values().flatten();
        waiting.any(|since| now.saturating_duration_since(*since) > WRITE_TIMEOUT)
    }
}

impl OpenStream {
    fn set_blocked_since(&self, since: Option<Instant>) {
        if let Some(waiting) = self.streams.0.lock().open.get_mut(&self.id) {
            *waiting = since;
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = self.streams.0.lock();
        state.open.remove(&self.id);
        state.idle_since = Instant::now();
    }
}

/// An answer's body. It is asked for the next part once its client has room for it.
struct ResponseBody {
    body: Body,
    open: OpenStream,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.open.set_blocked_since(None);
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.open.set_blocked_since(Some(Instant::now()));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_one_line() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1"));
        headers.append(header::COOKIE, HeaderValue::from_static("b=2"));
        join_cookies(&mut headers);
        let lines: Vec<_> = headers.get_all(header::COOKIE).iter().collect();
        assert_eq!(lines, ["a=1; b=2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_stalls_and_a_slow_server_does_not() {
        let streams = Streams::new();
        assert!(streams.is_unused());
        let open = streams.open();
        assert!(!streams.is_unused());
        tokio::time::advance(2 * WRITE_TIMEOUT).await;
        assert!(!streams.is_stalled(Instant::now()), "the client waits for us");
        assert_eq!(streams.idle_time(Instant::now()), Duration::ZERO);
        open.set_blocked_since(Some(Instant::now()));
        tokio::time::advance(2 * WRITE_TIMEOUT).await;
        assert!(streams.is_stalled(Instant::now()), "the client takes nothing");
        drop(open);
        assert!(!streams.is_stalled(Instant::now()));
        tokio::time::advance(WRITE_TIMEOUT).await;
        assert_eq!(streams.idle_time(Instant::now()), WRITE_TIMEOUT);
    }
}
