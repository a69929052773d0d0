//! Sessions for programs: starting one with a key, and ending it.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CACHE_CONTROL;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use towpath_domain::{TenantId, Timestamp};

use crate::app::App;
use crate::client::Client;
use crate::errors::{ApiError, Error};
use crate::extract::Json;
use crate::routes::{Routes, routes};
use crate::{auth, session};

/// Routes of sessions. They authenticate by themselves, since starting a session needs no workspace.
pub(crate) fn routes() -> Routes<App> {
    Routes::default().routes(routes!(create, end))
}

/// A new session.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Session {
    /// Send it as `Authorization: Bearer`, with the workspace in `X-Tenant-Id`.
    token: String,
    /// Expiry time. The session ends earlier if its key is revoked.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    /// Workspaces that the session has access to.
    #[schema(value_type = Vec<Uuid>)]
    workspaces: Vec<TenantId>,
}

/// Start a session: exchange an API key for a token that expires.
#[utoipa::path(post, path = "/auth/session", tag = "operations", security(("api_key" = [])),
    responses((status = 201, description = "The session", body = Session),
              (status = 400, description = "A header was sent twice", body = Error), ApiError))]
pub(crate) async fn create(State(app): State<App>, client: Client, headers: HeaderMap) -> Result<Response, ApiError> {
    let principal = auth::key_holder(&app.key_cache, &app.store, &app.clock, client, &headers).await;
    session::count(principal.is_ok());
    let principal = principal?;
    let (token, expires_at) = session::issue(app.authenticator(), principal.key);
    let session = Session {
        token,
        expires_at,
        workspaces: principal.workspaces,
    };
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(session)).into_response())
}

/// End a session: its token is no longer accepted. Other processes learn of it within five seconds.
#[utoipa::path(delete, path = "/auth/session", tag = "operations", security(("bearer" = [])),
    responses((status = 204, description = "Ended"),
              (status = 400, description = "A header was sent twice", body = Error), ApiError))]
pub(crate) async fn end(State(app): State<App>, headers: HeaderMap) -> Result<StatusCode, ApiError> {
    let token = auth::session_token(&headers)?;
    if session::holder(app.authenticator(), token).await?.is_none() {
        return Err(ApiError::unauthorized("the session has ended or never existed"));
    }
    session::over(app.authenticator(), token).await?;
    Ok(StatusCode::NO_CONTENT)
}
