//! Results of evaluations as feedback.

use serde_json::{Map, Value, json};
use towpath_domain::feedback::check_key;
use uuid::Uuid;

use super::mapping::{self, SpanIds};
use super::{Event, Part, PartKind};

/// The event of a result. It belongs to the span that was evaluated.
pub const EVENT: &str = "gen_ai.evaluation.result";

const NAME: &str = "gen_ai.evaluation.name";
const SCORE: &str = "gen_ai.evaluation.score.value";
const LABEL: &str = "gen_ai.evaluation.score.label";
const EXPLANATION: &str = "gen_ai.evaluation.explanation";
const ERROR: &str = "error.type";

/// Feedback on the run of a span. Its id follows from what it says, so that a repeated request changes nothing.
pub fn feedback(ids: &SpanIds, event: &Event) -> Result<Part, String> {
    let name = mapping::text(&event.attributes, NAME).unwrap_or_default();
    check_key(NAME, name).map_err(|rejection| format!("{NAME}: {}", rejection.message))?;
    let score = match mapping::get(&event.attributes, SCORE) {
        None | Some(Value::Null) => None,
        Some(score) if score.is_number() => Some(score.clone()),
        Some(_) => return Err(format!("{SCORE}: expected a number")),
    };
    let text = |name: &str| mapping::text(&event.attributes, name).map(|text| json!(text));
    let fields = [
        ("run_id", Some(json!(ids.run))),
        ("trace_id", Some(json!(ids.trace))),
        ("key", Some(json!(name))),
        ("score", score),
        ("value", text(LABEL)),
        ("comment", text(EXPLANATION)),
        ("error", text(ERROR).map(|_| json!(true))),
        (
            "created_at",
            Some(mapping::time(event.nanos)).filter(|time| !time.is_null()),
        ),
        (
            "feedback_source",
            Some(json!({ "type": "model", "metadata": other_attributes(event) })),
        ),
    ];
    let set = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let mut body: Map<String, Value> = set.collect();
    let id = Uuid::new_v5(&ids.run, Value::Object(body.clone()).to_string().as_bytes());
    body.insert("id".to_owned(), json!(id));
    Ok(Part {
        kind: PartKind::Feedback,
        id,
        json: Value::Object(body).to_string().into_bytes(),
    })
}

/// Attributes without a field of their own, such as the id of the evaluated response.
fn other_attributes(event: &Event) -> Map<String, Value> {
    let known = [NAME, SCORE, LABEL, EXPLANATION, "event.name"];
    let others = event
        .attributes
        .iter()
        .filter(|(name, _)| !known.contains(&name.as_str()));
    others.cloned().collect()
}
