//! Experiments of one dataset that are judged against each other.

use serde_json::value::RawValue;
use towpath_domain::{ComparativeExperimentId, DatasetId, ProjectId, Rejection, TenantId, Timestamp};

use crate::{Error, Result, Tx, datasets, projects};

/// Comparative experiments of one dataset.
const MAX_COMPARISONS: i64 = 10_000;
/// Experiments of one comparison.
const MAX_EXPERIMENTS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ComparativeExperiment {
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub id: ComparativeExperimentId,
    /// The dataset that all of its experiments ran on.
    pub dataset_id: DatasetId,
    pub name: Option<String>,
    pub description: Option<String>,
    /// A JSON object of the client's.
    pub extra: Option<String>,
    /// A JSON list of ids.
    experiment_ids: String,
    /// When it was created, unless set by its creator.
    pub created_at: Timestamp,
    pub modified_at: Timestamp,
}

impl ComparativeExperiment {
    pub fn experiments(&self) -> Result<Vec<ProjectId>> {
        let unreadable = |_| Error::corrupt("comparative_experiment", "experiment_ids", self.id);
        serde_json::from_str(&self.experiment_ids).map_err(unreadable)
    }
}

/// A comparative experiment to be created.
#[derive(Clone, Debug)]
pub struct NewComparativeExperiment {
    /// Chosen by the client or generated.
    pub id: ComparativeExperimentId,
    pub dataset: DatasetId,
    pub name: Option<String>,
    pub description: Option<String>,
    /// A JSON object.
    pub extra: Option<Box<RawValue>>,
    pub experiments: Vec<ProjectId>,
    /// Defaults to now.
    pub created_at: Option<Timestamp>,
}

/// # Errors
/// [`Error::NotFound`] if there is no such dataset, [`Error::Rejected`] if one of the projects is not an experiment of
/// it, [`Error::Conflict`] if the id is taken.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    new: &NewComparativeExperiment,
) -> Result<ComparativeExperiment> {
    datasets::get(tx, tenant, new.dataset).await?;
    if new.experiments.is_empty() || new.experiments.len() > MAX_EXPERIMENTS {
        let text = format!("expected 1 to {MAX_EXPERIMENTS} experiments");
        return Err(Rejection::invalid("experiment_ids", text).into());
    }
    let criteria = projects::Filter {
        ids: new.experiments.clone(),
        reference_dataset: Some(new.dataset.0),
        ..projects::Filter::default()
    };
    let most = i64::try_from(MAX_EXPERIMENTS).unwrap_or(i64::MAX);
    let found = projects::list(tx, tenant, &criteria, most, 0).await?;
    if let Some(missing) = new
        .experiments
        .iter()
        .find(|id| found.iter().all(|project| project.id != **id))
    {
        let text = format!("{missing} is not an experiment of the dataset");
        return Err(Rejection::rule("experiment_ids", text).into());
    }
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM comparative_experiment WHERE tenant_id = $1 AND dataset_id = $2"
    )
    .bind(tenant)
    .bind(new.dataset)
    .fetch_one(conn)
    .await)?;
    if count >= MAX_COMPARISONS {
        let text = format!(
            "the dataset already has the maximum of {MAX_COMPARISONS} comparative experiments; delete some first"
        );
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
