//! Filters that auth handlers answer: which rows a caller may see, by their metadata.
//!
//! `{key: value}`, `{key: {"$eq": value}}`, `{key: {"$contains": value or list}}`, `{"$and": […]}`, `{"$or": […]}`.

use serde_json::{Value, json};

use super::merge::Object;

/// Whether metadata match. An unknown operator matches nothing; an empty filter matches everything.
#[must_use]
pub fn matches(filter: &Object, metadata: &Object) -> bool {
    filter.iter().all(|(key, wanted)| match (key.as_str(), wanted) {
        ("$and", Value::Array(all)) => all.iter().all(|filter| object_matches(filter, metadata)),
        ("$or", Value::Array(any)) => any.iter().any(|filter| object_matches(filter, metadata)),
        (key, wanted) => value_matches(wanted, metadata.get(key)),
    })
}

fn object_matches(filter: &Value, metadata: &Object) -> bool {
    filter.as_object().is_some_and(|filter| matches(filter, metadata))
}

fn value_matches(wanted: &Value, found: Option<&Value>) -> bool {
    let operators = wanted
        .as_object()
        .filter(|wanted| wanted.keys().any(|key| key.starts_with('$')));
    let Some(operators) = operators else {
        return found == Some(wanted);
    };
    operators.iter().all(|(operator, wanted)| match operator.as_str() {
        "$eq" => found == Some(wanted),
        "$contains" => found.and_then(Value::as_array).is_some_and(|found| match wanted {
            Value::Array(all) => all.iter().all(|one| found.contains(one)),
            one => found.contains(one),
        }),
        _ => false,
    })
}

/// A filter as a condition of searches.
#[derive(Debug, PartialEq)]
pub enum MetadataFilter {
    /// What metadata contain; `$and` and `$or` hold lists of such conditions.
    Contains(Object),
    MatchesNothing,
    /// The filter cannot be expressed as containment.
    Unsearchable(&'static str),
}

/// Combines the filter with the metadata that the search asked for.
#[must_use]
pub fn metadata_filter(filter: &Object, asked: Object) -> MetadataFilter {
    let mut condition = Condition {
        all: asked,
        groups: Vec::new(),
    };
    match condition.narrow(filter) {
        Ok(true) => MetadataFilter::Contains(condition.into_object()),
        Ok(false) => MetadataFilter::MatchesNothing,
        Err(what) => MetadataFilter::Unsearchable(what),
    }
}

/// A condition under construction.
#[derive(Default)]
struct Condition {
    /// Contained in the metadata.
    all: Object,
    /// Further conditions, each `{"$or": […]}`.
    groups: Vec<Value>,
}

impl Condition {
    /// Adds a filter. False when no row can satisfy the condition; an error names what cannot be searched by.
    fn narrow(&mut self, filter: &Object) -> Result<bool, &'static str> {
        for (key, wanted) in filter {
            let possible = match (key.as_str(), wanted) {
                ("$and", Value::Array(parts)) => self.narrow_by_each(parts)?,
                ("$or", Value::Array(parts)) => self.narrow_by_any(parts)?,
                (key, wanted) => self.narrow_by_value(key, wanted)?,
            };
            if !possible {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn narrow_by_each(&mut self, parts: &[Value]) -> Result<bool, &'static str> {
        for part in parts {
            let Some(part) = part.as_object() else {
                return Ok(false);
            };
            if !self.narrow(part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn narrow_by_any(&mut self, parts: &[Value]) -> Result<bool, &'static str> {
        let mut alternatives = Vec::new();
        for part in parts.iter().filter_map(Value::as_object) {
            let mut alternative = Self::default();
            if alternative.narrow(part)? {
                alternatives.push(Value::Object(alternative.into_object()));
            }
        }
        if alternatives.is_empty() {
            return Ok(false);
        }
        self.groups.push(json!({ "$or": alternatives }));
        Ok(true)
    }

    fn narrow_by_value(&mut self, key: &str, wanted: &Value) -> Result<bool, &'static str> {
        for one in required_values(wanted) {
            let Some(one) = one else {
                return Err("an operator other than $eq and $contains, or equality with a list or an object");
            };
            if !add(&mut self.all, key, one) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn into_object(self) -> Object {
        if self.groups.is_empty() {
            return self.all;
        }
        let mut parts = self.groups;
        if !self.all.is_empty() {
            parts.insert(0, Value::Object(self.all));
        }
        Object::from_iter([("$and".to_owned(), Value::Array(parts))])
    }
}

fn required_values(wanted: &Value) -> Vec<Option<Value>> {
    let operators = wanted
        .as_object()
        .filter(|wanted| wanted.keys().any(|key| key.starts_with('$')));
    let Some(operators) = operators else {
        return vec![exact_value(wanted)];
    };
    let value = |(operator, value): (&String, &Value)| match (operator.as_str(), value) {
        ("$eq", value) => exact_value(value),
        ("$contains", Value::Array(all)) => Some(Value::Array(all.clone())),
        ("$contains", one) => Some(Value::Array(vec![one.clone()])),
        _ => None,
    };
    operators.iter().map(value).collect()
}

/// A value that only an equal value contains. Lists and objects are also contained in larger ones, which [`matches`]
/// does not accept.
fn exact_value(wanted: &Value) -> Option<Value> {
    (!wanted.is_array() && !wanted.is_object()).then(|| wanted.clone())
}

/// False when no row can satisfy both.
fn add(all: &mut Object, key: &str, wanted: Value) -> bool {
    match (all.get_mut(key), wanted) {
        (None, wanted) => {
            all.insert(key.to_owned(), wanted);
            true
        }
        (Some(Value::Array(there)), Value::Array(more)) => {
            there.extend(more);
            true
        }
        (Some(there), wanted) => *there == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Object {
        match value {
            Value::Object(map) => map,
            other => panic!("{other} is not an object"),
        }
    }

    #[test]
    fn a_filter_passes_what_it_says() {
        let mine = map(json!({"owner": "me", "teams": ["a", "b"]}));
        for (filter, expected) in [
            (json!({}), true),
            (json!({"owner": "me"}), true),
            (json!({"owner": "you"}), false),
            (json!({"owner": {"$eq": "me"}}), true),
            (json!({"teams": {"$contains": "a"}}), true),
            (json!({"teams": {"$contains": ["a", "c"]}}), false),
            (
                json!({"$or": [{"owner": "you"}, {"teams": {"$contains": ["b"]}}]}),
                true,
            ),
            (json!({"$and": [{"owner": "me"}, {"owner": "you"}]}), false),
            (json!({"owner": {"$like": "m%"}}), false),
            (json!({"missing": null}), false),
        ] {
            assert_eq!(matches(&map(filter.clone()), &mine), expected, "{filter}");
        }
    }

    /// A row with a longer list contains the wanted one but does not match the filter.
    #[test]
    fn equality_with_lists_and_objects_is_not_searched_for() {
        for wanted in [
            json!(["a"]),
            json!({"a": 1}),
            json!({"$eq": []}),
            json!({"$eq": {"a": 1}}),
        ] {
            let filter = map(json!({ "teams": wanted }));
            assert!(
                matches!(metadata_filter(&filter, Object::new()), MetadataFilter::Unsearchable(_)),
                "{filter:?}"
            );
        }
        assert!(!matches(
            &map(json!({"teams": ["a"]})),
            &map(json!({"teams": ["a", "b"]}))
        ));
    }

    #[test]
    fn a_search_finds_only_what_passes() {
        let all = |filter: Value, asked: Value| metadata_filter(&map(filter), map(asked));
        assert_eq!(
            all(json!({"owner": "me"}), json!({"kind": "x"})),
            MetadataFilter::Contains(map(json!({"owner": "me", "kind": "x"})))
        );
        assert_eq!(
            all(json!({"owner": "me"}), json!({"owner": "you"})),
            MetadataFilter::MatchesNothing
        );
        assert_eq!(
            all(json!({"teams": {"$contains": "a"}}), json!({"teams": ["b"]})),
            MetadataFilter::Contains(map(json!({"teams": ["b", "a"]})))
        );
        assert_eq!(all(json!({"$or": []}), json!({})), MetadataFilter::MatchesNothing);
    }

    #[test]
    fn alternatives_are_a_condition_of_their_own() {
        let all = |filter: Value, asked: Value| metadata_filter(&map(filter), map(asked));
        let either = json!({"$or": [{"owner": "me"}, {"teams": {"$contains": "a"}}]});
        let alternatives = json!({"$or": [{"owner": "me"}, {"teams": ["a"]}]});
        assert_eq!(
            all(either.clone(), json!({"kind": "x"})),
            MetadataFilter::Contains(map(json!({"$and": [{"kind": "x"}, alternatives]})))
        );
        assert_eq!(
            all(json!({"$and": [{"kind": "x"}, either]}), json!({})),
            MetadataFilter::Contains(map(json!({"$and": [{"kind": "x"}, alternatives]})))
        );
        // Alternatives that no row can satisfy are left out.
        let impossible = json!({"$and": [{"owner": "me"}, {"owner": "you"}]});
        assert_eq!(
            all(json!({"$or": [impossible, {"owner": "we"}]}), json!({})),
            MetadataFilter::Contains(map(json!({"$and": [{"$or": [{"owner": "we"}]}]})))
        );
        assert_eq!(
            all(json!({"$or": [impossible]}), json!({})),
            MetadataFilter::MatchesNothing
        );
        let pattern = json!({"$or": [{"owner": "me"}, {"owner": {"$like": "m%"}}]});
        assert!(matches!(all(pattern, json!({})), MetadataFilter::Unsearchable(_)));
    }
}
