//! Places of requests whose bodies are on their way.
//!
//! A request holds its places while somebody works on it, and gives them back while its body is waited for: a client that
//! announces a body and does not send it keeps nobody out. It takes places again when all of the body is there; where none
//! is free then, it is refused.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::gate::{Gate, Place};

/// Has a request worked on in a place of each of these gates.
///
/// # Errors
/// One of them has no place, before the body or behind it: how long until it has.
pub(crate) async fn hold(gates: Vec<Arc<Gate>>, request: Request, next: Next) -> Result<Response, Duration> {
    let places = enter(&gates)?;
    if request.body().is_end_stream() {
        let response = next.run(request).await;
        drop(places);
        return Ok(response);
    }
    let turn = Arc::new(Turn {
        gates,
        state: Mutex::new(State {
            places: Some(places),
            refused: None,
            over: false,
        }),
    });
    // The body may outlive the request's turn: whoever passes it on may still be sending it.
    let ends = Ends(Arc::clone(&turn));
    let request = request.map(|body| {
        Body::new(Coming {
            body,
            turn: Arc::clone(&turn),
        })
    });
    let response = next.run(request).await;
    drop(ends);
    match turn.state().refused {
        Some(wait) => Err(wait),
        None => Ok(response),
    }
}

fn enter(gates: &[Arc<Gate>]) -> Result<Vec<Place>, Duration> {
    gates.iter().map(|gate| gate.enter()).collect()
}

/// The places of one request.
struct Turn {
    gates: Vec<Arc<Gate>>,
    state: Mutex<State>,
}

struct State {
    /// None while the body is waited for.
    places: Option<Vec<Place>>,
    /// There was none when the body was there.
    refused: Option<Duration>,
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
        match enter(&self.gates) {
            Ok(places) => {
                state.places = Some(places);
                true
            }
            Err(wait) => {
                state.refused = Some(wait);
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
