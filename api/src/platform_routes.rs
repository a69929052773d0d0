//! The routes of the platform: its API, what operators see and do, the gateway, the registry and the dashboard.

use std::collections::HashSet;

use axum::Router;
use axum::middleware::from_fn_with_state;
use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::platform::{
    annotation_queues, attachments, datasets, deployments, destinations, exports, feedback, feedback_configs,
    image_pull_secrets, info, ingest, integrations, listeners, model_prices, otel, prompts, revision_logs, revisions,
    runs, sandboxes, sessions, settings, sign_in, source_uploads, usage,
};
use crate::routes::{Purpose, Route, Routes, routes};
use crate::{docs, errors, gateway, ingress, internal, key_layers, ops, registry, ui};

pub fn platform_router(app: App) -> Router {
    let (api, _) = assemble_routes(&app, Purpose::Serve);
    let document = docs::Document::new({
        let app = app.clone();
        move || document(&app)
    });
    let beside = ops::routes(app.ops.clone())
        .merge(gateway::routes(&app))
        .merge(registry::routes(&app))
        .merge(sandboxes::service_proxy::routes(&app));
    let pages = ui::routes(&app);
    let router = api.merge(pages).with_state(app.clone()).merge(docs::routes(document));
    ingress::wrap(router, beside, app)
}

/// For tests: the routes that no API description lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndescribedRoutes {
    /// Of deployments' agent servers.
    pub gateway: Vec<Route>,
    /// Of images.
    pub registry: Vec<Route>,
    /// Of ports of boxes.
    pub services: Vec<Route>,
    /// Pages of the dashboard for those who have signed in.
    pub pages: Vec<Route>,
    /// What the dashboard gives everybody.
    pub open_pages: Vec<Route>,
}

impl UndescribedRoutes {
    /// As the routers have them.
    #[must_use]
    pub fn all() -> Self {
        Self {
            gateway: gateway::route_table().routes(),
            registry: registry::route_table().routes(),
            services: sandboxes::service_proxy::listed().routes(),
            pages: ui::behind_the_gate(),
            open_pages: ui::before_the_gate(),
        }
    }
}

/// Builds the OpenAPI document served at `/openapi.json`.
fn document(app: &App) -> Value {
    let (_, mut document) = assemble_routes(app, Purpose::Describe);
    document.merge(ops::HealthRoutes::openapi());
    document.merge(docs::DocsRoutes::openapi());
    document.merge(SharedSchemas::openapi());
    unique_operations(&mut document);
    docs::complete(&document)
}

/// The routes and the OpenAPI description that their handlers provide.
fn assemble_routes(app: &App, purpose: Purpose) -> (Router<App>, OpenApi) {
    let router = |routes: Routes<App>| routes.build(purpose);
    let keyed = keyed_routes(purpose);
    // Runs before the handler, the body and the path: the caller is identified first.
    let keyed = keyed.route_layer(from_fn_with_state(app.clone(), key_layers::require));
    let operators = router(operators());
    let operators = operators.route_layer(from_fn_with_state(app.clone(), key_layers::require_operator));
    let open = both_places(router(public_routes()))
        .merge(both_places(feedback::submission::allow_all_origins(router(
            feedback::submission::routes(),
        ))))
        .merge(router(sign_in::routes()))
        .merge(below_api_host(router(signed_routes())))
        .merge(router(sandboxes::open_routes()));
    keyed.merge(operators).merge(open).split_for_parts()
}

/// What operators see and do. The platform keeps keys, for agent servers too, and traces.
fn operators() -> Routes<App> {
    internal::routes::shared()
        .routes(routes!(internal::keys::list, internal::keys::create))
        .routes(routes!(internal::keys::revoke))
        .routes(routes!(internal::keys::rotate))
        .routes(routes!(internal::keys::reseal))
        .routes(routes!(deployments::database::accept_database))
        .routes(routes!(internal::limits::list))
        .merge(internal::routes::quarantine())
}

/// Routes that need a key and a workspace.
fn keyed_routes(purpose: Purpose) -> OpenApiRouter<App> {
    let router = |routes: Routes<App>| routes.build(purpose);
    router(bulk_exports())
        .merge(both_places(router(
            traces().merge(evaluations()).merge(prompt_repositories()),
        )))
        .merge(with_api_prefixes(router(bulk_examples().merge(prompt_directories()))))
        .merge(router(traces_v2()))
        .merge(below_api_host(router(control_plane())))
        .merge(with_api_prefixes(router(sandboxes::routes())))
}

/// Routes that need no key.
fn public_routes() -> Routes<App> {
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

/// Routes of the tracing clients.
fn traces() -> Routes<App> {
    Routes::default()
        .routes(routes!(ingest::multipart))
        .routes(routes!(ingest::batch))
        .routes(routes!(ingest::create))
        .routes(routes!(otel::create))
        .routes(routes!(otel::create_from_logs))
        .routes(routes!(runs::get, ingest::update))
        .routes(routes!(runs::query))
        .routes(routes!(runs::validate))
        .routes(routes!(runs::statistics))
        .routes(routes!(feedback::create, feedback::list))
        .routes(routes!(feedback::get, feedback::update, feedback::delete))
        .routes(routes!(feedback::tokens::create_token, feedback::tokens::list_tokens))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::update, sessions::delete))
        .routes(routes!(model_prices::create, model_prices::list))
        .routes(routes!(model_prices::reprice))
        .routes(routes!(model_prices::update, model_prices::delete))
        .routes(routes!(settings::get))
}

/// Routes that evaluations need in addition to traces.
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

/// Routes of prompts.
fn prompt_repositories() -> Routes<App> {
    Routes::default()
        .routes(routes!(prompts::create, prompts::list))
        .routes(routes!(prompts::slashes::create, prompts::slashes::list))
        .routes(routes!(prompts::get, prompts::update, prompts::delete))
        .routes(routes!(prompts::tags::create, prompts::tags::list))
        .routes(routes!(
            prompts::tags::get,
            prompts::tags::update,
            prompts::tags::delete
        ))
        .routes(routes!(prompts::commits::create, prompts::commits::list))
        .routes(routes!(prompts::slashes::list_commits))
        .routes(routes!(prompts::commits::get))
        .routes(routes!(prompts::likes::create))
}

/// Routes of agents and skills, which are refused.
fn prompt_directories() -> Routes<App> {
    Routes::default()
        .routes(routes!(prompts::directories::get, prompts::directories::delete))
        .routes(routes!(prompts::directories::create))
}

/// Bulk routes of examples; official clients use a separate path prefix for them.
fn bulk_examples() -> Routes<App> {
    Routes::default()
        .routes(routes!(datasets::multipart::create, datasets::multipart::update))
        .routes(routes!(datasets::multipart::upsert))
        .routes(routes!(datasets::splits::update_metadata))
        .routes(routes!(datasets::deletion::erase))
        .routes(routes!(datasets::deletion::delete_of_dataset))
}

/// Version 2 of the trace query API.
fn traces_v2() -> Routes<App> {
    Routes::default()
        .routes(routes!(runs::v2::query))
        .routes(routes!(runs::v2::get))
        .routes(routes!(runs::v2::url))
        .routes(routes!(runs::traces::query))
        .routes(routes!(runs::traces::list_runs))
        .routes(routes!(runs::threads::query))
        .routes(routes!(runs::threads::list_traces))
        .routes(routes!(runs::threads::statistics))
        .routes(routes!(runs::threads::statistics_of_all))
}

/// Deployments and their resources.
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

/// Routes that are authorized by a token or a signature instead of a key.
fn signed_routes() -> Routes<App> {
    Routes::default()
        .routes(routes!(source_uploads::send))
        .routes(routes!(integrations::webhook))
}

/// `langgraph deploy` adds the prefix `/api-host` when it is configured with the platform's base address.
fn below_api_host(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api-host", router)
}

/// Newer sandbox clients add the prefix `/api`; other clients do so if their endpoint ends in `/api/v1`.
fn with_api_prefixes(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api", router)
}

/// Official clients append nothing to their endpoint, which may be configured with or without `/api/v1`.
fn both_places(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    router.clone().nest("/api/v1", router)
}

/// Operation ids must be unique in a document. Handlers of different modules share names, so the id begins with the
/// tag; for a handler with two paths it also names the path.
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

// Schemas that responses refer to by name.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(
    errors::Error,
    errors::NamedError,
    errors::SandboxError,
    errors::InvalidRequest,
    errors::Issue,
    errors::LocSegment
)))]
struct SharedSchemas;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_declares_its_scope() {
        let (_, mut document) = keyed_routes(Purpose::Describe).split_for_parts();
        let operators = operators().build(Purpose::Describe);
        document.merge(operators.split_for_parts().1);
        crate::scopes::tests::covers(&document);
    }

    #[test]
    fn every_page_declares_its_scope() {
        crate::scopes::tests::covers_pages(ui::behind_the_gate());
    }
}
