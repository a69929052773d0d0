//! Sandboxes and their resources, for both generations of official clients: `/v2/sandboxes` is the older path,
//! `/api/v2/sandboxes` the newer one; both serve the same sandboxes.

pub mod boxes;
pub mod capture;
pub mod change;
pub mod commands;
pub mod create;
pub mod exec;
pub mod exec_socket;
pub mod exec_stream;
pub mod files;
pub mod lifecycle;
pub mod links;
mod model;
pub mod pools;
pub(crate) mod readiness;
pub mod registries;
pub mod search;
pub mod service_proxy;
pub mod snapshots;
pub mod templates;
pub mod tunnel;
pub mod usage;
pub mod volumes;

use crate::app::App;
use crate::routes::{Routes, routes};

/// Routes that need a key.
pub(crate) fn routes() -> Routes<App> {
    control_routes().merge(dataplane_routes())
}

fn control_routes() -> Routes<App> {
    Routes::default()
        .routes(routes!(create::create, boxes::list))
        .routes(routes!(boxes::delete_many))
        .routes(routes!(boxes::get, change::update, boxes::delete))
        .routes(routes!(boxes::status))
        .routes(routes!(lifecycle::start))
        .routes(routes!(lifecycle::stop))
        .routes(routes!(capture::capture))
        .routes(routes!(links::create_service))
        .routes(routes!(links::list_services, links::revoke_services))
        .routes(routes!(links::create_download))
        .routes(routes!(snapshots::create, snapshots::list))
        .routes(routes!(snapshots::get, snapshots::delete))
        .routes(routes!(snapshots::tags))
        .routes(routes!(volumes::create, volumes::list))
        .routes(routes!(volumes::get, volumes::update, volumes::delete))
        .routes(routes!(volumes::clone))
        .routes(routes!(templates::create, templates::list))
        .routes(routes!(templates::delete_many))
        .routes(routes!(templates::get, templates::update, templates::delete))
        .routes(routes!(pools::create, pools::list))
        .routes(routes!(pools::get, pools::update, pools::delete))
        .routes(routes!(registries::create, registries::list))
        .routes(routes!(registries::get, registries::update, registries::delete))
        .routes(routes!(usage::get))
}

/// Commands, files and tunnels of one sandbox, at its `dataplane_url`.
fn dataplane_routes() -> Routes<App> {
    Routes::default()
        .routes(routes!(exec_socket::socket))
        .routes(routes!(exec::execute))
        .routes(routes!(exec_stream::start))
        .routes(routes!(exec_stream::resume))
        .routes(routes!(commands::list))
        .routes(routes!(commands::output))
        .routes(routes!(files::upload))
        .routes(routes!(files::download))
        .routes(routes!(search::glob))
        .routes(routes!(search::grep))
        .routes(routes!(tunnel::open))
}

/// Routes that need a token instead of a key.
pub(crate) fn open_routes() -> Routes<App> {
    Routes::default().routes(routes!(files::download_linked))
}
