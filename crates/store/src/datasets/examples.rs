//! Examples: read as of a version, and changed, which makes the next version of their dataset.

mod changes;

use std::ops::ControlFlow;

use serde_json::{Map, Value, json};
use towpath_domain::dataset::{ExampleFilter, SPLIT_KEY};
use towpath_domain::{DatasetId, ExampleId, TenantId, Timestamp};
use uuid::Uuid;

use super::files::{self, ExampleFile};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

pub use changes::{ExampleChange, ExampleWrite, NewExample, create, delete, erase, existing, rewrite_metadata, update};

/// An example of one version.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Example {
    pub dataset_id: DatasetId,
    /// Unique in the workspace.
    pub example_id: ExampleId,
    /// The version that made it so.
    pub valid_from: Timestamp,
    /// When it was created, unless set by its creator.
    pub created_at: Timestamp,
    /// A JSON object, as sent.
    pub inputs: String,
    /// A JSON object, as sent.
    pub outputs: Option<String>,
    /// A JSON object.
    pub metadata: String,
    /// The trace run that it was made of.
    pub source_run_id: Option<Uuid>,
    /// A JSON list; read it with [`Example::files`].
    files: String,
}

impl Example {
    pub fn metadata(&self) -> Result<Map<String, Value>> {
        metadata(self.example_id, &self.metadata)
    }

    pub fn files(&self) -> Result<Vec<ExampleFile>> {
        files::parse(self.example_id, &self.files)
    }
}

fn metadata(example: ExampleId, text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|_| Error::corrupt("example", "metadata", example))
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub dataset: Option<DatasetId>,
    pub ids: Vec<ExampleId>,
    /// As they were then; as they are, where no time is given.
    pub as_of: Option<Timestamp>,
    /// In one of these splits.
    pub splits: Vec<String>,
    /// With this in their metadata.
    pub metadata: Option<Value>,
    /// For whose metadata this holds.
    pub filter: Option<ExampleFilter>,
}

impl Filter {
    fn push_conditions(&self, query: &mut Query, tenant: TenantId) -> Result<()> {
        query.bind(Arg::Uuid(tenant.0));
        if let Some(dataset) = self.dataset {
            query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
        }
        if !self.ids.is_empty() {
            query.push(" AND example_id").among(self.ids.iter().map(|id| id.0));
        }
        match self.as_of {
            None => query.push(" AND valid_until IS NULL"),
            Some(time) => query
                .push(" AND valid_from <= ")
                .bind(Arg::Time(time))
                .push(" AND (valid_until IS NULL OR valid_until > ")
                .bind(Arg::Time(time))
                .push(")"),
        };
        if !self.splits.is_empty() {
            query.push(" AND (");
            for (nth, split) in self.splits.iter().enumerate() {
                query.push(if nth > 0 { " OR " } else { "" });
                query.contains("metadata", "splits", &json!({ SPLIT_KEY: [split] }))?;
            }
            query.push(")");
        }
        if let Some(metadata) = &self.metadata {
            query.push(" AND ").contains("metadata", "metadata", metadata)?;
        }
        Ok(())
    }
}

/// The order of every list: newest first.
const ORDER_BY: &str = " ORDER BY created_at DESC, example_id";

/// Examples, newest first.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    criteria: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<Example>> {
    let Some(filter) = &criteria.filter else {
        return select(tx, tenant, criteria, limit, offset).await;
    };
    let ids = filter_page(tx, tenant, criteria, filter, limit, offset).await?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let found = Filter {
        ids,
        ..criteria.clone()
    };
    select(tx, tenant, &found, limit, 0).await
}

/// What SQL can choose by itself.
async fn select(tx: &mut Tx<'_>, tenant: TenantId, criteria: &Filter, limit: i64, offset: i64) -> Result<Vec<Example>> {
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(example), " FROM example WHERE tenant_id = "),
    );
    criteria.push_conditions(&mut query, tenant)?;
    query.push(ORDER_BY).page(limit, offset);
    query.fetch_all(tx).await
}

/// The examples of a page that pass a filter. Only their metadata is read, row by row.
async fn filter_page(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    criteria: &Filter,
    filter: &ExampleFilter,
    limit: i64,
    offset: i64,
) -> Result<Vec<ExampleId>> {
    let mut query = Query::new(tx, "SELECT example_id, metadata FROM example WHERE tenant_id = ");
    criteria.push_conditions(&mut query, tenant)?;
    query.push(ORDER_BY);
    let most = usize::try_from(limit).unwrap_or_default();
    let mut left = offset;
    let mut ids = Vec::new();
    let mut broken = None;
    query
        .each(tx, |(id, text): (ExampleId, String)| {
            if ids.len() >= most {
                return ControlFlow::Break(());
            }
            match metadata(id, &text) {
                Ok(metadata) if filter.matches(&metadata) => {
                    if left > 0 {
                        left -= 1;
                    } else {
                        ids.push(id);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    broken = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })
        .await?;
    broken.map_or(Ok(ids), Err)
}

/// The names of the splits of a dataset's examples, sorted.
pub async fn splits(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    as_of: Option<Timestamp>,
) -> Result<Vec<String>> {
    super::get(tx, tenant, dataset).await?;
    let criteria = Filter {
        dataset: Some(dataset),
        as_of,
        ..Filter::default()
    };
    let mut query = Query::new(tx, "SELECT example_id, metadata FROM example WHERE tenant_id = ");
    criteria.push_conditions(&mut query, tenant)?;
    let mut names = std::collections::BTreeSet::new();
    let mut broken = None;
    query
        .each(tx, |(id, text): (ExampleId, String)| match metadata(id, &text) {
            Ok(metadata) => {
                names.extend(towpath_domain::dataset::splits(&metadata));
                ControlFlow::Continue(())
            }
            Err(error) => {
                broken = Some(error);
                ControlFlow::Break(())
            }
        })
        .await?;
    broken.map_or_else(|| Ok(names.into_iter().collect()), Err)
}

/// One example, as it was then or as it is.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ExampleId, as_of: Option<Timestamp>) -> Result<Example> {
    let criteria = Filter {
        ids: vec![id],
        as_of,
        ..Filter::default()
    };
    let mut found = list(tx, tenant, &criteria, 1, 0).await?;
    found.pop().ok_or(Error::NotFound)
}

/// The dataset of an example, also of one that was deleted and still is in earlier versions.
pub async fn dataset_of(tx: &mut Tx<'_>, tenant: TenantId, id: ExampleId) -> Result<DatasetId> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT dataset_id FROM example WHERE tenant_id = $1 AND example_id = $2 ORDER BY valid_from DESC LIMIT 1"
    )
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}
