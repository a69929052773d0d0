//! Datasets: what they are called, and how much is in each. Their examples and versions have modules of their own.

pub mod examples;
pub mod files;
pub mod versions;

use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_domain::dataset::{self, DataType};
use towpath_domain::{DatasetId, Rejection, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Datasets of one workspace.
const MOST_DATASETS: i64 = 10_000;

/// A dataset.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Dataset {
    /// Unique in the workspace.
    pub id: DatasetId,
    /// Its workspace.
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// `kv`, `llm` or `chat`.
    pub data_type: String,
    /// JSON Schema of inputs, as sent.
    pub inputs_schema: Option<String>,
    /// JSON Schema of outputs, as sent.
    pub outputs_schema: Option<String>,
    /// A JSON object.
    pub metadata: String,
    /// When it was created.
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
    /// The client's own id, or ours.
    pub id: DatasetId,
    /// Name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// What its examples look like.
    pub data_type: DataType,
    /// JSON Schema of inputs.
    pub inputs_schema: Option<Box<RawValue>>,
    /// JSON Schema of outputs.
    pub outputs_schema: Option<Box<RawValue>>,
    /// Metadata.
    pub metadata: Map<String, Value>,
}

/// Creates a dataset. Its first version is empty.
///
/// # Errors
/// [`Error::Rejected`] for a bad name or too many datasets, [`Error::Conflict`] naming `dataset.name` or `dataset.id` where
/// that is taken.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, new: &NewDataset) -> Result<Dataset> {
    dataset::check_name(&new.name)?;
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM dataset WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    if count >= MOST_DATASETS {
        let text = format!("the workspace has {MOST_DATASETS} datasets, the most it may have: delete some first");
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
        let named = by_name(tx, tenant, &new.name).await?;
        let taken = if named.is_some() { "dataset.name" } else { "dataset.id" };
        return Err(Error::Conflict {
            column: taken.to_owned(),
        });
    };
    versions::record(tx, tenant, made.id, now).await?;
    Ok(made)
}

/// One dataset.
///
/// # Errors
/// [`Error::NotFound`], also for a dataset of another workspace.
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

async fn by_name(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Dataset>> {
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

/// Which datasets are listed.
#[derive(Clone, Debug, Default)]
pub struct Criteria {
    /// One of these.
    pub ids: Vec<DatasetId>,
    /// Of exactly this name.
    pub name: Option<String>,
    /// With this in its name, in upper or lower case.
    pub name_contains: Option<String>,
    /// Of one of these types.
    pub data_types: Vec<DataType>,
    /// With this in its metadata.
    pub metadata: Option<Value>,
}

/// Datasets, newest first.
///
/// # Errors
/// [`Error::Rejected`] for a filter of metadata that is too large.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    criteria: &Criteria,
    limit: i64,
    offset: i64,
) -> Result<Vec<Dataset>> {
    // PostgreSQL refuses NUL in a parameter, SQLite a pattern that is very long, and no name is either.
    let mut names = [&criteria.name, &criteria.name_contains].into_iter().flatten();
    if names.any(|name| name.contains('\0') || name.chars().count() > dataset::LONGEST_NAME) {
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
pub struct Experiments {
    /// The dataset.
    pub dataset_id: DatasetId,
    /// Experiments.
    pub experiments: i64,
    /// Start of the latest one.
    pub last_start: Option<Timestamp>,
}

/// The experiments of these datasets; none is listed that has no experiment.
///
/// # Errors
/// Only what the database says.
pub async fn experiments(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    ids: &[DatasetId],
) -> Result<HashMap<DatasetId, Experiments>> {
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
    let counted: Vec<Experiments> = query.fetch_all(tx).await?;
    Ok(counted.into_iter().map(|one| (one.dataset_id, one)).collect())
}

/// What changes of a dataset; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct DatasetChange {
    /// Name.
    pub name: Option<String>,
    /// Description.
    pub description: Option<String>,
    /// JSON Schema of inputs.
    pub inputs_schema: Option<Box<RawValue>>,
    /// JSON Schema of outputs.
    pub outputs_schema: Option<Box<RawValue>>,
    /// Metadata.
    pub metadata: Option<Map<String, Value>>,
}

/// Changes a dataset. Its examples, and so its version, stay.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Rejected`] for a bad name, [`Error::Conflict`] for one that is taken.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: DatasetId, change: &DatasetChange) -> Result<Dataset> {
    if let Some(name) = &change.name {
        dataset::check_name(name)?;
        if by_name(tx, tenant, name).await?.is_some_and(|other| other.id != id) {
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

/// Deletes a dataset with its examples, versions, tags, files and comparative experiments. Its experiments stay as projects
/// of no dataset, since their traces are worth something by themselves.
///
/// # Errors
/// [`Error::NotFound`], also for a dataset of another workspace.
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
///
/// # Errors
/// Only what the database says.
pub async fn stored_bytes(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT CAST(coalesce(sum(stored_bytes), 0) AS bigint) FROM dataset WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// Datasets of that id, whoever owns them; of one workspace where it is named. At most two, which tells that the id alone
/// names none.
///
/// # Errors
/// Only what the database says.
pub async fn any(tx: &mut Tx<'_>, id: DatasetId, workspace: Option<TenantId>) -> Result<Vec<Dataset>> {
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
///
/// # Errors
/// Only what the database says.
pub async fn overview(tx: &mut Tx<'_>, part: &str, limit: i64, offset: i64) -> Result<Vec<Dataset>> {
    if part.contains('\0') || part.chars().count() > dataset::LONGEST_NAME {
        return Ok(Vec::new());
    }
    let mut query = Query::new(tx, concat!("SELECT ", columns!(dataset), " FROM dataset WHERE "));
    query
        .has_part("name", part)
        .push(" ORDER BY modified_at DESC, id, tenant_id")
        .page(limit, offset);
    query.fetch_all(tx).await
}
