//! Sessions: a key is exchanged for a sealed token with the key id and an expiry time. Tokens are not stored. A session
//! ends at its expiry, with its key, or when its holder ends it; ended sessions are stored until they would have
//! expired.
//!
//! ```text
//! tps_ base64url( sealed( key id 16 | expires at, microseconds 8 ) )
//! ```
//! The dashboard keeps it in a cookie of its own pages; programs send it as `Authorization: Bearer`.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use towpath_domain::{KeyId, TenantId, Timestamp};
use towpath_store::access::{KeyHash, Principal};
use towpath_store::ended_sessions;
use towpath_store::sealing::{SealContext, Sealer};
use uuid::Uuid;

use crate::app::App;
use crate::auth;
use crate::client::Client;
use crate::errors::{ApiError, Error};
use crate::extract::Json;
use crate::metric;
use crate::routes::{Routes, routes};

/// Lifetime of a session.
pub(crate) const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);
/// Lifetime of a sign-in link, which is printed in a terminal.
const LINK_TTL: Duration = Duration::from_secs(15 * 60);
const PREFIX: &str = "tps_";

/// Purpose of a token; a token of one purpose is not accepted for the other.
#[derive(Clone, Copy)]
enum Purpose {
    Session,
    Link,
}

impl Purpose {
    fn place(self) -> SealContext<'static> {
        SealContext {
            tenant: TenantId::nil(),
            table: "session",
            column: match self {
                Self::Session => "token",
                Self::Link => "link",
            },
            row: Uuid::nil(),
        }
    }
}

/// Whether the value of an `Authorization` header is a session token.
pub(crate) fn is_token_of(authorization: &str) -> bool {
    authorization
        .split_once(' ')
        .is_some_and(|(_, token)| token.trim().starts_with(PREFIX))
}

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
    count(principal.is_ok());
    let principal = principal?;
    let (token, expires_at) = issue(&app, principal.key);
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
    if holder(&app, token).await?.is_none() {
        return Err(ApiError::unauthorized("the session has ended or never existed"));
    }
    over(&app, token).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends the session of a token, if it has not ended.
pub(crate) async fn over(app: &App, token: &str) -> Result<(), towpath_store::Error> {
    let Some((_, until)) = read(&app.sealer, Purpose::Session, token, app.clock.now()) else {
        return Ok(());
    };
    let hash = KeyHash::of(token.as_bytes());
    app.store
        .write(async |tx| ended_sessions::insert(tx, &hash, until).await)
        .await?;
    app.key_cache.forget_session(token);
    Ok(())
}

/// Counts an attempt to start a session.
pub(crate) fn count(granted: bool) {
    let outcome = if granted { "granted" } else { "refused" };
    metrics::counter!(metric::SIGN_INS, "outcome" => outcome).increment(1);
}

/// A token for the holder of `key`, and when it ends.
pub(crate) fn issue(app: &App, key: KeyId) -> (String, Timestamp) {
    let until = app.clock.now().plus(SESSION_TTL);
    (write(&app.sealer, Purpose::Session, key, until), until)
}

/// The principal of a token, if the token and its key are valid.
pub(crate) async fn holder(app: &App, token: &str) -> Result<Option<Principal>, towpath_store::Error> {
    match read(&app.sealer, Purpose::Session, token, app.clock.now()) {
        Some((key, _)) => app.key_cache.holder(&app.store, &app.clock, token, key).await,
        None => Ok(None),
    }
}

/// A code for a link that signs in its first user.
pub(crate) fn link_code(app: &App, key: KeyId) -> String {
    write(&app.sealer, Purpose::Link, key, app.clock.now().plus(LINK_TTL))
}

/// The key of a link's code. The caller checks whether the code was used before.
pub(crate) fn linked_key(app: &App, code: &str) -> Option<KeyId> {
    read(&app.sealer, Purpose::Link, code, app.clock.now()).map(|(key, _)| key)
}

/// Codes of used sign-in links.
#[derive(Default)]
pub(crate) struct UsedLinks(Mutex<HashSet<[u8; 32]>>);

impl UsedLinks {
    /// Whether this is the first use of a valid code. Codes expire after minutes and are created at start only, so the
    /// set stays small.
    pub(crate) fn first_use(&self, code: &str) -> bool {
        let mark = KeyHash::of(code.as_bytes()).bytes();
        // A panic between two set operations leaves the set consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(mark)
    }
}

fn write(sealer: &Sealer, purpose: Purpose, key: KeyId, until: Timestamp) -> String {
    let mut plain = key.0.as_bytes().to_vec();
    plain.extend_from_slice(&until.micros().to_be_bytes());
    format!(
        "{PREFIX}{}",
        URL_SAFE_NO_PAD.encode(sealer.seal(purpose.place(), &plain))
    )
}

/// Key and expiry of a token, if it is valid.
fn read(sealer: &Sealer, purpose: Purpose, token: &str, now: Timestamp) -> Option<(KeyId, Timestamp)> {
    let sealed = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX)?).ok()?;
    let plain = sealer.open(purpose.place(), &sealed).ok()?;
    let (key, until) = plain.split_at_checked(16)?;
    let until = Timestamp::from_micros(i64::from_be_bytes(until.try_into().ok()?));
    let key = KeyId(Uuid::from_slice(key).ok()?);
    (now < until).then_some((key, until))
}

#[cfg(test)]
mod tests {
    use towpath_store::sealing::Keys;

    use super::*;

    #[test]
    fn a_token_opens_until_it_ends_and_only_as_what_it_is() {
        let sealer = Sealer::new(Keys::parse(&"01".repeat(32)).unwrap());
        let (key, now) = (KeyId::new(), Timestamp::from_micros(1_000_000));
        let until = now.plus(Duration::from_secs(60));
        let token = write(&sealer, Purpose::Session, key, until);
        assert_eq!(read(&sealer, Purpose::Session, &token, now), Some((key, until)));
        assert_eq!(read(&sealer, Purpose::Session, &token, until), None);
        assert_eq!(read(&sealer, Purpose::Link, &token, now), None);
        let other = Sealer::new(Keys::parse(&"02".repeat(32)).unwrap());
        assert_eq!(read(&other, Purpose::Session, &token, now), None);
        for wrong in [
            "",
            "tps_",
            "tps_AAAA",
            &token[1..],
            &token[..token.len() - 2],
            &format!("{token}A"),
        ] {
            assert_eq!(read(&sealer, Purpose::Session, wrong, now), None, "{wrong}");
        }
    }
}
