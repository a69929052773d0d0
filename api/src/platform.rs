//! The platform surface: traces in, exports out, operations.

pub mod destinations;
pub mod exports;
pub mod feedback;
pub mod info;
pub mod ingest;
pub mod sessions;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::{auth, docs, errors, internal, layers, ops};

/// The whole surface, ready to be served.
pub fn platform_router(app: App) -> Router {
    let (api, document) = described(&app);
    let health = ops::routes(app.ops.clone());
    let requests = app.settings.requests;
    layers::limited(api.with_state(app).merge(docs::routes(&document)), health, requests)
}

/// The API description without a server: what `/openapi.json` says.
fn described(app: &App) -> (Router<App>, OpenApi) {
    let keyed = bulk_exports()
        .merge(internal::routes())
        .merge(both_places(traces()));
    // Before the handler, before its body, before its path is read: who calls?
    let keyed = keyed.route_layer(from_fn_with_state(app.clone(), auth::require));
    let open = both_places(OpenApiRouter::default().routes(routes!(info::get)));
    let (router, mut document) = keyed.merge(open).split_for_parts();
    document.merge(ops::Described::openapi());
    document.merge(Shared::openapi());
    unique_operations(&mut document);
    (router, docs::complete(document))
}

fn bulk_exports() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(destinations::create, destinations::list))
        .routes(routes!(destinations::get, destinations::update))
        .routes(routes!(exports::create, exports::list))
        .routes(routes!(exports::get, exports::update))
        .routes(routes!(exports::list_runs))
        .routes(routes!(exports::get_run))
}

/// What the tracing clients call.
fn traces() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(ingest::multipart))
        .routes(routes!(ingest::batch))
        .routes(routes!(ingest::create))
        .routes(routes!(ingest::update, ingest::get))
        .routes(routes!(ingest::query))
        .routes(routes!(feedback::create))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get))
}

/// Official clients add nothing to the endpoint they are given, and people give it with and without `/api/v1`.
fn both_places(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api/v1", router)
}

/// Operation ids must be unique in a document, and one handler stands at two paths.
fn unique_operations(document: &mut OpenApi) {
    let mut seen = std::collections::HashSet::new();
    for (path, item) in &mut document.paths.paths {
        let operations = [
            &mut item.get,
            &mut item.post,
            &mut item.put,
            &mut item.patch,
            &mut item.delete,
        ]
        .into_iter()
        .flatten();
        for operation in operations {
            let name = operation.operation_id.clone().unwrap_or_default();
            let tag = operation
                .tags
                .as_ref()
                .and_then(|tags| tags.first())
                .cloned()
                .unwrap_or_default();
            let place = if path.starts_with("/api/v1") && seen.contains(&format!("{tag}_{name}")) {
                "_api_v1"
            } else {
                ""
            };
            let id = format!("{tag}_{name}{place}").replace('-', "_");
            seen.insert(format!("{tag}_{name}"));
            operation.operation_id = Some(id);
        }
    }
}

/// Schemas that answers refer to by name.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(errors::Error, errors::InvalidRequest, errors::Issue)))]
struct Shared;
