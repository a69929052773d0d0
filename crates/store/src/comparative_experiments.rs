//! Experiments of one dataset that are judged against each other.

use serde_json::value::RawValue;
use towpath_domain::{ComparativeExperimentId, DatasetId, ProjectId, Rejection, TenantId, Timestamp};

use crate::{Error, Result, Tx, datasets, projects};

/// Comparative experiments of one dataset.
const MOST: i64 = 10_000;
/// Experiments of one comparison.
const MOST_EXPERIMENTS: usize = 100;

/// A comparative experiment.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ComparativeExperiment {
    /// Its workspace.
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub id: ComparativeExperimentId,
    /// The dataset that all of its experiments ran on.
    pub dataset_id: DatasetId,
    /// Name.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// A JSON object of the client's.
    pub extra: Option<String>,
    /// A JSON list of ids.
    experiment_ids: String,
    /// When it was created, unless its maker said otherwise.
    pub created_at: Timestamp,
    /// When it changed last.
    pub modified_at: Timestamp,
}

impl ComparativeExperiment {
    /// What is compared.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn experiments(&self) -> Result<Vec<ProjectId>> {
        let unreadable = |_| Error::corrupt("comparative_experiment", "experiment_ids", self.id);
        serde_json::from_str(&self.experiment_ids).map_err(unreadable)
    }
}

/// A comparative experiment to be created.
#[derive(Clone, Debug)]
pub struct NewComparativeExperiment {
    /// The client's own id, or ours.
    pub id: ComparativeExperimentId,
    /// The dataset.
    pub dataset: DatasetId,
    /// Name.
    pub name: Option<String>,
    /// Description.
    pub description: Option<String>,
    /// A JSON object.
    pub extra: Option<Box<RawValue>>,
    /// What is compared.
    pub experiments: Vec<ProjectId>,
    /// Now, if not said.
    pub created_at: Option<Timestamp>,
}

/// Creates a comparative experiment.
///
/// # Errors
/// [`Error::NotFound`] where there is no such dataset, [`Error::Rejected`] where one of the projects is no experiment of it,
/// [`Error::Conflict`] where the id is taken.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    new: &NewComparativeExperiment,
) -> Result<ComparativeExperiment> {
    datasets::get(tx, tenant, new.dataset).await?;
    if new.experiments.is_empty() || new.experiments.len() > MOST_EXPERIMENTS {
        let text = format!("expected 1 to {MOST_EXPERIMENTS} experiments");
        return Err(Rejection::invalid("experiment_ids", text).into());
    }
    let criteria = projects::Wanted {
        ids: new.experiments.clone(),
        reference_dataset: Some(new.dataset.0),
        ..projects::Wanted::default()
    };
    let most = i64::try_from(MOST_EXPERIMENTS).unwrap_or(i64::MAX);
    let found = projects::list(tx, tenant, &criteria, most, 0).await?;
    if let Some(missing) = new
        .experiments
        .iter()
        .find(|id| found.iter().all(|project| project.id != **id))
    {
        let text = format!("{missing} is no experiment of the dataset");
        return Err(Rejection::rule("experiment_ids", text).into());
    }
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM comparative_experiment WHERE tenant_id = $1 AND dataset_id = $2"
    )
    .bind(tenant)
    .bind(new.dataset)
    .fetch_one(conn)
    .await)?;
    if count >= MOST {
        let text = format!("the dataset has {MOST} comparative experiments, the most it may have: delete some first");
        return Err(Rejection::rule("", text).into());
    }
    let now = tx.now();
    let ids = serde_json::to_string(&new.experiments).expect("ids are always JSON");
    let made: Option<ComparativeExperiment> = on!(tx, |conn| {
        sqlx::query_as(concat!(
        "INSERT INTO comparative_experiment (tenant_id, id, dataset_id, name, description, extra, experiment_ids, created_at,
                                             modified_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING RETURNING ",
        columns!(comparative_experiment)
    ))
    .bind(tenant)
    .bind(new.id)
    .bind(new.dataset)
    .bind(&new.name)
    .bind(&new.description)
    .bind(new.extra.as_ref().map(|extra| extra.get()))
    .bind(ids)
    .bind(new.created_at.unwrap_or(now))
    .bind(now)
    .fetch_optional(conn)
    .await
    })?;
    made.ok_or_else(|| Error::Conflict {
        column: "comparative_experiment.id".to_owned(),
    })
}

/// The comparative experiments of a dataset, newest first.
///
/// # Errors
/// [`Error::NotFound`] where there is no such dataset.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    limit: i64,
    offset: i64,
) -> Result<Vec<ComparativeExperiment>> {
    datasets::get(tx, tenant, dataset).await?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(comparative_experiment),
        " FROM comparative_experiment WHERE tenant_id = $1 AND dataset_id = $2 ORDER BY created_at DESC, id
         LIMIT $3 + 0 OFFSET $4"
    ))
    .bind(tenant)
    .bind(dataset)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// Deletes a comparative experiment. Its experiments stay.
///
/// # Errors
/// [`Error::NotFound`], also for one of another workspace.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: ComparativeExperimentId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM comparative_experiment WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}
