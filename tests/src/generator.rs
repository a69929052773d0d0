//! Trace runs made from a seed, as bodies to send and as the rows that an export has to return. It shares no code with
//! the product: the columns are worked out from the values themselves.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Random;
use crate::columns::Columns;

/// Runs in one body, about what an SDK sends at a time.
const RUNS_PER_BODY: usize = 24;
const DAY_MICROS: i64 = 86_400_000_000;
/// 2026-02-27: three days later another month has begun.
const FIRST_DAY: i64 = 20_511;

/// A body of `POST /runs/multipart`, to be sent as it is.
#[derive(Clone, Debug)]
pub struct Body {
    /// `Content-Type` and, where compressed, `Content-Encoding`.
    pub headers: Vec<(&'static str, String)>,
    /// What is sent.
    pub bytes: Bytes,
}

/// Everything of one project.
#[derive(Debug)]
pub struct GeneratedProject {
    /// The project's name.
    pub project: String,
    /// In any order, any of them twice: the rows are the same.
    pub bodies: Vec<Body>,
    /// What has to come out, by id. `session_id` and `tenant_id` are left out: the platform gives them.
    pub rows: BTreeMap<String, Columns>,
    /// Start of the range that holds everything, RFC 3339.
    pub start: String,
    /// End of that range, exclusive.
    pub end: String,
}

/// `trees` trees of four runs each, spread over `days` days at the turn of a month.
#[must_use]
pub fn generate(seed: u64, trees: usize, days: i64) -> GeneratedProject {
    generate_from(FIRST_DAY, seed, trees, days)
}

/// As [`generate`], from another day on, counted from 1970-01-01.
#[must_use]
pub fn generate_from(first_day: i64, seed: u64, trees: usize, days: i64) -> GeneratedProject {
    generate_for(&format!("generated-{seed}"), first_day, seed, trees, days)
}

/// As [`generate_from`], in a project of this name.
#[must_use]
pub fn generate_for(project: &str, first_day: i64, seed: u64, trees: usize, days: i64) -> GeneratedProject {
    let first = first_day * DAY_MICROS;
    let mut dice = Random::new(seed);
    let mut parts = Vec::new();
    let mut rows = BTreeMap::new();
    for tree in 0..trees {
        let midnight = first + i64::try_from(tree).expect("few trees") % days * DAY_MICROS;
        // Children follow within the hour; none of them may slip into the next day.
        let start = midnight + below(&mut dice, DAY_MICROS - 3_600_000_000);
        let root = Run::new(&mut dice, start, &[]);
        let child = Run::new(&mut dice, start + 1_000, &[&root]);
        let sibling = Run::new(&mut dice, start + 1_000, &[&root]);
        let grandchild = Run::new(&mut dice, start + 2_000, &[&root, &child]);
        for run in [root, child, sibling, grandchild] {
            let (ops, columns) = run.tell(&mut dice, project);
            parts.extend(ops);
            rows.insert(run.id.to_string(), columns);
        }
    }
    // Operations of one run land in different bodies, so a patch may be accepted before its post.
    for at in (1..parts.len()).rev() {
        let other = usize::try_from(dice.below(at as u64 + 1)).expect("an index fits");
        parts.swap(at, other);
    }
    let bodies = parts
        .chunks(RUNS_PER_BODY)
        .map(|chunk| body(chunk, dice.below(2) == 0))
        .collect();
    GeneratedProject {
        project: project.to_owned(),
        bodies,
        rows,
        start: rfc3339(first),
        end: rfc3339(first + days * DAY_MICROS),
    }
}

struct Run {
    id: Uuid,
    start: i64,
    /// From the root to the parent.
    ancestors: Vec<Uuid>,
    dotted_order: String,
}

impl Run {
    fn new(dice: &mut Random, start: i64, above: &[&Self]) -> Self {
        let bits = (u128::from(dice.next_u64()) << 64) | u128::from(dice.next_u64());
        let id = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        let own = format!("{}{id}", compact(start));
        let dotted_order = above
            .last()
            .map_or(own.clone(), |parent| format!("{}.{own}", parent.dotted_order));
        Self {
            id,
            start,
            ancestors: above.iter().map(|run| run.id).collect(),
            dotted_order,
        }
    }

    /// Its operations as multipart parts, and the columns they come to.
    fn tell(&self, dice: &mut Random, project: &str) -> (Vec<String>, Columns) {
        let id = self.id;
        let name = format!(
            "run {} \"{}\"",
            dice.below(1000),
            dice.pick(&["plain", "ünï ✓", "tab\t", ""])
        );
        let run_type = *dice.pick(&["chain", "llm", "tool"]);
        let trace = self.ancestors.first().copied().unwrap_or(id);
        let parent = self.ancestors.last().copied();
        let inputs =
            json!({ "question": dice.next_u64().to_string(), "n": dice.below(1 << 50), "x": 0.25, "none": null });
        let mut place =
            json!({ "id": id, "trace_id": trace, "dotted_order": self.dotted_order, "session_name": project });
        if let Some(parent) = parent {
            place["parent_run_id"] = json!(parent);
        }
        let mut post = place.clone();
        let tags = dice.pick(&[None, Some(vec!["a", "b"]), Some(vec![])]).clone();
        let posted = json!({ "name": name, "run_type": run_type, "start_time": rfc3339(self.start), "tags": tags });
        merge(&mut post, &posted);
        let posted_extra = json!({ "metadata": { "user": dice.below(100) }, "runtime": { "sdk": "made" } });
        let mut ops = vec![
            part(&format!("post.{id}"), &post.to_string())
                + &part(&format!("post.{id}.inputs"), &inputs.to_string())
                + &part(&format!("post.{id}.extra"), &posted_extra.to_string()),
        ];
        let mut columns = BTreeMap::from([
            ("id", json!(id)),
            ("trace_id", json!(trace)),
            ("parent_run_id", json!(parent)),
            ("parent_run_ids", json!(self.ancestors)),
            ("name", json!(name)),
            ("run_type", json!(run_type)),
            ("start_time", nanos(self.start)),
            ("is_root", json!(parent.is_none())),
            ("dotted_order", json!(self.dotted_order)),
            ("trace_tier", json!("longlived")),
            ("tags", json!(tags)),
            ("inputs", inputs),
            ("extra", posted_extra.clone()),
            ("status", json!("pending")),
        ]);
        // Two of three were updated; the others are still open.
        if dice.below(3) > 0 {
            ops.push(self.finish(dice, run_type, place, &posted_extra, &mut columns));
        }
        (
            ops,
            columns
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    /// The patch, and what it changes.
    fn finish(
        &self,
        dice: &mut Random,
        run_type: &str,
        mut patch: Value,
        posted_extra: &Value,
        columns: &mut BTreeMap<&'static str, Value>,
    ) -> String {
        let id = self.id;
        let end = self.start + 1 + below(dice, 60_000_000);
        let error = (dice.below(5) == 0).then(|| format!("boom {}", dice.below(10)));
        merge(&mut patch, &json!({ "end_time": rfc3339(end) }));
        let mut outputs = json!({ "answer": dice.next_u64().to_string(), "list": [1, 2.5, "three", false] });
        let token = self.start + 7;
        let mut events = vec![json!({ "name": "start", "time": rfc3339(self.start) })];
        if run_type == "llm" {
            let (went_in, came_out) = (dice.below(10_000), dice.below(10_000));
            outputs["usage_metadata"] = json!({
                "input_tokens": went_in, "output_tokens": came_out, "total_tokens": went_in + came_out,
                "input_cost": 0.125, "output_cost": 0.5, "total_cost": 0.625,
            });
            events.push(json!({ "name": "new_token", "time": rfc3339(token) }));
            columns.extend([
                ("prompt_tokens", json!(went_in)),
                ("completion_tokens", json!(came_out)),
                ("total_tokens", json!(went_in + came_out)),
                // Multiples of 10⁻¹⁰, as the decimal column keeps them.
                ("prompt_cost", json!("1250000000")),
                ("completion_cost", json!("5000000000")),
                ("total_cost", json!("6250000000")),
                ("first_token_time", nanos(token)),
            ]);
        }
        let extra = json!({ "metadata": { "patched": true } });
        let mut merged = posted_extra.clone();
        merge(&mut merged["metadata"], &extra["metadata"]);
        let events = Value::Array(events);
        let mut text = part(&format!("patch.{id}"), &patch.to_string())
            + &part(&format!("patch.{id}.outputs"), &outputs.to_string())
            + &part(&format!("patch.{id}.events"), &events.to_string())
            + &part(&format!("patch.{id}.extra"), &extra.to_string());
        if let Some(error) = &error {
            text += &part(&format!("patch.{id}.error"), &json!(error).to_string());
        }
        columns.extend([
            ("end_time", nanos(end)),
            ("status", json!(if error.is_some() { "error" } else { "success" })),
            ("outputs", outputs),
            ("events", events),
            ("extra", merged),
            ("error", json!(error)),
        ]);
        text
    }
}

const BOUNDARY: &str = "e2e-boundary-5d1f";

fn part(name: &str, json: &str) -> String {
    format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}\r\n",
        json.len()
    )
}

fn body(parts: &[String], compressed: bool) -> Body {
    let text = format!("{}--{BOUNDARY}--\r\n", parts.concat());
    let mut headers = vec![("Content-Type", format!("multipart/form-data; boundary={BOUNDARY}"))];
    let bytes = if compressed {
        headers.push(("Content-Encoding", "zstd".to_owned()));
        zstd::encode_all(text.as_bytes(), 3).expect("memory takes any write")
    } else {
        text.into_bytes()
    };
    Body {
        headers,
        bytes: bytes.into(),
    }
}

fn below(dice: &mut Random, limit: i64) -> i64 {
    i64::try_from(dice.below(limit.cast_unsigned())).expect("below a positive i64")
}

fn merge(into: &mut Value, from: &Value) {
    let from = from.as_object().expect("an object").clone();
    into.as_object_mut().expect("an object").extend(from);
}

fn nanos(micros: i64) -> Value {
    json!(micros * 1_000)
}

/// `2026-02-27T01:02:03.000004Z`, from microseconds since 1970.
#[must_use]
pub fn rfc3339(micros: i64) -> String {
    let (date, time) = (date(micros), micros.rem_euclid(DAY_MICROS));
    let (seconds, fraction) = (time / 1_000_000, time % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!(
        "{}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z",
        date.0, date.1, date.2
    )
}

/// `20260227T010203000004Z`, from microseconds since 1970: how a link of `dotted_order` begins.
#[must_use]
pub fn compact(micros: i64) -> String {
    rfc3339(micros)
        .chars()
        .filter(|c| !matches!(c, '-' | ':' | '.'))
        .collect()
}

/// Year, month and day, by the days-from-civil method.
fn date(micros: i64) -> (i64, i64, i64) {
    let z = micros.div_euclid(DAY_MICROS) + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (
        yoe + era * 400 + i64::from(month <= 2),
        month,
        doy - (153 * mp + 2) / 5 + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_clients_write_them() {
        assert_eq!(rfc3339(FIRST_DAY * DAY_MICROS), "2026-02-27T00:00:00.000000Z");
        assert_eq!(
            rfc3339(FIRST_DAY * DAY_MICROS + 2 * DAY_MICROS - 1),
            "2026-02-28T23:59:59.999999Z"
        );
        assert_eq!(
            compact(FIRST_DAY * DAY_MICROS + 2 * DAY_MICROS),
            "20260301T000000000000Z"
        );
    }

    #[test]
    fn the_same_seed_makes_the_same_runs() {
        let (one, two, other) = (generate(1, 5, 2), generate(1, 5, 2), generate(2, 5, 2));
        assert_eq!(one.rows, two.rows);
        assert_eq!(one.rows.len(), 20);
        assert!(one.bodies.iter().zip(&two.bodies).all(|(a, b)| a.bytes == b.bytes));
        assert!(one.rows.keys().all(|id| !other.rows.contains_key(id)));
    }
}
