//! Changes of examples. All of one request are one version of the dataset; a row that is changed or deleted stays as it was, for
//! readers of earlier versions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp, dataset};
use uuid::Uuid;

use super::super::files::{self, Kept, NewFile};
use super::super::versions::Head;
use super::{Criteria, Example, list};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Rows of one statement: PostgreSQL takes 65535 values.
const ROWS: usize = 500;

/// An example to be created.
#[derive(Clone, Debug, Default)]
pub struct NewExample {
    /// The client's own id, or ours.
    pub id: Option<ExampleId>,
    /// Now, if not said.
    pub created_at: Option<Timestamp>,
    /// A JSON object.
    pub inputs: String,
    /// A JSON object.
    pub outputs: Option<String>,
    /// Metadata.
    pub metadata: Option<Map<String, Value>>,
    /// Splits.
    pub split: Option<Vec<String>>,
    /// The trace run that it is made of.
    pub source_run: Option<Uuid>,
    /// Files.
    pub files: Vec<NewFile>,
}

/// What changes of an example; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct ExampleChange {
    /// A JSON object.
    pub inputs: Option<String>,
    /// A JSON object.
    pub outputs: Option<String>,
    /// Metadata.
    pub metadata: Option<Map<String, Value>>,
    /// Splits.
    pub split: Option<Vec<String>>,
    /// What becomes of the files that are there.
    pub kept: Kept,
    /// Files that come.
    pub files: Vec<NewFile>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The version.
    pub as_of: Timestamp,
    /// The examples, in the order of the request.
    pub ids: Vec<ExampleId>,
}

fn size(example: &Example) -> i64 {
    let texts = [Some(&example.inputs), example.outputs.as_ref(), Some(&example.metadata)];
    let bytes: usize = texts.into_iter().flatten().map(String::len).sum();
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn twice(ids: &[ExampleId]) -> Result<()> {
    let mut seen = BTreeSet::new();
    match ids.iter().find(|id| !seen.insert(**id)) {
        None => Ok(()),
        Some(id) => Err(Rejection::rule("id", format!("the example {id} is in the request twice")).into()),
    }
}

/// Creates examples.
///
/// # Errors
/// [`Error::NotFound`] where there is no such dataset, [`Error::Conflict`] naming `example.id` where an id is taken,
/// [`Error::Rejected`] for what is not allowed.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId, new: &[NewExample]) -> Result<Written> {
    let mut head = Head::open(tx, tenant, dataset).await?;
    let ids: Vec<ExampleId> = new.iter().map(|new| new.id.unwrap_or_else(ExampleId::new)).collect();
    twice(&ids)?;
    if !current(tx, tenant, None, &ids).await?.is_empty() {
        return Err(Error::Conflict {
            column: "example.id".to_owned(),
        });
    }
    let mut rows = Vec::with_capacity(new.len());
    for (new, id) in new.iter().zip(&ids) {
        let metadata = dataset::metadata(None, new.metadata.clone(), new.split.clone())?;
        let mut named = Vec::new();
        let bytes = files::add(tx, tenant, dataset, *id, &mut named, &new.files).await?;
        let example = Example {
            dataset_id: dataset,
            example_id: *id,
            valid_from: head.at,
            created_at: new.created_at.unwrap_or(head.at),
            inputs: new.inputs.clone(),
            outputs: new.outputs.clone(),
            metadata: Value::from(metadata).to_string(),
            source_run_id: new.source_run,
            files: text(&named),
        };
        head.count(1, 1, size(&example) + bytes);
        rows.push(example);
    }
    insert(tx, tenant, &rows).await?;
    let as_of = head.close(tx).await?;
    Ok(Written { as_of, ids })
}

fn text(files: &[files::File]) -> String {
    serde_json::to_string(files).expect("names and ids are always JSON")
}

async fn insert(tx: &mut Tx<'_>, tenant: TenantId, rows: &[Example]) -> Result<()> {
    for rows in rows.chunks(ROWS) {
        let mut query = Query::new(
            tx,
            "INSERT INTO example (tenant_id, dataset_id, example_id, valid_from, created_at, inputs, outputs, metadata,
                                  source_run_id, files, bytes) VALUES ",
        );
        query.rows(rows.iter().map(|row| {
            [
                Arg::Uuid(tenant.0),
                Arg::Uuid(row.dataset_id.0),
                Arg::Uuid(row.example_id.0),
                Arg::Time(row.valid_from),
                Arg::Time(row.created_at),
                Arg::Text(row.inputs.clone()),
                Arg::MaybeText(row.outputs.clone()),
                Arg::Text(row.metadata.clone()),
                Arg::MaybeUuid(row.source_run_id),
                Arg::Text(row.files.clone()),
                Arg::Int(size(row)),
            ]
        }));
        query.execute(tx).await?;
    }
    Ok(())
}

/// Those of these examples that are there.
async fn current(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: Option<DatasetId>,
    ids: &[ExampleId],
) -> Result<Vec<Example>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let criteria = Criteria {
        dataset,
        ids: ids.to_vec(),
        ..Criteria::default()
    };
    list(tx, tenant, &criteria, i64::try_from(ids.len()).unwrap_or(i64::MAX), 0).await
}

/// Ends the rows of these examples with the version that is made. Answers those that there were.
async fn end(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    at: Timestamp,
    ids: &[ExampleId],
) -> Result<Vec<ExampleId>> {
    let mut query = Query::new(tx, "UPDATE example SET valid_until = ");
    query.bind(Arg::Time(at));
    query
        .push(" WHERE valid_until IS NULL AND tenant_id = ")
        .bind(Arg::Uuid(tenant.0));
    query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
    query.push(" AND example_id").among(ids.iter().map(|id| id.0));
    query.push(" RETURNING example_id");
    let ended: Vec<(ExampleId,)> = query.fetch_all(tx).await?;
    Ok(ended.into_iter().map(|(id,)| id).collect())
}

/// Changes examples of a dataset.
///
/// # Errors
/// [`Error::NotFound`] where there is no such dataset or one of the examples is not in it, [`Error::Rejected`] for what is not
/// allowed.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    changes: &[(ExampleId, ExampleChange)],
) -> Result<Written> {
    let mut head = Head::open(tx, tenant, dataset).await?;
    let ids: Vec<ExampleId> = changes.iter().map(|(id, _)| *id).collect();
    twice(&ids)?;
    let stored = current(tx, tenant, Some(dataset), &ids).await?;
    let mut stored: HashMap<ExampleId, Example> = stored.into_iter().map(|row| (row.example_id, row)).collect();
    let mut rows = Vec::with_capacity(changes.len());
    for (id, change) in changes {
        let Some(mut example) = stored.remove(id) else {
            return Err(Rejection::not_found(&format!("example {id}")).into());
        };
        let metadata = dataset::metadata(Some(example.metadata()?), change.metadata.clone(), change.split.clone())?;
        let mut named = change.kept.of(example.files()?)?;
        let bytes = files::add(tx, tenant, dataset, *id, &mut named, &change.files).await?;
        example.valid_from = head.at;
        example.metadata = Value::from(metadata).to_string();
        example.files = text(&named);
        if let Some(inputs) = &change.inputs {
            example.inputs.clone_from(inputs);
        }
        if let Some(outputs) = &change.outputs {
            example.outputs = Some(outputs.clone());
        }
        head.count(0, 1, size(&example) + bytes);
        rows.push(example);
    }
    end(tx, tenant, dataset, head.at, &ids).await?;
    insert(tx, tenant, &rows).await?;
    let as_of = head.close(tx).await?;
    Ok(Written { as_of, ids })
}

/// Changes the metadata of those of these examples that are in the dataset, and answers which those are.
///
/// # Errors
/// [`Error::NotFound`] where there is no such dataset; what `change` says.
pub async fn rewrite_metadata(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    ids: &[ExampleId],
    change: impl Fn(&mut Map<String, Value>) -> Result<(), Rejection>,
) -> Result<Vec<ExampleId>> {
    let mut head = Head::open(tx, tenant, dataset).await?;
    let mut rows = current(tx, tenant, Some(dataset), ids).await?;
    let found: Vec<ExampleId> = rows.iter().map(|row| row.example_id).collect();
    if found.is_empty() {
        return Ok(found);
    }
    for row in &mut rows {
        let mut metadata = row.metadata()?;
        change(&mut metadata)?;
        row.valid_from = head.at;
        row.metadata = Value::from(metadata).to_string();
        head.count(0, 1, size(row));
    }
    end(tx, tenant, dataset, head.at, &found).await?;
    insert(tx, tenant, &rows).await?;
    head.close(tx).await?;
    Ok(found)
}

/// The examples by dataset; in the order of datasets, so that two that lock them wait in one direction only.
async fn by_dataset(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    ids: &[ExampleId],
    which: &str,
) -> Result<BTreeMap<DatasetId, Vec<ExampleId>>> {
    let mut query = Query::new(
        tx,
        "SELECT DISTINCT dataset_id, example_id FROM example WHERE tenant_id = ",
    );
    query.bind(Arg::Uuid(tenant.0));
    query
        .push(which)
        .push(" AND example_id")
        .among(ids.iter().map(|id| id.0));
    let found: Vec<(DatasetId, ExampleId)> = query.fetch_all(tx).await?;
    let mut datasets: BTreeMap<DatasetId, Vec<ExampleId>> = BTreeMap::new();
    for (dataset, example) in found {
        datasets.entry(dataset).or_default().push(example);
    }
    Ok(datasets)
}

/// Deletes examples. Earlier versions of their datasets keep them.
///
/// # Errors
/// [`Error::NotFound`] where none of them is there.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExampleId]) -> Result<Vec<ExampleId>> {
    let mut deleted = Vec::new();
    for (dataset, ids) in by_dataset(tx, tenant, ids, " AND valid_until IS NULL").await? {
        let mut head = Head::open(tx, tenant, dataset).await?;
        let ended = end(tx, tenant, dataset, head.at, &ids).await?;
        if ended.is_empty() {
            continue;
        }
        head.count(-i64::try_from(ended.len()).unwrap_or(i64::MAX), 0, 0);
        head.close(tx).await?;
        deleted.extend(ended);
    }
    if deleted.is_empty() {
        return Err(Error::NotFound);
    }
    Ok(deleted)
}

/// Deletes examples from all versions, with their files.
///
/// # Errors
/// [`Error::NotFound`] where none of them is in any version.
pub async fn erase(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExampleId]) -> Result<Vec<ExampleId>> {
    let datasets = by_dataset(tx, tenant, ids, "").await?;
    if datasets.is_empty() {
        return Err(Error::NotFound);
    }
    let mut erased = Vec::new();
    for (dataset, ids) in datasets {
        let mut head = Head::open(tx, tenant, dataset).await?;
        let mut query = Query::new(tx, "DELETE FROM example WHERE tenant_id = ");
        query.bind(Arg::Uuid(tenant.0));
        query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
        query.push(" AND example_id").among(ids.iter().map(|id| id.0));
        query.push(" RETURNING bytes, valid_until");
        let rows: Vec<(i64, Option<Timestamp>)> = query.fetch_all(tx).await?;
        let mut query = Query::new(tx, "DELETE FROM example_file WHERE tenant_id = ");
        query.bind(Arg::Uuid(tenant.0));
        query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
        query.push(" AND example_id").among(ids.iter().map(|id| id.0));
        query.push(" RETURNING bytes");
        let gone: Vec<(i64,)> = query.fetch_all(tx).await?;
        for (bytes, until) in rows {
            head.count(if until.is_none() { -1 } else { 0 }, -1, -bytes);
        }
        head.count(0, 0, -gone.iter().map(|(bytes,)| bytes).sum::<i64>());
        head.close(tx).await?;
        erased.extend(ids);
    }
    Ok(erased)
}
