//! Feedback on trace runs, from its table and from what is not folded yet.

use std::collections::HashMap;

use serde_json::value::RawValue;
use towpath_domain::TraceRunId;
use towpath_store::feedback::{self, Feedback};

use crate::Result;
use crate::snapshot::Snapshot;

/// Ids asked for at once.
const AT_ONCE: usize = 1000;

impl Snapshot {
    /// All feedback on `runs`, in order of acceptance.
    ///
    /// # Errors
    /// What the database says.
    pub async fn feedback(&self, runs: &[TraceRunId]) -> Result<Vec<Feedback>> {
        let tenant = self.tenant();
        let mut given: HashMap<uuid::Uuid, Feedback> = HashMap::new();
        for runs in runs.chunks(AT_ONCE) {
            let stored = self
                .store()
                .read(async |tx| feedback::of_runs(tx, tenant, runs).await)
                .await?;
            given.extend(stored.into_iter().map(|row| (row.id, row)));
        }
        let open = self.open_feedback().iter();
        let wanted: std::collections::HashSet<&TraceRunId> = runs.iter().collect();
        for row in open {
            if row.run_id.as_ref().is_some_and(|run| wanted.contains(run)) {
                later(&mut given, row);
            }
        }
        let mut given: Vec<Feedback> = given.into_values().filter(|row| !row.deleted).collect();
        given.sort_unstable_by_key(|row| (row.seq, row.id));
        Ok(given)
    }

    /// One, if it is there.
    ///
    /// # Errors
    /// What the database says.
    pub async fn one_feedback(&self, id: uuid::Uuid) -> Result<Option<Feedback>> {
        let tenant = self.tenant();
        let stored = self
            .store()
            .read(async |tx| feedback::find(tx, tenant, id).await)
            .await?;
        let mut given: HashMap<uuid::Uuid, Feedback> = stored.into_iter().map(|row| (row.id, row)).collect();
        for row in self.open_feedback().iter().filter(|row| row.id == id) {
            later(&mut given, row);
        }
        Ok(given.remove(&id).filter(|row| !row.deleted))
    }

    /// Feedback that is in no table yet.
    #[must_use]
    pub fn fresh_feedback(&self) -> &[Feedback] {
        self.open_feedback()
    }
}

/// What was accepted later counts.
pub fn later(given: &mut HashMap<uuid::Uuid, Feedback>, row: &Feedback) {
    let known = given.entry(row.id).or_insert_with(|| row.clone());
    if known.seq < row.seq {
        *known = row.clone();
    }
}

/// By trace run, as a list of JSON objects with `key`, `score`, `value` and `source`: what filters look at.
#[must_use]
pub fn lists(given: &[Feedback]) -> HashMap<TraceRunId, String> {
    #[derive(serde::Deserialize)]
    struct Body<'a> {
        #[serde(borrow, default)]
        score: Option<&'a RawValue>,
        #[serde(borrow, default)]
        value: Option<&'a RawValue>,
        #[serde(default)]
        feedback_source: Option<serde_json::Value>,
    }
    #[derive(serde::Serialize)]
    struct Entry<'a> {
        key: &'a str,
        score: Option<&'a RawValue>,
        value: Option<&'a RawValue>,
        source: Option<&'a serde_json::Value>,
    }
    let mut lists: HashMap<TraceRunId, Vec<String>> = HashMap::new();
    for row in given {
        let (Some(run), Ok(body)) = (row.run_id, serde_json::from_str::<Body<'_>>(&row.body)) else {
            continue;
        };
        let entry = Entry {
            key: &row.key,
            score: body.score,
            value: body.value,
            source: body.feedback_source.as_ref().and_then(|source| source.get("type")),
        };
        if let Ok(entry) = serde_json::to_string(&entry) {
            lists.entry(run).or_default().push(entry);
        }
    }
    lists
        .into_iter()
        .map(|(run, entries)| (run, format!("[{}]", entries.join(","))))
        .collect()
}
