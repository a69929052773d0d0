//! Examples, one by one and as lists. Many at once, with files, come through [`super::multipart`].

use std::collections::BTreeMap;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use towpath_domain::dataset::MOST_EXAMPLES;
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp};
use towpath_store as store;
use towpath_store::datasets::examples::{self, Criteria, Example, ExampleChange, NewExample};
use towpath_store::datasets::files::Kept;
use towpath_store::datasets::versions::AsOf;
use uuid::Uuid;

use super::listing::{as_of, at};
use super::model::{self, Names, Sent, SentList};
use super::{missing, source_runs};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path, optional_object};
use crate::platform::attachments;

/// An example: the fields that were asked for.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Shown(BTreeMap<&'static str, Box<RawValue>>);

/// What is shown where nothing is selected.
pub(super) const FIELDS: [&str; 10] = [
    "id",
    "name",
    "dataset_id",
    "created_at",
    "modified_at",
    "inputs",
    "outputs",
    "metadata",
    "source_run_id",
    "attachment_urls",
];

impl Shown {
    /// An example with these fields of [`FIELDS`].
    pub(super) fn new(app: &App, tenant: TenantId, row: &Example, fields: &[&'static str]) -> Result<Self, ApiError> {
        let corrupt = |column| ApiError::from(store::Error::corrupt("example", column, row.example_id));
        let raw = |column, text: &str| RawValue::from_string(text.to_owned()).map_err(|_| corrupt(column));
        let value = |value: Value| to_raw_value(&value).map_err(|error| ApiError::internal(&error));
        let mut shown = BTreeMap::new();
        for field in fields.iter().copied() {
            let text = match field {
                "id" => value(json!(row.example_id))?,
                // What people call it where no page is wide enough for its id.
                "name" => value(json!(format!("#{}", &row.example_id.0.simple().to_string()[..4])))?,
                "dataset_id" => value(json!(row.dataset_id))?,
                "created_at" => value(json!(row.created_at))?,
                "modified_at" => value(json!(row.valid_from))?,
                "inputs" => raw("inputs", &row.inputs)?,
                "outputs" => raw("outputs", row.outputs.as_deref().unwrap_or("null"))?,
                "metadata" => raw("metadata", &row.metadata)?,
                "source_run_id" => value(json!(row.source_run_id))?,
                "attachment_urls" => value(links(app, tenant, row)?)?,
                _ => continue,
            };
            shown.insert(field, text);
        }
        Ok(Self(shown))
    }

    /// Adds a field.
    pub(super) fn with(mut self, name: &'static str, value: &impl Serialize) -> Result<Self, ApiError> {
        let value = to_raw_value(value).map_err(|error| ApiError::internal(&error))?;
        self.0.insert(name, value);
        Ok(self)
    }
}

/// All fields but the links to files, which clients follow at once.
pub(super) fn without_links() -> Vec<&'static str> {
    FIELDS.into_iter().filter(|field| *field != "attachment_urls").collect()
}

fn links(app: &App, tenant: TenantId, row: &Example) -> Result<Value, ApiError> {
    let links = row.files()?.into_iter().map(|file| {
        let link = json!({
            "presigned_url": attachments::link_of_example(app, tenant, file.id),
            "mime_type": file.mime_type,
        });
        (format!("attachment.{}", file.name), link)
    });
    let links: Map<String, Value> = links.collect();
    Ok(if links.is_empty() { Value::Null } else { links.into() })
}

/// An example to be created. Further fields that the official clients send are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = NewExample)]
pub struct New {
    #[schema(value_type = Option<Uuid>)]
    id: Option<ExampleId>,
    /// Of all examples of a request the same.
    #[schema(value_type = Uuid)]
    dataset_id: DatasetId,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    inputs: Option<Box<RawValue>>,
    /// The outputs that are expected.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    outputs: Option<Box<RawValue>>,
    metadata: Option<Map<String, Value>>,
    /// The splits it is in; `base` where none is named here or in `metadata`.
    split: Option<Names>,
    #[schema(value_type = Option<String>, format = DateTime)]
    created_at: Option<Timestamp>,
    /// The trace run that it is made of.
    source_run_id: Option<Uuid>,
    /// Take inputs, outputs and attachments of the source run.
    #[serde(default)]
    use_source_run_io: Option<bool>,
    /// Take these attachments of the source run.
    #[serde(default)]
    use_source_run_attachments: Option<Vec<String>>,
}

/// An example before its source run was read.
pub(super) struct Draft {
    pub(super) new: NewExample,
    pub(super) has_inputs: bool,
    pub(super) use_io: bool,
    pub(super) use_attachments: Vec<String>,
}

impl New {
    fn draft(self) -> Result<Draft, ApiError> {
        let inputs = model::object("inputs", self.inputs)?;
        Ok(Draft {
            has_inputs: inputs.is_some(),
            use_io: self.use_source_run_io.unwrap_or(false),
            use_attachments: self.use_source_run_attachments.unwrap_or_default(),
            new: NewExample {
                id: self.id,
                created_at: self.created_at,
                inputs: inputs.map_or_else(|| "{}".to_owned(), |inputs| inputs.get().to_owned()),
                outputs: model::object("outputs", self.outputs)?.map(|outputs| outputs.get().to_owned()),
                metadata: model::metadata(self.metadata)?,
                split: self.split.map(Names::list),
                source_run: self.source_run_id,
                files: Vec::new(),
            },
        })
    }
}

/// Creates examples and shows them.
async fn make(app: &App, tenant: Tenant, news: Vec<New>) -> Result<Vec<Shown>, ApiError> {
    let Some(dataset) = news.first().map(|new| new.dataset_id) else {
        return Ok(Vec::new());
    };
    if news.iter().any(|new| new.dataset_id != dataset) {
        return Err(Rejection::rule("dataset_id", "all examples of a request are of one dataset").into());
    }
    check_count(news.len())?;
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let drafts = news.into_iter().map(New::draft).collect::<Result<Vec<_>, _>>()?;
    let news = source_runs::complete(app, tenant, drafts).await?;
    let made = app.store.write(async |tx| {
        let written = examples::create(tx, tenant.id, dataset, &news).await?;
        let criteria = Criteria {
            ids: written.ids.clone(),
            ..Criteria::default()
        };
        let most = i64::try_from(written.ids.len()).unwrap_or(i64::MAX);
        let rows = examples::list(tx, tenant.id, &criteria, most, 0).await?;
        Ok((written, rows))
    });
    let (written, rows) = made.await.map_err(missing)?;
    let order = |id: ExampleId| written.ids.iter().position(|known| *known == id);
    let mut rows: Vec<_> = rows.into_iter().map(|row| (order(row.example_id), row)).collect();
    rows.sort_by_key(|(at, _)| *at);
    rows.iter()
        .map(|(_, row)| Shown::new(app, tenant.id, row, &FIELDS))
        .collect()
}

pub(super) fn check_count(count: usize) -> Result<(), ApiError> {
    if count > MOST_EXAMPLES {
        let text = format!("a request holds at most {MOST_EXAMPLES} examples: send several");
        return Err(ApiError::bad_request(text));
    }
    Ok(())
}

/// Create an example.
#[utoipa::path(post, path = "/examples", tag = "examples", request_body = New,
    responses((status = 200, description = "Created", body = Object),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "The id is taken"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, Sent(new): Sent<New>) -> Result<Json<Shown>, ApiError> {
    let made = make(&app, tenant, vec![new]).await?.pop();
    made.map(Json).ok_or_else(|| ApiError::not_found("example"))
}

/// Create examples, all or none.
#[utoipa::path(post, path = "/examples/bulk", tag = "examples", request_body = Vec<New>,
    responses((status = 200, description = "Created", body = Vec<Object>),
              (status = 404, description = "No such dataset in this workspace"),
              (status = 409, description = "An id is taken"), ApiError))]
pub async fn create_many(
    State(app): State<App>,
    tenant: Tenant,
    SentList(news): SentList<New>,
) -> Result<Json<Vec<Shown>>, ApiError> {
    make(&app, tenant, news).await.map(Json)
}

/// One example.
#[utoipa::path(get, path = "/examples/{example_id}", tag = "examples",
    params(("example_id" = Uuid, Path, description = "The example"),
           ("as_of" = Option<String>, Query, description = "As it was at this time, or in the version of this tag"),
           ("dataset" = Option<Uuid>, Query, description = "Its dataset")),
    responses((status = 200, description = "The example", body = Object),
              (status = 404, description = "No such example in this workspace, or in that version"), ApiError))]
pub async fn get(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExampleId>,
    sent: Pairs,
) -> Result<Json<Shown>, ApiError> {
    let as_of = as_of(&sent);
    let read = app.store.read(async |tx| {
        let dataset = match &as_of {
            Some(AsOf::Tag(_)) => Some(examples::dataset_of(tx, tenant.id, id).await?),
            _ => None,
        };
        let at = at(tx, tenant.id, dataset, as_of.as_ref()).await?;
        examples::get(tx, tenant.id, id, at).await
    });
    let row = read.await.map_err(gone)?;
    Ok(Json(Shown::new(&app, tenant.id, &row, &FIELDS)?))
}

pub(super) fn gone(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("example"),
        error => error.into(),
    }
}

/// What becomes of the files of an example.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = AttachmentsOperations)]
pub struct Operations {
    /// New names by old ones.
    #[serde(default)]
    rename: BTreeMap<String, String>,
    /// Names that stay; others go.
    #[serde(default)]
    retain: Vec<String>,
}

impl From<Operations> for Kept {
    fn from(Operations { rename, retain }: Operations) -> Self {
        Self::Named { rename, retain }
    }
}

/// What changes of an example; null and what is not sent stay. Further fields that the official clients send are ignored.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ExampleChange)]
pub struct Change {
    /// Needed where several are changed at once.
    #[schema(value_type = Option<Uuid>)]
    id: Option<ExampleId>,
    /// Its dataset. An example is not moved to another one.
    #[schema(value_type = Option<Uuid>)]
    dataset_id: Option<DatasetId>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    inputs: Option<Box<RawValue>>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    outputs: Option<Box<RawValue>>,
    metadata: Option<Map<String, Value>>,
    split: Option<Names>,
    #[serde(default, deserialize_with = "optional_object")]
    attachments_operations: Option<Operations>,
}

impl Change {
    fn admit(self) -> Result<ExampleChange, ApiError> {
        Ok(ExampleChange {
            inputs: model::object("inputs", self.inputs)?.map(|inputs| inputs.get().to_owned()),
            outputs: model::object("outputs", self.outputs)?.map(|outputs| outputs.get().to_owned()),
            metadata: model::metadata(self.metadata)?,
            split: self.split.map(Names::list),
            kept: self.attachments_operations.map(Kept::from).unwrap_or_default(),
            files: Vec::new(),
        })
    }
}

/// Changes examples of the dataset that the first one is in.
async fn change(
    app: &App,
    tenant: Tenant,
    said: Option<DatasetId>,
    changes: Vec<(ExampleId, ExampleChange)>,
) -> Result<usize, ApiError> {
    let Some((first, _)) = changes.first() else {
        return Ok(0);
    };
    let first = *first;
    app.stored.check(&app.store, &app.clock, tenant.id).await?;
    let changed = app.store.write(async |tx| {
        let dataset = examples::get(tx, tenant.id, first, None).await?.dataset_id;
        if said.is_some_and(|said| said != dataset) {
            let text =
                "the example is in another dataset, and examples are not moved: create it there, and delete it here";
            return Err(Rejection::rule("dataset_id", text).into());
        }
        examples::update(tx, tenant.id, dataset, &changes).await
    });
    Ok(changed.await.map_err(gone)?.ids.len())
}

/// Change an example, which makes a version of its dataset.
#[utoipa::path(patch, path = "/examples/{example_id}", tag = "examples", request_body = Change,
    params(("example_id" = Uuid, Path, description = "The example")),
    responses((status = 200, description = "Changed", body = Object),
              (status = 404, description = "No such example in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<ExampleId>,
    Sent(sent): Sent<Change>,
) -> Result<Json<Value>, ApiError> {
    let dataset = sent.dataset_id;
    change(&app, tenant, dataset, vec![(id, sent.admit()?)]).await?;
    Ok(Json(json!({"message": "Example updated"})))
}

/// Change examples of one dataset, all or none.
#[utoipa::path(patch, path = "/examples/bulk", tag = "examples", request_body = Vec<Change>,
    responses((status = 200, description = "Changed", body = Object),
              (status = 404, description = "One of the examples is not in this workspace"), ApiError))]
pub async fn update_many(
    State(app): State<App>,
    tenant: Tenant,
    SentList(sent): SentList<Change>,
) -> Result<Json<Value>, ApiError> {
    check_count(sent.len())?;
    let dataset = sent.iter().find_map(|change| change.dataset_id);
    if sent
        .iter()
        .any(|change| change.dataset_id.is_some() && change.dataset_id != dataset)
    {
        return Err(Rejection::rule("dataset_id", "all examples of a request are of one dataset").into());
    }
    let mut changes = Vec::with_capacity(sent.len());
    for (at, change) in sent.into_iter().enumerate() {
        let id = change
            .id
            .ok_or_else(|| Rejection::invalid(format!("{at}.id"), "field required"))?;
        changes.push((id, change.admit()?));
    }
    let count = change(&app, tenant, dataset, changes).await?;
    Ok(Json(
        json!({"message": format!("{count} examples updated"), "count": count}),
    ))
}
