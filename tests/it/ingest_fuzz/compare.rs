//! Whether what a server shows of a run is what the oracle says.

use serde_json::Value;
use towpath_tests::{COLUMNS, Columns, compact, rfc3339};
use uuid::Uuid;

use super::Features;
use super::derived::{dollars, instant};
use super::json::Json;
use super::operation::{Field, Handle, shortened};
use super::oracle::{FieldValue, Outcome, Row};

/// What is beside a run.
pub struct ExpectedExtras<'a> {
    pub features: Features,
    pub tenant: Uuid,
    pub project: &'a dyn Fn(Handle) -> Uuid,
    /// Its `feedback_stats`; `None` where no one can say.
    pub stats: Option<Json>,
    /// Names and content types of its files; `None` where no one can say.
    pub files: Option<Vec<(String, String)>>,
}

/// Whether one of the outcomes is shown: nothing, or what is different from the one that comes closest. `shown` is
/// `None` where nothing is shown.
pub fn differences<T>(
    outcomes: &[Outcome],
    shown: Option<T>,
    compare: impl Fn(&Row, &T) -> Vec<String>,
) -> Vec<String> {
    let mut closest: Option<Vec<String>> = None;
    for outcome in outcomes {
        let found = match (outcome, &shown) {
            (None, None) => Vec::new(),
            (None, Some(_)) => vec!["it is shown and is not to be there".to_owned()],
            (Some(_), None) => vec!["it is missing".to_owned()],
            (Some(row), Some(shown)) => compare(row, shown),
        };
        if closest.as_ref().is_none_or(|closest| found.len() < closest.len()) {
            closest = Some(found);
        }
    }
    closest.unwrap_or_else(|| {
        let unknown = "it is shown and nobody ever sent it".to_owned();
        shown.map(|_| unknown).into_iter().collect()
    })
}

/// Collects what is different.
struct Differences(Vec<String>);

impl Differences {
    fn same(&mut self, name: &str, got: &Json, wanted: &Json) {
        if got != wanted {
            self.wrong(name, &got.to_string(), &wanted.to_string());
        }
    }

    fn wrong(&mut self, name: &str, got: &str, wanted: &str) {
        self.0
            .push(format!("{name}: got {}, wanted {}", shortened(got), shortened(wanted)));
    }
}

fn text_or_null(text: Option<String>) -> Json {
    text.map_or(Json::Null, Json::Text)
}

fn id_or_null(id: Option<Uuid>) -> Json {
    id.map_or(Json::Null, |id| Json::text(id.to_string()))
}

fn time_or_null(micros: Option<i64>) -> Json {
    micros.map_or(Json::Null, |micros| Json::text(rfc3339(micros)))
}

fn number_or_null(number: Option<i64>) -> Json {
    number.map_or(Json::Null, Json::number)
}

/// What is different in an answer to `GET /runs/{id}` or `POST /runs/query`.
pub fn view(row: &Row, shown: &Json, beside: &ExpectedExtras<'_>) -> Vec<String> {
    let mut wrong = Differences(Vec::new());
    let derived = row.derived();
    let usage = derived.usage;
    // Clients read objects only.
    let wrapped = |field: Field, name: &str| match row.value(field) {
        Some(value @ Json::Object(_)) => value,
        Some(value) => Json::object([(name, value)]),
        None => Json::Null,
    };
    let inputs = match wrapped(Field::Inputs, "input") {
        Json::Null => Json::object([]),
        inputs => inputs,
    };
    let events = row.value(Field::Events).filter(|events| events.items().is_some());
    let serialized = row.value(Field::Serialized).filter(|value| value.members().is_some());
    let cost = |units: Option<i128>| text_or_null(units.map(dollars));
    let expected = [
        ("id", Json::text(row.id.to_string())),
        ("tenant_id", Json::text(beside.tenant.to_string())),
        ("session_id", Json::text((beside.project)(row.project).to_string())),
        ("name", Json::text(row.said(Field::Name).unwrap_or_default())),
        (
            "run_type",
            Json::text(row.said(Field::RunType).unwrap_or_else(|| "chain".to_owned())),
        ),
        ("end_time", time_or_null(row.end)),
        ("status", Json::text(derived.status.as_str())),
        ("error", text_or_null(row.error())),
        ("inputs", inputs),
        ("outputs", wrapped(Field::Outputs, "output")),
        ("extra", row.extra.clone().map_or(Json::Null, Json::Object)),
        ("events", events.unwrap_or(Json::Null)),
        ("serialized", serialized.unwrap_or(Json::Null)),
        ("tags", row.value(Field::Tags).unwrap_or(Json::Null)),
        ("trace_id", Json::text(derived.trace.unwrap_or(row.id).to_string())),
        ("parent_run_id", id_or_null(derived.parent)),
        ("is_root", derived.is_root.map_or(Json::Null, Json::Bool)),
        ("reference_example_id", id_or_null(row.id_in(Field::Example))),
        ("total_tokens", number_or_null(usage.total_tokens)),
        ("prompt_tokens", number_or_null(usage.prompt_tokens)),
        ("completion_tokens", number_or_null(usage.completion_tokens)),
        ("total_cost", cost(usage.total_cost)),
        ("prompt_cost", cost(usage.prompt_cost)),
        ("completion_cost", cost(usage.completion_cost)),
        ("first_token_time", time_or_null(derived.first_token)),
        ("trace_tier", Json::text("longlived")),
    ];
    for (name, wanted) in &expected {
        wrong.same(name, shown.at(name), wanted);
    }
    let start = shown.at("start_time").as_text().and_then(instant);
    if !start.is_some_and(|start| row.start.is(start)) {
        wrong.wrong(
            "start_time",
            &shown.at("start_time").to_string(),
            &format!("{:?}", row.start),
        );
    }
    in_the_tree(row, shown, start, beside, &mut wrong);
    if let Some(stats) = &beside.stats
        && !stats.says(shown.at("feedback_stats"))
    {
        wrong.wrong(
            "feedback_stats",
            &shown.at("feedback_stats").to_string(),
            &stats.to_string(),
        );
    }
    if let Some(files) = &beside.files {
        let links = shown.at("s3_urls").members().into_iter().flatten();
        let there: Vec<(String, String)> = links
            .map(|(name, link)| {
                let name = name.strip_prefix("attachment.").unwrap_or(name);
                (
                    name.to_owned(),
                    link.at("mime_type").as_text().unwrap_or_default().to_owned(),
                )
            })
            .collect();
        let mut wanted = files.clone();
        wanted.sort();
        if there != wanted {
            wrong.wrong("s3_urls", &format!("{there:?}"), &format!("{wanted:?}"));
        }
    }
    wrong.0
}

/// `dotted_order` and `parent_run_ids`, which are put together when the sender did not say them.
fn in_the_tree(row: &Row, shown: &Json, start: Option<i64>, beside: &ExpectedExtras<'_>, wrong: &mut Differences) {
    let ids = |ids: &[Uuid]| Json::List(ids.iter().map(|id| Json::text(id.to_string())).collect());
    let above = shown.at("parent_run_ids");
    let order = shown.at("dotted_order");
    let derived = row.derived();
    match (&row.order, derived.parent) {
        (Some(said), _) => {
            wrong.same("dotted_order", order, &Json::text(said.text.as_str()));
            wrong.same("parent_run_ids", above, &ids(&derived.ancestors.unwrap_or_default()));
        }
        (None, None) => {
            wrong.same("parent_run_ids", above, &ids(&[]));
            if let (Some(start), true) = (start, beside.features.start_is_place) {
                wrong.same(
                    "dotted_order",
                    order,
                    &Json::text(format!("{}{}", compact(start), row.id)),
                );
            }
        }
        // As much of the way as there is; the parent is known in any case.
        (None, Some(parent)) => {
            let nearest = above.items().and_then(<[Json]>::last);
            if nearest != Some(&Json::text(parent.to_string())) {
                wrong.wrong("parent_run_ids", &above.to_string(), &format!("ends with {parent}"));
            }
            if !order
                .as_text()
                .is_some_and(|order| order.ends_with(&row.id.to_string()))
            {
                wrong.wrong("dotted_order", &order.to_string(), &format!("ends with {}", row.id));
            }
        }
    }
}

/// What is different in a row of an export.
pub fn exported(row: &Row, columns: &Columns, beside: &ExpectedExtras<'_>) -> Vec<String> {
    let mut wrong = Differences(Vec::new());
    let derived = row.derived();
    let usage = derived.usage;
    let null = Value::Null;
    let column = |name: &str| columns.get(name).unwrap_or(&null);
    let text = |text: Option<String>| text.map_or(Value::Null, Value::String);
    let id = |id: Option<Uuid>| text(id.map(|id| id.to_string()));
    let nanos = |micros: Option<i64>| micros.map_or(Value::Null, |micros| Value::from(micros * 1000));
    let tags = row.value(Field::Tags).map(|tags| {
        let items = tags.items().expect("a list of texts").iter();
        Value::from_iter(items.map(|tag| tag.as_text().expect("a text").to_owned()))
    });
    let ancestors = derived
        .ancestors
        .as_ref()
        .map(|ids| Value::from_iter(ids.iter().map(Uuid::to_string)));
    let expected = [
        ("id", id(Some(row.id))),
        ("tenant_id", id(Some(beside.tenant))),
        ("session_id", id(Some((beside.project)(row.project)))),
        ("trace_id", id(derived.trace)),
        ("parent_run_id", id(derived.parent)),
        ("parent_run_ids", ancestors.unwrap_or(Value::Null)),
        ("reference_example_id", id(row.id_in(Field::Example))),
        ("name", text(row.said(Field::Name))),
        ("run_type", text(row.said(Field::RunType))),
        ("end_time", nanos(row.end)),
        ("status", text(Some(derived.status))),
        ("is_root", derived.is_root.map_or(Value::Null, Value::Bool)),
        ("dotted_order", text(row.order.as_ref().map(|order| order.text.clone()))),
        ("trace_tier", text(Some("longlived".to_owned()))),
        ("error", text(row.error())),
        ("tags", tags.unwrap_or(Value::Null)),
        ("total_tokens", usage.total_tokens.into()),
        ("prompt_tokens", usage.prompt_tokens.into()),
        ("completion_tokens", usage.completion_tokens.into()),
        ("total_cost", text(usage.total_cost.map(|cost| cost.to_string()))),
        ("prompt_cost", text(usage.prompt_cost.map(|cost| cost.to_string()))),
        (
            "completion_cost",
            text(usage.completion_cost.map(|cost| cost.to_string())),
        ),
        ("first_token_time", nanos(derived.first_token)),
    ];
    for (name, wanted) in &expected {
        if column(name) != wanted {
            wrong.wrong(name, &column(name).to_string(), &wanted.to_string());
        }
    }
    let start = column("start_time").as_i64();
    if !start.is_some_and(|start| start % 1000 == 0 && row.start.is(start / 1000)) {
        wrong.wrong(
            "start_time",
            &column("start_time").to_string(),
            &format!("{:?}", row.start),
        );
    }
    for (name, field) in [
        ("inputs", Field::Inputs),
        ("outputs", Field::Outputs),
        ("events", Field::Events),
    ] {
        kept(name, row.sent(field), column(name).as_str(), &mut wrong);
    }
    let read = |name: &str| match column(name).as_str().map(Json::parse) {
        None => Json::Null,
        Some(Ok(value)) => value,
        Some(Err(error)) => Json::Text(format!("no JSON: {error}")),
    };
    wrong.same(
        "extra",
        &read("extra"),
        &row.extra.clone().map_or(Json::Null, Json::Object),
    );
    if let Some(stats) = &beside.stats
        && !stats.says(&read("feedback_stats"))
    {
        wrong.wrong(
            "feedback_stats",
            &read("feedback_stats").to_string(),
            &stats.to_string(),
        );
    }
    debug_assert!(columns.keys().all(|name| COLUMNS.contains(&name.as_str())));
    wrong.0
}

/// A text of JSON is the client's own, byte for byte.
fn kept(name: &str, sent: Option<&FieldValue>, got: Option<&str>, wrong: &mut Differences) {
    let same = match (sent, got) {
        (None, None) => true,
        (Some(sent), Some(got)) if sent.verbatim => sent.raw == got,
        (Some(sent), Some(got)) => Json::parse(got) == Json::parse(&sent.raw),
        _ => false,
    };
    if !same {
        let wanted = sent.map_or("nothing", |sent| sent.raw.as_str());
        wrong.wrong(name, got.unwrap_or("nothing"), wanted);
    }
}
