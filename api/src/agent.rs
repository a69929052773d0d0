//! The agent surface: what one deployment offers at its own address. Assistants, threads, runs, crons, items, system.
//!
//! Every refusal is `{"detail": text}`, bodies are JSON under whatever content type they come, and every answer says
//! `vary: Origin`, as the clients of the agent protocol expect.

pub mod app;
pub mod errors;

pub(crate) mod answer;
pub(crate) mod extract;

mod cors;

use axum::Router;
use utoipa_axum::router::OpenApiRouter;

pub use app::{AgentApp, Parts, Settings};
pub use errors::AgentError;

/// The whole surface, ready to be served.
pub fn agent_router(app: AgentApp) -> Router {
    let (router, _document) = surface().split_for_parts();
    let requests = app.settings.requests;
    let cors = cors::layer(&app.settings.cors_origins);
    crate::layers::agent(router.with_state(app), Router::new(), requests).layer(cors)
}

/// Every described route.
fn surface() -> OpenApiRouter<AgentApp> {
    OpenApiRouter::default()
}
