//! What is left of a request's body when its answer stands: a refusal often comes before the body does.
//!
//! A connection that is closed with bytes unread may be reset before its client has read the answer, and whoever was to
//! learn "503, come back in 2 s" sees a broken connection. And one whose request was not read to its end cannot carry
//! another: hyper closes it after the answer without a word, and a client that keeps connections sends its next request
//! into nothing. So what is left goes by, within bounds, before the answer goes out; where that is not to be had the
//! answer says `connection: close`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

use super::idle_timer::IdleTimer;

/// A client that does not send a byte of its request's body for so long is let go, whoever reads the body and however
/// patiently.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// More is not read for nothing.
const MAX_DRAINED_BYTES: u64 = 1 << 20;
/// What it may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The other end of a body that was lent to whoever answers.
pub(super) struct UnreadBody(Option<Arc<Mutex<SharedBody>>>);

struct SharedBody {
    body: Incoming,
    /// Its client sends only when asked, and it is asked when somebody begins to read.
    asked_first: bool,
    started: bool,
    idle_timer: IdleTimer,
}

/// Lends the body of a request to whoever answers it. It breaks off where its client is silent for `patience`, and where it
/// sends a byte now and then.
pub(super) fn share_body(request: Request<Incoming>, patience: Duration) -> (Request<Body>, UnreadBody) {
    if request.body().is_end_stream() {
        return (request.map(Body::new), UnreadBody(None));
    }
    let (head, body) = request.into_parts();
    let shared = Arc::new(Mutex::new(SharedBody {
        body,
        asked_first: head.headers.contains_key(header::EXPECT),
        started: false,
        idle_timer: IdleTimer::new(patience),
    }));
    let body = Body::new(RequestBody(Arc::clone(&shared)));
    (Request::from_parts(head, body), UnreadBody(Some(shared)))
}

impl UnreadBody {
    /// Lets what is left go by, unless somebody still reads it, or says in the answer that the connection ends with it.
    pub(super) async fn discard_rest(self, answer: &mut Response) {
        let Some(shared) = self.0.and_then(Arc::into_inner) else {
            return;
        };
        let SharedBody {
            body,
            asked_first,
            started: begun,
            ..
        } = shared.into_inner();
        let comes = begun || !asked_first;
        if !comes || tokio::time::timeout(DRAIN_TIMEOUT, drain(body)).await != Ok(true) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
    }
}

/// Whether it came to its end.
async fn drain(mut body: Incoming) -> bool {
    let mut room = MAX_DRAINED_BYTES;
    loop {
        if body.is_end_stream() {
            return true;
        }
        if body.size_hint().lower() > room {
            return false;
        }
        match body.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = room.checked_sub(bytes) else {
                    return false;
                };
                room = left;
            }
        }
    }
}

struct RequestBody(Arc<Mutex<SharedBody>>);

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut shared = self.0.lock();
        shared.started = true;
        let polled = Pin::new(&mut shared.body).poll_frame(context);
        if let Poll::Ready(frame) = &polled {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            shared.idle_timer.record_progress(data.map_or(0, Bytes::len));
            return polled.map_err(Into::into);
        }
        ready!(shared.idle_timer.poll_expired(context));
        Poll::Ready(Some(Err("the client sends no more of its body".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}
