//! Destinations of exports.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use towpath_domain::export::DestinationKind;
use towpath_domain::{DestinationId, Timestamp};
use towpath_store::destinations::{self, Overview};
use towpath_workflows::delete_destination;

use super::page::{PageError, PageRequest, PageResult, back};
use super::{exports, formatting};
use crate::app::App;
use crate::errors::ApiError;

const PATH: &str = "/ui/exports/destinations";
const LIMIT: i64 = 50;

/// Position of the page.
#[derive(Deserialize)]
pub(super) struct PageQuery {
    before: Option<DestinationId>,
}

#[derive(Template)]
#[template(path = "ui/destinations.html")]
struct List {
    rows: Vec<Row>,
    next: Option<String>,
}

struct Row {
    id: String,
    short: String,
    name: String,
    kind: &'static str,
    exports: i64,
    schedules: i64,
    tenant: String,
    created: String,
    age: String,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(page): Query<PageQuery>) -> PageResult {
    let found = app
        .store
        .read(async |tx| destinations::overview(tx, page.before, LIMIT).await)
        .await?;
    let now = app.clock.now();
    let next = found
        .last()
        .filter(|_| found.len() as i64 == LIMIT)
        .map(|last| last.id.to_string());
    let rows = found.into_iter().map(|destination| row(destination, now)).collect();
    Ok(asked.page("Destinations", exports::PATH, &List { rows, next }))
}

fn row(destination: Overview, now: Timestamp) -> Row {
    Row {
        id: destination.id.to_string(),
        short: formatting::short(&destination.id),
        name: destination.display_name,
        kind: match destination.destination_type {
            DestinationKind::S3 => "s3",
            DestinationKind::File => "file",
        },
        exports: destination.exports,
        schedules: destination.schedules,
        tenant: formatting::short(&destination.tenant_id),
        created: formatting::moment(destination.created_at),
        age: formatting::relative(destination.created_at, now),
    }
}

pub(super) async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("destination"));
    let id: DestinationId = id.parse().map_err(|_| missing())?;
    let owner = app.store.read(async |tx| destinations::owner(tx, id).await);
    let tenant = owner.await?.ok_or_else(missing)?;
    let deleted = app
        .store
        .write(async |tx| delete_destination::delete(tx, tenant, id).await);
    match deleted.await {
        Err(towpath_store::Error::NotFound) => Err(missing()),
        deleted => {
            deleted?;
            Ok(back(PATH))
        }
    }
}
