//! Places of requests whose bodies are on their way.
//!
//! A request holds its places while somebody works on it, and gives them back while its body is waited for: a client that
//! announces a body and does not send it keeps nobody out. It takes places again when all of the body is there; where none
//! is free then, it is refused.
//!
//! Whoever learns whose a request is says so to its [`Held`] places. An upgraded connection keeps them to its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::Extensions;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use crate::concurrency::{ConcurrencyLimit, ConcurrencyPermit, Owner};
use crate::errors::ApiError;
use crate::metric;

/// Why a request is refused, and how long until there is a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitRefusal {
    /// No place is free.
    AllTaken(Duration),
    /// Its owner has its share of them.
    ShareExceeded(Owner, Duration),
}

impl PermitRefusal {
    /// Counts it, and says it.
    pub(crate) fn refusal(self) -> ApiError {
        let (reason, error) = match self {
            Self::AllTaken(wait) => ("requests", ApiError::unavailable("too many requests at once", wait)),
            Self::ShareExceeded(Owner::Deployment(_), wait) => (
                "share",
                ApiError::too_many(
                    "this deployment has too many concurrent requests; other deployments of the workspace are not affected",
                    wait,
                ),
            ),
            Self::ShareExceeded(_, wait) => (
                "share",
                ApiError::too_many("this workspace has too many concurrent requests", wait),
            ),
        };
        metrics::counter!(metric::SHED, "reason" => reason).increment(1);
        error
    }
}

/// Has a request worked on in a place of each of these gates.
///
/// # Errors
/// One of them has no place, before the body or behind it.
pub(crate) async fn with_permits(
    gates: Vec<Arc<ConcurrencyLimit>>,
    mut request: Request,
    next: Next,
) -> Result<Response, PermitRefusal> {
    let places = acquire(&gates, &[])?;
    let turn = Arc::new(PermitSet {
        limits: gates,
        state: Mutex::new(State {
            permits: Some(places),
            owners: Vec::new(),
            refused: None,
            ended: false,
        }),
    });
    // The body may outlive the request's turn: whoever passes it on may still be sending it.
    let ends = EndOnDrop(Arc::clone(&turn));
    request.extensions_mut().insert(RequestPermits(Some(Arc::clone(&turn))));
    if !request.body().is_end_stream() {
        request = request.map(|body| {
            Body::new(PermittedBody {
                body,
                turn: Arc::clone(&turn),
            })
        });
    }
    let response = next.run(request).await;
    drop(ends);
    match turn.state.lock().refused {
        Some(full) => Err(full),
        None => Ok(response),
    }
}

fn acquire(gates: &[Arc<ConcurrencyLimit>], owners: &[Owner]) -> Result<Vec<ConcurrencyPermit>, PermitRefusal> {
    let place = |gate: &Arc<ConcurrencyLimit>| -> Result<ConcurrencyPermit, PermitRefusal> {
        let mut place = gate.try_acquire().map_err(PermitRefusal::AllTaken)?;
        for owner in owners {
            place
                .charge(*owner)
                .map_err(|wait| PermitRefusal::ShareExceeded(*owner, wait))?;
        }
        Ok(place)
    };
    let mut places = Vec::with_capacity(gates.len());
    for gate in gates {
        match place(gate) {
            Ok(place) => places.push(place),
            Err(full) => {
                release(places);
                return Err(full);
            }
        }
    }
    Ok(places)
}

/// Gives places back of which nothing came.
fn release(places: Vec<ConcurrencyPermit>) {
    places.into_iter().for_each(ConcurrencyPermit::release_unused);
}

/// The places of a request, for whoever learns whose it is. A request that came through no gate has none.
#[derive(Clone, Default)]
pub(crate) struct RequestPermits(Option<Arc<PermitSet>>);

impl RequestPermits {
    /// Those of the request with these extensions.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Counts them as `owner`'s, also when they are taken again behind the body.
    ///
    /// # Errors
    /// That has its share.
    pub(crate) fn charge(&self, owner: Owner) -> Result<(), PermitRefusal> {
        let Some(turn) = &self.0 else { return Ok(()) };
        let mut state = turn.state.lock();
        if state.owners.contains(&owner) {
            return Ok(());
        }
        let claimed = {
            let mut places = state.permits.iter_mut().flatten();
            places.try_for_each(|place| place.charge(owner))
        };
        if let Err(wait) = claimed {
            release(state.permits.take().unwrap_or_default());
            return Err(PermitRefusal::ShareExceeded(owner, wait));
        }
        state.owners.push(owner);
        Ok(())
    }

    /// Takes them out of the request, for what goes on after it is answered.
    pub(crate) fn detach(&self) -> DetachedPermits {
        let places = self.0.as_ref().and_then(|turn| turn.state.lock().permits.take());
        DetachedPermits(places.unwrap_or_default())
    }
}

/// Places that are held until this is dropped.
pub(crate) struct DetachedPermits(Vec<ConcurrencyPermit>);

impl Drop for DetachedPermits {
    fn drop(&mut self) {
        // How long a connection lasts says nothing about the pace of requests.
        self.0.drain(..).for_each(ConcurrencyPermit::release_unused);
    }
}

/// The places of one request.
struct PermitSet {
    limits: Vec<Arc<ConcurrencyLimit>>,
    state: Mutex<State>,
}

struct State {
    /// None while the body is waited for.
    permits: Option<Vec<ConcurrencyPermit>>,
    owners: Vec<Owner>,
    /// There was none when the body was there.
    refused: Option<PermitRefusal>,
    /// The request is answered, or given up.
    ended: bool,
}

impl PermitSet {
    /// Gives the places back: the client has to send something first.
    fn release_during_body(&self) {
        let places = self.state.lock().permits.take();
        places.into_iter().flatten().for_each(ConcurrencyPermit::release_unused);
    }

    /// Takes places again. Whether there are some.
    fn reacquire(&self) -> bool {
        let mut state = self.state.lock();
        if state.ended || state.permits.is_some() {
            return true;
        }
        match acquire(&self.limits, &state.owners) {
            Ok(places) => {
                state.permits = Some(places);
                true
            }
            Err(full) => {
                state.refused = Some(full);
                false
            }
        }
    }
}

/// Ends a turn, however the request ends.
struct EndOnDrop(Arc<PermitSet>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        state.permits = None;
    }
}

/// A body on its way.
struct PermittedBody {
    body: Body,
    turn: Arc<PermitSet>,
}

impl HttpBody for PermittedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let is_there = match &polled {
            Poll::Pending => {
                self.turn.release_during_body();
                false
            }
            Poll::Ready(None) => true,
            // Whoever knows that this was the last frame does not ask for another.
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            // It broke off, and so does what is done with it.
            Poll::Ready(Some(Err(_))) => false,
        };
        if is_there && !self.turn.reacquire() {
            return Poll::Ready(Some(Err("no place was free when the body was there".into())));
        }
        polled.map_err(Into::into)
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
    use axum::Router;
    use axum::extract::State as Shared;
    use axum::middleware::from_fn_with_state;
    use axum::response::IntoResponse as _;
    use axum::routing::post;
    use futures::channel::mpsc;
    use futures::{StreamExt as _, stream};
    use http::StatusCode;
    use tokio::sync::oneshot;
    use tower::ServiceExt as _;
    use towpath_domain::TenantId;

    use super::*;

    async fn layer(Shared(gate): Shared<Arc<ConcurrencyLimit>>, request: Request, next: Next) -> Response {
        let held = with_permits(vec![gate], request, next).await;
        held.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
    }

    /// A route that answers what was sent, with one place.
    fn routes(gate: &Arc<ConcurrencyLimit>) -> Router {
        Router::new()
            .route("/", post(async |sent: Bytes| sent))
            .layer(from_fn_with_state(Arc::clone(gate), layer))
    }

    /// A request whose body comes piece by piece.
    struct Slow {
        pieces: mpsc::UnboundedSender<Result<Bytes, BoxError>>,
        /// Told once somebody waits for more of it.
        waited_for: oneshot::Receiver<()>,
        answer: tokio::task::JoinHandle<Response>,
    }

    impl Slow {
        fn new(router: &Router) -> Self {
            let (pieces, mut coming) = mpsc::unbounded();
            let (tell, waited_for) = oneshot::channel();
            let mut tell = Some(tell);
            let body = stream::poll_fn(move |context| {
                let polled = coming.poll_next_unpin(context);
                if polled.is_pending()
                    && let Some(tell) = tell.take()
                {
                    let _ = tell.send(());
                }
                polled
            });
            let request = Request::post("/").body(Body::from_stream(body)).unwrap();
            let answer = router.clone().oneshot(request);
            Self {
                pieces,
                waited_for,
                answer: tokio::spawn(async move { answer.await.unwrap() }),
            }
        }

        fn send(&self, text: &'static str) {
            let piece = Bytes::from_static(text.as_bytes());
            self.pieces.unbounded_send(Ok(piece)).unwrap();
        }

        /// Sends no more, and reads the answer's status.
        async fn end(self) -> StatusCode {
            drop(self.pieces);
            self.answer.await.unwrap().status()
        }
    }

    #[tokio::test]
    async fn a_body_that_is_waited_for_takes_no_place() {
        let gate = Arc::new(ConcurrencyLimit::new(1));
        let router = routes(&gate);
        let mut slow = Slow::new(&router);
        slow.send("half");
        (&mut slow.waited_for).await.expect("its body is waited for");
        for _ in 0..10 {
            let quick = Slow::new(&router);
            quick.send("whole");
            assert_eq!(quick.end().await, StatusCode::OK, "beside a body that does not come");
        }
        slow.send(" and half");
        assert_eq!(slow.end().await, StatusCode::OK);
        assert!(gate.try_acquire().is_ok(), "the place was given back");
    }

    #[tokio::test]
    async fn what_goes_on_after_the_answer_keeps_its_place() {
        let gate = Arc::new(ConcurrencyLimit::new(8));
        let (keep, kept) = mpsc::unbounded();
        let route = post(async move |request: Request| {
            let held = RequestPermits::of(request.extensions());
            let claimed = held.charge(Owner::Workspace(TenantId::nil()));
            if claimed.is_err() {
                return StatusCode::TOO_MANY_REQUESTS;
            }
            let _ = keep.unbounded_send(held.detach());
            StatusCode::SWITCHING_PROTOCOLS
        });
        let router = Router::new()
            .route("/", route)
            .layer(from_fn_with_state(Arc::clone(&gate), layer));
        for number in 0..9 {
            let request = Request::post("/").body(Body::empty()).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            let expected = if number < 7 { 101 } else { 429 };
            assert_eq!(answer.status(), expected, "request {number}");
        }
        drop((router, kept));
        let all: Vec<_> = (0..8).map_while(|_| gate.try_acquire().ok()).collect();
        assert_eq!(all.len(), 8, "the places were given back");
    }

    #[tokio::test]
    async fn who_finds_no_place_behind_the_body_is_refused() {
        let gate = Arc::new(ConcurrencyLimit::new(1));
        let router = routes(&gate);
        let mut slow = Slow::new(&router);
        slow.send("half");
        (&mut slow.waited_for).await.expect("its body is waited for");
        let taken = gate.try_acquire().ok().unwrap();
        assert_eq!(slow.end().await, StatusCode::SERVICE_UNAVAILABLE);
        drop(taken);
        assert!(gate.try_acquire().is_ok(), "the place was given back");
    }
}
