//! The gate of the dashboard: signing in and out, and who gets past.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use askama::Template;
use axum::extract::{Query, Request, State};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{COOKIE, RETRY_AFTER, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use towpath_domain::{Scope, Secret};
use towpath_store::access::{self, KeyHash, Principal};

use super::{HX_REQUEST, Trouble};
use crate::app::App;
use crate::auth::Operator;
use crate::browser::{is_called_by_own_name, is_ours};
use crate::client::Client;
use crate::errors::{ApiError, retry_after};
use crate::extract::Form;
use crate::internal::keys::administers;
use crate::{scopes, session};

/// The session's cookie. Behind https its name begins with what browsers keep for cookies that one host alone set over
/// TLS: nobody on the network, and no other name of its domain, can plant one.
struct Jar {
    name: &'static str,
    attributes: &'static str,
}

impl Jar {
    fn of(app: &App) -> Self {
        if app.settings.public_url.starts_with("https://") {
            Self {
                name: "__Host-towpath_session",
                // The name asks for both, whichever way the request came.
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
        let (name, attributes, seconds) = (self.name, self.attributes, session::LASTS.as_secs());
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

/// Codes of links that were used.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashSet<[u8; 32]>>);

impl Links {
    /// Whether this is the first use of a code that is known to be good. Codes end after minutes and are made at
    /// starts only, so what is kept is little.
    fn first_use(&self, code: &str) -> bool {
        let mark = KeyHash::of(code.as_bytes()).bytes();
        // A panic between two set operations leaves the set whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(mark)
    }
}

impl App {
    /// The path of a link that signs its first reader in as the holder of `secret`, within some minutes: for the
    /// terminal of whoever started this process. `None` when the key opens nothing.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn sign_in_link(&self, secret: &Secret) -> towpath_store::Result<Option<String>> {
        let hash = KeyHash::of(secret.reveal().as_bytes());
        let principal = self
            .store
            .read(async |tx| access::authenticate(tx, &hash).await)
            .await?;
        Ok(principal.map(|principal| format!("/ui/enter?code={}", session::link_code(self, principal.key))))
    }
}

/// The page to sign in.
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
            tracing::error!(%error, "the page to sign in cannot be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Refuses browsers that were led here under a name of somebody else, where only this machine reaches the server.
pub(super) async fn own_name(State(app): State<App>, request: Request, next: Next) -> Response {
    let settings = &app.settings;
    if settings.loopback && !is_called_by_own_name(request.headers(), request.uri(), Some(&settings.public_url)) {
        let text = "This server is for this machine alone and was called by another name. Call it 127.0.0.1 or \
                    localhost, or set public_url to the address it is reached at.";
        return Trouble::from(ApiError::new(StatusCode::MISDIRECTED_REQUEST, text)).into_response();
    }
    next.run(request).await
}

/// Lets those past who signed in and may.
pub(super) async fn signed_in(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read && !is_ours(request.headers()) {
        return refuse_foreign();
    }
    let holder = match Jar::of(&app).token(request.headers()) {
        Some(token) => session::holder(&app, &token).await,
        None => Ok(None),
    };
    match holder {
        Err(error) => Trouble::from(error).into_response(),
        Ok(Some(principal)) if may_look(&principal) => match scopes::check(scopes::need_of(&request), &principal) {
            Ok(()) => {
                request.extensions_mut().insert(Operator(principal));
                next.run(request).await
            }
            Err(error) => Trouble::from(error).into_response(),
        },
        Ok(Some(_)) => sign_in_page(
            StatusCode::FORBIDDEN,
            Some("The dashboard requires an operator key, or one that administers keys."),
            "/ui/queues",
        ),
        // A fragment: the page that asked for it turns to this one by itself.
        Ok(None) if request.headers().contains_key(&HX_REQUEST) => StatusCode::UNAUTHORIZED.into_response(),
        Ok(None) if is_read => {
            let wanted = request.uri().path_and_query().map_or("/ui/queues", |uri| uri.as_str());
            sign_in_page(StatusCode::UNAUTHORIZED, None, wanted)
        }
        Ok(None) => Redirect::to("/ui/sign-in").into_response(),
    }
}

/// Operators, and those who look after keys.
fn may_look(principal: &Principal) -> bool {
    principal.scopes.allow(Scope::OperatorRead) || administers(principal)
}

/// Where somebody begins.
fn home(principal: &Principal) -> &'static str {
    if principal.scopes.allow(Scope::OperatorRead) {
        "/ui/queues"
    } else {
        "/ui/keys"
    }
}

/// The page to sign in, asked for by its address.
pub(super) async fn ask() -> Response {
    sign_in_page(StatusCode::OK, None, "/ui/queues")
}

/// What the form sends.
#[derive(Deserialize)]
pub(super) struct Credentials {
    key: String,
    #[serde(default)]
    next: String,
}

/// Takes a key, gives a session.
pub(super) async fn sign_in(
    State(app): State<App>,
    client: Client,
    headers: HeaderMap,
    Form(form): Form<Credentials>,
) -> Response {
    if !is_ours(&headers) {
        return refuse_foreign();
    }
    let next = inside(&form.next);
    let hash = KeyHash::of(form.key.trim().as_bytes());
    let found = app.store.read(async |tx| access::authenticate(tx, &hash).await).await;
    session::count(matches!(&found, Ok(Some(principal)) if may_look(principal)));
    match found {
        Err(error) => {
            drop(ApiError::from(error).into_response());
            let text = "The database does not answer. Try again in a moment.";
            sign_in_page(StatusCode::SERVICE_UNAVAILABLE, Some(text), &next)
        }
        Ok(None) => refuse_unknown(&app, client, "This key opens nothing.", &next),
        Ok(Some(principal)) if !may_look(&principal) => {
            let text = "This key is not an operator key, nor does it administer keys. It works for the API, not for the dashboard.";
            sign_in_page(StatusCode::FORBIDDEN, Some(text), &next)
        }
        Ok(Some(principal)) => {
            let (token, _) = session::issue(&app, principal.key);
            // Of the pages it asked for, a key that only administers keys opens none.
            let next = if principal.scopes.allow(Scope::OperatorRead) {
                next.as_str()
            } else {
                home(&principal)
            };
            ([(SET_COOKIE, Jar::of(&app).set(client, &token))], Redirect::to(next)).into_response()
        }
    }
}

/// Ends the session, also for whoever has a copy of the cookie.
pub(super) async fn sign_out(State(app): State<App>, headers: HeaderMap) -> Response {
    if !is_ours(&headers) {
        return refuse_foreign();
    }
    if let Some(token) = Jar::of(&app).token(&headers)
        && let Err(error) = session::over(&app, &token).await
    {
        // The browser keeps the cookie: it can be tried again, and nobody believes it is done.
        return Trouble::from(error).into_response();
    }
    ([(SET_COOKIE, Jar::of(&app).clear())], Redirect::to("/ui/sign-in")).into_response()
}

/// What a link to sign in carries.
#[derive(Deserialize)]
pub(super) struct Code {
    #[serde(default)]
    code: String,
}

/// Signs the first reader of a link in.
pub(super) async fn enter(State(app): State<App>, client: Client, Query(link): Query<Code>) -> Response {
    let Some(key) = session::linked_key(&app, &link.code).filter(|_| app.links.first_use(&link.code)) else {
        let text = "This link was used before, or is too old. Sign in with an API key.";
        return refuse_unknown(&app, client, text, "/ui/queues");
    };
    session::count(true);
    let (token, _) = session::issue(&app, key);
    // A page of ours that goes on by itself: a redirect would belong to whoever shows the link, and a strict cookie
    // would not come along.
    let page = "<!doctype html><title>Signed in</title><meta http-equiv=\"refresh\" content=\"0; url=/ui/queues\">\
                <a href=\"/ui/queues\">Signed in. Go on.</a>";
    ([(SET_COOKIE, Jar::of(&app).set(client, &token))], Html(page)).into_response()
}

/// What was sent opens nothing.
fn refuse_unknown(app: &App, client: Client, problem: &str, next: &str) -> Response {
    let Some(wait) = app.keys.failed(client) else {
        return sign_in_page(StatusCode::UNAUTHORIZED, Some(problem), next);
    };
    let problem = format!("{problem} Too many of your address did: try again in a moment.");
    let mut page = sign_in_page(StatusCode::TOO_MANY_REQUESTS, Some(problem.as_str()), next);
    page.headers_mut().insert(RETRY_AFTER, retry_after(wait));
    page
}

fn refuse_foreign() -> Response {
    Trouble::from(ApiError::forbidden("this form was not sent from a page of this server")).into_response()
}

/// Only a path of ours: a form must not send people elsewhere.
fn inside(next: &str) -> String {
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
        assert_eq!(inside("/ui/jobs?state=ready"), "/ui/jobs?state=ready");
        for outside in [
            "",
            "/",
            "//evil.example",
            "https://evil.example",
            "/ui/sign-out",
            "/ui/a\nb",
            "/uix",
        ] {
            assert_eq!(inside(outside), "/ui/queues", "{outside}");
        }
    }
}
