//! Versions of datasets, and their tags.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::{DatasetId, ExampleId, Rejection, Timestamp};
use towpath_store::datasets::versions::{self, AsOf, Version};
use uuid::Uuid;

use super::missing;
use super::model::Sent;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::exports::MAX_OFFSET;

/// A version of a dataset.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DatasetVersion)]
pub struct Shown {
    tags: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
}

impl From<Version> for Shown {
    fn from(Version { as_of, tags }: Version) -> Self {
        Self { tags, as_of }
    }
}

/// Versions of a dataset, newest first. The newest one has the tag `latest`.
#[utoipa::path(get, path = "/datasets/{dataset_id}/versions", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("search" = Option<String>, Query, description = "With this in one of its tags, in upper or lower case"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Versions", body = Vec<Shown>),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<Vec<Shown>>, ApiError> {
    sent.only(&["search", "limit", "offset"])?;
    let search = sent.all("search").last().filter(|part| !part.is_empty());
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let read = app
        .store
        .read(async |tx| versions::list(tx, tenant.id, id, search, limit, offset).await);
    let found = read.await.map_err(missing)?;
    Ok(Json(found.into_iter().map(Shown::from).collect()))
}

/// The version of a tag, or the newest one at a time.
#[utoipa::path(get, path = "/datasets/{dataset_id}/version", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("as_of" = Option<String>, Query, description = "A time; either this or `tag`"),
           ("tag" = Option<String>, Query, description = "A tag; `latest` is that of the newest version")),
    responses((status = 200, description = "The version", body = Shown),
              (status = 404, description = "No such dataset or tag, or no version that early"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<Shown>, ApiError> {
    sent.only(&["as_of", "tag"])?;
    let last = |name| sent.all(name).last().filter(|text| !text.is_empty()).map(str::to_owned);
    let as_of = match (last("as_of"), last("tag")) {
        (Some(time), None) => match AsOf::parse(&time) {
            AsOf::Tag(_) => return Err(Rejection::invalid("as_of", "expected a date-time").into()),
            time => time,
        },
        (None, Some(tag)) => AsOf::Tag(tag),
        _ => return Err(ApiError::bad_request("exactly one of as_of and tag must be given")),
    };
    let read = app
        .store
        .read(async |tx| versions::get(tx, tenant.id, id, &as_of).await);
    let found = read.await.map_err(|error| match error {
        towpath_store::Error::NotFound => ApiError::not_found("dataset version"),
        error => error.into(),
    })?;
    Ok(Json(found.into()))
}

/// What differs between two versions.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DatasetDifference)]
pub struct Difference {
    #[schema(value_type = Vec<Uuid>)]
    examples_modified: Vec<ExampleId>,
    #[schema(value_type = Vec<Uuid>)]
    examples_added: Vec<ExampleId>,
    #[schema(value_type = Vec<Uuid>)]
    examples_removed: Vec<ExampleId>,
}

/// The difference between two versions, each named by a time or a tag.
#[utoipa::path(get, path = "/datasets/{dataset_id}/versions/diff", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("from_version" = String, Query, description = "A time or a tag"),
           ("to_version" = String, Query, description = "A time or a tag")),
    responses((status = 200, description = "The difference", body = Difference),
              (status = 404, description = "No such dataset or tag in this workspace"), ApiError))]
pub async fn diff(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<Difference>, ApiError> {
    sent.only(&["from_version", "to_version"])?;
    let version = |name: &'static str| {
        let text = sent.all(name).last().filter(|text| !text.is_empty());
        let missing = || ApiError::invalid_at(vec!["query".into(), name.into()], "missing", "field required");
        text.map(AsOf::parse).ok_or_else(missing)
    };
    let (from, to) = (version("from_version")?, version("to_version")?);
    let read = app
        .store
        .read(async |tx| versions::difference(tx, tenant.id, id, &from, &to).await);
    let found = read.await.map_err(missing)?;
    Ok(Json(Difference {
        examples_modified: found.modified,
        examples_added: found.added,
        examples_removed: found.removed,
    }))
}

/// A tag for a version.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DatasetTag)]
pub struct Tag {
    /// The exact time of the version.
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    tag: String,
}

/// Give a version a tag; it is taken from the version that had it.
#[utoipa::path(put, path = "/datasets/{dataset_id}/tags", tag = "datasets", request_body = Tag,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 204, description = "Tagged"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn tag(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    Sent(sent): Sent<Tag>,
) -> Result<StatusCode, ApiError> {
    let tagged = app
        .store
        .write(async |tx| versions::tag(tx, tenant.id, id, sent.as_of, &sent.tag).await);
    tagged.await.map_err(missing)?;
    Ok(StatusCode::NO_CONTENT)
}
