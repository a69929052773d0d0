//! The dashboard at `/ui`: server-rendered pages that refresh every two seconds. All scripts and styles are local.
//!
//! Access requires an operator key and a session; administrators of an organization or workspace may also manage its
//! keys. The session cookie is limited to these pages and hidden from scripts. Changes are posted forms, which are only
//! accepted from pages of this server ([`sign_in`]).

pub(crate) mod assets;
mod datasets;
mod dead_jobs;
mod deployments;
mod destinations;
mod exports;
mod formatting;
mod guide;
pub(crate) mod history;
mod jobs;
mod keys;
mod limits;
mod prompts;
mod quarantine;
mod queues;
mod sandbox_nodes;
mod sandboxes;
mod schedules;
mod sign_in;
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
use crate::auth::Operator;
use crate::errors::ApiError;
use crate::routes::{Route, RouteTable};

pub(crate) use sign_in::UsedLinks;

/// The pages, in the order of their tabs.
pub(crate) const PAGES: [(&str, &str); 13] = [
    ("/ui/traces", "Traces"),
    ("/ui/datasets", "Datasets"),
    ("/ui/prompts", "Prompts"),
    ("/ui/queues", "Queues"),
    ("/ui/jobs", "Jobs"),
    ("/ui/workers", "Workers"),
    ("/ui/deployments", "Deployments"),
    ("/ui/sandboxes", "Sandboxes"),
    ("/ui/exports", "Exports"),
    ("/ui/schedules", "Schedules"),
    ("/ui/limits", "Limits"),
    ("/ui/dead", "Dead letters"),
    ("/ui/keys", "Keys"),
];

/// Set by htmx on its requests.
const HX_REQUEST: HeaderName = HeaderName::from_static("hx-request");

/// Everything below `/ui`.
pub(crate) fn routes(app: &App) -> Router<App> {
    listed(app).router()
}

/// The routes that need a session.
pub(crate) fn behind_the_gate() -> Vec<Route> {
    signed_in().routes()
}

/// Public routes.
pub(crate) fn before_the_gate() -> Vec<Route> {
    open().routes()
}

fn listed(app: &App) -> RouteTable<App> {
    let signed_in =
        signed_in().with_layers(|router| router.route_layer(from_fn_with_state(app.clone(), sign_in::require_session)));
    open().merge(signed_in).with_layers(|router| {
        router
            .layer(from_fn_with_state(app.clone(), sign_in::require_own_host))
            .layer(from_fn(guarded))
    })
}

/// Routes that need a session. Each has an entry in [`crate::scopes`].
fn signed_in() -> RouteTable<App> {
    RouteTable::new()
        .get("/ui/traces", traces::projects)
        .get("/ui/traces/{project_id}", traces::runs)
        .get("/ui/traces/{project_id}/{run_id}", traces::trace)
        .get("/ui/datasets", datasets::list)
        .get("/ui/datasets/{dataset_id}", datasets::detail)
        .get("/ui/prompts", prompts::list)
        .get("/ui/prompts/{tenant_id}/{name}", prompts::detail)
        .get("/ui/quarantine", quarantine::list)
        .get("/ui/quarantine/{entry_id}", quarantine::detail)
        .post("/ui/quarantine/{entry_id}/{action}", quarantine::act)
        .get("/ui/queues", queues::page)
        .post("/ui/queues/{pool}/{action}", queues::act)
        .get("/ui/jobs", jobs::list)
        .get("/ui/jobs/{job_id}", jobs::detail)
        .post("/ui/jobs/{job_id}/{action}", jobs::act)
        .get("/ui/workers", workers::page)
        .post("/ui/workers/{worker_id}/{action}", workers::act)
        .get("/ui/deployments", deployments::list)
        .get("/ui/deployments/{deployment_id}", deployments::detail)
        .post("/ui/deployments/{deployment_id}/delete", deployments::delete)
        .get("/ui/revisions/{revision_id}", deployments::revision)
        .post("/ui/revisions/{revision_id}/{action}", deployments::act)
        .get("/ui/sandboxes", sandboxes::list)
        .get("/ui/sandboxes/{box_id}", sandboxes::detail)
        .post("/ui/sandboxes/{box_id}/snapshot", sandboxes::save_snapshot)
        .post("/ui/sandboxes/{box_id}/{action}", sandboxes::act)
        .post("/ui/sandbox-nodes/{node_id}/{action}", sandbox_nodes::act)
        .get("/ui/exports", exports::list)
        .get("/ui/exports/destinations", destinations::list)
        .post("/ui/exports/destinations/{destination_id}/delete", destinations::delete)
        .get("/ui/exports/{export_id}", exports::detail)
        .get("/ui/schedules", schedules::page)
        .post("/ui/schedules/{schedule_id}/{action}", schedules::act)
        .get("/ui/limits", limits::page)
        .get("/ui/dead", dead_jobs::page)
        .post("/ui/dead/{job_id}/retry", dead_jobs::retry)
        .get("/ui/keys", keys::page)
        .post("/ui/keys", keys::create)
        .post("/ui/keys/{key_id}/{action}", keys::act)
}

/// Public routes.
fn open() -> RouteTable<App> {
    RouteTable::new()
        // Browsers send the cookie only below `/ui`.
        .get("/", async || Redirect::to("/ui/"))
        .get("/ui", sign_in::landing)
        .get("/ui/", sign_in::landing)
        // `langgraph deploy` prints this address of a deployment.
        .get(
            "/o/{tenant_id}/host/deployments/{deployment_id}",
            deployments::from_client,
        )
        // The tracing clients print this address of results.
        .get("/o/{tenant_id}/datasets/{dataset_id}", datasets::from_client)
        .get("/o/{tenant_id}/datasets/{dataset_id}/compare", datasets::from_client)
        .get("/o/{tenant_id}/projects/p/{project_id}", datasets::project_from_client)
        .get("/prompts/{name}", prompts::from_client)
        .get("/prompts/{name}/{commit}", prompts::commit_from_client)
        .get("/ui/assets/{name}", assets::get)
        .get("/ui/sign-in", sign_in::sign_in_form)
        .post("/ui/sign-in", sign_in::sign_in)
        .post("/ui/sign-out", sign_in::sign_out)
        .get("/ui/enter", sign_in::redeem_link)
        .get("/guide", guide::get)
        .get("/guide/", guide::get)
        .get("/guide/{*path}", guide::get)
        .get("/llms.txt", guide::get)
        .get("/llms-full.txt", guide::get)
}

tokio::task_local! {
    static NONCE: String;
}

/// The nonce of the scripts of the page being rendered; empty outside of a page.
pub(crate) fn nonce() -> String {
    NONCE.try_with(Clone::clone).unwrap_or_default()
}

/// Security headers of every response: load nothing from elsewhere, no inline scripts, no framing. Scripts need a
/// nonce, since deployments share this origin and may serve scripts too. A host as script source would break behind a
/// proxy that changes it.
async fn guarded(request: Request, next: axum::middleware::Next) -> Response {
    // 74 bits are random, and the nonce is used for one response only.
    let nonce = RequestId::new().to_string();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    let mut response = NONCE.scope(nonce, next.run(request)).await;
    let headers = response.headers_mut();
    let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    // A page of the guide is kept by browsers, with the policy that it was sent with.
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(policy);
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

/// A request for a page, or for the changed part of a page.
pub(crate) struct PageRequest {
    headers: HeaderMap,
    uri: Uri,
    sees_all_pages: bool,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for PageRequest {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self {
            headers: parts.headers.clone(),
            uri: parts.uri.clone(),
            sees_all_pages: parts
                .extensions
                .get::<Operator>()
                .is_none_or(|Operator(caller)| sign_in::sees_all_pages(caller)),
        })
    }
}

/// The layout around a page.
#[derive(Template)]
#[template(path = "ui/page.html")]
struct Page<'a> {
    title: &'a str,
    here: &'a str,
    /// Address from which the page refreshes itself.
    address: &'a str,
    live: bool,
    content: &'a str,
    sees_all_pages: bool,
}

impl Page<'_> {
    /// The tabs of the caller: address and name.
    fn tabs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let sees_all = self.sees_all_pages;
        PAGES
            .into_iter()
            .filter(move |(path, _)| sees_all || *path == sign_in::PAGE_OF_KEYS)
    }
}

impl PageRequest {
    /// A page that refreshes itself.
    fn page(&self, title: &str, here: &str, content: &impl Template) -> Response {
        self.rendered(title, here, true, content)
    }

    /// A page that does not refresh itself.
    fn still(&self, title: &str, here: &str, content: &impl Template) -> Response {
        self.rendered(title, here, false, content)
    }

    fn rendered(&self, title: &str, here: &str, live: bool, content: &impl Template) -> Response {
        match content.render() {
            Ok(content) => self.framed(StatusCode::OK, title, here, live, &content),
            Err(error) => {
                tracing::error!(%error, "cannot render a page");
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
            sees_all_pages: self.sees_all_pages,
        };
        match page.render() {
            Ok(page) => (status, Html(page)).into_response(),
            Err(error) => {
                tracing::error!(%error, "cannot render the layout of a page");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// An error page.
#[derive(Template)]
#[template(path = "ui/problem.html")]
struct Problem<'a> {
    title: &'a str,
    text: &'a str,
}

/// An error that is shown as a page.
pub(crate) struct PageError(ApiError);

impl<E: Into<ApiError>> From<E> for PageError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let status = self.0.status();
        let text = self.0.text().to_owned();
        // Logs the cause of internal errors.
        drop(self.0.into_response());
        let title = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::CONFLICT => "Conflict",
            StatusCode::SERVICE_UNAVAILABLE => "Temporarily unavailable",
            _ => "Request failed",
        };
        let problem = Problem { title, text: &text };
        let content = problem.render().unwrap_or_default();
        let asked = PageRequest {
            headers: HeaderMap::new(),
            uri: Uri::from_static("/ui/queues"),
            sees_all_pages: true,
        };
        asked.framed(status, title, "", false, &content)
    }
}

/// Redirects back to the page of a form.
fn back(to: &str) -> Response {
    Redirect::to(to).into_response()
}

type PageResult = Result<Response, PageError>;
