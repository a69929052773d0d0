//! The API description at `/openapi.json`, and `/docs`: the same as a page, rendered here once, without scripts and
//! without anything from elsewhere, so it works offline and under a strict content policy.

mod complete;
mod page;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;

pub(crate) use complete::{complete, not_null, plain_nullables};

/// The two routes over a finished document.
pub(crate) fn routes(document: &Value) -> Router {
    let page = page_route(document);
    let json = Bytes::from(document.to_string());
    let json_route = get(async move || ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")], json));
    Router::new().route("/openapi.json", json_route).route("/docs", page)
}

/// A document as a page.
pub(crate) fn page_route<S: Clone + Send + Sync + 'static>(document: &Value) -> MethodRouter<S> {
    let page = Bytes::from(page::page(document));
    get(async move || {
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-cache"),
            (
                CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
            ),
        ];
        (headers, page).into_response()
    })
}

/// This description, in OpenAPI 3.1.
#[utoipa::path(get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "This description", body = Object)))]
#[expect(dead_code, reason = "names the route in the API description")]
fn openapi() {}

/// This description as a page.
#[utoipa::path(get, path = "/docs", tag = "server", security(()),
    responses((status = 200, description = "A page that needs nothing from elsewhere", body = String, content_type = "text/html")))]
#[expect(dead_code, reason = "names the route in the API description")]
fn docs() {}

/// For the API description only: the two routes serve what is finished.
#[derive(utoipa::OpenApi)]
#[openapi(paths(openapi, docs))]
pub(crate) struct Described;
