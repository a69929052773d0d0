//! Feedback on trace runs, from its table and from what is not folded yet.

use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;
use serde_json::{Value, json};
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
        feedback_source: Option<Value>,
    }
    #[derive(serde::Serialize)]
    struct Entry<'a> {
        key: &'a str,
        score: Option<&'a RawValue>,
        value: Option<&'a RawValue>,
        source: Option<&'a Value>,
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

/// `feedback_stats` of what was given for one trace run. By key: how many, the mean of the numbers among them, how often
/// each text was given, and the first comments. Null where nothing was given.
#[must_use]
pub fn stats<'a>(given: impl Iterator<Item = &'a Feedback>) -> Value {
    #[derive(Default)]
    struct Key {
        n: u64,
        sum: f64,
        numbers: u64,
        values: BTreeMap<String, u64>,
        comments: Vec<String>,
    }
    let mut keys: BTreeMap<&str, Key> = BTreeMap::new();
    for row in given {
        let body: Value = serde_json::from_str(&row.body).unwrap_or_default();
        let key = keys.entry(&row.key).or_default();
        key.n += 1;
        let score = match &body["score"] {
            Value::Bool(value) => Some(f64::from(u8::from(*value))),
            score => score.as_f64(),
        };
        if let Some(score) = score {
            key.sum += score;
            key.numbers += 1;
        }
        if let Some(value) = body["value"].as_str() {
            *key.values.entry(value.to_owned()).or_default() += 1;
        }
        if let Some(comment) = body["comment"].as_str().filter(|_| key.comments.len() < 10) {
            key.comments.push(comment.to_owned());
        }
    }
    if keys.is_empty() {
        return Value::Null;
    }
    let keys = keys.into_iter().map(|(name, key)| {
        let avg = (key.numbers > 0).then(|| key.sum / key.numbers as f64);
        let stats = json!({"n": key.n, "avg": avg, "values": key.values, "comments": key.comments});
        (name.to_owned(), stats)
    });
    Value::Object(keys.collect())
}
