//! Who may call: everybody, whoever holds a key of the workspace whose server this is, or whom the auth of the graphs'
//! author lets in.

mod caller;
mod custom;
mod judged;
mod remembered;
mod route;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};
use towpath_domain::Scope;

use super::app::AgentApp;
use super::errors::AgentError;
use crate::browser::{is_called_by_own_name, may_act};
use crate::client::Client;
use crate::errors::ApiError;
use crate::scopes;

pub(super) use caller::{configurable, deletable, identity, record, seeing, sees, sees_assistant, visible};
pub(super) use custom::{Refusal, allow, allow_reading};
pub(super) use remembered::Remembered;

/// The layer around a server that asks for no key because only this machine reaches it: pages of the web are
/// neighbours there, and none of them may have anything done.
pub(super) async fn neighbours(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    let settings = &app.settings;
    if !settings.this_machine_only || settings.custom_auth {
        return next.run(request).await;
    }
    if !is_called_by_own_name(request.headers(), request.uri(), None) {
        let text = "this server asks for no key and is for this machine alone, and was called by another name: call it \
                    127.0.0.1 or localhost, or start it with --agent-auth";
        return AgentError::new(StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    if !may_act(request.method(), request.headers(), |origin| {
        settings.cors.names(origin)
    }) {
        let text = "this server asks for no key, and takes nothing from pages of elsewhere: name the page's origin in \
                    CORS_ALLOW_ORIGINS";
        return AgentError::new(StatusCode::FORBIDDEN, text).into_response();
    }
    next.run(request).await
}

/// The layer in front of every route of ours.
pub(super) async fn require(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    if app.settings.custom_auth {
        // It takes the place of keys, as its author decides.
        return custom::guard(app, request, next).await;
    }
    require_key(app, request, next).await
}

/// The layer in front of the author's own routes, where the author wants one.
pub(super) async fn require_of_own(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    if app.settings.custom_auth {
        return custom::recognize(app, request, next).await;
    }
    require_key(app, request, next).await
}

async fn require_key(app: AgentApp, request: Request, next: Next) -> Response {
    let Some(keys) = app.keys.as_ref() else {
        return next.run(request).await;
    };
    let client = Client::of(request.extensions());
    let error = match crate::auth::key_holder(&app.known, keys, &app.clock, client, request.headers()).await {
        Ok(principal) if !principal.workspaces.contains(&app.tenant) => AgentError::new(
            StatusCode::FORBIDDEN,
            "the API key does not open this server's workspace",
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
        // RFC 9110 wants a challenge with every 401.
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("ApiKey"));
    }
    response
}

/// The layer in front of the operators' routes: an operator's key, where keys are asked for. The auth of the graphs'
/// author lets nobody in here: it knows users, and jobs are of all of them.
pub(super) async fn require_operator(State(app): State<AgentApp>, request: Request, next: Next) -> Response {
    let Some(keys) = app.keys.as_ref() else {
        if app.settings.custom_auth {
            let text = "operators need a key, and this server asks for none: start it with --agent-auth";
            return ApiError::forbidden(text).into_response();
        }
        return next.run(request).await;
    };
    let client = Client::of(request.extensions());
    match crate::auth::key_holder(&app.known, keys, &app.clock, client, request.headers()).await {
        Ok(principal) => match scopes::require(&principal.scopes, scopes::need_of_operators(request.method())) {
            Ok(()) => next.run(request).await,
            Err(error) => error.into_response(),
        },
        Err(error) => error.into_response(),
    }
}
