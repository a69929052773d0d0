//! Trace runs by other routes than multipart: batches, single ones, changes, feedback. Each is read back by itself.

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Random, compact, rfc3339};
use uuid::Uuid;

use super::client::Request;
use super::day::{AcknowledgedWork, Day, uuid};

/// The project of those that a load sends.
const PROJECT: &str = "soak-single";
/// Trace runs of one batch.
const BATCH: usize = 3;

/// A trace run, as what was acknowledged of it says.
pub struct TraceRun {
    pub id: Uuid,
    place: Value,
    start: i64,
    name: String,
    inputs: Value,
    outputs: Option<Value>,
    /// Its id and its score.
    feedback: Option<(Uuid, u64)>,
}

impl TraceRun {
    /// One that starts at `start`, in microseconds.
    pub fn new(dice: &mut Random, start: i64, project: &str) -> Self {
        let id = uuid(dice);
        let order = format!("{}{id}", compact(start));
        Self {
            id,
            place: json!({ "id": id, "trace_id": id, "dotted_order": order, "session_name": project }),
            start,
            name: format!("run {}", dice.below(1000)),
            inputs: json!({ "question": dice.next_u64().to_string(), "n": dice.below(1 << 50) }),
            outputs: None,
            feedback: None,
        }
    }

    pub fn post(&self) -> Value {
        let mut post = self.place.clone();
        post["name"] = json!(self.name);
        post["run_type"] = json!("chain");
        post["start_time"] = json!(rfc3339(self.start));
        post["inputs"] = self.inputs.clone();
        post
    }

    /// A change that ends it.
    fn patch(&mut self, dice: &mut Random) -> Value {
        let outputs = json!({ "answer": dice.next_u64().to_string() });
        let mut patch = self.place.clone();
        patch["end_time"] = json!(rfc3339(self.start + 1_000_000));
        patch["outputs"] = outputs.clone();
        self.outputs = Some(outputs);
        patch
    }

    /// What is wrong with what the server shows of it, if something is.
    pub async fn differs(&self, day: &Day<'_>) -> Option<String> {
        let said = day.platform.read(format!("/runs/{}", self.id)).await;
        let shown = &said.body;
        let as_told = shown["name"] == self.name
            && shown["inputs"] == self.inputs
            && shown["outputs"] == self.outputs.clone().unwrap_or_default();
        if said.status != 200 || !as_told {
            return Some(format!(
                "trace run {} ({}, inputs {}, outputs {:?}) is {said}",
                self.id, self.name, self.inputs, self.outputs
            ));
        }
        let (feedback, score) = self.feedback?;
        let said = day.platform.read(format!("/feedback?run={}", self.id)).await;
        let id = feedback.to_string();
        let given = said.body.as_array();
        let found = given.is_some_and(|all| all.iter().any(|one| one["id"] == id && one["score"] == score));
        (!found).then(|| format!("feedback {id} on trace run {} is {said}", self.id))
    }
}

/// Several at once, with the end of one, and the end of another afterwards.
pub async fn batch(day: &Day<'_>, dice: &mut Random) {
    let mut runs: Vec<TraceRun> = (0..BATCH).map(|_| TraceRun::new(dice, day.now, PROJECT)).collect();
    let posts: Vec<Value> = runs.iter().map(TraceRun::post).collect();
    let first = runs[0].patch(dice);
    let second = runs[1].patch(dice);
    for body in [
        json!({ "post": posts, "patch": [first] }),
        json!({ "post": [], "patch": [second] }),
    ] {
        day.platform.insist(&Request::post("/runs/batch", &body), &[202]).await;
    }
    day.acknowledged.borrow_mut().traces.append(&mut runs);
}

/// One by itself with its end, in either order, and a judgement.
pub async fn single(day: &Day<'_>, dice: &mut Random) {
    let mut run = TraceRun::new(dice, day.now, PROJECT);
    let post = Request::post("/runs", &run.post());
    let patch = run.patch(dice);
    let patch = Request::json(Method::PATCH, format!("/runs/{}", run.id), &patch);
    let mut requests = [post, patch];
    if dice.one_in(3) {
        requests.reverse();
    }
    for request in &requests {
        day.platform.insist(request, &[202]).await;
    }
    let (feedback, score) = (uuid(dice), dice.below(100));
    let body = json!({ "id": feedback, "run_id": run.id, "key": "score", "score": score });
    day.platform.insist(&Request::post("/feedback", &body), &[202]).await;
    run.feedback = Some((feedback, score));
    day.acknowledged.borrow_mut().traces.push(run);
}

pub async fn check(day: &Day<'_>, told: &AcknowledgedWork) {
    for run in &told.traces {
        if let Some(wrong) = run.differs(day).await {
            day.wrong(&wrong);
        }
    }
}
