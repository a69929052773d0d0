//! JSON as a list of entries, and tests of one entry.

use std::borrow::Cow;

use towpath_domain::filter::{Comparison, Condition, Entry, Field, Value};
use towpath_domain::json::{Number, Value as Json};

use super::text::{contains_ignoring_case, like};

/// Calls `each` with the key and value of every entry until it returns true; returns whether it did. `None` is an
/// object or array, whose own entries follow.
pub fn any(json: &Json<'_>, each: &mut impl FnMut(&str, Option<&Json<'_>>) -> bool) -> bool {
    walk(json, &mut String::new(), each)
}

fn walk(json: &Json<'_>, path: &mut String, each: &mut impl FnMut(&str, Option<&Json<'_>>) -> bool) -> bool {
    match json {
        Json::Object(fields) => fields.iter().any(|(key, value)| {
            let parent = path.len();
            if parent > 0 {
                path.push('.');
            }
            path.push_str(key);
            let met = if value.has_parts() {
                each(path, None) || walk(value, path, each)
            } else {
                each(path, Some(value))
            };
            path.truncate(parent);
            met
        }),
        Json::Array(items) => items.iter().any(|item| {
            if item.has_parts() {
                walk(item, path, each)
            } else {
                !path.is_empty() && each(path, Some(item))
            }
        }),
        _ => false,
    }
}

/// Whether an entry passes a test.
pub fn passes(test: &Condition, key: &str, value: Option<&Json<'_>>, feedback: Option<&Json<'_>>) -> bool {
    let part = |name: &str| feedback.and_then(|feedback| feedback.get(name));
    match test.field {
        Field::Entry(_, Entry::Key) => text(&test.comparison, Some(key)),
        Field::Entry(_, Entry::Value) => scalar(&test.comparison, value),
        Field::Entry(_, Entry::Score) => score(&test.comparison, part("score")),
        Field::Entry(_, Entry::Source) => text(&test.comparison, part("source").and_then(Json::as_str)),
        _ => false,
    }
}

/// Tests an optional text.
pub fn text(check: &Comparison, text: Option<&str>) -> bool {
    let equal = |value: &Value| match (value, text) {
        (Value::Null, None) => true,
        (Value::Text(wanted), Some(text)) => wanted == text,
        _ => false,
    };
    match check {
        Comparison::Equal(value) => equal(value),
        Comparison::NotEqual(value) => !equal(value),
        Comparison::In(values) => values.iter().any(equal),
        Comparison::Like(pattern) => text.is_some_and(|text| like(pattern, text)),
        Comparison::HasText(wanted) => text == Some(wanted.as_str()),
        Comparison::Search(needle) => text.is_some_and(|text| contains_ignoring_case(&needle.to_lowercase(), text)),
        Comparison::Inequality(..) | Comparison::HasJson(_) => false,
    }
}

fn scalar(check: &Comparison, json: Option<&Json<'_>>) -> bool {
    let shown = json.and_then(shown);
    let equal = |value: &Value| match (value, json) {
        (Value::Null, Some(Json::Null)) => true,
        (Value::Bool(wanted), Some(Json::Bool(value))) => wanted == value,
        (Value::Number(wanted), Some(Json::Number(number))) => number == wanted,
        (Value::Text(wanted), _) => shown.as_deref() == Some(wanted.as_str()),
        _ => false,
    };
    match check {
        Comparison::Equal(value) => equal(value),
        Comparison::NotEqual(value) => !equal(value),
        Comparison::In(values) => values.iter().any(equal),
        Comparison::Inequality(order, Value::Number(bound)) => json
            .and_then(Json::as_number)
            .is_some_and(|number| order.holds(number.compare(bound))),
        Comparison::Like(pattern) => shown.is_some_and(|text| like(pattern, &text)),
        Comparison::Search(needle) => shown.is_some_and(|text| contains_ignoring_case(&needle.to_lowercase(), &text)),
        Comparison::Inequality(..) | Comparison::HasText(_) | Comparison::HasJson(_) => false,
    }
}

/// A number; true is 1 and false is 0.
fn score(check: &Comparison, json: Option<&Json<'_>>) -> bool {
    let number = match json {
        Some(Json::Bool(value)) => Some(Number::from(*value)),
        Some(Json::Number(number)) => Some(number.clone()),
        _ => None,
    };
    let equal = |value: &Value| match (value, &number) {
        (Value::Null, None) => true,
        (Value::Number(wanted), Some(number)) => number == wanted,
        _ => false,
    };
    match check {
        Comparison::Equal(value) => equal(value),
        Comparison::NotEqual(value) => !equal(value),
        Comparison::In(values) => values.iter().any(equal),
        Comparison::Inequality(order, Value::Number(bound)) => {
            number.as_ref().is_some_and(|number| order.holds(number.compare(bound)))
        }
        _ => false,
    }
}

/// A scalar as text: numbers as they were sent, booleans as in JSON.
fn shown<'a>(json: &'a Json<'_>) -> Option<Cow<'a, str>> {
    match json {
        Json::String(text) => Some(Cow::Borrowed(&**text)),
        Json::Number(number) => Some(Cow::Borrowed(number.text())),
        Json::Bool(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
        _ => None,
    }
}

/// Whether `json` contains `wanted`: each key of an object, each item of an array at any position.
pub fn contains(json: &Json<'_>, wanted: &Json<'_>) -> bool {
    match (json, wanted) {
        (Json::Object(fields), Json::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| fields.get(&**key).is_some_and(|value| contains(value, wanted))),
        (Json::Array(items), Json::Array(wanted)) => wanted
            .iter()
            .all(|wanted| items.iter().any(|item| contains(item, wanted))),
        (json, wanted) => json == wanted,
    }
}

/// Whether some key or text in `json` contains `needle`, which is in lower case.
pub fn searched(needle: &str, json: &Json<'_>) -> bool {
    match json {
        Json::String(text) => contains_ignoring_case(needle, text),
        Json::Array(items) => items.iter().any(|item| searched(needle, item)),
        Json::Object(fields) => fields
            .iter()
            .any(|(key, value)| contains_ignoring_case(needle, key) || searched(needle, value)),
        _ => false,
    }
}
