//! Versions of datasets, and their tags.

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use towpath_domain::{DatasetId, ExampleId, Rejection, Timestamp};
use towpath_store::datasets::versions::{self, AsOf, Version};

use super::dataset_not_found;
use super::model::JsonBody;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::paging;

/// A version of a dataset.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DatasetVersion)]
pub struct VersionView {
    tags: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
}

impl From<Version> for VersionView {
    fn from(Version { as_of, tags }: Version) -> Self {
        Self { tags, as_of }
    }
}

/// List the versions of a dataset, newest first. The newest version has the tag `latest`.
#[utoipa::path(get, path = "/datasets/{dataset_id}/versions", operation_id = "list_versions", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("search" = Option<String>, Query, description = "Text in one of its tags, in any case"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Versions", body = Vec<VersionView>),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<Vec<VersionView>>, ApiError> {
    sent.only(&["search", "limit", "offset"])?;
    let search = sent.all("search").last().filter(|part| !part.is_empty());
    let (limit, offset) = paging::of(&sent)?;
    let read = app
        .store
        .read(async |tx| versions::list(tx, tenant.id, id, search, limit, offset).await);
    let found = read.await.map_err(dataset_not_found)?;
    Ok(Json(found.into_iter().map(VersionView::from).collect()))
}

/// Get the version of a tag, or the newest version at a time.
#[utoipa::path(get, path = "/datasets/{dataset_id}/version", operation_id = "get_version", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("as_of" = Option<String>, Query, description = "A time; send either this or `tag`"),
           ("tag" = Option<String>, Query, description = "A tag; `latest` is the newest version")),
    responses((status = 200, description = "The version", body = VersionView),
              (status = 404, description = "No such dataset or tag, or no version at that time"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<VersionView>, ApiError> {
    sent.only(&["as_of", "tag"])?;
    let last = |name| sent.all(name).last().filter(|text| !text.is_empty()).map(str::to_owned);
    let as_of = match (last("as_of"), last("tag")) {
        (Some(time), None) => match AsOf::parse(&time) {
            AsOf::Tag(_) => return Err(Rejection::invalid("as_of", "expected a date-time").into()),
            time => time,
        },
        (None, Some(tag)) => AsOf::Tag(tag),
        _ => return Err(ApiError::bad_request("expected exactly one of as_of and tag")),
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

/// Differences between two versions.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DatasetDifference)]
pub struct VersionDiff {
    #[schema(value_type = Vec<Uuid>)]
    examples_modified: Vec<ExampleId>,
    #[schema(value_type = Vec<Uuid>)]
    examples_added: Vec<ExampleId>,
    #[schema(value_type = Vec<Uuid>)]
    examples_removed: Vec<ExampleId>,
}

/// Compare two versions, each named by a time or a tag.
#[utoipa::path(get, path = "/datasets/{dataset_id}/versions/diff", tag = "datasets",
    params(("dataset_id" = Uuid, Path, description = "The dataset"),
           ("from_version" = String, Query, description = "A time or a tag"),
           ("to_version" = String, Query, description = "A time or a tag")),
    responses((status = 200, description = "The difference", body = VersionDiff),
              (status = 404, description = "No such dataset or tag in this workspace"), ApiError))]
pub async fn diff(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    sent: Pairs,
) -> Result<Json<VersionDiff>, ApiError> {
    sent.only(&["from_version", "to_version"])?;
    let version = |name: &'static str| {
        let text = sent.all(name).last().filter(|text| !text.is_empty());
        let missing = || ApiError::invalid_at(vec!["query".into(), name.into()], "missing", "field required");
        text.map(AsOf::parse).ok_or_else(missing)
    };
    let (from, to) = (version("from_version")?, version("to_version")?);
    let read = app
        .store
        .read(async |tx| versions::diff(tx, tenant.id, id, &from, &to).await);
    let found = read.await.map_err(dataset_not_found)?;
    Ok(Json(VersionDiff {
        examples_modified: found.modified,
        examples_added: found.added,
        examples_removed: found.removed,
    }))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = DatasetTag)]
pub struct TagVersion {
    /// The exact time of the version.
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000]*$")]
    tag: String,
}

/// Tag a version. The tag is removed from the version that had it.
#[utoipa::path(put, path = "/datasets/{dataset_id}/tags", tag = "datasets", request_body = TagVersion,
    params(("dataset_id" = Uuid, Path, description = "The dataset")),
    responses((status = 204, description = "Tagged"),
              (status = 404, description = "No such dataset in this workspace"), ApiError))]
pub async fn tag(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<DatasetId>,
    JsonBody(sent): JsonBody<TagVersion>,
) -> Result<StatusCode, ApiError> {
    let tagged = app
        .store
        .write(async |tx| versions::tag(tx, tenant.id, id, sent.as_of, &sent.tag).await);
    tagged.await.map_err(dataset_not_found)?;
    Ok(StatusCode::NO_CONTENT)
}
