//! The platform surface: traces in, exports out, operations.

pub mod annotation_queues;
pub mod attachments;
pub mod datasets;
pub mod deployments;
pub mod destinations;
pub mod exports;
pub mod feedback;
pub mod feedback_configs;
pub mod image_pull_secrets;
pub mod info;
pub mod ingest;
pub mod integrations;
pub mod listeners;
pub mod names;
pub mod otel;
pub mod reading;
pub mod revision_logs;
pub mod revisions;
pub mod runs;
pub mod sandboxes;
pub mod sessions;
pub mod settings;
pub mod source_uploads;
pub mod usage;

use std::collections::HashSet;

use axum::Router;
use axum::middleware::from_fn_with_state;
use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::routes::{Purpose, Routes, routes};
use crate::{auth, docs, errors, gateway, internal, layers, ops, registry, session, ui};

/// The whole surface, ready to be served.
pub fn platform_router(app: App) -> Router {
    let (api, _) = put_together(&app, Purpose::Serve);
    let document = docs::Document::new({
        let app = app.clone();
        move || document(&app)
    });
    let beside = ops::routes(app.ops.clone())
        .merge(gateway::routes(&app))
        .merge(registry::routes(&app))
        .merge(sandboxes::service::routes(&app));
    let pages = ui::routes(&app);
    let router = api.merge(pages).with_state(app.clone()).merge(docs::routes(document));
    layers::limited(router, beside, app)
}

/// What `/openapi.json` says.
fn document(app: &App) -> Value {
    let (_, mut document) = put_together(app, Purpose::Describe);
    document.merge(ops::Described::openapi());
    document.merge(docs::Described::openapi());
    document.merge(Shared::openapi());
    unique_operations(&mut document);
    docs::complete(&document)
}

/// The routes, and the part of their description that the handlers give.
fn put_together(app: &App, purpose: Purpose) -> (Router<App>, OpenApi) {
    let router = |routes: Routes<App>| routes.build(purpose);
    let keyed = keyed(purpose);
    // Before the handler, before its body, before its path is read: who calls?
    let keyed = keyed.route_layer(from_fn_with_state(app.clone(), auth::require));
    let operators = router(internal::platform_routes());
    let operators = operators.route_layer(from_fn_with_state(app.clone(), auth::require_operator));
    let open = both_places(router(open()))
        .merge(both_places(feedback::given::for_pages(router(
            feedback::given::routes(),
        ))))
        .merge(router(session::routes()))
        .merge(below_api_host(router(signed())))
        .merge(router(sandboxes::open_routes()));
    keyed.merge(operators).merge(open).split_for_parts()
}

/// What needs a key and a workspace.
fn keyed(purpose: Purpose) -> OpenApiRouter<App> {
    let router = |routes: Routes<App>| routes.build(purpose);
    router(bulk_exports())
        .merge(both_places(router(traces().merge(evaluations()))))
        .merge(below_api(router(bulk_examples())))
        .merge(router(traces_v2()))
        .merge(below_api_host(router(control_plane())))
        .merge(below_api(router(sandboxes::routes())))
}

/// What needs no key.
fn open() -> Routes<App> {
    Routes::default()
        .routes(routes!(info::get))
        .routes(routes!(attachments::get))
        .routes(routes!(usage::submit))
        .routes(routes!(usage::beacon))
}

fn bulk_exports() -> Routes<App> {
    Routes::default()
        .routes(routes!(destinations::create, destinations::list))
        .routes(routes!(destinations::get, destinations::update, destinations::delete))
        .routes(routes!(exports::create, exports::list))
        .routes(routes!(exports::list_spawned_runs))
        .routes(routes!(exports::get, exports::update))
        .routes(routes!(exports::list_runs))
        .routes(routes!(exports::get_run))
}

/// What the tracing clients call.
fn traces() -> Routes<App> {
    Routes::default()
        .routes(routes!(ingest::multipart))
        .routes(routes!(ingest::batch))
        .routes(routes!(ingest::create))
        .routes(routes!(otel::create))
        .routes(routes!(runs::get, ingest::update))
        .routes(routes!(runs::query))
        .routes(routes!(runs::validate))
        .routes(routes!(runs::statistics))
        .routes(routes!(feedback::create, feedback::list))
        .routes(routes!(feedback::get, feedback::update, feedback::delete))
        .routes(routes!(feedback::tokens::create_token, feedback::tokens::list_tokens))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::update, sessions::delete))
        .routes(routes!(settings::get))
}

/// What evaluations call beside traces.
fn evaluations() -> Routes<App> {
    Routes::default()
        .routes(routes!(datasets::create, datasets::list))
        .routes(routes!(datasets::upload::create))
        .routes(routes!(datasets::comparative::create))
        .routes(routes!(datasets::comparative::delete))
        .routes(routes!(datasets::get, datasets::update, datasets::delete))
        .routes(routes!(datasets::share, datasets::shared))
        .routes(routes!(datasets::comparative::list))
        .routes(routes!(datasets::results::query))
        .routes(routes!(datasets::splits::list, datasets::splits::update))
        .routes(routes!(datasets::versions::tag))
        .routes(routes!(datasets::versions::get))
        .routes(routes!(datasets::versions::list))
        .routes(routes!(datasets::versions::diff))
        .routes(routes!(
            datasets::examples::create,
            datasets::listing::list,
            datasets::deletion::delete_many
        ))
        .routes(routes!(
            datasets::examples::create_many,
            datasets::examples::update_many
        ))
        .routes(routes!(
            datasets::examples::get,
            datasets::examples::update,
            datasets::deletion::delete
        ))
        .routes(routes!(
            feedback_configs::create,
            feedback_configs::list,
            feedback_configs::update,
            feedback_configs::delete
        ))
        .routes(routes!(annotation_queues::create, annotation_queues::list))
        .routes(routes!(
            annotation_queues::get,
            annotation_queues::update,
            annotation_queues::delete
        ))
        .routes(routes!(annotation_queues::add, annotation_queues::list_runs))
        .routes(routes!(annotation_queues::add_by_key))
        .routes(routes!(annotation_queues::get_run))
        .routes(routes!(annotation_queues::delete_run))
}

/// Examples in bulk, which official clients look for at a place of their own.
fn bulk_examples() -> Routes<App> {
    Routes::default()
        .routes(routes!(datasets::multipart::create, datasets::multipart::update))
        .routes(routes!(datasets::multipart::upsert))
        .routes(routes!(datasets::splits::update_metadata))
        .routes(routes!(datasets::deletion::erase))
        .routes(routes!(datasets::deletion::delete_of_dataset))
}

/// The second version of reading, at its own place.
fn traces_v2() -> Routes<App> {
    Routes::default()
        .routes(routes!(runs::v2::query))
        .routes(routes!(runs::v2::get))
}

/// Deployments and what belongs to them.
fn control_plane() -> Routes<App> {
    Routes::default()
        .routes(routes!(
            deployments::create,
            deployments::list,
            deployments::delete_many
        ))
        .routes(routes!(deployments::get, deployments::update, deployments::delete))
        .routes(routes!(deployments::keys::create_key))
        .routes(routes!(revisions::create, revisions::list))
        .routes(routes!(revisions::get))
        .routes(routes!(revisions::redeploy))
        .routes(routes!(revisions::interrupt))
        .routes(routes!(revisions::interrupt_of_project))
        .routes(routes!(revision_logs::of_build))
        .routes(routes!(revision_logs::of_revision))
        .routes(routes!(revision_logs::of_deployment))
        .routes(routes!(source_uploads::upload_url))
        .routes(routes!(source_uploads::push_token))
        .routes(routes!(image_pull_secrets::list))
        .routes(routes!(image_pull_secrets::put, image_pull_secrets::delete))
        .routes(routes!(listeners::create, listeners::list))
        .routes(routes!(listeners::get, listeners::update, listeners::delete))
        .routes(routes!(integrations::list))
        .routes(routes!(integrations::create))
        .routes(routes!(integrations::delete))
        .routes(routes!(integrations::repos))
}

/// What carries a token or a signature in the place of a key.
fn signed() -> Routes<App> {
    Routes::default()
        .routes(routes!(source_uploads::send))
        .routes(routes!(integrations::webhook))
}

/// `langgraph deploy` puts `/api-host` in front where it is given the address of the whole platform.
fn below_api_host(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api-host", router)
}

/// Newer clients of sandboxes put `/api` in front.
fn below_api(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api", router)
}

/// Official clients add nothing to the endpoint they are given, and people give it with and without `/api/v1`.
fn both_places(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api/v1", router)
}

/// Where the endpoint that a client is given ends in `/api/v1`, it leaves out the `/v1` of the path; else it does not.
fn below_api(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api", router)
}

/// Operation ids must be unique in a document. Handlers are named alike in every module, so the tag goes in front;
/// one that stands at two paths says which of them.
fn unique_operations(document: &mut OpenApi) {
    let paths: HashSet<String> = document.paths.paths.keys().cloned().collect();
    for (path, item) in &mut document.paths.paths {
        let also_below = |prefix| path.strip_prefix(prefix).is_some_and(|bare| paths.contains(bare));
        let place = match () {
            () if also_below("/api/v1") => "_api_v1",
            () if also_below("/api-host") => "_api_host",
            () if also_below("/api") => "_api",
            () => "",
        };
        let operations = [
            &mut item.get,
            &mut item.post,
            &mut item.put,
            &mut item.patch,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            let name = operation.operation_id.take().unwrap_or_default();
            let tag = operation
                .tags
                .as_ref()
                .and_then(|tags| tags.first())
                .map(String::as_str)
                .unwrap_or_default();
            operation.operation_id = Some(format!("{tag}_{name}{place}").replace('-', "_"));
        }
    }
}

/// Schemas that answers refer to by name.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(
    errors::Error,
    errors::NamedError,
    errors::SandboxError,
    errors::InvalidRequest,
    errors::Issue,
    errors::Place
)))]
struct Shared;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_declares_its_scope() {
        let (_, mut document) = keyed(Purpose::Describe).split_for_parts();
        let operators = internal::platform_routes().build(Purpose::Describe);
        document.merge(operators.split_for_parts().1);
        crate::scopes::tests::covers(&document);
    }
}
