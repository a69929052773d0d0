//! The agent surface: what one deployment offers at its own address. Assistants, threads, runs, crons, items, system.
//!
//! Every refusal is `{"detail": text}`, bodies are JSON under whatever content type they come, and every answer says
//! `vary: Origin`, as the clients of the agent protocol expect.

pub mod app;
pub mod errors;

pub(crate) mod answer;
pub(crate) mod extract;

mod a2a;
mod assistants;
mod auth;
mod cors;
mod crons;
mod docs;
mod items;
mod live;
mod mcp;
mod own_routes;
mod protocol;
mod runs;
mod sse;
mod swap;
mod system;
mod threads;
mod wait;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::OpenApi;

use crate::gateway::signature::{self, Gate};
use crate::internal;
use crate::routes::Purpose;

pub use app::{AgentApp, AuthCache, Parts, Settings};
pub use cors::{Cors, CorsFile};
pub use errors::AgentError;
pub use swap::Swap;

/// The whole surface, ready to be served.
pub fn agent_router(app: AgentApp) -> Router {
    let settings = app.settings.clone();
    let (api, system, _) = put_together(Purpose::Serve);
    let api = api.route_layer(from_fn_with_state(app.clone(), auth::require));
    let api = api.layer(from_fn_with_state(app.clone(), own_routes::offered));
    // Outside of the limit on requests at once: who asks how it is must not be refused because much goes on.
    let system = system.with_state(app.clone());
    let (system, open) = if settings.is_off("meta") {
        let probes = system::probes().with_state(app.clone());
        (probes.clone(), probes)
    } else {
        let open = system
            .clone()
            .merge(docs::routes(|| put_together(Purpose::Describe).2, app.graphs.clone()));
        (system, open)
    };
    let open = if settings.is_off("mcp") {
        open
    } else {
        open.merge(mcp::trailing_slash().with_state(app.clone()))
    };
    // In its description they would look like a part of the agent protocol.
    let operators = Router::from(internal::routes().build(Purpose::Serve));
    let operators = operators.route_layer(from_fn_with_state(app.clone(), auth::require_operator));
    let operators = operators.with_state(app.clone());
    let own = own_routes::router(app.clone());
    let gate = settings
        .gateway_key
        .clone()
        .map(|key| Gate::new(key, app.clock.clone()))
        .map(|gate| match settings.custom_auth {
            true => gate.with_own_auth(&settings.mount_prefix),
            false => gate,
        });
    let open = if settings.mount_prefix.trim_end_matches('/').is_empty() {
        open.merge(operators.clone())
    } else {
        open
    };
    let router = crate::layers::agent(api.with_state(app.clone()), open, own, settings.requests);
    let router = match settings.mount_prefix.trim_end_matches('/') {
        "" => router,
        prefix => Router::new()
            // As a service: `/prefix/` is its root too.
            .nest_service(prefix, router)
            // Probes and operators know nothing of prefixes.
            .merge(system)
            .merge(operators)
            .fallback(async || AgentError::not_found()),
    };
    let router = router
        .layer(from_fn_with_state(app, auth::neighbours))
        .layer(cors::layer(&settings.cors));
    match gate {
        // In front of everything, also of what the graphs' author offers.
        Some(gate) => router.layer(from_fn_with_state(gate, signature::require)),
        None => router,
    }
}

/// Routes that need a key, routes that do not, and the part of their description that the handlers give.
fn put_together(purpose: Purpose) -> (Router<AgentApp>, Router<AgentApp>, OpenApi) {
    let api = assistants::routes()
        .merge(a2a::routes())
        .merge(crons::routes())
        .merge(items::routes())
        .merge(protocol::routes())
        .merge(mcp::routes())
        .merge(runs::routes())
        .merge(threads::routes());
    let (api, mut document) = api.build(purpose).split_for_parts();
    let (system, of_system) = system::routes().build(purpose).split_for_parts();
    document.merge(of_system);
    (api, system, document)
}
