//! What every operation of the protocol starts from.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;

use crate::agent::app::AgentApp;
use crate::client::Client;

/// The server, and the request without its body.
pub(crate) struct RequestContext {
    pub(super) app: AgentApp,
    pub(super) client: Client,
    pub(super) headers: HeaderMap,
}

impl FromRequestParts<AgentApp> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &AgentApp) -> Result<Self, Infallible> {
        Ok(Self {
            app: app.clone(),
            client: Client::of(&parts.extensions),
            headers: parts.headers.clone(),
        })
    }
}
