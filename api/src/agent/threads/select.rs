//! Which fields of a state are returned.

use std::collections::HashSet;

use serde_json::Value;

use crate::agent::errors::AgentError;

/// Fields of a state that can be selected.
const FIELDS: [&str; 10] = [
    "values",
    "next",
    "tasks",
    "checkpoint",
    "metadata",
    "created_at",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
];

/// Before the key of a single value.
const VALUE: &str = "values.";

/// Maximum number of names in one selection.
const MAX_NAMES: usize = 1000;

/// Selected fields of a state: all of them, or those that are named.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateSelect(Option<Selection>);

#[derive(Clone, Debug, Default)]
struct Selection {
    fields: HashSet<String>,
    /// Keys of the values; without effect if the field `values` is selected.
    keys: HashSet<String>,
}

impl StateSelect {
    /// Checks the names: fields of a state, or `values.KEY`. No name selects everything.
    pub(super) fn of(names: Option<Vec<String>>) -> Result<Self, AgentError> {
        let names = names.unwrap_or_default();
        if names.is_empty() {
            return Ok(Self::default());
        }
        if names.len() > MAX_NAMES {
            return Err(AgentError::invalid(format!(
                "select: expected at most {MAX_NAMES} names"
            )));
        }
        let mut selection = Selection::default();
        for name in names {
            if FIELDS.contains(&name.as_str()) {
                selection.fields.insert(name);
            } else if let Some(key) = name.strip_prefix(VALUE).filter(|key| !key.is_empty()) {
                selection.keys.insert(key.to_owned());
            } else {
                return Err(AgentError::invalid(format!(
                    "select: {name:?} is not one of {}, or values.KEY",
                    FIELDS.join(", ")
                )));
            }
        }
        Ok(Self(Some(selection)))
    }

    /// Whether everything is selected.
    pub(super) const fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// What is selected of a state.
    pub(super) fn apply(&self, mut state: Value) -> Value {
        if let (Some(selection), Value::Object(fields)) = (&self.0, &mut state) {
            fields.retain(|name, value| selection.retains(name, value));
        }
        state
    }
}

impl Selection {
    /// Whether a field is returned. Reduces the values to selected keys.
    fn retains(&self, name: &str, value: &mut Value) -> bool {
        if self.fields.contains(name) {
            return true;
        }
        if name != "values" || self.keys.is_empty() {
            return false;
        }
        if let Value::Object(values) = value {
            values.retain(|key, _| self.keys.contains(key));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn select(names: &[&str]) -> Result<StateSelect, AgentError> {
        StateSelect::of(Some(names.iter().map(|&name| name.to_owned()).collect()))
    }

    #[test]
    fn fields_and_single_values_are_selected() {
        let state = json!({"values": {"a": 1, "b.c": 2}, "next": ["n"], "created_at": "t"});
        for (names, expected) in [
            (&[][..], state.clone()),
            (&["next"], json!({"next": ["n"]})),
            (&["values.a"], json!({"values": {"a": 1}})),
            (&["values.b.c", "next"], json!({"values": {"b.c": 2}, "next": ["n"]})),
            (&["values", "values.a"], json!({"values": {"a": 1, "b.c": 2}})),
            (&["values.missing"], json!({"values": {}})),
        ] {
            assert_eq!(select(names).unwrap().apply(state.clone()), expected, "{names:?}");
        }
        let list = json!({"values": [1, 2]});
        assert_eq!(select(&["values.a"]).unwrap().apply(list.clone()), list);
    }

    #[test]
    fn unknown_fields_are_refused() {
        for name in ["colour", "values.", "valuesa", ""] {
            let refused = select(&[name]).unwrap_err();
            assert!(refused.detail().starts_with("select: "), "{name}: {}", refused.detail());
        }
    }
}
