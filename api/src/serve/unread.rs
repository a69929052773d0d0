//! What is left of a request when its answer stands: a refusal often comes before the body does.
//!
//! A connection whose request was not read to its end cannot carry another. hyper closes it after the answer without
//! a word, and a client that keeps connections sends its next request into nothing. So a short rest is read, and
//! where that is not to be had the answer says `connection: close`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

/// The most bytes of a rest that is read.
const REST_BYTES: u64 = 64 * 1024;
/// It is on its way already when the answer stands, or it does not come.
const PATIENCE: Duration = Duration::from_secs(1);

/// The rest of a request, if whoever had it left one.
#[derive(Debug, Default)]
pub(super) struct Unread(Option<Arc<Mutex<Option<Incoming>>>>);

/// A body that comes back when it is dropped before its end.
struct Lent {
    body: Option<Incoming>,
    rest: Arc<Mutex<Option<Incoming>>>,
}

/// The request for whoever answers it, and what will be left of it.
pub(super) fn lend(request: Request<Incoming>) -> (Request<Body>, Unread) {
    // Who waits to be told to go on has not sent its body, and need not.
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return (request.map(Body::new), Unread::default());
    }
    let rest = Arc::default();
    let request = request.map(|body| {
        Body::new(Lent {
            body: Some(body),
            rest: Arc::clone(&rest),
        })
    });
    (request, Unread(Some(rest)))
}

impl Unread {
    /// Reads what is left, or says in the answer that the connection ends with it.
    pub(super) async fn settle(self, answer: &mut Response) {
        let rest = self
            .0
            .and_then(|rest| rest.lock().unwrap_or_else(PoisonError::into_inner).take());
        let Some(rest) = rest else { return };
        let read = tokio::time::timeout(PATIENCE, read(rest)).await;
        if read != Ok(true) {
            answer
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Whether it came to its end.
async fn read(mut rest: Incoming) -> bool {
    let mut room = REST_BYTES;
    while rest.size_hint().lower() <= room {
        match rest.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                room = room.saturating_sub(bytes);
                if room == 0 {
                    return rest.is_end_stream();
                }
            }
        }
    }
    false
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}
