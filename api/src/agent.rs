//! The agent API of one deployment: assistants, threads, runs, crons, items and system routes.
//!
//! Errors are `{"detail": text}`, bodies are read as JSON under any content type, and every response has `vary: Origin`,
//! as the clients of the agent protocol expect.

pub mod app;
pub mod errors;

pub(crate) mod answer;
pub(crate) mod extract;

mod a2a;
mod agent_protocol;
mod assistants;
mod auth;
mod cors;
mod crons;
mod custom_routes;
mod docs;
mod event_streaming;
mod headers;
mod items;
mod layers;
mod live;
mod mcp;
mod reloadable_router;
mod runs;
mod sse;
mod system;
mod threads;
mod wait;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::OpenApi;

use crate::gateway_signature::SignatureVerifier;
use crate::internal;
use crate::routes::Purpose;

pub use app::{AgentApp, DeploymentIdentity, Parts, Settings};
pub use auth::caller_cache::AuthCache;
pub use cors::{Cors, CorsFile};
pub use errors::AgentError;
pub use reloadable_router::ReloadableRouter;

pub fn agent_router(app: AgentApp) -> Router {
    let settings = app.settings.clone();
    let (api, system, _) = assemble_routes(Purpose::Serve);
    let api = api.route_layer(from_fn_with_state(app.clone(), auth::require));
    // Inside the next layer: custom routes may use methods that a disabled group of routes does not have.
    let api = api.method_not_allowed_fallback(layers::no_such_method);
    let api = api.layer(from_fn_with_state(app.clone(), custom_routes::require_enabled_group));
    // Outside of the concurrency limit: health must be answered under load.
    let system = system.with_state(app.clone());
    let (system, open) = if settings.is_off("meta") {
        let probes = system::probes().with_state(app.clone());
        (probes.clone(), probes)
    } else {
        let open = system.clone().merge(docs::routes(
            || assemble_routes(Purpose::Describe).2,
            app.graphs.clone(),
        ));
        (system, open)
    };
    let open = if settings.is_off("mcp") {
        open
    } else {
        open.merge(mcp::trailing_slash().with_state(app.clone()))
    };
    // Not part of the description, which covers the agent protocol.
    let operators = Router::from(internal::routes::shared().build(Purpose::Serve));
    let operators = operators.route_layer(from_fn_with_state(app.clone(), auth::require_operator));
    let operators = operators.with_state(app.clone());
    let own = custom_routes::router(app.clone());
    let gate = settings
        .gateway_key
        .clone()
        .map(|key| SignatureVerifier::new(key, app.clock.clone()))
        .map(|gate| match settings.custom_auth {
            true => gate.with_own_auth(&settings.mount_prefix),
            false => gate,
        });
    let open = if settings.mount_prefix.trim_end_matches('/').is_empty() {
        open.merge(operators.clone())
    } else {
        open
    };
    let api = headers::logged(api.with_state(app.clone()), &settings);
    let own = headers::logged(own, &settings);
    let router = layers::wrap(api, open, own, settings.max_requests);
    let router = match settings.mount_prefix.trim_end_matches('/') {
        "" => router,
        prefix => Router::new()
            // As a service, so that `/prefix/` is a root too.
            .nest_service(prefix, router)
            // Probes and operators do not use the prefix.
            .merge(system)
            .merge(operators)
            .fallback(async || AgentError::not_found()),
    };
    let router = router
        .layer(from_fn_with_state(app, auth::reject_foreign_pages))
        .layer(cors::layer(&settings.cors));
    match gate {
        // Before everything, including custom routes.
        Some(gate) => router.layer(from_fn_with_state(gate, layers::require_gateway)),
        None => router,
    }
}

/// Routes with and without a key, and the OpenAPI description that their handlers provide.
fn assemble_routes(purpose: Purpose) -> (Router<AgentApp>, Router<AgentApp>, OpenApi) {
    let api = assistants::routes()
        .merge(a2a::routes())
        .merge(agent_protocol::routes())
        .merge(crons::routes())
        .merge(items::routes())
        .merge(event_streaming::routes())
        .merge(mcp::routes())
        .merge(runs::routes())
        .merge(threads::routes());
    let (api, mut document) = api.build(purpose).split_for_parts();
    let (system, of_system) = system::routes().build(purpose).split_for_parts();
    document.merge(of_system);
    (api, system, document)
}
