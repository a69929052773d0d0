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
mod jobs;
mod keys;
mod limits;
pub(crate) mod page;
mod prompts;
mod quarantine;
mod queues;
mod sandbox_nodes;
mod sandboxes;
mod schedules;
mod sign_in;
mod traces;
mod workers;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Redirect;

use crate::app::App;
use crate::routes::{Route, RouteTable};

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
            .layer(from_fn(page::guarded))
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
