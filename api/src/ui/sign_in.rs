//! Signing in and out of the dashboard.

use std::collections::HashSet;

use askama::Template;
use axum::extract::{Query, Request, State};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{COOKIE, RETRY_AFTER, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use towpath_domain::{Scope, Secret};
use towpath_store::access::{self, KeyHash, Principal};

use super::{HX_REQUEST, PageError};
use crate::app::App;
use crate::auth::Operator;
use crate::browser::{has_own_host, is_same_origin};
use crate::client::Client;
use crate::errors::{ApiError, retry_after};
use crate::extract::Form;
use crate::internal::keys::administers;
use crate::{scopes, session};

/// Session cookie. Over https its name has the prefix `__Host-`, so that neither the network nor a subdomain can set
/// it.
struct SessionCookie {
    name: &'static str,
    attributes: &'static str,
}

impl SessionCookie {
    fn of(app: &App) -> Self {
        if app.settings.public_url.starts_with("https://") {
            Self {
                name: "__Host-towpath_session",
                // The prefix requires both attributes.
                attributes: "Path=/; HttpOnly; SameSite=Strict; Secure",
            }
        } else {
            Self {
                name: "towpath_session",
                attributes: "Path=/ui; HttpOnly; SameSite=Strict",
            }
        }
    }

    fn set(&self, client: Client, token: &str) -> String {
        let secure = if client.secure && !self.attributes.ends_with("Secure") {
            "; Secure"
        } else {
            ""
        };
        let (name, attributes, seconds) = (self.name, self.attributes, session::SESSION_TTL.as_secs());
        format!("{name}={token}; {attributes}; Max-Age={seconds}{secure}")
    }

    fn clear(&self) -> String {
        format!("{}=; {}; Max-Age=0", self.name, self.attributes)
    }

    fn token(&self, headers: &HeaderMap) -> Option<String> {
        headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(name, _)| *name == self.name)
            .map(|(_, token)| token.to_owned())
    }
}

/// Codes of used sign-in links.
#[derive(Default)]
pub(crate) struct UsedLinks(Mutex<HashSet<[u8; 32]>>);

impl UsedLinks {
    /// Whether this is the first use of a valid code. Codes expire after minutes and are created at start only, so the
    /// set stays small.
    fn first_use(&self, code: &str) -> bool {
        let mark = KeyHash::of(code.as_bytes()).bytes();
        self.0.lock().insert(mark)
    }
}

impl App {
    /// Path of a sign-in link for the holder of `secret`, to be printed in the terminal. `None` if the key is invalid.
    pub async fn sign_in_link(&self, secret: &Secret) -> towpath_store::Result<Option<String>> {
        let hash = KeyHash::of(secret.reveal().as_bytes());
        let principal = self
            .store
            .read(async |tx| access::authenticate(tx, &hash).await)
            .await?;
        Ok(principal.map(|principal| format!("/ui/enter?code={}", session::link_code(self, principal.key))))
    }
}

/// The sign-in page.
#[derive(Template)]
#[template(path = "ui/sign_in.html")]
struct SignIn<'a> {
    problem: Option<&'a str>,
    next: &'a str,
}

fn sign_in_page(status: StatusCode, problem: Option<&str>, next: &str) -> Response {
    match (SignIn { problem, next }).render() {
        Ok(page) => (status, Html(page)).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render the sign-in page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Rejects requests with a foreign host name, if only this machine reaches the server (DNS rebinding).
pub(super) async fn require_own_host(State(app): State<App>, request: Request, next: Next) -> Response {
    let settings = &app.settings;
    if settings.loopback && !has_own_host(request.headers(), request.uri(), Some(&settings.public_url)) {
        let text = "This server only accepts requests from this machine. Open it as 127.0.0.1 or \
                    localhost, or set public_url to its public address.";
        return PageError::from(ApiError::new(StatusCode::MISDIRECTED_REQUEST, text)).into_response();
    }
    next.run(request).await
}

/// Requires a session with access to the page.
pub(super) async fn require_session(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read && !is_same_origin(request.headers()) {
        return refuse_foreign();
    }
    let holder = match SessionCookie::of(&app).token(request.headers()) {
        Some(token) => session::holder(&app, &token).await,
        None => Ok(None),
    };
    match holder {
        Err(error) => PageError::from(error).into_response(),
        Ok(Some(principal)) if may_use_dashboard(&principal) => {
            match scopes::check(scopes::access_for(&request), &principal) {
                Ok(()) => {
                    request.extensions_mut().insert(Operator(principal));
                    next.run(request).await
                }
                Err(error) => PageError::from(error).into_response(),
            }
        }
        Ok(Some(_)) => sign_in_page(
            StatusCode::FORBIDDEN,
            Some("The dashboard requires an operator key or a key that administers keys."),
            "/ui/queues",
        ),
        // A fragment request: the page redirects to the sign-in page itself.
        Ok(None) if request.headers().contains_key(&HX_REQUEST) => StatusCode::UNAUTHORIZED.into_response(),
        Ok(None) if is_read => {
            let wanted = request.uri().path_and_query().map_or("/ui/queues", |uri| uri.as_str());
            sign_in_page(StatusCode::UNAUTHORIZED, None, wanted)
        }
        Ok(None) => Redirect::to("/ui/sign-in").into_response(),
    }
}

/// Operators and administrators of keys.
fn may_use_dashboard(principal: &Principal) -> bool {
    sees_all_pages(principal) || administers(principal)
}

/// The only page of callers who administer keys and are no operators.
pub(super) const PAGE_OF_KEYS: &str = "/ui/keys";

/// Whether the caller may open every page, and not only that of keys.
pub(super) fn sees_all_pages(principal: &Principal) -> bool {
    principal.scopes.allow(Scope::OperatorRead)
}

/// First page after signing in.
fn landing_page(principal: &Principal) -> &'static str {
    if sees_all_pages(principal) {
        "/ui/queues"
    } else {
        PAGE_OF_KEYS
    }
}

/// Redirects to the first page of the session's holder. That page asks for a key without a session.
pub(super) async fn landing(State(app): State<App>, headers: HeaderMap) -> Redirect {
    let holder = match SessionCookie::of(&app).token(&headers) {
        Some(token) => session::holder(&app, &token).await,
        None => Ok(None),
    };
    // A page reports an unavailable database better than a redirect.
    let holder = holder.ok().flatten();
    Redirect::to(holder.as_ref().map_or("/ui/queues", landing_page))
}

pub(super) async fn sign_in_form() -> Response {
    sign_in_page(StatusCode::OK, None, "/ui/queues")
}

/// What the form sends.
#[derive(Deserialize)]
pub(super) struct Credentials {
    key: String,
    #[serde(default)]
    next: String,
}

/// Exchanges a key for a session.
pub(super) async fn sign_in(
    State(app): State<App>,
    client: Client,
    headers: HeaderMap,
    Form(form): Form<Credentials>,
) -> Response {
    if !is_same_origin(&headers) {
        return refuse_foreign();
    }
    let next = local_path(&form.next);
    let hash = KeyHash::of(form.key.trim().as_bytes());
    let found = app.store.read(async |tx| access::authenticate(tx, &hash).await).await;
    session::count(matches!(&found, Ok(Some(principal)) if may_use_dashboard(principal)));
    match found {
        Err(error) => {
            drop(ApiError::from(error).into_response());
            let text = "The database is unavailable. Try again in a moment.";
            sign_in_page(StatusCode::SERVICE_UNAVAILABLE, Some(text), &next)
        }
        Ok(None) => refuse_unknown(&app, client, "This API key is invalid.", &next),
        Ok(Some(principal)) if !may_use_dashboard(&principal) => {
            let text = "This key is not an operator key and does not administer keys. Use it for the API only.";
            sign_in_page(StatusCode::FORBIDDEN, Some(text), &next)
        }
        Ok(Some(principal)) => {
            let (token, _) = session::issue(&app, principal.key);
            // A key that only administers keys has access to the Keys page only.
            let next = if sees_all_pages(&principal) {
                next.as_str()
            } else {
                landing_page(&principal)
            };
            (
                [(SET_COOKIE, SessionCookie::of(&app).set(client, &token))],
                Redirect::to(next),
            )
                .into_response()
        }
    }
}

/// Ends the session, including for copies of the cookie.
pub(super) async fn sign_out(State(app): State<App>, headers: HeaderMap) -> Response {
    if !is_same_origin(&headers) {
        return refuse_foreign();
    }
    if let Some(token) = SessionCookie::of(&app).token(&headers)
        && let Err(error) = session::over(&app, &token).await
    {
        // The browser keeps the cookie, so the user can retry.
        return PageError::from(error).into_response();
    }
    (
        [(SET_COOKIE, SessionCookie::of(&app).clear())],
        Redirect::to("/ui/sign-in"),
    )
        .into_response()
}

/// Query of a sign-in link.
#[derive(Deserialize)]
pub(super) struct LinkQuery {
    #[serde(default)]
    code: String,
}

/// Signs in the first user of a link.
pub(super) async fn redeem_link(State(app): State<App>, client: Client, Query(link): Query<LinkQuery>) -> Response {
    let Some(key) = session::linked_key(&app, &link.code).filter(|_| app.used_links.first_use(&link.code)) else {
        let text = "This link was already used or has expired. Sign in with an API key.";
        return refuse_unknown(&app, client, text, "/ui/queues");
    };
    session::count(true);
    let (token, _) = session::issue(&app, key);
    // A page that refreshes itself instead of a redirect: a strict cookie is not sent with a redirect from another
    // site.
    let page = "<!doctype html><title>Signed in</title><meta http-equiv=\"refresh\" content=\"0; url=/ui/\">\
                <a href=\"/ui/\">Signed in. Go on.</a>";
    ([(SET_COOKIE, SessionCookie::of(&app).set(client, &token))], Html(page)).into_response()
}

/// Answers an invalid key.
fn refuse_unknown(app: &App, client: Client, problem: &str, next: &str) -> Response {
    let Some(wait) = app.key_cache.count_failure(client) else {
        return sign_in_page(StatusCode::UNAUTHORIZED, Some(problem), next);
    };
    let problem = format!("{problem} Too many failed attempts from your address. Try again in a moment.");
    let mut page = sign_in_page(StatusCode::TOO_MANY_REQUESTS, Some(problem.as_str()), next);
    page.headers_mut().insert(RETRY_AFTER, retry_after(wait));
    page
}

fn refuse_foreign() -> Response {
    PageError::from(ApiError::forbidden("this form was not sent from a page of this server")).into_response()
}

/// Accepts only local paths, so that a form cannot redirect to another site.
fn local_path(next: &str) -> String {
    if next.starts_with("/ui/") && !next.starts_with("/ui/sign") && next.bytes().all(|byte| byte.is_ascii_graphic()) {
        next.to_owned()
    } else {
        "/ui/queues".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_on_stays_inside() {
        assert_eq!(local_path("/ui/jobs?state=ready"), "/ui/jobs?state=ready");
        for outside in [
            "",
            "/",
            "//evil.example",
            "https://evil.example",
            "/ui/sign-out",
            "/ui/a\nb",
            "/uix",
        ] {
            assert_eq!(local_path(outside), "/ui/queues", "{outside}");
        }
    }
}
