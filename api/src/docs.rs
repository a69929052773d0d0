//! The API description at `/openapi.json`, and `/docs`: the same as a page, rendered here once, without scripts and
//! without anything from elsewhere, so it works offline and under a strict content policy.

mod body_schemas;
mod complete;
mod page;
pub(crate) mod rules;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;

pub(crate) use complete::{complete, not_null, plain_nullables};

/// The operations of a path, by method.
#[cfg(test)]
pub(crate) fn operations(
    item: &utoipa::openapi::PathItem,
) -> impl Iterator<Item = (&'static str, &utoipa::openapi::path::Operation)> {
    let all = [
        ("GET", &item.get),
        ("PUT", &item.put),
        ("POST", &item.post),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
        ("OPTIONS", &item.options),
        ("HEAD", &item.head),
        ("TRACE", &item.trace),
    ];
    all.into_iter()
        .filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

/// A description that is put together the first time somebody asks for it. Few ever do, and on the way it takes ten times
/// the memory of its text.
#[derive(Clone)]
pub(crate) struct Document(Arc<LazyLock<Rendered, Box<dyn FnOnce() -> Rendered + Send>>>);

struct Rendered {
    json: Bytes,
    page: Bytes,
}

impl Document {
    pub(crate) fn new(build: impl FnOnce() -> Value + Send + 'static) -> Self {
        let render = move || {
            let document = build();
            Rendered {
                json: document.to_string().into(),
                page: page::page(&document).into(),
            }
        };
        Self(Arc::new(LazyLock::new(Box::new(render))))
    }

    /// Its text.
    pub(crate) async fn json(&self) -> Bytes {
        self.rendered(|rendered| rendered.json.clone()).await
    }

    /// It as a page.
    pub(crate) async fn page(&self) -> Response {
        let page = self.rendered(|rendered| rendered.page.clone()).await;
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-cache"),
            (
                CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
            ),
        ];
        (headers, page).into_response()
    }

    /// Putting it together takes a core for a moment, so not on a thread that answers others.
    async fn rendered(&self, part: impl FnOnce(&Rendered) -> Bytes + Send + 'static) -> Bytes {
        let document = Arc::clone(&self.0);
        let rendered = tokio::task::spawn_blocking(move || part(&document));
        rendered.await.expect("the description can be put together: tests do")
    }
}

/// The two routes of a description.
pub(crate) fn routes(document: Document) -> Router {
    let as_page = document.clone();
    let json = async move || {
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
        (headers, document.json().await)
    };
    Router::new()
        .route("/openapi.json", get(json))
        .route("/docs", get(async move || as_page.page().await))
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
pub(crate) struct DocsRoutes;
