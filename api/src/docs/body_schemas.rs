//! Schemas of ingest bodies for the API description. The parser is `towpath_traces::accept`, which keeps bodies as
//! sent; no struct holds a whole body.

use serde_json::{Value, json};
use towpath_domain::trace::LONGEST_PROJECT_NAME;

/// Schemas by name; routes refer to them.
pub(crate) fn schemas() -> Vec<(&'static str, Value)> {
    let mut run = run_fields();
    run["id"] = id("Id of the trace run.");
    let run = json!({
        "description": "A trace run. Other fields are accepted and not stored. A field has at most 64 MiB.",
        "type": "object", "properties": run, "required": ["id"],
    });
    let mut change = run_fields();
    change["id"] = or_null(id("If set, it must be the id of the path or of the part."));
    let change = json!({
        "description": "Changes of a trace run: sent fields replace stored ones. `extra` is merged by key, as are \
                        `metadata` and `runtime` in it.",
        "type": "object", "properties": change,
    });
    let batch = json!({
        "description": "Many operations on trace runs.",
        "type": "object",
        "properties": {
            "post": {"description": "New trace runs.", "type": ["array", "null"], "items": named("TraceRun")},
            "patch": {
                "description": "Changes of trace runs, which need not exist yet.",
                "type": ["array", "null"], "items": named("TraceRun"),
            },
        },
    });
    let feedback = json!({
        "description": "Feedback on a trace run. Other fields are stored too.",
        "type": "object",
        "properties": {
            "id": id("Id of the feedback."),
            "key": {"description": "Key of the feedback.", "type": "string"},
            "run_id": or_null(id("The trace run; null for feedback on a project.")),
            "score": {"description": "Any JSON; usually a number."},
            "value": {"description": "Any JSON."},
            "comment": {"description": "Any JSON; usually a text."},
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

/// Years that fit into the nanoseconds of a column.
const YEARS: &str = "^(1679|16[89][0-9]|1[7-9][0-9]{2}|2[01][0-9]{2}|22[0-5][0-9]|2260)-";
/// The last such time in milliseconds; negated, the first one.
const LATEST_MILLIS: i64 = 9_200_000_000_000;
/// PostgreSQL cannot store NUL in a text.
const NO_NUL: &str = r"^[^\u0000]*$";

fn run_fields() -> Value {
    let text = |description: &str| json!({"description": description, "type": ["string", "null"]});
    let any = json!({"description": "Any JSON."});
    json!({
        "trace_id": or_null(id("Root run of the trace.")),
        "parent_run_id": or_null(id("Parent run.")),
        "dotted_order": {
            "description": "`<start>Z<id>` of each trace run from the root to this one, joined by dots. Another \
                            form, or a value that does not end with the trace run's own id, is rejected.",
            "type": ["string", "null"],
            "examples": ["20260301T120000000000Z0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"],
        },
        "session_id": or_null(id("The tracing project by id; takes precedence over the name.")),
        "session_name": {
            "description": "The tracing project by name; created if missing. `default` if neither is set.",
            "type": ["string", "null"], "maxLength": LONGEST_PROJECT_NAME, "pattern": NO_NUL,
        },
        "reference_example_id": or_null(id("The dataset example that it ran on.")),
        "name": text("Name."),
        "run_type": text("`chain`, `llm`, `tool`, …"),
        "status": text("Status, if the client sets one."),
        "start_time": time("If `dotted_order` is sent, the start time in it is used."),
        "end_time": time(""),
        "tags": {"description": "Tags.", "type": ["array", "null"], "items": {"type": "string"}},
        "extra": {"description": "Metadata. The key `__truncated__` is not stored.", "type": ["object", "null"]},
        "inputs": any, "outputs": any, "events": any, "serialized": any,
        "error": {"description": "Any JSON; usually a text."},
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
