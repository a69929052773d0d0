//! `feedback_stats` of exported trace runs. Feedback lies in its table, whenever it was given, and in no segment.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use futures::future::BoxFuture;
use towpath_domain::{TenantId, TraceRunId};
use towpath_durable::{Failure, Verdict};
use towpath_query::feedback::stats;
use towpath_store::feedback::{self, Feedback};
use towpath_store::{self as store, Store};
use towpath_traces::columnar::{Error, Result};
use towpath_traces::feed::Beside;
use towpath_traces::row::Key;
use towpath_traces::scan::ScanBatch;
use towpath_traces::schema::Selection;

const COLUMN: &str = "feedback_stats";

/// Trace runs with feedback that are kept in mind, sixteen megabytes of ids. Where a workspace has more of them, every batch
/// is looked up and nothing is copied.
const KNOWN: usize = 500_000;

/// Ids asked for at once.
const AT_ONCE: usize = 1000;

/// Most bytes of what is filled into one batch, unless it is that of a single run.
const MOST_BYTES: usize = 64 << 20;

/// What to fill in, where it is asked for and anything was ever given in this workspace. Feedback that was taken back
/// counts as given, so that most often a later attempt reads row by row what an earlier one has, and makes the same file.
pub async fn of(
    store: &Store,
    tenant: TenantId,
    selection: &Selection,
) -> std::result::Result<Option<Arc<dyn Beside>>, Failure> {
    if !selection.names().any(|name| name == COLUMN) {
        return Ok(None);
    }
    let judged = store
        .read(async |tx| feedback::judged(tx, tenant, KNOWN + 1).await)
        .await
        .retry()?;
    if judged.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Given {
        store: store.clone(),
        tenant,
        judged: (judged.len() <= KNOWN).then(|| judged.into_iter().collect()),
    })))
}

struct Given {
    store: Store,
    tenant: TenantId,
    /// `None`: too many to know.
    judged: Option<HashSet<TraceRunId>>,
}

impl Given {
    fn judged(&self, key: &Key) -> bool {
        self.judged.as_ref().is_none_or(|judged| judged.contains(&key.id))
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

impl Beside for Given {
    fn touches(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| self.judged(key))
    }

    fn fill(&self, batch: ScanBatch) -> BoxFuture<'_, Result<ScanBatch>> {
        Box::pin(async move {
            let mut texts: Vec<Option<String>> = Vec::new();
            let mut bytes = 0;
            'batch: for keys in batch.keys.chunks(AT_ONCE) {
                let ids = keys.iter().filter(|key| self.judged(key)).map(|key| key.id);
                let runs: Vec<TraceRunId> = ids.collect();
                let given = self.read(&runs).await.map_err(|error| Error::Beside(Box::new(error)))?;
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
