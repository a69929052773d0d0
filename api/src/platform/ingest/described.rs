//! The shapes of ingest bodies, for the API description. What really reads them is `towpath_traces::accept`, which
//! keeps them as they were sent; no struct here or there holds all of one.

use serde_json::{Value, json};
use towpath_domain::trace::LONGEST_PROJECT_NAME;

/// Schemas by name, which the routes refer to.
pub(crate) fn schemas() -> Vec<(&'static str, Value)> {
    let mut run = run_fields();
    run["id"] = id("The trace run's own id.");
    let run = json!({
        "description": "A trace run. What is not named here is accepted and not kept. A field has at most 64 MiB.",
        "type": "object", "properties": run, "required": ["id"],
    });
    let mut change = run_fields();
    change["id"] = or_null(id(
        "If said, the id of the path or of the part; another one is refused with 400.",
    ));
    let change = json!({
        "description": "Changes of a trace run: what is named replaces what was there. `extra` is replaced key by key, and \
                        `metadata` and `runtime` in it by the keys inside of them.",
        "type": "object", "properties": change,
    });
    let batch = json!({
        "description": "Many operations on trace runs.",
        "type": "object",
        "properties": {
            "post": {"description": "New trace runs.", "type": ["array", "null"], "items": named("TraceRun")},
            "patch": {
                "description": "Changes of trace runs, which need not be there yet.",
                "type": ["array", "null"], "items": named("TraceRun"),
            },
        },
    });
    let feedback = json!({
        "description": "A judgement on a trace run. What else there is, is kept too.",
        "type": "object",
        "properties": {
            "id": id("The feedback's own id."),
            "key": {"description": "Under which name.", "type": "string"},
            "run_id": or_null(id("The trace run; a whole project where there is none.")),
            "score": {"description": "Any JSON; a number by custom."},
            "value": {"description": "Any JSON."},
            "comment": {"description": "Any JSON; a text by custom."},
        },
        "required": ["id", "key"],
    });
    vec![
        ("TraceRun", run),
        ("TraceRunChange", change),
        ("TraceRunBatch", batch),
        ("NewFeedback", feedback),
    ]
}

/// Years whose every moment fits the nanoseconds of a column.
const YEARS: &str = "^(1679|16[89][0-9]|1[7-9][0-9]{2}|2[01][0-9]{2}|22[0-5][0-9]|2260)-";
/// The last moment that does, and before 1970 the first one.
const LATEST_MILLIS: i64 = 9_200_000_000_000;
/// PostgreSQL keeps no NUL in a text.
const NO_NUL: &str = r"^[^\u0000]*$";

fn run_fields() -> Value {
    let text = |description: &str| json!({"description": description, "type": ["string", "null"]});
    let any = json!({"description": "Any JSON."});
    json!({
        "trace_id": or_null(id("The root of its trace.")),
        "parent_run_id": or_null(id("The trace run above it.")),
        "dotted_order": {
            "description": "`<start>Z<id>` of each trace run from the root to this one, joined by dots. One that does not \
                            read so, or does not end with the trace run's own id, is refused with 400.",
            "type": ["string", "null"],
            "examples": ["20260301T120000000000Z0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"],
        },
        "session_id": or_null(id("The tracing project by id, which goes before its name.")),
        "session_name": {
            "description": "The tracing project by name; made where there is none. `default` where neither is said.",
            "type": ["string", "null"], "maxLength": LONGEST_PROJECT_NAME, "pattern": NO_NUL,
        },
        "reference_example_id": or_null(id("The dataset example it was made from.")),
        "name": text("Name."),
        "run_type": text("`chain`, `llm`, `tool`, …"),
        "status": text("Status, where the client says one."),
        "start_time": time("Shown is the start in `dotted_order`, where that is sent."),
        "end_time": time(""),
        "tags": {"description": "Tags.", "type": ["array", "null"], "items": {"type": "string"}},
        "extra": {"description": "Metadata and more. The key `__truncated__` is not kept.", "type": ["object", "null"]},
        "inputs": any, "outputs": any, "events": any, "serialized": any,
        "error": {"description": "Any JSON; a text by custom."},
    })
}

fn id(description: &str) -> Value {
    json!({"description": description, "type": "string", "format": "uuid"})
}

fn or_null(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

fn time(more: &str) -> Value {
    let known = "ISO 8601, or whole milliseconds since 1970, from 1679 to 2260.";
    json!({
        "description": format!("{known} {more}").trim_end(),
        "anyOf": [
            {"type": "string", "format": "date-time", "pattern": YEARS},
            {"type": "integer", "minimum": -LATEST_MILLIS, "maximum": LATEST_MILLIS},
            {"type": "null"},
        ],
    })
}

fn named(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}
