//! The dashboard at `/ui`: pages made here, kept live by fetching themselves every two seconds. No script but the
//! files beside them, nothing from elsewhere.
//!
//! Who may look: holders of an operator key, after signing in; keys are also looked after by those who administer their
//! organisation or workspace. The session lies in a cookie that only these pages get
//! and no script can read. Whatever changes something is a form that posts, and a post is only taken from our own
//! pages ([`gate`]).

pub(crate) mod assets;
mod datasets;
mod dead;
mod deployments;
mod destinations;
mod exports;
mod gate;
pub(crate) mod history;
mod jobs;
mod keys;
mod limits;
mod quarantine;
mod queues;
mod schedules;
mod show;
mod traces;
mod workers;

use askama::Template;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use towpath_domain::RequestId;

use crate::app::App;
use crate::errors::ApiError;
use crate::routes::{Listed, Route};

pub(crate) use gate::Links;

/// The pages, in the order of their tabs.
pub(crate) const PAGES: [(&str, &str); 11] = [
    ("/ui/traces", "Traces"),
    ("/ui/datasets", "Datasets"),
    ("/ui/queues", "Queues"),
    ("/ui/jobs", "Jobs"),
    ("/ui/workers", "Workers"),
    ("/ui/deployments", "Deployments"),
    ("/ui/exports", "Exports"),
    ("/ui/schedules", "Schedules"),
    ("/ui/limits", "Limits"),
    ("/ui/dead", "Dead letters"),
    ("/ui/keys", "Keys"),
];

/// Set by htmx on what it asks for.
const HX_REQUEST: HeaderName = HeaderName::from_static("hx-request");

/// Everything below `/ui`.
pub(crate) fn routes(app: &App) -> Router<App> {
    listed(app).router()
}

/// The routes that need a session.
pub(crate) fn behind_the_gate() -> Vec<Route> {
    signed_in().routes()
}

/// The routes that everybody gets.
pub(crate) fn before_the_gate() -> Vec<Route> {
    open().routes()
}

fn listed(app: &App) -> Listed<App> {
    let signed_in = signed_in().within(|router| router.route_layer(from_fn_with_state(app.clone(), gate::signed_in)));
    open().merge(signed_in).within(|router| {
        router
            .layer(from_fn_with_state(app.clone(), gate::own_name))
            .layer(from_fn(guarded))
    })
}

/// What only those get who have signed in. Each has a line in [`crate::scopes`].
fn signed_in() -> Listed<App> {
    Listed::new()
        .get("/ui/traces", traces::projects)
        .get("/ui/traces/{project_id}", traces::runs)
        .get("/ui/traces/{project_id}/{run_id}", traces::trace)
        .get("/ui/datasets", datasets::list)
        .get("/ui/datasets/{dataset_id}", datasets::detail)
        .get("/ui/quarantine", quarantine::list)
        .get("/ui/quarantine/{entry_id}", quarantine::detail)
        .post("/ui/quarantine/{entry_id}/{action}", quarantine::act)
        .get("/ui/queues", queues::page)
        .post("/ui/queues/{pool}/{action}", queues::act)
        .get("/ui/jobs", jobs::list)
        .get("/ui/jobs/{job_id}", jobs::detail)
        .post("/ui/jobs/{job_id}/{action}", jobs::act)
        .get("/ui/workers", workers::page)
        .post("/ui/workers/{worker_id}/drain", workers::drain)
        .get("/ui/deployments", deployments::list)
        .get("/ui/deployments/{deployment_id}", deployments::detail)
        .post("/ui/deployments/{deployment_id}/delete", deployments::delete)
        .get("/ui/revisions/{revision_id}", deployments::revision)
        .post("/ui/revisions/{revision_id}/{action}", deployments::act)
        .get("/ui/exports", exports::list)
        .get("/ui/exports/destinations", destinations::list)
        .post("/ui/exports/destinations/{destination_id}/delete", destinations::delete)
        .get("/ui/exports/{export_id}", exports::detail)
        .get("/ui/schedules", schedules::page)
        .post("/ui/schedules/{schedule_id}/{action}", schedules::act)
        .get("/ui/limits", limits::page)
        .get("/ui/dead", dead::page)
        .post("/ui/dead/{job_id}/retry", dead::retry)
        .get("/ui/keys", keys::page)
        .post("/ui/keys", keys::create)
        .post("/ui/keys/{key_id}/{action}", keys::act)
}

/// What everybody gets.
fn open() -> Listed<App> {
    Listed::new()
        .get("/", async || Redirect::to("/ui/queues"))
        .get("/ui", async || Redirect::to("/ui/queues"))
        .get("/ui/", async || Redirect::to("/ui/queues"))
        // Where `langgraph deploy` says that a deployment can be looked at.
        .get(
            "/o/{tenant_id}/host/deployments/{deployment_id}",
            deployments::from_client,
        )
        // Where the tracing clients say that results can be looked at.
        .get("/o/{tenant_id}/datasets/{dataset_id}", datasets::from_client)
        .get("/o/{tenant_id}/datasets/{dataset_id}/compare", datasets::from_client)
        .get("/o/{tenant_id}/projects/p/{project_id}", datasets::project_from_client)
        .get("/ui/assets/{name}", assets::get)
        .get("/ui/sign-in", gate::ask)
        .post("/ui/sign-in", gate::sign_in)
        .post("/ui/sign-out", gate::sign_out)
        .get("/ui/enter", gate::enter)
}

tokio::task_local! {
    static NONCE: String;
}

/// What marks the scripts of the page that is made now as the page's own; empty where no page is.
pub(crate) fn nonce() -> String {
    NONCE.try_with(Clone::clone).unwrap_or_default()
}

/// What every answer tells the browser: load nothing from elsewhere, run nothing that stands in a page, be shown in
/// no frame. Scripts are those of our assets that the page itself names: deployments answer below the same address, so
/// that a script of this origin need not be ours. A source cannot be a path without its host, which a proxy may have
/// changed; a nonce needs neither.
async fn guarded(request: Request, next: axum::middleware::Next) -> Response {
    // 74 bits of it are random, and it is worth something to this one answer alone.
    let nonce = RequestId::new().to_string();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    let mut response = NONCE.scope(nonce, next.run(request)).await;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'")),
    );
    for (name, value) in [
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (VARY, "hx-request, cookie"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// What is asked for: a page, or only what is new in it.
pub(crate) struct Asked {
    headers: HeaderMap,
    uri: Uri,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Asked {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self {
            headers: parts.headers.clone(),
            uri: parts.uri.clone(),
        })
    }
}

/// The frame around a page.
#[derive(Template)]
#[template(path = "ui/page.html")]
struct Page<'a> {
    title: &'a str,
    /// The tab.
    here: &'a str,
    /// Where the page asks for itself.
    address: &'a str,
    live: bool,
    content: &'a str,
}

impl Asked {
    /// A page that renews itself.
    fn page(&self, title: &str, here: &str, content: &impl Template) -> Response {
        self.rendered(title, here, true, content)
    }

    /// A page that stays as it is.
    fn still(&self, title: &str, here: &str, content: &impl Template) -> Response {
        self.rendered(title, here, false, content)
    }

    fn rendered(&self, title: &str, here: &str, live: bool, content: &impl Template) -> Response {
        match content.render() {
            Ok(content) => self.framed(StatusCode::OK, title, here, live, &content),
            Err(error) => {
                tracing::error!(%error, "a page cannot be rendered");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    fn framed(&self, status: StatusCode, title: &str, here: &str, live: bool, content: &str) -> Response {
        if self.headers.contains_key(&HX_REQUEST) {
            return (status, Html(content.to_owned())).into_response();
        }
        let address = self
            .uri
            .path_and_query()
            .map_or("/ui/queues", |address| address.as_str());
        let page = Page {
            title,
            here,
            address,
            live,
            content,
        };
        match page.render() {
            Ok(page) => (status, Html(page)).into_response(),
            Err(error) => {
                tracing::error!(%error, "the frame of a page cannot be rendered");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// A page that says what went wrong.
#[derive(Template)]
#[template(path = "ui/problem.html")]
struct Problem<'a> {
    title: &'a str,
    text: &'a str,
}

/// Why there is no page.
pub(crate) struct Trouble(ApiError);

impl<E: Into<ApiError>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let status = self.0.status();
        let text = self.0.text().to_owned();
        // Logs what is inside, where that is for the log.
        drop(self.0.into_response());
        let title = match status {
            StatusCode::NOT_FOUND => "Not here",
            StatusCode::CONFLICT => "That no longer fits",
            StatusCode::SERVICE_UNAVAILABLE => "Not available now",
            _ => "That did not work",
        };
        let problem = Problem { title, text: &text };
        let content = problem.render().unwrap_or_default();
        let asked = Asked {
            headers: HeaderMap::new(),
            uri: Uri::from_static("/ui/queues"),
        };
        asked.framed(status, title, "", false, &content)
    }
}

/// Back to where a form was.
fn back(to: &str) -> Response {
    Redirect::to(to).into_response()
}

type Shown = Result<Response, Trouble>;
