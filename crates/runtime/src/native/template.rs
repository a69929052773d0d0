//! Templates filled from the state, and conditions on the state. Locations are JSON pointers.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A JSON value with placeholders: `{"$": "/pointer"}` becomes the value there (null if missing), and `${/pointer}`
/// inside a text becomes its text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template {
    value: Value,
    plain: bool,
}

impl Template {
    pub(super) fn new(value: Value) -> Self {
        let plain = !has_holes(&value);
        Self { value, plain }
    }

    /// Filled from `state`.
    pub(super) fn fill(&self, state: &Value) -> Value {
        if self.plain {
            self.value.clone()
        } else {
            fill(&self.value, state)
        }
    }

    /// Fills it as text: strings stay as they are, null is empty, anything else becomes JSON.
    pub(super) fn fill_text(&self, state: &Value) -> String {
        as_text(&self.fill(state))
    }
}

impl Default for Template {
    fn default() -> Self {
        Self::new(Value::Null)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::deserialize(from).map(Self::new)
    }
}

fn hole(fields: &Map<String, Value>) -> Option<&str> {
    match fields.len() {
        1 => fields.get("$").and_then(Value::as_str),
        _ => None,
    }
}

fn has_holes(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("${"),
        Value::Array(list) => list.iter().any(has_holes),
        Value::Object(fields) => hole(fields).is_some() || fields.values().any(has_holes),
        _ => false,
    }
}

fn fill(value: &Value, state: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(fill_holes(text, state)),
        Value::Array(list) => list.iter().map(|entry| fill(entry, state)).collect(),
        Value::Object(fields) => match hole(fields) {
            Some(pointer) => at(state, pointer).cloned().unwrap_or_default(),
            None => fields
                .iter()
                .map(|(key, value)| (key.clone(), fill(value, state)))
                .collect(),
        },
        other => other.clone(),
    }
}

fn fill_holes(text: &str, state: &Value) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("${/").or_else(|| rest.find("${}")) {
        let Some(length) = rest[begin..].find('}') else { break };
        filled.push_str(&rest[..begin]);
        let pointer = &rest[begin + 2..begin + length];
        filled.push_str(&at(state, pointer).map(as_text).unwrap_or_default());
        rest = &rest[begin + length + 1..];
    }
    filled.push_str(rest);
    filled
}

/// Resolves a JSON pointer; `-1` is the last entry of a list, `-2` the one before.
pub(super) fn at<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    if pointer.is_empty() {
        return Some(value);
    }
    let mut here = value;
    for part in pointer.strip_prefix('/')?.split('/') {
        here = match here {
            Value::Object(fields) if part.contains('~') => fields.get(&part.replace("~1", "/").replace("~0", "~"))?,
            Value::Object(fields) => fields.get(part)?,
            Value::Array(list) => match part.strip_prefix('-') {
                Some(back) => list.get(list.len().checked_sub(back.parse().ok().filter(|back| *back > 0)?)?)?,
                None => list.get(part.parse::<usize>().ok()?)?,
            },
            _ => return None,
        };
    }
    Some(here)
}

pub(super) fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// A condition on the state.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Condition {
    /// Each one holds.
    All { all: Vec<Condition> },
    /// One holds at least.
    Any { any: Vec<Condition> },
    /// It does not hold.
    Not { not: Box<Condition> },
    /// The value at a location satisfies every given comparison (without comparisons: it is neither null, false, 0 nor
    /// empty).
    At(Comparison),
}

/// Comparisons of what is at a place.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Comparison {
    /// JSON pointer.
    at: String,
    #[serde(default, deserialize_with = "given")]
    equals: Option<Value>,
    #[serde(default, deserialize_with = "given")]
    not_equals: Option<Value>,
    #[serde(default)]
    less: Option<f64>,
    #[serde(default)]
    at_most: Option<f64>,
    #[serde(default)]
    greater: Option<f64>,
    #[serde(default)]
    at_least: Option<f64>,
    /// A string contains this string, a list this entry, an object this key.
    #[serde(default)]
    contains: Option<Value>,
    /// One of these.
    #[serde(default, rename = "in")]
    among: Option<Vec<Value>>,
    #[serde(default)]
    exists: Option<bool>,
}

/// Null is a value to compare with.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

impl Condition {
    pub(super) fn holds(&self, state: &Value) -> bool {
        match self {
            Self::All { all } => all.iter().all(|condition| condition.holds(state)),
            Self::Any { any } => any.iter().any(|condition| condition.holds(state)),
            Self::Not { not } => !not.holds(state),
            Self::At(comparison) => comparison.holds(state),
        }
    }
}

impl Comparison {
    fn holds(&self, state: &Value) -> bool {
        let found = at(state, &self.at);
        let value = found.unwrap_or(&Value::Null);
        let number = value.as_f64();
        let bound = |limit: Option<f64>, test: fn(f64, f64) -> bool| {
            limit.is_none_or(|limit| number.is_some_and(|number| test(number, limit)))
        };
        let asked = self.equals.is_some()
            || self.not_equals.is_some()
            || self.less.is_some()
            || self.at_most.is_some()
            || self.greater.is_some()
            || self.at_least.is_some()
            || self.contains.is_some()
            || self.among.is_some()
            || self.exists.is_some();
        (asked || truthy(value))
            && self.equals.as_ref().is_none_or(|wanted| same(value, wanted))
            && self.not_equals.as_ref().is_none_or(|wanted| !same(value, wanted))
            && bound(self.less, |number, limit| number < limit)
            && bound(self.at_most, |number, limit| number <= limit)
            && bound(self.greater, |number, limit| number > limit)
            && bound(self.at_least, |number, limit| number >= limit)
            && self.contains.as_ref().is_none_or(|part| contains(value, part))
            && self
                .among
                .as_ref()
                .is_none_or(|list| list.iter().any(|wanted| same(value, wanted)))
            && self
                .exists
                .is_none_or(|wanted| wanted == found.is_some_and(|value| !value.is_null()))
    }
}

/// 1 and 1.0 are the same.
fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a.total_cmp(&b).is_eq())
}

fn contains(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(list), part) => list.iter().any(|entry| same(entry, part)),
        (Value::Object(fields), Value::String(key)) => fields.contains_key(key),
        _ => false,
    }
}

fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn holes_are_filled() {
        let state = json!({"a": {"b": [1, 2]}, "name": "Ada"});
        let template = Template::new(json!({"x": {"$": "/a/b/-1"}, "y": "hi ${/name}, ${/a/b} ${/none}!", "z": [1]}));
        assert_eq!(template.fill(&state), json!({"x": 2, "y": "hi Ada, [1,2] !", "z": [1]}));
        assert_eq!(Template::new(json!("cost ${")).fill(&state), json!("cost ${"));
    }

    #[test]
    fn conditions_compare() {
        let state = json!({"n": 3, "list": ["a"], "text": "abc", "nothing": null});
        for (condition, expected) in [
            (json!({"at": "/n", "equals": 3.0}), true),
            (json!({"at": "/n", "less": 3}), false),
            (json!({"at": "/n", "at_most": 3, "greater": 2}), true),
            (json!({"at": "/list", "contains": "a"}), true),
            (json!({"at": "/text", "in": ["x", "abc"]}), true),
            (json!({"at": "/nothing", "equals": null}), true),
            (json!({"at": "/nothing", "exists": false}), true),
            (json!({"at": "/list"}), true),
            (json!({"any": [{"at": "/zzz"}, {"not": {"at": "/zzz"}}]}), true),
            (json!({"all": [{"at": "/n"}, {"at": "/zzz"}]}), false),
        ] {
            let parsed: Condition = serde_json::from_value(condition.clone()).unwrap();
            assert_eq!(parsed.holds(&state), expected, "{condition}");
        }
        assert!(serde_json::from_value::<Condition>(json!({"at": "/n", "eqals": 1})).is_err());
    }
}
