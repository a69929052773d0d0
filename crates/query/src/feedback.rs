//! Feedback on trace runs, from its table and from unflushed data.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};
use towpath_domain::json::{Object, Value as Json, members};
use towpath_domain::{ProjectId, TraceRunId};
use towpath_store::feedback::{self, Feedback};

use crate::Result;
use crate::snapshot::Snapshot;

/// Ids per statement.
const AT_ONCE: usize = 1000;
/// Maximum feedback of a project.
const MAX_PROJECT_FEEDBACK: i64 = 10_000;

impl Snapshot {
    /// All feedback on `runs`, in order of acceptance.
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
        let wanted: HashSet<&TraceRunId> = runs.iter().collect();
        let is_wanted = |row: &Feedback| row.run_id.as_ref().is_some_and(|run| wanted.contains(run));
        let mut open: HashMap<uuid::Uuid, Feedback> = HashMap::new();
        for row in self.open_feedback() {
            keep_latest(&mut open, row);
        }
        // Feedback that is sent again with the same id may move to another run: its stored row counts too.
        let elsewhere = open
            .values()
            .filter(|row| is_wanted(row) && !given.contains_key(&row.id));
        let elsewhere: Vec<uuid::Uuid> = elsewhere.map(|row| row.id).collect();
        for ids in elsewhere.chunks(AT_ONCE) {
            let stored = self
                .store()
                .read(async |tx| feedback::find_all(tx, tenant, ids).await)
                .await?;
            given.extend(stored.into_iter().map(|row| (row.id, row)));
        }
        for row in open.values() {
            if is_wanted(row) || given.contains_key(&row.id) {
                keep_latest(&mut given, row);
            }
        }
        let given = given.into_values().filter(|row| is_wanted(row) && !row.deleted);
        let mut given: Vec<Feedback> = given.collect();
        given.sort_unstable_by_key(|row| (row.seq, row.id));
        Ok(given)
    }

    /// Feedback on a project, in order of acceptance; if there is too much, the latest.
    pub async fn project_feedback(&self, project: ProjectId) -> Result<Vec<Feedback>> {
        let tenant = self.tenant();
        let stored = self
            .store()
            .read(async |tx| feedback::of_project(tx, tenant, project, MAX_PROJECT_FEEDBACK).await)
            .await?;
        let mut given: HashMap<uuid::Uuid, Feedback> = stored.into_iter().map(|row| (row.id, row)).collect();
        for row in self.open_feedback() {
            if row.run_id.is_none() && row.project() == Some(project) {
                keep_latest(&mut given, row);
            }
        }
        let mut given: Vec<Feedback> = given.into_values().filter(|row| !row.deleted).collect();
        given.sort_unstable_by_key(|row| (row.seq, row.id));
        Ok(given)
    }

    pub async fn one_feedback(&self, id: uuid::Uuid) -> Result<Option<Feedback>> {
        let tenant = self.tenant();
        let stored = self
            .store()
            .read(async |tx| feedback::find(tx, tenant, id).await)
            .await?;
        let mut given: HashMap<uuid::Uuid, Feedback> = stored.into_iter().map(|row| (row.id, row)).collect();
        if let Some(open) = self.unstored_feedback_by_id(id) {
            keep_latest(&mut given, open);
        }
        Ok(given.remove(&id).filter(|row| !row.deleted))
    }

    /// The latest version of one feedback, if it is not in the table yet.
    #[must_use]
    pub fn unstored_feedback_by_id(&self, id: uuid::Uuid) -> Option<&Feedback> {
        let open = self.open_feedback().iter();
        open.filter(|row| row.id == id).max_by_key(|row| row.seq)
    }

    /// Feedback that is not in the table yet.
    #[must_use]
    pub fn unstored_feedback(&self) -> &[Feedback] {
        self.open_feedback()
    }
}

/// The version that was accepted later wins.
pub fn keep_latest(given: &mut HashMap<uuid::Uuid, Feedback>, row: &Feedback) {
    let known = given.entry(row.id).or_insert_with(|| row.clone());
    if known.seq < row.seq {
        *known = row.clone();
    }
}

/// By trace run, as a JSON list of objects with `key`, `score`, `value` and `source`, the format of filters.
#[must_use]
pub fn lists(given: &[Feedback]) -> HashMap<TraceRunId, String> {
    let mut lists: HashMap<TraceRunId, Vec<String>> = HashMap::new();
    for row in given {
        let sent = members(&row.body, ["score", "value", "feedback_source"]);
        let (Some(run), Some([score, value, source])) = (row.run_id, sent) else {
            continue;
        };
        let kind = source
            .and_then(|source| members(source, ["type"]))
            .and_then(|[kind]| kind);
        let mut entry = Object::default();
        entry.set("key", Value::from(row.key.as_str()).to_string());
        for (name, sent) in [("score", score), ("value", value), ("source", kind)] {
            entry.set(name, sent.unwrap_or("null"));
        }
        lists.entry(run).or_default().push(entry.to_string());
    }
    lists
        .into_iter()
        .map(|(run, entries)| (run, format!("[{}]", entries.join(","))))
        .collect()
}

/// The `feedback_stats` of one trace run: for each key the count, the mean of the numbers, the frequency of each text,
/// and the first comments. Null without feedback. A score beyond the range of a double counts as the largest double.
#[must_use]
pub fn stats<'a>(given: impl Iterator<Item = &'a Feedback>) -> Value {
    #[derive(Default)]
    struct Key {
        n: u64,
        scores: Vec<f64>,
        values: BTreeMap<String, u64>,
        comments: Vec<String>,
    }
    let mut keys: BTreeMap<&str, Key> = BTreeMap::new();
    for row in given {
        let key = keys.entry(&row.key).or_default();
        key.n += 1;
        let sent = members(&row.body, ["score", "value", "comment"]).unwrap_or_default();
        let [score, value, comment] = sent.map(|sent| Json::parse(sent?).ok());
        match score {
            Some(Json::Bool(score)) => key.scores.push(f64::from(u8::from(score))),
            Some(Json::Number(score)) => key.scores.push(score.to_finite()),
            _ => {}
        }
        if let Some(Json::String(value)) = value {
            *key.values.entry(value.into_owned()).or_default() += 1;
        }
        if let Some(Json::String(comment)) = comment.filter(|_| key.comments.len() < 10) {
            key.comments.push(comment.into_owned());
        }
    }
    if keys.is_empty() {
        return Value::Null;
    }
    let keys = keys.into_iter().map(|(name, key)| {
        let stats = json!({"n": key.n, "avg": mean(&key.scores), "values": key.values, "comments": key.comments});
        (name.to_owned(), stats)
    });
    Value::Object(keys.collect())
}

/// `None` without numbers. Finite numbers have a finite mean, even if their sum is not finite.
fn mean(numbers: &[f64]) -> Option<f64> {
    let count = numbers.len() as f64;
    let sum: f64 = numbers.iter().sum();
    let mean = if sum.is_finite() {
        sum / count
    } else {
        numbers.iter().map(|number| number / count).sum()
    };
    (!numbers.is_empty()).then(|| mean.clamp(f64::MIN, f64::MAX))
}

#[cfg(test)]
mod tests {
    use towpath_domain::{TenantId, Timestamp};
    use uuid::Uuid;

    use super::*;

    fn given(body: &str) -> Feedback {
        Feedback {
            tenant_id: TenantId::new(),
            id: Uuid::from_u128(1),
            run_id: Some(TraceRunId(Uuid::from_u128(2))),
            key: "k".to_owned(),
            body: body.to_owned(),
            seq: 1,
            created_at: Timestamp::from_micros(0),
            modified_at: None,
            deleted: false,
        }
    }

    #[test]
    fn all_of_a_body_counts_whatever_else_is_in_it() {
        let deep = format!("{}1{}", "[".repeat(126), "]".repeat(126));
        for odd in [
            r#""comment":"cut \ud83d""#,
            r#""comment":"cut \ud83d","more":1e999"#,
            r#""comment":"cut \ufffd","\ud83d":1,"more":{"\ude00":2}"#,
            r#""comment":"first","comment":"cut \udc00""#,
            &format!(r#""comment":"cut \udfff","more":{deep}"#),
        ] {
            let row = given(&format!(
                r#"{{"score":0.5,"value":"good",{odd},"feedback_source":{{"type":"api","metadata":{{"n":1e999}}}}}}"#
            ));
            towpath_domain::json::check(row.body.as_bytes()).unwrap();
            let stats = stats([&row].into_iter());
            let expected = json!({"n": 1, "avg": 0.5, "values": {"good": 1}, "comments": ["cut \u{fffd}"]});
            assert_eq!(stats["k"], expected, "{odd}");
            let list = &lists(&[row])[&TraceRunId(Uuid::from_u128(2))];
            assert_eq!(
                list, r#"[{"key":"k","score":0.5,"value":"good","source":"api"}]"#,
                "{odd}"
            );
        }
    }

    #[test]
    fn a_mean_is_finite() {
        let scores = |scores: &[&str]| {
            let rows: Vec<Feedback> = scores
                .iter()
                .map(|score| given(&format!(r#"{{"score":{score}}}"#)))
                .collect();
            stats(rows.iter())["k"]["avg"].clone()
        };
        assert_eq!(scores(&["1", "2", "true"]), json!(4.0 / 3.0));
        assert_eq!(scores(&["1e999"]), json!(f64::MAX));
        assert_eq!(scores(&["1e999", "1e999"]), json!(f64::MAX));
        assert_eq!(scores(&["1e999", "-1e999"]), json!(0.0));
        assert_eq!(scores(&["1e999", "1e999", "-1e999", "-1e999"]), json!(0.0));
        assert_eq!(scores(&["\"high\""]), Value::Null);
    }
}
