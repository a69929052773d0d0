//! A second, plain implementation of filters: one merged row, no columns.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use towpath_domain::filter::{Comparison, Condition, Entry, Family, Field, Filter, Value};
use towpath_traces::derive::derive;
use towpath_traces::row::Row;

/// A row and its feedback.
pub struct Subject<'a> {
    pub row: &'a Row,
    pub session: uuid::Uuid,
    /// Objects with key, score, value and source.
    pub feedback: &'a [Json],
}

#[derive(Clone, Debug, PartialEq)]
enum RowValue {
    Nothing,
    Text(String),
    Bool(bool),
    Number(f64),
    /// Whole numbers, microseconds and units of cost.
    Whole(i128),
}

pub fn holds(filter: &Filter, subject: &Subject<'_>) -> bool {
    match filter {
        Filter::And(parts) => and(parts, subject),
        Filter::Or(parts) => parts.iter().any(|part| holds(part, subject)),
        Filter::Not(inner) => !holds(inner, subject),
        Filter::Condition(test) => alone(test, subject),
    }
}

fn and(parts: &[Filter], subject: &Subject<'_>) -> bool {
    let mut scopes: BTreeMap<Family, Vec<&Condition>> = BTreeMap::new();
    for part in parts {
        match part {
            Filter::Condition(test) => match test.field {
                Field::Entry(family, _) => scopes.entry(family).or_default().push(test),
                _ => {
                    if !alone(test, subject) {
                        return false;
                    }
                }
            },
            other => {
                if !holds(other, subject) {
                    return false;
                }
            }
        }
    }
    scopes.into_iter().all(|(family, tests)| {
        if tests
            .iter()
            .all(|test| matches!(test.comparison, Comparison::NotEqual(_)))
        {
            return tests.iter().all(|test| alone(test, subject));
        }
        entries(family, subject)
            .iter()
            .any(|entry| tests.iter().all(|test| of_entry(test, entry)))
    })
}

fn alone(test: &Condition, subject: &Subject<'_>) -> bool {
    if let Comparison::NotEqual(value) = &test.comparison {
        let equal = Condition {
            field: test.field,
            comparison: Comparison::Equal(value.clone()),
        };
        return !alone(&equal, subject);
    }
    let fields = subject.row.fields();
    let derived = derive(subject.row);
    let text = |text: Option<&str>| text.map_or(RowValue::Nothing, |text| RowValue::Text(text.to_owned()));
    let id = |id: Option<uuid::Uuid>| id.map_or(RowValue::Nothing, |id| RowValue::Text(id.to_string()));
    let whole = |number: Option<i64>| number.map_or(RowValue::Nothing, |number| RowValue::Whole(number.into()));
    let cost = |units: Option<i128>| units.map_or(RowValue::Nothing, RowValue::Whole);
    let json = |text: &Option<String>| text.as_deref().and_then(|text| serde_json::from_str::<Json>(text).ok());
    let extra = extra(subject.row);
    let usage = &derived.usage;
    let value = match test.field {
        Field::Entry(family, _) => {
            return entries(family, subject).iter().any(|entry| of_entry(test, entry));
        }
        Field::Tags => {
            let tags = fields.tags.clone().unwrap_or_default();
            return tags
                .into_iter()
                .any(|tag| check(&test.comparison, &RowValue::Text(tag)));
        }
        Field::Inputs => return of_json(&test.comparison, json(&fields.inputs)),
        Field::Outputs => return of_json(&test.comparison, json(&fields.outputs)),
        Field::Extra => return of_json(&test.comparison, extra),
        Field::Metadata => return of_json(&test.comparison, extra.and_then(|extra| extra.get("metadata").cloned())),
        Field::Everything => {
            let Comparison::Search(needle) = &test.comparison else {
                return false;
            };
            let needle = needle.to_lowercase();
            let plain = [fields.name.clone(), fields.error.clone()];
            let mut texts: Vec<String> = plain.into_iter().flatten().collect();
            texts.extend(fields.tags.clone().unwrap_or_default());
            let metadata = extra.and_then(|extra| extra.get("metadata").cloned());
            for json in [json(&fields.inputs), json(&fields.outputs), metadata]
                .into_iter()
                .flatten()
            {
                gather(&json, &mut texts);
            }
            return texts.iter().any(|text| text.to_lowercase().contains(&needle));
        }
        Field::Id => id(Some(subject.row.id().0)),
        Field::SessionId => id(Some(subject.session)),
        Field::TraceId => id(derived.trace_id),
        Field::ParentRunId => id(derived.parent_run_id),
        Field::ReferenceExample => id(fields.reference_example_id),
        Field::Name => text(fields.name.as_deref()),
        Field::RunType => text(fields.run_type.as_deref()),
        Field::Status => text(Some(&derived.status)),
        Field::Error => text(fields.error.as_deref().filter(|error| !error.is_empty())),
        Field::IsRoot => derived.is_root.map_or(RowValue::Nothing, RowValue::Bool),
        Field::ExecutionOrder => derived
            .is_root
            .filter(|root| *root)
            .map_or(RowValue::Nothing, RowValue::Bool),
        Field::StartTime => whole(subject.row.key().map(|key| key.sort_time.micros())),
        Field::EndTime => whole(fields.end_time.map(towpath_domain::Timestamp::micros)),
        Field::FirstTokenTime => whole(derived.first_token_time.map(towpath_domain::Timestamp::micros)),
        Field::Latency => whole(
            fields
                .end_time
                .zip(derived.start_time)
                .map(|(end, start)| end.micros() - start.micros()),
        ),
        Field::TotalTokens => whole(usage.total_tokens),
        Field::PromptTokens => whole(usage.prompt_tokens),
        Field::CompletionTokens => whole(usage.completion_tokens),
        Field::TotalCost => cost(usage.total_cost),
        Field::PromptCost => cost(usage.prompt_cost),
        Field::CompletionCost => cost(usage.completion_cost),
        Field::ThreadId => {
            let metadata = extra
                .and_then(|extra| extra.get("metadata").cloned())
                .unwrap_or_default();
            let named = ["thread_id", "session_id", "conversation_id"]
                .iter()
                .find_map(|key| match &metadata[key] {
                    Json::String(text) => Some(text.clone()),
                    Json::Number(number) => Some(number.to_string()),
                    _ => None,
                });
            text(named.as_deref())
        }
    };
    check(&test.comparison, &value)
}

fn extra(row: &Row) -> Option<Json> {
    let pairs = row.extra()?;
    let pairs = pairs
        .iter()
        .map(|(key, raw)| (key.clone(), serde_json::from_str(raw).unwrap()));
    Some(Json::Object(pairs.collect()))
}

/// An entry: its key, its scalar value, and for feedback its score and source.
struct Item {
    key: String,
    value: Option<Json>,
    score: Json,
    source: Json,
}

fn entries(family: Family, subject: &Subject<'_>) -> Vec<Item> {
    let fields = subject.row.fields();
    let parse = |text: &Option<String>| text.as_deref().map(|text| serde_json::from_str::<Json>(text).unwrap());
    let mut items = Vec::new();
    match family {
        Family::Metadata => {
            if let Some(metadata) = extra(subject.row).as_ref().and_then(|extra| extra.get("metadata")) {
                flatten("", metadata, &mut items);
            }
        }
        Family::Input => parse(&fields.inputs)
            .iter()
            .for_each(|json| flatten("", json, &mut items)),
        Family::Output => parse(&fields.outputs)
            .iter()
            .for_each(|json| flatten("", json, &mut items)),
        Family::Feedback => items.extend(subject.feedback.iter().map(|feedback| Item {
            key: feedback["key"].as_str().unwrap().to_owned(),
            value: Some(feedback["value"].clone()),
            score: feedback["score"].clone(),
            source: feedback["source"].clone(),
        })),
    }
    items
}

fn flatten(path: &str, json: &Json, items: &mut Vec<Item>) {
    let item = |value: Option<Json>, key: &str| Item {
        key: key.to_owned(),
        value,
        score: Json::Null,
        source: Json::Null,
    };
    match json {
        Json::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                if value.is_object() || value.is_array() {
                    items.push(item(None, &path));
                    flatten(&path, value, items);
                } else {
                    items.push(item(Some(value.clone()), &path));
                }
            }
        }
        Json::Array(list) => {
            for value in list {
                if value.is_object() || value.is_array() {
                    flatten(path, value, items);
                } else if !path.is_empty() {
                    items.push(item(Some(value.clone()), path));
                }
            }
        }
        _ => {}
    }
}

fn of_entry(test: &Condition, item: &Item) -> bool {
    if let Comparison::NotEqual(value) = &test.comparison {
        let equal = Condition {
            field: test.field,
            comparison: Comparison::Equal(value.clone()),
        };
        return !of_entry(&equal, item);
    }
    let value = match test.field {
        Field::Entry(_, Entry::Key) => RowValue::Text(item.key.clone()),
        Field::Entry(_, Entry::Source) => item
            .source
            .as_str()
            .map_or(RowValue::Nothing, |text| RowValue::Text(text.to_owned())),
        Field::Entry(_, Entry::Score) => match &item.score {
            Json::Number(number) => RowValue::Number(number.as_f64().unwrap()),
            Json::Bool(value) => RowValue::Number(if *value { 1.0 } else { 0.0 }),
            _ => RowValue::Nothing,
        },
        _ => {
            let Some(value) = &item.value else { return false };
            return of_scalar(&test.comparison, value);
        }
    };
    check(&test.comparison, &value)
}

/// A JSON value is compared by its own type, and as text if the filter has a text.
fn of_scalar(what: &Comparison, json: &Json) -> bool {
    let as_text = match json {
        Json::String(text) => RowValue::Text(text.clone()),
        Json::Null => RowValue::Nothing,
        other => RowValue::Text(other.to_string()),
    };
    let own = match json {
        Json::Null => RowValue::Nothing,
        Json::Bool(value) => RowValue::Bool(*value),
        Json::Number(number) => RowValue::Number(number.as_f64().unwrap()),
        _ => as_text.clone(),
    };
    match what {
        Comparison::In(values) => values
            .iter()
            .any(|value| of_scalar(&Comparison::Equal(value.clone()), json)),
        Comparison::Equal(Value::Text(_)) | Comparison::Like(_) | Comparison::Search(_) => check(what, &as_text),
        other => check(other, &own),
    }
}

fn of_json(what: &Comparison, json: Option<Json>) -> bool {
    let Some(json) = json else { return false };
    match what {
        Comparison::HasJson(wanted) => covers(&json, &wanted.clone().into()),
        Comparison::Search(needle) => {
            let mut texts = Vec::new();
            gather(&json, &mut texts);
            texts
                .iter()
                .any(|text| text.to_lowercase().contains(&needle.to_lowercase()))
        }
        _ => false,
    }
}

fn covers(json: &Json, wanted: &Json) -> bool {
    match wanted {
        Json::Object(fields) => fields
            .iter()
            .all(|(key, value)| json.get(key).is_some_and(|own| covers(own, value))),
        Json::Array(items) => json
            .as_array()
            .is_some_and(|own| items.iter().all(|item| own.iter().any(|own| covers(own, item)))),
        Json::Number(number) => json.as_f64().is_some() && json.as_f64() == number.as_f64(),
        other => json == other,
    }
}

/// Collects keys and texts.
fn gather(json: &Json, texts: &mut Vec<String>) {
    match json {
        Json::String(text) => texts.push(text.clone()),
        Json::Array(items) => items.iter().for_each(|item| gather(item, texts)),
        Json::Object(fields) => fields.iter().for_each(|(key, value)| {
            texts.push(key.clone());
            gather(value, texts);
        }),
        _ => {}
    }
}

fn check(what: &Comparison, value: &RowValue) -> bool {
    match what {
        Comparison::Equal(wanted) => *value == meant(wanted),
        Comparison::NotEqual(wanted) => *value != meant(wanted),
        Comparison::In(values) => values.iter().any(|wanted| *value == meant(wanted)),
        Comparison::Inequality(order, bound) => match (value, meant(bound)) {
            (RowValue::Whole(a), RowValue::Whole(b)) => order.holds(a.cmp(&b)),
            (RowValue::Number(a), RowValue::Number(b)) => {
                a.partial_cmp(&b).is_some_and(|ordering| order.holds(ordering))
            }
            _ => false,
        },
        Comparison::HasText(wanted) => *value == RowValue::Text(wanted.clone()),
        Comparison::Search(needle) => {
            matches!(value, RowValue::Text(text) if text.to_lowercase().contains(&needle.to_lowercase()))
        }
        Comparison::Like(pattern) => {
            let pattern: Vec<char> = pattern.chars().collect();
            matches!(value, RowValue::Text(text) if like(&pattern, &text.chars().collect::<Vec<_>>()))
        }
        Comparison::HasJson(_) => false,
    }
}

fn meant(value: &Value) -> RowValue {
    match value {
        Value::Null => RowValue::Nothing,
        Value::Bool(value) => RowValue::Bool(*value),
        Value::Text(text) => RowValue::Text(text.clone()),
        Value::Id(id) => RowValue::Text(id.to_string()),
        Value::Time(time) => RowValue::Whole(time.micros().into()),
        Value::Span(number) | Value::Count(number) => RowValue::Whole((*number).into()),
        Value::Cost(units) => RowValue::Whole(*units),
        Value::Number(number) => RowValue::Number(number.to_f64()),
    }
}

/// Tries all possibilities.
fn like(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|skip| like(rest, &text[skip..])),
        ['_', rest @ ..] => !text.is_empty() && like(rest, &text[1..]),
        ['\\', char, rest @ ..] | [char, rest @ ..] => text.first() == Some(char) && like(rest, &text[1..]),
    }
}
