//! What surrounds the requests of an agent server: the same as on the platform, with refusals in the shape of its surface.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_http::catch_panic::CatchPanicLayer;

use super::errors::AgentError;
use crate::concurrency::ConcurrencyLimit;
use crate::gateway_signature::SignatureVerifier;
use crate::layers::{observe, report_panic};
use crate::request_permits;

/// The layers of an API that works on at most `requests` at once; `ops` stays outside of that limit. What no route takes
/// goes to `rest`.
pub(super) fn wrap(router: Router, ops: Router, rest: Router, requests: usize) -> Router {
    let places = Arc::new(ConcurrencyLimit::new(requests));
    router
        .layer(from_fn_with_state(places, limit_agent))
        .merge(ops)
        .fallback_service(rest)
        .method_not_allowed_fallback(no_such_method)
        .layer(CatchPanicLayer::custom(|panic| {
            report_panic(panic);
            AgentError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response()
        }))
        .layer(from_fn(observe))
}

/// As the clients of agent servers know it; axum adds `Allow`.
pub(super) async fn no_such_method() -> AgentError {
    AgentError::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

async fn limit_agent(State(places): State<Arc<ConcurrencyLimit>>, request: Request, next: Next) -> Response {
    let held = request_permits::with_permits(vec![places], request, next).await;
    held.unwrap_or_else(|full| AgentError::of(&full.refusal()).into_response())
}

/// The layer of an agent server that answers only the gateway.
pub(super) async fn require_gateway(
    State(verifier): State<SignatureVerifier>,
    mut request: Request,
    next: Next,
) -> Response {
    if !verifier.admit(&mut request) {
        let text = "this agent server answers only the platform's gateway";
        return AgentError::new(StatusCode::UNAUTHORIZED, text).into_response();
    }
    next.run(request).await
}
