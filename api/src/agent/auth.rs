//! Access to the agent API: open, by API keys of the server's workspace, or by the auth of the graphs' author.

mod authorizer;
pub(super) mod caller;
pub(super) mod caller_cache;
mod custom;
mod refusal;
mod route;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};
use towpath_domain::Scope;

use super::app::AgentApp;
use super::errors::AgentError;
use crate::browser::{has_own_host, may_act};
use crate::client::Client;
use crate::errors::ApiError;
use crate::scopes;

pub(super) use caller::{identity, with_visibility};
pub(super) use custom::{authorize_assistant_read, authorize_operation};
pub(super) use refusal::Refusal;

/// Layer of a server without keys that only this machine reaches: rejects web pages of other origins.
pub(super) async fn reject_foreign_pages(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    let settings = &app.settings;
    if !settings.this_machine_only || settings.custom_auth {
        return next.run(request).await;
    }
    if !has_own_host(request.headers(), request.uri(), None) {
        let text = "this server requires no key and only accepts requests from this machine: open it as \
                    127.0.0.1 or localhost, or start it with --agent-auth";
        return AgentError::new(StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    if !may_act(request.method(), request.headers(), |origin| {
        settings.cors.allows_origin(origin)
    }) {
        let text = "this server requires no key and rejects requests from other origins: add the page's origin to \
                    CORS_ALLOW_ORIGINS";
        return AgentError::new(StatusCode::FORBIDDEN, text).into_response();
    }
    next.run(request).await
}

/// Layer of all routes except custom ones.
pub(super) async fn require(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    if app.settings.custom_auth {
        // Custom auth replaces keys.
        return custom::guard(app, request, next).await;
    }
    require_key(app, request, next).await
}

/// Layer of custom routes, if the author enables it.
pub(super) async fn require_custom_routes_auth(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    if app.settings.custom_auth {
        return custom::authenticate_custom_route(app, request, next).await;
    }
    require_key(app, request, next).await
}

async fn require_key(app: AgentApp, request: Request, next: Next) -> Response {
    let Some(keys) = app.keys.as_ref() else {
        return next.run(request).await;
    };
    let client = Client::of(request.extensions());
    let error = match crate::auth::key_holder(&app.key_cache, keys, &app.clock, client, request.headers()).await {
        Ok(principal) if !principal.workspaces.contains(&app.tenant) => AgentError::new(
            StatusCode::FORBIDDEN,
            "the API key has no access to this server's workspace",
        ),
        Ok(principal) => match scopes::require(&principal.scopes, Scope::AgentsInvoke) {
            Ok(()) => return next.run(request).await,
            Err(error) => AgentError::new(error.status(), error.text().to_owned()),
        },
        Err(error) if error.status() == StatusCode::INTERNAL_SERVER_ERROR => {
            AgentError::new(error.status(), "Internal Server Error")
        }
        Err(error) => AgentError::of(&error),
    };
    let unauthorized = error.status() == StatusCode::UNAUTHORIZED;
    let mut response = error.into_response();
    if unauthorized {
        // RFC 9110 requires a challenge with every 401.
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("ApiKey"));
    }
    response
}

/// Layer of operator routes: requires an operator's key. Custom auth does not apply, since it knows users and jobs belong
/// to all of them.
pub(super) async fn require_operator(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    let Some(keys) = app.keys.as_ref() else {
        if app.settings.custom_auth {
            let text = "operator routes need a key, but this server has no keys: start it with --agent-auth";
            return ApiError::forbidden(text).into_response();
        }
        return next.run(request).await;
    };
    let client = Client::of(request.extensions());
    match crate::auth::key_holder(&app.key_cache, keys, &app.clock, client, request.headers()).await {
        Ok(principal) => match scopes::require(&principal.scopes, scopes::operator_scope(request.method())) {
            Ok(()) => next.run(request).await,
            Err(error) => error.into_response(),
        },
        Err(error) => error.into_response(),
    }
}
