//! The graph file in variables, as images of the official builder carry it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use towpath_domain::Secret;

/// The graphs. Without it, the other variables have no effect.
pub const GRAPHS: &str = "LANGSERVE_GRAPHS";

/// Each variable with its key of the file.
const VARIABLES: [(&str, &str); 8] = [
    (GRAPHS, "graphs"),
    ("LANGGRAPH_HTTP", "http"),
    ("LANGGRAPH_STORE", "store"),
    ("LANGGRAPH_CHECKPOINTER", "checkpointer"),
    ("LANGGRAPH_AUTH", "auth"),
    ("LANGGRAPH_ENCRYPTION", "encryption"),
    ("LANGGRAPH_WEBHOOKS", "webhooks"),
    ("LANGGRAPH_PRIORITY", "priority"),
];
/// The lifetime of threads, a part of `checkpointer` that takes precedence over it.
const THREAD_TTL: &str = "LANGGRAPH_THREAD_TTL";

/// Whether variables name graphs.
pub fn are_set(environment: &BTreeMap<String, Secret>) -> bool {
    environment.get(GRAPHS).is_some_and(|value| !value.reveal().is_empty())
}

/// The text of the file; `None` if no graphs are named. An error names the variable.
pub fn text(environment: &BTreeMap<String, Secret>) -> Result<Option<String>, String> {
    if !are_set(environment) {
        return Ok(None);
    }
    let mut file = Map::new();
    for (name, key) in VARIABLES {
        if let Some(part) = object(environment, name)? {
            file.insert(key.to_owned(), Value::Object(part));
        }
    }
    if let Some(ttl) = object(environment, THREAD_TTL)? {
        let checkpointer = file.entry("checkpointer").or_insert_with(|| Value::Object(Map::new()));
        checkpointer["ttl"] = Value::Object(ttl);
    }
    Ok(Some(Value::Object(file).to_string()))
}

/// The JSON object of a variable. Unset ones are empty or `null`.
fn object(environment: &BTreeMap<String, Secret>, name: &str) -> Result<Option<Map<String, Value>>, String> {
    let Some(text) = environment
        .get(name)
        .map(Secret::reveal)
        .filter(|text| !text.trim().is_empty())
    else {
        return Ok(None);
    };
    serde_json::from_str(text).map_err(|_| format!("{name}: expected a JSON object"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, Secret> {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)));
        owned.collect()
    }

    #[test]
    fn variables_make_a_file() {
        let environment = set(&[
            ("LANGSERVE_GRAPHS", r#"{"a": "/deps/a.py:graph"}"#),
            ("LANGGRAPH_HTTP", r#"{"disable_mcp": true}"#),
            ("LANGGRAPH_CHECKPOINTER", r#"{"ttl": {"default_ttl": 1}, "serde": {}}"#),
            ("LANGGRAPH_THREAD_TTL", r#"{"default_ttl": 60}"#),
            ("LANGGRAPH_STORE", ""),
            ("LANGGRAPH_AUTH", "null"),
        ]);
        let text = text(&environment).unwrap().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({"graphs": {"a": "/deps/a.py:graph"}, "http": {"disable_mcp": true},
                   "checkpointer": {"ttl": {"default_ttl": 60}, "serde": {}}})
        );
    }

    #[test]
    fn without_graphs_there_is_no_file() {
        assert_eq!(
            text(&set(&[("LANGGRAPH_HTTP", "{}"), ("LANGSERVE_GRAPHS", "")])),
            Ok(None)
        );
        let refused = text(&set(&[("LANGSERVE_GRAPHS", "{}"), ("LANGGRAPH_STORE", "[1]")])).unwrap_err();
        assert!(
            refused.starts_with("LANGGRAPH_STORE: expected a JSON object"),
            "{refused}"
        );
    }
}
