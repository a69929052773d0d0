//! Lists of examples: filters, version and selected fields.

use axum::extract::State;
use towpath_domain::dataset::ExampleFilter;
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::datasets::examples::{self, Filter};
use towpath_store::datasets::versions::{self, AsOf};
use uuid::Uuid;

use super::examples::{ExampleView, FIELDS, fields_without_links};
use super::{dataset_not_found, model};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs};
use crate::platform::paging;

/// Maximum number of ids in one request.
const MAX_IDS: usize = 10_000;
/// Maximum number of splits in one request.
const MAX_SPLITS: usize = 100;
/// Fields that are always shown.
const REQUIRED_FIELDS: [&str; 6] = ["id", "name", "dataset_id", "created_at", "modified_at", "inputs"];

/// Parameters of the list.
const PARAMETERS: [&str; 18] = [
    "id",
    "dataset",
    "as_of",
    "splits",
    "metadata",
    "filter",
    "limit",
    "offset",
    "select",
    "exclude_default_fields",
    "inline_s3_urls",
    "include_attachments",
    "order",
    "sort_by",
    "full_text_contains",
    "random_seed",
    "descending",
    "include",
];

/// List examples, newest first. Unknown filters are rejected.
#[utoipa::path(get, path = "/examples", tag = "examples",
    params(("dataset" = Option<Uuid>, Query, description = "The dataset; required unless `id` is set"),
           ("id" = Option<Vec<Uuid>>, Query, description = "Example ids, at most 10000"),
           ("as_of" = Option<String>, Query, description = "A time or a tag: the version to read"),
           ("splits" = Option<Vec<String>>, Query, description = "Names of splits; an example matches if it is in one"),
           ("metadata" = Option<String>, Query, description = "A JSON object that the metadata contains"),
           ("filter" = Option<String>, Query, description = "`and`, `or`, `not`, `has(metadata, '{…}')`, `exists(metadata, \"key\")`"),
           ("select" = Option<Vec<String>>, Query, description = "Fields to show in addition to the default ones"),
           ("exclude_default_fields" = Option<bool>, Query, description = "Show only `id` and the selected fields"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Examples", body = Vec<Object>),
              (status = 404, description = "No such dataset or tag in this workspace"), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<ExampleView>>, ApiError> {
    sent.only(&PARAMETERS)?;
    model::refuse_parameters(&sent, &["sort_by", "full_text_contains", "random_seed", "descending"])?;
    if sent.all("order").any(|order| !matches!(order, "" | "recent")) {
        return Err(Rejection::unsupported("order", "a list of examples in another order than recent").into());
    }
    let (dataset, as_of, mut criteria) = parse_query(&sent)?;
    let fields = selected_fields(&sent)?;
    let (limit, offset) = paging::of(&sent)?;
    let read = app.store.read(async |tx| {
        criteria.as_of = version_time(tx, tenant.id, dataset, as_of.as_ref()).await?;
        examples::list(tx, tenant.id, &criteria, limit, offset).await
    });
    let rows = read.await.map_err(dataset_not_found)?;
    let shown = rows.iter().map(|row| ExampleView::new(&app, tenant.id, row, &fields));
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

fn parse_query(sent: &Pairs) -> Result<(Option<DatasetId>, Option<AsOf>, Filter), ApiError> {
    let dataset = sent.read::<Uuid>("dataset", "a UUID")?.pop().map(DatasetId);
    let ids: Vec<ExampleId> = sent.read::<Uuid>("id", "a UUID")?.into_iter().map(ExampleId).collect();
    if dataset.is_none() && ids.is_empty() {
        return Err(ApiError::bad_request("expected dataset or id"));
    }
    if ids.len() > MAX_IDS {
        return Err(ApiError::bad_request(format!("id: expected at most {MAX_IDS}")));
    }
    let splits: Vec<String> = sent.all("splits").map(str::to_owned).collect();
    if splits.len() > MAX_SPLITS {
        return Err(ApiError::bad_request(format!("splits: expected at most {MAX_SPLITS}")));
    }
    if splits.iter().any(|split| split.contains('\0')) {
        return Err(Rejection::invalid("splits", "expected texts without NUL").into());
    }
    let filter = match sent.all("filter").last().filter(|filter| !filter.trim().is_empty()) {
        None => None,
        Some(text) => {
            let parsed = ExampleFilter::parse(text);
            Some(parsed.map_err(|error| ApiError::bad_request(format!("filter: {error}")))?)
        }
    };
    let criteria = Filter {
        dataset,
        ids,
        as_of: None,
        splits,
        metadata: model::metadata_filter(sent)?,
        filter,
    };
    Ok((dataset, as_of(sent), criteria))
}

pub(super) fn as_of(sent: &Pairs) -> Option<AsOf> {
    sent.all("as_of")
        .last()
        .filter(|text| !text.is_empty())
        .map(AsOf::parse)
}

/// Time of a version. A tag belongs to one dataset, so it needs the dataset.
pub(super) async fn version_time(
    tx: &mut store::Tx<'_>,
    tenant: TenantId,
    dataset: Option<DatasetId>,
    as_of: Option<&AsOf>,
) -> store::Result<Option<Timestamp>> {
    if let Some(dataset) = dataset {
        store::datasets::get(tx, tenant, dataset).await?;
    }
    match (as_of, dataset) {
        (None, _) => Ok(None),
        // `latest` has no fixed time: a version may be added meanwhile.
        (Some(AsOf::Tag(tag)), _) if tag == "latest" => Ok(None),
        (Some(AsOf::Time(time)), _) => Ok(Some(*time)),
        (Some(AsOf::Tag(_)), None) => {
            let text = "a tag needs its dataset: set dataset, or send a time";
            Err(Rejection::rule("as_of", text).into())
        }
        (Some(as_of), Some(dataset)) => versions::resolve(tx, tenant, dataset, as_of).await.map(Some),
    }
}

/// The selected fields of a list.
fn selected_fields(sent: &Pairs) -> Result<Vec<&'static str>, ApiError> {
    let names: Vec<&str> = sent.all("select").flat_map(|value| value.split(',')).collect();
    let bare = sent.flag("exclude_default_fields")?.unwrap_or(false);
    if names.is_empty() {
        return Ok(if bare { vec!["id"] } else { fields_without_links() });
    }
    let chosen = FIELDS
        .into_iter()
        .filter(|field| *field == "id" || names.contains(field) || (!bare && REQUIRED_FIELDS.contains(field)));
    Ok(chosen.collect())
}
