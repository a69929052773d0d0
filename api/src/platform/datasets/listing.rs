//! Lists of examples: which of them, as of which version, and what of each.

use axum::extract::State;
use towpath_domain::dataset::ExampleFilter;
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::datasets::examples::{self, Criteria};
use towpath_store::datasets::versions::{self, AsOf};
use uuid::Uuid;

use super::examples::{FIELDS, Shown, without_links};
use super::{missing, model};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs};
use crate::platform::exports::MAX_OFFSET;

/// Ids of one list.
const MOST_IDS: usize = 10_000;
/// Splits that a list is asked for.
const MOST_SPLITS: usize = 100;
/// What is shown beside what is selected.
const ALWAYS: [&str; 6] = ["id", "name", "dataset_id", "created_at", "modified_at", "inputs"];

/// What the list can be asked for.
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

/// Examples, newest first. A filter that is not here is refused, not ignored.
#[utoipa::path(get, path = "/examples", tag = "examples",
    params(("dataset" = Option<Uuid>, Query, description = "Of this dataset; without it, `id` is needed"),
           ("id" = Option<Vec<Uuid>>, Query, description = "One of these, at most 10000"),
           ("as_of" = Option<String>, Query, description = "As they were at this time, or in the version of this tag"),
           ("splits" = Option<Vec<String>>, Query, description = "In one of these splits"),
           ("metadata" = Option<String>, Query, description = "A JSON object that the metadata has in it"),
           ("filter" = Option<String>, Query, description = "`and`, `or`, `not`, `has(metadata, '{…}')`, `exists(metadata, \"key\")`"),
           ("select" = Option<Vec<String>>, Query, description = "These fields beside the default ones"),
           ("exclude_default_fields" = Option<bool>, Query, description = "Only `id` and what is selected"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Examples", body = Vec<Object>),
              (status = 404, description = "No such dataset or tag in this workspace"), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Shown>>, ApiError> {
    sent.only(&PARAMETERS)?;
    model::refuse(&sent, &["sort_by", "full_text_contains", "random_seed", "descending"])?;
    if sent.all("order").any(|order| !matches!(order, "" | "recent")) {
        return Err(Rejection::unsupported("order", "a list of examples in another order than recent").into());
    }
    let (dataset, as_of, mut criteria) = asked(&sent)?;
    let fields = selected(&sent)?;
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let read = app.store.read(async |tx| {
        criteria.as_of = at(tx, tenant.id, dataset, as_of.as_ref()).await?;
        examples::list(tx, tenant.id, &criteria, limit, offset).await
    });
    let rows = read.await.map_err(missing)?;
    let shown = rows.iter().map(|row| Shown::new(&app, tenant.id, row, &fields));
    Ok(Json(shown.collect::<Result<_, _>>()?))
}

fn asked(sent: &Pairs) -> Result<(Option<DatasetId>, Option<AsOf>, Criteria), ApiError> {
    let dataset = sent.read::<Uuid>("dataset", "a UUID")?.pop().map(DatasetId);
    let ids: Vec<ExampleId> = sent.read::<Uuid>("id", "a UUID")?.into_iter().map(ExampleId).collect();
    if dataset.is_none() && ids.is_empty() {
        return Err(ApiError::bad_request("dataset or id must be given"));
    }
    if ids.len() > MOST_IDS {
        return Err(ApiError::bad_request(format!("id: at most {MOST_IDS} at once")));
    }
    let splits: Vec<String> = sent.all("splits").map(str::to_owned).collect();
    if splits.len() > MOST_SPLITS {
        return Err(ApiError::bad_request(format!("splits: at most {MOST_SPLITS} at once")));
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
    let criteria = Criteria {
        dataset,
        ids,
        as_of: None,
        splits,
        metadata: model::metadata_filter(sent)?,
        filter,
    };
    Ok((dataset, as_of(sent), criteria))
}

/// The parameter `as_of`.
pub(super) fn as_of(sent: &Pairs) -> Option<AsOf> {
    sent.all("as_of")
        .last()
        .filter(|text| !text.is_empty())
        .map(AsOf::parse)
}

/// The time of a version. A tag needs the dataset whose tag it is.
pub(super) async fn at(
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
        // What is newest is read as such: it may be one version further by then.
        (Some(AsOf::Tag(tag)), _) if tag == "latest" => Ok(None),
        (Some(AsOf::Time(time)), _) => Ok(Some(*time)),
        (Some(AsOf::Tag(_)), None) => {
            let text = "a tag is one of a dataset: give dataset too, or a time";
            Err(Rejection::rule("as_of", text).into())
        }
        (Some(as_of), Some(dataset)) => versions::resolve(tx, tenant, dataset, as_of).await.map(Some),
    }
}

/// The fields that a list is asked for.
fn selected(sent: &Pairs) -> Result<Vec<&'static str>, ApiError> {
    let names: Vec<&str> = sent.all("select").flat_map(|value| value.split(',')).collect();
    let bare = sent.flag("exclude_default_fields")?.unwrap_or(false);
    if names.is_empty() {
        return Ok(if bare { vec!["id"] } else { without_links() });
    }
    let chosen = FIELDS
        .into_iter()
        .filter(|field| *field == "id" || names.contains(field) || (!bare && ALWAYS.contains(field)));
    Ok(chosen.collect())
}
