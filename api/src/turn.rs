//! Places of requests whose bodies are on their way.
//!
//! A request holds its places while somebody works on it, and gives them back while its body is waited for: a client that
//! announces a body and does not send it keeps nobody out. It takes places again when all of the body is there; where none
//! is free then, it is refused.
//!
//! Whoever learns whose a request is says so to its [`Held`] places. An upgraded connection keeps them to its end.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::Extensions;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::errors::ApiError;
use crate::gate::{Gate, Owner, Place};
use crate::metric;

/// Why a request is refused, and how long until there is a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// No place is free.
    Gate(Duration),
    /// Its owner has its share of them.
    Share(Owner, Duration),
}

impl Full {
    /// Counts it, and says it.
    pub(crate) fn refusal(self) -> ApiError {
        let (reason, error) = match self {
            Self::Gate(wait) => ("requests", ApiError::unavailable("too many requests at once", wait)),
            Self::Share(Owner::Deployment(_), wait) => (
                "share",
                ApiError::too_many(
                    "this deployment has too many requests that wait for an answer; others of the workspace go on",
                    wait,
                ),
            ),
            Self::Share(_, wait) => (
                "share",
                ApiError::too_many("this workspace has too many requests under way at once", wait),
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
pub(crate) async fn hold(gates: Vec<Arc<Gate>>, mut request: Request, next: Next) -> Result<Response, Full> {
    let places = enter(&gates, &[])?;
    let turn = Arc::new(Turn {
        gates,
        state: Mutex::new(State {
            places: Some(places),
            owners: Vec::new(),
            refused: None,
            over: false,
        }),
    });
    // The body may outlive the request's turn: whoever passes it on may still be sending it.
    let ends = Ends(Arc::clone(&turn));
    request.extensions_mut().insert(Held(Some(Arc::clone(&turn))));
    if !request.body().is_end_stream() {
        request = request.map(|body| {
            Body::new(Coming {
                body,
                turn: Arc::clone(&turn),
            })
        });
    }
    let response = next.run(request).await;
    drop(ends);
    match turn.state().refused {
        Some(full) => Err(full),
        None => Ok(response),
    }
}

fn enter(gates: &[Arc<Gate>], owners: &[Owner]) -> Result<Vec<Place>, Full> {
    let place = |gate: &Arc<Gate>| -> Result<Place, Full> {
        let mut place = gate.enter().map_err(Full::Gate)?;
        for owner in owners {
            place.claim(*owner).map_err(|wait| Full::Share(*owner, wait))?;
        }
        Ok(place)
    };
    let mut places = Vec::with_capacity(gates.len());
    for gate in gates {
        match place(gate) {
            Ok(place) => places.push(place),
            Err(full) => {
                leave(places);
                return Err(full);
            }
        }
    }
    Ok(places)
}

/// Gives places back of which nothing came.
fn leave(places: Vec<Place>) {
    places.into_iter().for_each(Place::leave);
}

/// The places of a request, for whoever learns whose it is. A request that came through no gate has none.
#[derive(Clone, Default)]
pub(crate) struct Held(Option<Arc<Turn>>);

impl Held {
    /// Those of the request with these extensions.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Counts them as `owner`'s, also when they are taken again behind the body.
    ///
    /// # Errors
    /// That has its share.
    pub(crate) fn claim(&self, owner: Owner) -> Result<(), Full> {
        let Some(turn) = &self.0 else { return Ok(()) };
        let mut state = turn.state();
        if state.owners.contains(&owner) {
            return Ok(());
        }
        let claimed = {
            let mut places = state.places.iter_mut().flatten();
            places.try_for_each(|place| place.claim(owner))
        };
        if let Err(wait) = claimed {
            leave(state.places.take().unwrap_or_default());
            return Err(Full::Share(owner, wait));
        }
        state.owners.push(owner);
        Ok(())
    }

    /// Takes them out of the request, for what goes on after it is answered.
    pub(crate) fn keep(&self) -> PlaceGuard {
        let places = self.0.as_ref().and_then(|turn| turn.state().places.take());
        PlaceGuard(places.unwrap_or_default())
    }
}

/// Places that are held until this is dropped.
pub(crate) struct PlaceGuard(Vec<Place>);

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        // How long a connection lasts says nothing about the pace of requests.
        self.0.drain(..).for_each(Place::leave);
    }
}

/// The places of one request.
struct Turn {
    gates: Vec<Arc<Gate>>,
    state: Mutex<State>,
}

struct State {
    /// None while the body is waited for.
    places: Option<Vec<Place>>,
    owners: Vec<Owner>,
    /// There was none when the body was there.
    refused: Option<Full>,
    /// The request is answered, or given up.
    over: bool,
}

impl Turn {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the places back: the client has to send something first.
    fn wait(&self) {
        let places = self.state().places.take();
        places.into_iter().flatten().for_each(Place::leave);
    }

    /// Takes places again. Whether there are some.
    fn resume(&self) -> bool {
        let mut state = self.state();
        if state.over || state.places.is_some() {
            return true;
        }
        match enter(&self.gates, &state.owners) {
            Ok(places) => {
                state.places = Some(places);
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
struct Ends(Arc<Turn>);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.over = true;
        state.places = None;
    }
}

/// A body on its way.
struct Coming {
    body: Body,
    turn: Arc<Turn>,
}

impl HttpBody for Coming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let is_there = match &polled {
            Poll::Pending => {
                self.turn.wait();
                false
            }
            Poll::Ready(None) => true,
            // Whoever knows that this was the last frame does not ask for another.
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            // It broke off, and so does what is done with it.
            Poll::Ready(Some(Err(_))) => false,
        };
        if is_there && !self.turn.resume() {
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

    async fn layer(Shared(gate): Shared<Arc<Gate>>, request: Request, next: Next) -> Response {
        let held = hold(vec![gate], request, next).await;
        held.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
    }

    /// A route that answers what was sent, with one place.
    fn routes(gate: &Arc<Gate>) -> Router {
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
        let gate = Arc::new(Gate::new(1));
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
        assert!(gate.enter().is_ok(), "the place was given back");
    }

    #[tokio::test]
    async fn what_goes_on_after_the_answer_keeps_its_place() {
        let gate = Arc::new(Gate::new(8));
        let (keep, kept) = mpsc::unbounded();
        let route = post(async move |request: Request| {
            let held = Held::of(request.extensions());
            let claimed = held.claim(Owner::Workspace(TenantId::nil()));
            if claimed.is_err() {
                return StatusCode::TOO_MANY_REQUESTS;
            }
            let _ = keep.unbounded_send(held.keep());
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
        let all: Vec<_> = (0..8).map_while(|_| gate.enter().ok()).collect();
        assert_eq!(all.len(), 8, "the places were given back");
    }

    #[tokio::test]
    async fn who_finds_no_place_behind_the_body_is_refused() {
        let gate = Arc::new(Gate::new(1));
        let router = routes(&gate);
        let mut slow = Slow::new(&router);
        slow.send("half");
        (&mut slow.waited_for).await.expect("its body is waited for");
        let taken = gate.enter().ok().unwrap();
        assert_eq!(slow.end().await, StatusCode::SERVICE_UNAVAILABLE);
        drop(taken);
        assert!(gate.enter().is_ok(), "the place was given back");
    }
}
