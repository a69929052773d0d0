//! Filters that auth handlers answer: which rows a caller may see, by their metadata.
//!
//! `{key: value}`, `{key: {"$eq": value}}`, `{key: {"$contains": value or list}}`, `{"$and": […]}`, `{"$or": […]}`.

use serde_json::Value;

use super::merge::Object;

/// Whether metadata pass. An operator that nobody knows lets nothing pass; an empty filter lets everything pass.
#[must_use]
pub fn passes(filter: &Object, metadata: &Object) -> bool {
    filter.iter().all(|(key, wanted)| match (key.as_str(), wanted) {
        ("$and", Value::Array(all)) => all.iter().all(|filter| object_passes(filter, metadata)),
        ("$or", Value::Array(any)) => any.iter().any(|filter| object_passes(filter, metadata)),
        (key, wanted) => value_passes(wanted, metadata.get(key)),
    })
}

fn object_passes(filter: &Value, metadata: &Object) -> bool {
    filter.as_object().is_some_and(|filter| passes(filter, metadata))
}

fn value_passes(wanted: &Value, found: Option<&Value>) -> bool {
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

/// A filter as something metadata contain, for searches.
#[derive(Debug, PartialEq)]
pub enum Contained {
    /// Rows whose metadata contain this.
    All(Object),
    /// No row can pass.
    Nothing,
    /// This cannot be searched for.
    Unsearchable(&'static str),
}

/// What has to be contained for the filter and for what was asked.
#[must_use]
pub fn contained(filter: &Object, asked: Object) -> Contained {
    let mut all = asked;
    for (key, wanted) in filter {
        match (key.as_str(), wanted) {
            ("$and", Value::Array(parts)) => {
                for part in parts {
                    let Some(part) = part.as_object() else {
                        return Contained::Nothing;
                    };
                    match contained(part, all) {
                        Contained::All(more) => all = more,
                        other => return other,
                    }
                }
            }
            ("$or", _) => return Contained::Unsearchable("$or"),
            (key, wanted) => {
                for one in wanted_values(wanted) {
                    let Some(one) = one else {
                        return Contained::Unsearchable(
                            "an operator other than $eq and $contains, or equality with a list or an object",
                        );
                    };
                    if !add(&mut all, key, one) {
                        return Contained::Nothing;
                    }
                }
            }
        }
    }
    Contained::All(all)
}

fn wanted_values(wanted: &Value) -> Vec<Option<Value>> {
    let operators = wanted
        .as_object()
        .filter(|wanted| wanted.keys().any(|key| key.starts_with('$')));
    let Some(operators) = operators else {
        return vec![exactly(wanted)];
    };
    let value = |(operator, value): (&String, &Value)| match (operator.as_str(), value) {
        ("$eq", value) => exactly(value),
        ("$contains", Value::Array(all)) => Some(Value::Array(all.clone())),
        ("$contains", one) => Some(Value::Array(vec![one.clone()])),
        _ => None,
    };
    operators.iter().map(value).collect()
}

/// What only an equal value contains. A list or an object is contained in larger ones, too, which [`passes`] does not let through.
fn exactly(wanted: &Value) -> Option<Value> {
    (!wanted.is_array() && !wanted.is_object()).then(|| wanted.clone())
}

/// False when one row cannot hold both.
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
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Object {
        match value {
            Value::Object(map) => map,
            other => panic!("{other} is no object"),
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
            assert_eq!(passes(&map(filter.clone()), &mine), expected, "{filter}");
        }
    }

    /// A row with a longer list contains the wanted one, and is not let through by the filter.
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
                matches!(contained(&filter, Object::new()), Contained::Unsearchable(_)),
                "{filter:?}"
            );
        }
        assert!(!passes(
            &map(json!({"teams": ["a"]})),
            &map(json!({"teams": ["a", "b"]}))
        ));
    }

    #[test]
    fn a_search_finds_only_what_passes() {
        let all = |filter: Value, asked: Value| contained(&map(filter), map(asked));
        assert_eq!(
            all(json!({"owner": "me"}), json!({"kind": "x"})),
            Contained::All(map(json!({"owner": "me", "kind": "x"})))
        );
        assert_eq!(all(json!({"owner": "me"}), json!({"owner": "you"})), Contained::Nothing);
        assert_eq!(
            all(json!({"teams": {"$contains": "a"}}), json!({"teams": ["b"]})),
            Contained::All(map(json!({"teams": ["b", "a"]})))
        );
        assert_eq!(all(json!({"$or": []}), json!({})), Contained::Unsearchable("$or"));
    }
}
