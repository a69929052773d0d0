//! Changes of examples. Each request creates one version of the dataset; a changed or deleted row stays for readers of
//! earlier versions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp, dataset};
use uuid::Uuid;

use super::super::files::{self, FileRetention, NewFile};
use super::super::split_into_statements;
use super::super::versions::VersionDraft;
use super::{Example, Filter, list};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Bytes of texts that one request may copy into a new version.
const MAX_COPIED_BYTES: i64 = 256 << 20;

/// An example to be created.
#[derive(Clone, Debug, Default)]
pub struct NewExample {
    /// Chosen by the client or generated.
    pub id: Option<ExampleId>,
    /// Defaults to now.
    pub created_at: Option<Timestamp>,
    /// A JSON object.
    pub inputs: String,
    /// A JSON object.
    pub outputs: Option<String>,
    pub metadata: Option<Map<String, Value>>,
    pub split: Option<Vec<String>>,
    /// The trace run that it is made of.
    pub source_run: Option<Uuid>,
    pub files: Vec<NewFile>,
}

/// What changes of an example; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct ExampleChange {
    /// A JSON object.
    pub inputs: Option<String>,
    /// A JSON object.
    pub outputs: Option<String>,
    pub metadata: Option<Map<String, Value>>,
    pub split: Option<Vec<String>>,
    /// What happens to existing files.
    pub file_retention: FileRetention,
    /// Files that come.
    pub files: Vec<NewFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleWrite {
    /// The version.
    pub as_of: Timestamp,
    /// The examples, in the order of the request.
    pub ids: Vec<ExampleId>,
}

fn stored_bytes(example: &Example) -> i64 {
    i64::try_from(statement_bytes(example)).unwrap_or(i64::MAX)
}

fn statement_bytes(example: &Example) -> usize {
    let texts = [Some(&example.inputs), example.outputs.as_ref(), Some(&example.metadata)];
    texts.into_iter().flatten().map(String::len).sum()
}

/// What is written where a request names no example.
async fn write_nothing(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId) -> Result<ExampleWrite> {
    let as_of = super::super::get(tx, tenant, dataset).await?.version_at;
    Ok(ExampleWrite { as_of, ids: Vec::new() })
}

fn check_unique(ids: &[ExampleId]) -> Result<()> {
    let mut seen = BTreeSet::new();
    match ids.iter().find(|id| !seen.insert(**id)) {
        None => Ok(()),
        Some(id) => Err(Rejection::rule("id", format!("duplicate example {id}")).into()),
    }
}

/// # Errors
/// [`Error::NotFound`] if there is no such dataset, [`Error::Conflict`] naming `example.id` if an id is taken,
/// [`Error::Rejected`] for a violated rule.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId, new: &[NewExample]) -> Result<ExampleWrite> {
    if new.is_empty() {
        return write_nothing(tx, tenant, dataset).await;
    }
    let mut head = VersionDraft::lock(tx, tenant, dataset).await?;
    let ids: Vec<ExampleId> = new.iter().map(|new| new.id.unwrap_or_else(ExampleId::new)).collect();
    check_unique(&ids)?;
    if !existing(tx, tenant, None, &ids).await?.is_empty() {
        return Err(Error::Conflict {
            column: "example.id".to_owned(),
        });
    }
    let mut rows = Vec::with_capacity(new.len());
    let mut arrivals = Vec::new();
    for (new, id) in new.iter().zip(&ids) {
        let metadata = dataset::merge_metadata(None, new.metadata.clone(), new.split.clone())?;
        if let Some(time) = new.created_at {
            dataset::check_time("created_at", time)?;
        }
        let mut named = Vec::new();
        let bytes = files::add_files(*id, &mut named, &new.files, &mut arrivals)?;
        let example = Example {
            dataset_id: dataset,
            example_id: *id,
            valid_from: head.at,
            created_at: new.created_at.unwrap_or(head.at),
            inputs: new.inputs.clone(),
            outputs: new.outputs.clone(),
            metadata: Value::from(metadata).to_string(),
            source_run_id: new.source_run,
            files: files_json(&named),
        };
        head.add_counts(1, 1, stored_bytes(&example) + bytes);
        rows.push(example);
    }
    files::insert_files(tx, tenant, dataset, &arrivals).await?;
    insert(tx, tenant, &rows).await?;
    let as_of = head.commit(tx).await?;
    Ok(ExampleWrite { as_of, ids })
}

fn files_json(files: &[files::ExampleFile]) -> String {
    serde_json::to_string(files).expect("names and ids are always JSON")
}

async fn insert(tx: &mut Tx<'_>, tenant: TenantId, rows: &[Example]) -> Result<()> {
    for rows in split_into_statements(rows, statement_bytes) {
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
                Arg::Int(stored_bytes(row)),
            ]
        }));
        query.execute(tx).await?;
    }
    Ok(())
}

/// The existing ones of these examples, of any dataset where none is named.
pub async fn existing(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: Option<DatasetId>,
    ids: &[ExampleId],
) -> Result<Vec<ExampleId>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let criteria = Filter {
        dataset,
        ids: ids.to_vec(),
        ..Filter::default()
    };
    let mut query = Query::new(tx, "SELECT example_id FROM example WHERE tenant_id = ");
    criteria.push_conditions(&mut query, tenant)?;
    let found: Vec<(ExampleId,)> = query.fetch_all(tx).await?;
    Ok(found.into_iter().map(|(id,)| id).collect())
}

fn too_large() -> Error {
    let text = format!("the examples have more than {MAX_COPIED_BYTES} bytes in total; change fewer per request");
    Rejection::rule("", text).into()
}

/// Those of these examples that are in the dataset, to be changed.
async fn lock_current(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    ids: &[ExampleId],
) -> Result<Vec<Example>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let criteria = Filter {
        dataset: Some(dataset),
        ids: ids.to_vec(),
        ..Filter::default()
    };
    // A small request must not fill the memory with what it names.
    let mut query = Query::new(
        tx,
        "SELECT CAST(coalesce(sum(bytes), 0) AS bigint) FROM example WHERE tenant_id = ",
    );
    criteria.push_conditions(&mut query, tenant)?;
    if query.count(tx).await? > MAX_COPIED_BYTES {
        return Err(too_large());
    }
    list(tx, tenant, &criteria, i64::try_from(ids.len()).unwrap_or(i64::MAX), 0).await
}

/// Ends the rows of these examples with the version that is made. Returns those that there were.
async fn end_validity(
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

/// # Errors
/// [`Error::NotFound`] if the dataset or one of the examples does not exist, [`Error::Rejected`] for a violated rule.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    changes: &[(ExampleId, ExampleChange)],
) -> Result<ExampleWrite> {
    if changes.is_empty() {
        return write_nothing(tx, tenant, dataset).await;
    }
    let mut head = VersionDraft::lock(tx, tenant, dataset).await?;
    let ids: Vec<ExampleId> = changes.iter().map(|(id, _)| *id).collect();
    check_unique(&ids)?;
    let stored = lock_current(tx, tenant, dataset, &ids).await?;
    let mut stored: HashMap<ExampleId, Example> = stored.into_iter().map(|row| (row.example_id, row)).collect();
    let mut rows = Vec::with_capacity(changes.len());
    let mut arrivals = Vec::new();
    for (id, change) in changes {
        let Some(mut example) = stored.remove(id) else {
            return Err(Rejection::not_found(&format!("example {id}")).into());
        };
        let metadata =
            dataset::merge_metadata(Some(example.metadata()?), change.metadata.clone(), change.split.clone())?;
        let mut named = change.file_retention.retain(example.files()?)?;
        let bytes = files::add_files(*id, &mut named, &change.files, &mut arrivals)?;
        example.valid_from = head.at;
        example.metadata = Value::from(metadata).to_string();
        example.files = files_json(&named);
        if let Some(inputs) = &change.inputs {
            example.inputs.clone_from(inputs);
        }
        if let Some(outputs) = &change.outputs {
            example.outputs = Some(outputs.clone());
        }
        head.add_counts(0, 1, stored_bytes(&example) + bytes);
        rows.push(example);
    }
    end_validity(tx, tenant, dataset, head.at, &ids).await?;
    files::insert_files(tx, tenant, dataset, &arrivals).await?;
    insert(tx, tenant, &rows).await?;
    let as_of = head.commit(tx).await?;
    Ok(ExampleWrite { as_of, ids })
}

/// Changes the metadata of those of the examples that exist in the dataset, and returns their ids.
pub async fn rewrite_metadata(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    ids: &[ExampleId],
    change: impl Fn(&mut Map<String, Value>) -> Result<(), Rejection>,
) -> Result<Vec<ExampleId>> {
    let mut head = VersionDraft::lock(tx, tenant, dataset).await?;
    let stored = lock_current(tx, tenant, dataset, ids).await?;
    let found: Vec<ExampleId> = stored.iter().map(|row| row.example_id).collect();
    let mut rows = Vec::with_capacity(stored.len());
    let mut bytes = 0;
    for mut row in stored {
        let mut metadata = row.metadata()?;
        change(&mut metadata)?;
        let metadata = Value::from(metadata).to_string();
        if metadata == row.metadata {
            continue;
        }
        row.valid_from = head.at;
        row.metadata = metadata;
        // What is added is added to each of them.
        bytes += stored_bytes(&row);
        if bytes > MAX_COPIED_BYTES {
            return Err(too_large());
        }
        head.add_counts(0, 1, stored_bytes(&row));
        rows.push(row);
    }
    if rows.is_empty() {
        return Ok(found);
    }
    let changed: Vec<ExampleId> = rows.iter().map(|row| row.example_id).collect();
    end_validity(tx, tenant, dataset, head.at, &changed).await?;
    insert(tx, tenant, &rows).await?;
    head.commit(tx).await?;
    Ok(found)
}

/// Groups examples by dataset, in the order of datasets, so that concurrent callers do not deadlock.
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
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExampleId]) -> Result<Vec<ExampleId>> {
    let mut deleted = Vec::new();
    for (dataset, ids) in by_dataset(tx, tenant, ids, " AND valid_until IS NULL").await? {
        let mut head = VersionDraft::lock(tx, tenant, dataset).await?;
        let ended = end_validity(tx, tenant, dataset, head.at, &ids).await?;
        if ended.is_empty() {
            continue;
        }
        head.add_counts(-i64::try_from(ended.len()).unwrap_or(i64::MAX), 0, 0);
        head.commit(tx).await?;
        deleted.extend(ended);
    }
    if deleted.is_empty() {
        return Err(Error::NotFound);
    }
    Ok(deleted)
}

/// Deletes examples from all versions, with their files.
pub async fn erase(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExampleId]) -> Result<Vec<ExampleId>> {
    let datasets = by_dataset(tx, tenant, ids, "").await?;
    if datasets.is_empty() {
        return Err(Error::NotFound);
    }
    let mut erased = Vec::new();
    for (dataset, ids) in datasets {
        let mut head = VersionDraft::lock(tx, tenant, dataset).await?;
        let mut query = Query::new(tx, "DELETE FROM example WHERE tenant_id = ");
        query.bind(Arg::Uuid(tenant.0));
        query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
        query.push(" AND example_id").among(ids.iter().map(|id| id.0));
        query.push(" RETURNING bytes, valid_from, valid_until");
        let rows: Vec<(i64, Timestamp, Option<Timestamp>)> = query.fetch_all(tx).await?;
        let mut query = Query::new(tx, "DELETE FROM example_file WHERE tenant_id = ");
        query.bind(Arg::Uuid(tenant.0));
        query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
        query.push(" AND example_id").among(ids.iter().map(|id| id.0));
        query.push(" RETURNING bytes");
        let gone: Vec<(i64,)> = query.fetch_all(tx).await?;
        let mut times = BTreeSet::new();
        for (bytes, from, until) in rows {
            head.add_counts(if until.is_none() { -1 } else { 0 }, -1, -bytes);
            times.insert(from);
            times.extend(until);
        }
        head.prune(tx, &times).await?;
        head.add_counts(0, 0, -gone.iter().map(|(bytes,)| bytes).sum::<i64>());
        head.commit(tx).await?;
        erased.extend(ids);
    }
    Ok(erased)
}
