//! Sandboxes: boxes and what belongs to them, for both generations of official clients. `/v2/sandboxes` is the older place,
//! `/api/v2/sandboxes` the newer one; both are one set of boxes.

pub mod boxes;
pub mod capture;
pub mod change;
pub mod create;
pub mod exec;
pub mod files;
pub mod lifecycle;
pub mod links;
mod model;
pub mod output;
pub mod pools;
pub mod registries;
pub mod search;
pub mod service;
pub mod shell;
pub mod snapshots;
pub mod templates;
pub mod tunnel;
pub mod usage;
pub mod volumes;
mod wake;

use crate::app::App;
use crate::routes::{Routes, routes};

/// What needs a key.
pub(crate) fn routes() -> Routes<App> {
    control().merge(data())
}

fn control() -> Routes<App> {
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

/// What goes on in one box, at the address that its `dataplane_url` says.
fn data() -> Routes<App> {
    Routes::default()
        .routes(routes!(shell::socket))
        .routes(routes!(exec::execute))
        .routes(routes!(output::start))
        .routes(routes!(output::resume))
        .routes(routes!(files::upload))
        .routes(routes!(files::download))
        .routes(routes!(search::glob))
        .routes(routes!(search::grep))
        .routes(routes!(tunnel::open))
}

/// What carries a token in the place of a key.
pub(crate) fn open_routes() -> Routes<App> {
    Routes::default().routes(routes!(files::download_linked))
}
