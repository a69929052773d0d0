//! `feedback_stats` of exported trace runs. Feedback is only stored in its table, not in segments.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use futures::future::BoxFuture;
use towpath_domain::{TenantId, TraceRunId};
use towpath_durable::{Failure, IntoFailure};
use towpath_query::feedback::stats;
use towpath_store::feedback::{self, Feedback};
use towpath_store::{self as store, Store};
use towpath_traces::columnar::{Error, Result};
use towpath_traces::row::Key;
use towpath_traces::row_source::Enrichment;
use towpath_traces::scan::ScanBatch;
use towpath_traces::schema::Selection;

const COLUMN: &str = "feedback_stats";

/// Maximum number of cached ids of trace runs with feedback, sixteen megabytes. If a workspace has more, every batch is
/// looked up, and row groups are not copied.
const MAX_CACHED_IDS: usize = 500_000;

const AT_ONCE: usize = 1000;

/// Maximum size of the values filled into one batch, unless a single run has more.
const MOST_BYTES: usize = 64 << 20;

/// The values to fill in, if the field is exported and the workspace ever had feedback. Deleted feedback counts as
/// present, so that a later attempt usually reads the same rows one by one and creates the same file.
pub async fn of(
    store: &Store,
    tenant: TenantId,
    selection: &Selection,
) -> std::result::Result<Option<Arc<dyn Enrichment>>, Failure> {
    if !selection.names().any(|name| name == COLUMN) {
        return Ok(None);
    }
    let judged = store
        .read(async |tx| feedback::runs_with_feedback(tx, tenant, MAX_CACHED_IDS + 1).await)
        .await
        .retry()?;
    if judged.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(FeedbackEnrichment {
        store: store.clone(),
        tenant,
        runs_with_feedback: (judged.len() <= MAX_CACHED_IDS).then(|| judged.into_iter().collect()),
    })))
}

struct FeedbackEnrichment {
    store: Store,
    tenant: TenantId,
    /// `None` if there are too many.
    runs_with_feedback: Option<HashSet<TraceRunId>>,
}

impl FeedbackEnrichment {
    fn may_have_feedback(&self, key: &Key) -> bool {
        self.runs_with_feedback
            .as_ref()
            .is_none_or(|judged| judged.contains(&key.id))
    }

    async fn read(&self, runs: &[TraceRunId]) -> store::Result<HashMap<TraceRunId, Vec<Feedback>>> {
        let tenant = self.tenant;
        let mut given: HashMap<TraceRunId, Vec<Feedback>> = HashMap::new();
        for runs in runs.chunks(AT_ONCE) {
            let stored = self.store.read(async |tx| feedback::of_runs(tx, tenant, runs).await);
            for row in stored.await?.into_iter().filter(|row| !row.deleted) {
                if let Some(run) = row.run_id {
                    given.entry(run).or_default().push(row);
                }
            }
        }
        Ok(given)
    }
}

impl Enrichment for FeedbackEnrichment {
    fn applies_to(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| self.may_have_feedback(key))
    }

    fn enrich(&self, batch: ScanBatch) -> BoxFuture<'_, Result<ScanBatch>> {
        Box::pin(async move {
            let mut texts: Vec<Option<String>> = Vec::new();
            let mut bytes = 0;
            'batch: for keys in batch.keys.chunks(AT_ONCE) {
                let ids = keys.iter().filter(|key| self.may_have_feedback(key)).map(|key| key.id);
                let runs: Vec<TraceRunId> = ids.collect();
                let given = self
                    .read(&runs)
                    .await
                    .map_err(|error| Error::Enrichment(Box::new(error)))?;
                for key in keys {
                    let text = given.get(&key.id).map(|given| stats(given.iter()).to_string());
                    let length = text.as_ref().map_or(0, String::len);
                    if i32::try_from(length).is_err() {
                        let what = format!("feedback on trace run {} is larger than a column can hold", key.id);
                        return Err(Error::Columns(what));
                    }
                    if !texts.is_empty() && bytes + length > MOST_BYTES {
                        break 'batch;
                    }
                    bytes += length;
                    texts.push(text);
                }
            }
            let rows = batch.rows.slice(0, texts.len());
            let mut keys = batch.keys;
            keys.truncate(texts.len());
            let filled: ArrayRef = Arc::new(texts.into_iter().collect::<StringArray>());
            let schema = rows.schema();
            let mut columns = rows.columns().to_vec();
            columns[schema.index_of(COLUMN)?] = filled;
            Ok(ScanBatch {
                rows: RecordBatch::try_new(schema, columns)?,
                keys,
            })
        })
    }
}
