//! The filter of an export, applied to merged rows on their way into files.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::BooleanArray;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use towpath_domain::filter::Filter;
use towpath_domain::{ProjectId, TenantId, TraceRunId};
use towpath_durable::{Failure, IntoFailure};
use towpath_query::Predicate;
use towpath_store::{Store, feedback};
use towpath_traces::columnar::{Error, Result};
use towpath_traces::lookup;
use towpath_traces::row_source::RowFilter;
use towpath_traces::scan::{PartRef, ScanBatch};

/// The row filter of an export, whose filter was validated when it was created.
pub fn of(store: &Store, tenant: TenantId, filter: &str) -> std::result::Result<Arc<dyn RowFilter>, Failure> {
    let filter = Filter::parse(filter).fatal()?;
    Ok(Arc::new(PredicateFilter {
        store: store.clone(),
        tenant,
        predicate: Predicate::new(Some(&filter), &[]).fatal()?,
    }))
}

/// The row groups that a filter must read: if it names traces, those with their runs. The result is the same for each
/// attempt, because row groups do not change.
pub async fn matching_row_groups(
    objects: Arc<dyn ObjectStore>,
    project: ProjectId,
    parts: Vec<PartRef>,
    filter: &str,
) -> std::result::Result<Vec<PartRef>, Failure> {
    match Filter::parse(filter).fatal()?.traces() {
        Some(traces) => lookup::narrow_to_row_groups(objects, project, parts, &traces)
            .await
            .retry(),
        None => Ok(parts),
    }
}

struct PredicateFilter {
    store: Store,
    tenant: TenantId,
    predicate: Predicate,
}

impl PredicateFilter {
    async fn matching_rows(&self, batch: &ScanBatch) -> std::result::Result<BooleanArray, towpath_query::Error> {
        let mut given = HashMap::new();
        if self.predicate.needs_feedback() {
            let runs: Vec<TraceRunId> = batch.keys.iter().map(|key| key.id).collect();
            let tenant = self.tenant;
            let stored = self
                .store
                .read(async |tx| feedback::of_runs(tx, tenant, &runs).await)
                .await?;
            let valid: Vec<_> = stored.into_iter().filter(|row| !row.deleted).collect();
            given = towpath_query::feedback::lists(&valid);
        }
        self.predicate.evaluate(&batch.rows, &batch.keys, &given)
    }
}

impl RowFilter for PredicateFilter {
    fn columns(&self) -> Vec<&'static str> {
        self.predicate.columns().collect()
    }

    fn matching_rows<'a>(&'a self, batch: &'a ScanBatch) -> BoxFuture<'a, Result<BooleanArray>> {
        Box::pin(async move {
            self.matching_rows(batch).await.map_err(|error| match error {
                towpath_query::Error::Columnar(error) => error,
                towpath_query::Error::Arrow(error) => Error::Arrow(error),
                error => Error::Filter(Box::new(error)),
            })
        })
    }
}
