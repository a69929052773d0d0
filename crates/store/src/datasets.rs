//! Datasets and their statistics. Examples and versions are in separate modules.

pub mod examples;
pub mod files;
pub mod versions;

use std::collections::HashMap;
use std::ops::ControlFlow;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::dataset::{self, DataType};
use towpath_domain::{DatasetId, Rejection, TenantId, Timestamp};
use uuid::Uuid;

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Datasets of one workspace.
const MAX_DATASETS: i64 = 10_000;
/// Rows of one statement: PostgreSQL takes 65535 values.
const MAX_STATEMENT_ROWS: usize = 500;
/// Bytes of one statement that adds or removes rows: PostgreSQL gives up on one that takes long.
const MAX_STATEMENT_BYTES: usize = 16 << 20;

/// Cuts rows into statements of bounded size.
fn split_into_statements<T>(rows: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut cut = Vec::new();
    let (mut from, mut size) = (0, 0);
    for (at, row) in rows.iter().enumerate() {
        let more = bytes(row);
        if at > from && (at - from == MAX_STATEMENT_ROWS || size + more > MAX_STATEMENT_BYTES) {
            cut.push(&rows[from..at]);
            (from, size) = (at, 0);
        }
        size += more;
    }
    if from < rows.len() {
        cut.push(&rows[from..]);
    }
    cut
}

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Dataset {
    /// Unique in the workspace.
    pub id: DatasetId,
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    pub description: Option<String>,
    /// `kv`, `llm` or `chat`.
    pub data_type: String,
    /// JSON Schema of inputs, as sent.
    pub inputs_schema: Option<String>,
    /// JSON Schema of outputs, as sent.
    pub outputs_schema: Option<String>,
    /// A JSON object.
    pub metadata: String,
    pub created_at: Timestamp,
    /// When it or one of its examples changed last.
    pub modified_at: Timestamp,
    /// Its newest version.
    pub version_at: Timestamp,
    /// Examples of the newest version.
    pub example_count: i64,
}

/// A dataset to be created.
#[derive(Clone, Debug)]
pub struct NewDataset {
    /// Chosen by the client or generated.
    pub id: DatasetId,
    pub name: String,
    pub description: Option<String>,
    /// What its examples look like.
    pub data_type: DataType,
    /// JSON Schema of inputs.
    pub inputs_schema: Option<Box<RawValue>>,
    /// JSON Schema of outputs.
    pub outputs_schema: Option<Box<RawValue>>,
    pub metadata: Map<String, Value>,
}

/// Creates a dataset with an empty first version.
///
/// # Errors
/// [`Error::Rejected`] for a bad name or too many datasets, [`Error::Conflict`] naming `dataset.name` or `dataset.id`
/// if that is taken.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, new: &NewDataset) -> Result<Dataset> {
    dataset::check_name(&new.name)?;
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM dataset WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    if count >= MAX_DATASETS {
        let text = format!("the workspace already has the maximum of {MAX_DATASETS} datasets; delete some first");
        return Err(Rejection::rule("", text).into());
    }
    let now = tx.now();
    let made: Option<Dataset> = on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO dataset (id, tenant_id, name, description, data_type, inputs_schema, outputs_schema, metadata,
                              created_at, modified_at, version_at, example_count, stored_rows, stored_bytes)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $9, 0, 0, 0) ON CONFLICT DO NOTHING RETURNING ",
        columns!(dataset)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(&new.name)
    .bind(&new.description)
    .bind(new.data_type.as_str())
    .bind(new.inputs_schema.as_ref().map(|schema| schema.get()))
    .bind(new.outputs_schema.as_ref().map(|schema| schema.get()))
    .bind(Value::from(new.metadata.clone()).to_string())
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    let Some(made) = made else {
        let named = find_by_name(tx, tenant, &new.name).await?;
        let taken = if named.is_some() { "dataset.name" } else { "dataset.id" };
        return Err(Error::Conflict {
            column: taken.to_owned(),
        });
    };
    versions::record(tx, tenant, made.id, now).await?;
    Ok(made)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: DatasetId) -> Result<Dataset> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(dataset),
        " FROM dataset WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

async fn find_by_name(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Dataset>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(dataset),
        " FROM dataset WHERE tenant_id = $1 AND name = $2"
    ))
    .bind(tenant)
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub ids: Vec<DatasetId>,
    /// Of exactly this name.
    pub name: Option<String>,
    /// With this in its name, case-insensitive.
    pub name_contains: Option<String>,
    /// Of one of these types.
    pub data_types: Vec<DataType>,
    pub metadata: Option<Value>,
}

/// Datasets, newest first.
///
/// # Errors
/// [`Error::Rejected`] for a filter of metadata that is too large.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    criteria: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<Dataset>> {
    // PostgreSQL rejects NUL in a parameter, SQLite very long patterns; no name contains either.
    let mut names = [&criteria.name, &criteria.name_contains].into_iter().flatten();
    if names.any(|name| name.contains('\0') || name.chars().count() > dataset::MAX_NAME_LENGTH) {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(dataset), " FROM dataset WHERE tenant_id = "),
    );
    query.bind(Arg::Uuid(tenant.0));
    if !criteria.ids.is_empty() {
        query.push(" AND id").among(criteria.ids.iter().map(|id| id.0));
    }
    if let Some(name) = &criteria.name {
        query.push(" AND name = ").bind(Arg::Text(name.clone()));
    }
    if let Some(part) = &criteria.name_contains {
        query.push(" AND ").has_part("name", part);
    }
    if !criteria.data_types.is_empty() {
        let types = criteria
            .data_types
            .iter()
            .map(|kind| Arg::Text(kind.as_str().to_owned()));
        query.push(" AND ").any_of("data_type", types);
    }
    if let Some(metadata) = &criteria.metadata {
        query.push(" AND ").contains("metadata", "metadata", metadata)?;
    }
    query.push(" ORDER BY created_at DESC, id").page(limit, offset);
    query.fetch_all(tx).await
}

/// How many experiments a dataset has, and when the latest one began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ExperimentCount {
    pub dataset_id: DatasetId,
    pub experiments: i64,
    /// Start of the latest one.
    pub last_start: Option<Timestamp>,
}

/// The experiments of these datasets; none is listed that has no experiment.
pub async fn experiments(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    ids: &[DatasetId],
) -> Result<HashMap<DatasetId, ExperimentCount>> {
    let mut query = Query::new(
        tx,
        "SELECT reference_dataset_id AS dataset_id, count(*) AS experiments, max(start_time) AS last_start
         FROM project WHERE tenant_id = ",
    );
    query
        .bind(Arg::Uuid(tenant.0))
        .push(" AND reference_dataset_id")
        .among(ids.iter().map(|id| id.0))
        .push(" GROUP BY reference_dataset_id");
    let counted: Vec<ExperimentCount> = query.fetch_all(tx).await?;
    Ok(counted.into_iter().map(|one| (one.dataset_id, one)).collect())
}

/// What changes of a dataset; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct DatasetChange {
    pub name: Option<String>,
    pub description: Option<String>,
    /// JSON Schema of inputs.
    pub inputs_schema: Option<Box<RawValue>>,
    /// JSON Schema of outputs.
    pub outputs_schema: Option<Box<RawValue>>,
    pub metadata: Option<Map<String, Value>>,
}

/// Changes a dataset. Its examples and version stay.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Rejected`] for a bad name, [`Error::Conflict`] for a taken one.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: DatasetId, change: &DatasetChange) -> Result<Dataset> {
    if let Some(name) = &change.name {
        dataset::check_name(name)?;
        if find_by_name(tx, tenant, name)
            .await?
            .is_some_and(|other| other.id != id)
        {
            return Err(Error::Conflict {
                column: "dataset.name".to_owned(),
            });
        }
    }
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE dataset SET name = COALESCE($3, name), description = COALESCE($4, description),
                inputs_schema = COALESCE($5, inputs_schema), outputs_schema = COALESCE($6, outputs_schema),
                metadata = COALESCE($7, metadata), modified_at = $8
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(dataset)
    ))
    .bind(tenant)
    .bind(id)
    .bind(&change.name)
    .bind(&change.description)
    .bind(change.inputs_schema.as_ref().map(|schema| schema.get()))
    .bind(change.outputs_schema.as_ref().map(|schema| schema.get()))
    .bind(
        change
            .metadata
            .clone()
            .map(|metadata| Value::from(metadata).to_string())
    )
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes some examples of a dataset from all versions, or some files if no example is left. Returns whether there was
/// anything to delete.
///
/// A dataset is emptied with this before it is deleted: deleting the rows of a large one in a single statement would
/// exceed PostgreSQL's statement timeout and block all writers on SQLite. A caller that stops in between starts again.
pub async fn delete_batch(tx: &mut Tx<'_>, tenant: TenantId, id: DatasetId) -> Result<bool> {
    let mut head = versions::VersionDraft::lock(tx, tenant, id).await?;
    // Examples first: a file that no example names is not seen.
    let mut query = Query::new(tx, "SELECT example_id, bytes FROM example WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND dataset_id = ").bind(Arg::Uuid(id.0));
    query
        .push(" ORDER BY created_at DESC, example_id")
        .limit(MAX_STATEMENT_ROWS as i64);
    let some = first_ids(tx, query).await?;
    if !some.is_empty() {
        let mut query = Query::new(tx, "DELETE FROM example WHERE tenant_id = ");
        query.bind(Arg::Uuid(tenant.0));
        query.push(" AND dataset_id = ").bind(Arg::Uuid(id.0));
        query.push(" AND example_id").among(some);
        query.push(" RETURNING bytes, valid_until");
        let gone: Vec<(i64, Option<Timestamp>)> = query.fetch_all(tx).await?;
        for (bytes, until) in gone {
            head.add_counts(if until.is_none() { -1 } else { 0 }, -1, -bytes);
        }
        head.save_counts(tx).await?;
        return Ok(true);
    }
    let mut query = Query::new(tx, "SELECT id, bytes FROM example_file WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query
        .push(" AND dataset_id = ")
        .bind(Arg::Uuid(id.0))
        .limit(MAX_STATEMENT_ROWS as i64);
    let some = first_ids(tx, query).await?;
    if some.is_empty() {
        return Ok(false);
    }
    let mut query = Query::new(tx, "DELETE FROM example_file WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND dataset_id = ").bind(Arg::Uuid(id.0));
    query.push(" AND id").among(some);
    query.push(" RETURNING bytes");
    let gone: Vec<(i64,)> = query.fetch_all(tx).await?;
    head.add_counts(0, 0, -gone.iter().map(|(bytes,)| bytes).sum::<i64>());
    head.save_counts(tx).await?;
    Ok(true)
}

/// The ids of the first of some rows, as many as hold the bytes of one statement.
async fn first_ids(tx: &mut Tx<'_>, query: Query) -> Result<Vec<Uuid>> {
    let mut ids = Vec::new();
    let mut size = 0;
    query
        .each(tx, |(id, bytes): (Uuid, i64)| {
            ids.push(id);
            size += bytes;
            if size < MAX_STATEMENT_BYTES as i64 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .await?;
    Ok(ids)
}

/// Deletes a dataset with its examples, versions, tags, files and comparative experiments. Its experiments stay as
/// projects without a dataset. Empty it with [`delete_batch`] first.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: DatasetId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM dataset WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 {
        return Err(Error::NotFound);
    }
    on!(tx, |conn| sqlx::query(
        "UPDATE project SET reference_dataset_id = NULL WHERE tenant_id = $1 AND reference_dataset_id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Bytes of the texts and files that a workspace has in datasets.
pub async fn stored_bytes(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT CAST(coalesce(sum(stored_bytes), 0) AS bigint) FROM dataset WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// Datasets of that id, optionally in one workspace. At most two, which is enough to see that the id is ambiguous.
pub async fn find_in_any_workspace(
    tx: &mut Tx<'_>,
    id: DatasetId,
    workspace: Option<TenantId>,
) -> Result<Vec<Dataset>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(dataset),
        " FROM dataset WHERE id = $1 AND tenant_id = coalesce($2, tenant_id) LIMIT 2"
    ))
    .bind(id)
    .bind(workspace)
    .fetch_all(conn)
    .await)?)
}

/// Datasets of all workspaces, those that changed last first: for operators.
pub async fn overview(tx: &mut Tx<'_>, part: &str, limit: i64, offset: i64) -> Result<Vec<Dataset>> {
    if part.contains('\0') || part.chars().count() > dataset::MAX_NAME_LENGTH {
        return Ok(Vec::new());
    }
    let mut query = Query::new(tx, concat!("SELECT ", columns!(dataset), " FROM dataset WHERE "));
    query
        .has_part("name", part)
        .push(" ORDER BY modified_at DESC, id, tenant_id")
        .page(limit, offset);
    query.fetch_all(tx).await
}
