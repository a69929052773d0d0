//! What a handler left unread of its request's body.
//!
//! A connection that is closed with bytes unread may be reset before its client has read the answer, and whoever was to
//! learn "503, come back in 2 s" sees a broken connection. So what is left goes by unread by anybody, within bounds,
//! before the answer goes out; the connection stays open too.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::header::EXPECT;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

/// Longer bodies are not read for nothing, nor those of unknown length.
const LONGEST_BYTES: u64 = 1 << 20;
/// What it may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The other end of a body that was lent to a handler.
pub(crate) struct Unread(Option<Arc<Mutex<Shared>>>);

struct Shared {
    body: Body,
    /// Its client sends only when asked.
    asked_first: bool,
    begun: bool,
}

/// Lends the body of a request to whoever handles it.
pub(crate) fn lend(request: Request) -> (Request, Unread) {
    use http_body::Body as _;
    if request.body().is_end_stream() {
        return (request, Unread(None));
    }
    let (head, body) = request.into_parts();
    let shared = Arc::new(Mutex::new(Shared {
        body,
        asked_first: head.headers.contains_key(EXPECT),
        begun: false,
    }));
    let body = Body::new(Lent(Arc::clone(&shared)));
    (Request::from_parts(head, body), Unread(Some(shared)))
}

impl Unread {
    /// Lets what is left go by, unless somebody still reads it.
    pub(crate) async fn pass_by(self) {
        use http_body::Body as _;
        let Some(shared) = self.0.and_then(Arc::into_inner) else {
            return;
        };
        let Shared {
            mut body,
            asked_first,
            begun,
        } = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        let comes = begun || !asked_first;
        let short = body.size_hint().upper().is_some_and(|bytes| bytes <= LONGEST_BYTES);
        if comes && short && !body.is_end_stream() {
            let passing = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = tokio::time::timeout(PATIENCE, passing).await;
        }
    }
}

struct Lent(Arc<Mutex<Shared>>);

impl Lent {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut shared = self.shared();
        shared.begun = true;
        Pin::new(&mut shared.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.shared().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.shared().body.size_hint()
    }
}
