//! The layout of every page of the dashboard, its errors and its security headers.

use askama::Template;
use axum::extract::Request;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use towpath_domain::{RequestId, Scope};
use towpath_store::access::Principal;

use crate::auth::Operator;
use crate::errors::ApiError;

/// Where traces are, and their quarantine.
pub(super) const TRACES: &str = "/ui/traces";

/// The pages, in the order of their tabs.
const PAGES: [(&str, &str); 13] = [
    (TRACES, "Traces"),
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
pub(super) const HX_REQUEST: HeaderName = HeaderName::from_static("hx-request");

/// The only page of callers who administer keys and are no operators.
pub(super) const PAGE_OF_KEYS: &str = "/ui/keys";

/// Whether the caller may open every page, and not only that of keys.
pub(super) fn sees_all_pages(principal: &Principal) -> bool {
    principal.scopes.allow(Scope::OperatorRead)
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
pub(super) async fn guarded(request: Request, next: axum::middleware::Next) -> Response {
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
                .is_none_or(|Operator(caller)| sees_all_pages(caller)),
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
            .filter(move |(path, _)| sees_all || *path == PAGE_OF_KEYS)
    }
}

impl PageRequest {
    /// A page that refreshes itself.
    pub(super) fn page(&self, title: &str, here: &str, content: &impl Template) -> Response {
        self.rendered(title, here, true, content)
    }

    /// A page that does not refresh itself.
    pub(super) fn still(&self, title: &str, here: &str, content: &impl Template) -> Response {
        self.rendered(title, here, false, content)
    }

    /// A page that does not refresh itself; if it cannot be rendered, a page that says so.
    pub(super) fn static_page(&self, title: &str, here: &str, content: &impl Template) -> PageResult {
        let content = content.render().map_err(|error| ApiError::internal(&error))?;
        Ok(self.framed(StatusCode::OK, title, here, false, &content))
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
pub(super) fn back(to: &str) -> Response {
    Redirect::to(to).into_response()
}

pub(super) type PageResult = Result<Response, PageError>;
