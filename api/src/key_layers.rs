//! The layers in front of routes that need a key. A handler cannot forget them, and nothing of a request is read before
//! its caller is known.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue};
use towpath_store::access::Principal;

use crate::app::App;
use crate::auth::{GrantedScopes, Operator, Tenant, is_in_session, key_holder, named_workspace, session_token};
use crate::client::Client;
use crate::concurrency::Owner;
use crate::errors::ApiError;
use crate::request_permits::RequestPermits;
use crate::scopes::{self, RequiredAccess};
use crate::session;

/// The layer in front of every route that needs a key.
pub(crate) async fn require(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let need = scopes::access_for(&request);
    match authenticate(&app, Client::of(request.extensions()), request.headers(), need).await {
        Ok((tenant, granted)) => {
            tracing::Span::current().record("tenant.id", tracing::field::display(tenant.id));
            request.extensions_mut().insert(tenant);
            request.extensions_mut().insert(granted);
            let held = RequestPermits::of(request.extensions());
            if let Err(full) = held.charge(Owner::Workspace(tenant.id)) {
                return refuse(full.refusal());
            }
            match app.limits.count_workspace_request(tenant.id).await {
                Ok(()) => next.run(request).await,
                Err(refusal) => refusal.into_response(),
            }
        }
        Err(error) => refuse(error),
    }
}

/// The layer in front of the operators' routes. They are about all workspaces, so none has to be named.
pub(crate) async fn require_operator(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let need = scopes::access_for(&request);
    match holder(&app, Client::of(request.extensions()), request.headers()).await {
        Ok(principal) => match scopes::check(need, &principal) {
            Ok(()) => {
                request.extensions_mut().insert(Operator(principal));
                next.run(request).await
            }
            Err(error) => refuse(error),
        },
        Err(error) => refuse(error),
    }
}

fn refuse(error: ApiError) -> Response {
    let unauthorized = error.status() == http::StatusCode::UNAUTHORIZED;
    let mut response = error.into_response();
    if unauthorized {
        // RFC 9110 wants a challenge with every 401.
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("ApiKey"));
    }
    response
}

async fn holder(app: &App, client: Client, headers: &HeaderMap) -> Result<Principal, ApiError> {
    if is_in_session(headers) {
        session_holder(app, headers).await
    } else {
        key_holder(&app.key_cache, &app.store, &app.clock, client, headers).await
    }
}

async fn authenticate(
    app: &App,
    client: Client,
    headers: &HeaderMap,
    need: Option<RequiredAccess>,
) -> Result<(Tenant, GrantedScopes), ApiError> {
    let in_session = is_in_session(headers);
    let principal = holder(app, client, headers).await?;
    scopes::check(need, &principal)?;
    let id = match named_workspace(headers, &principal)? {
        Some(id) => id,
        None => match principal.workspaces[..] {
            // A session is for people, who change between workspaces: it has to say which.
            [id] if !in_session => id,
            _ => return Err(ApiError::workspace_required()),
        },
    };
    let tenant = Tenant {
        id,
        organization: principal.organization,
        key: principal.key,
    };
    Ok((tenant, GrantedScopes(principal.scopes)))
}

/// What the session of a request opens.
async fn session_holder(app: &App, headers: &HeaderMap) -> Result<Principal, ApiError> {
    let token = session_token(headers)?;
    session::holder(app.authenticator(), token).await?.ok_or_else(|| {
        ApiError::unauthorized("the session has ended or never existed: start one with POST /auth/session")
    })
}
