//! What annotations cannot say of requests: which fields exclude one another, how a cursor reads, which texts a field
//! takes. The rules stand as JSON in `rules/` and are merged into the document that the annotations make:
//!
//! ```text
//! {"new":        {"NewCron": {…}},
//!  "schemas":    {"NewExport": {"oneOf": […], "further": […]}},
//!  "operations": {"GET /sessions": {"parameters": {"metadata": {…}}, "responses": {…}}}}
//! ```
//!
//! Objects are merged key by key, null removes a key, and anything else replaces what was there (RFC 7396). A rule of
//! `/runs` holds at `/api/v1/runs` too, and one of `/v2/deployments` at `/api-host/v2/deployments`.
//!
//! `further` names properties that are accepted, but whose values follow rules that no JSON Schema says: a filter has a
//! grammar, and a `dotted_order` ends with the id beside it. As a property each would promise that every text is taken. They
//! are described under `x-further-properties`; an object that has some is open, so that it admits them. `after_seconds` of
//! a run is among them, too: one that waits for years is legal, but nobody who tries requests at random should wait with it.

use serde_json::{Map, Value};

/// Those of the platform, but for deployments.
pub(crate) const PLATFORM: &str = include_str!("rules/platform.json");
/// Those of deployments and what belongs to them.
pub(crate) const DEPLOYMENTS: &str = include_str!("rules/deployments.json");
/// Those of sandboxes.
pub(crate) const SANDBOXES: &str = include_str!("rules/sandboxes.json");
/// Those of the agent surface.
pub(crate) const AGENT: &str = include_str!("rules/agent.json");

/// What stands in front of a path at its other places.
const PREFIXES: [&str; 4] = ["", "/api/v1", "/api-host", "/api"];

/// Adds rules to a document. A rule about something that is not described is a mistake in the rules: it panics, and
/// tests put both documents together.
pub(crate) fn apply(document: &mut Value, rules: &str) {
    let rules: Value = serde_json::from_str(rules).expect("rules are JSON");
    for (name, schema) in members(&rules["new"]) {
        document["components"]["schemas"][name] = schema.clone();
    }
    for (name, rule) in members(&rules["schemas"]) {
        let schema = document["components"]["schemas"].get_mut(name.as_str());
        let schema = schema.unwrap_or_else(|| panic!("a rule is about the schema {name}, which is not described"));
        merge(schema, rule);
        split_further(schema);
    }
    for (operation, rule) in members(&rules["operations"]) {
        let mut found = false;
        let (method, path) = operation.split_once(' ').unwrap_or_default();
        let method = method.to_ascii_lowercase();
        for prefix in PREFIXES {
            let item = document["paths"].get_mut(format!("{prefix}{path}"));
            if let Some(described) = item.and_then(|item| item.get_mut(&method)) {
                found = true;
                add(described, rule);
            }
        }
        assert!(
            found,
            "a rule is about the operation {operation}, which is not described"
        );
    }
}

fn add(operation: &mut Value, rule: &Value) {
    for (name, rule) in members(&rule["parameters"]) {
        let parameters = operation["parameters"].as_array_mut();
        let parameters =
            parameters.unwrap_or_else(|| panic!("a rule is about the parameter {name} where there is none"));
        let at = parameters
            .iter()
            .position(|parameter| parameter["name"] == name.as_str());
        let at = at.unwrap_or_else(|| panic!("a rule is about the parameter {name}, which is not described"));
        if rule.is_null() {
            parameters.remove(at);
        } else {
            merge(&mut parameters[at], rule);
        }
    }
    for (name, rule) in members(rule).filter(|(name, _)| *name != "parameters") {
        merge(&mut operation[name.as_str()], rule);
    }
}

/// RFC 7396.
fn merge(into: &mut Value, rule: &Value) {
    let Value::Object(rule) = rule else {
        *into = rule.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(into) = into else { return };
    for (name, rule) in rule {
        if rule.is_null() {
            into.remove(name);
        } else {
            merge(into.entry(name.clone()).or_insert(Value::Null), rule);
        }
    }
}

/// Moves the properties that `further` names.
fn split_further(schema: &mut Value) {
    let further = schema.as_object_mut().and_then(|schema| schema.remove("further"));
    let names = further.as_ref().and_then(Value::as_array).into_iter().flatten();
    for name in names.filter_map(Value::as_str) {
        let properties = schema["properties"].as_object_mut();
        let property = properties.and_then(|properties| properties.remove(name));
        let property = property.unwrap_or_else(|| panic!("a rule sets {name} apart, which is not described"));
        schema["x-further-properties"][name] = property;
    }
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_merged_into_what_is_described() {
        let operation = json!({
            "parameters": [
                {"name": "metadata", "in": "query", "schema": {"type": "string"}},
                {"name": "agent_id", "in": "query", "schema": {"type": "string"}},
            ],
            "responses": {"200": {"description": "Fine"}},
        });
        let mut document = json!({
            "components": {"schemas": {"Query": {
                "type": "object",
                "properties": {"filter": {"type": "string"}, "limit": {"type": "integer", "format": "int64"}},
            }}},
            "paths": {"/sessions": {"get": operation.clone()}, "/api/v1/sessions": {"get": operation}},
        });
        let rules = json!({
            "new": {"Count": {"type": "integer"}},
            "schemas": {"Query": {
                "further": ["filter"],
                "properties": {"limit": {"format": null, "maximum": 10}},
                "required": ["limit"],
            }},
            "operations": {"GET /sessions": {
                "parameters": {
                    "metadata": {"schema": null, "content": {"application/json": {"schema": {"type": "object"}}}},
                    "agent_id": null,
                },
                "responses": {"404": {"description": "None"}},
            }},
        });
        apply(&mut document, &rules.to_string());
        let query = json!({
            "type": "object",
            "properties": {"limit": {"type": "integer", "maximum": 10}},
            "required": ["limit"],
            "x-further-properties": {"filter": {"type": "string"}},
        });
        assert_eq!(
            document["components"]["schemas"],
            json!({"Query": query, "Count": {"type": "integer"}})
        );
        let metadata = json!({
            "name": "metadata", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}},
        });
        for path in ["/sessions", "/api/v1/sessions"] {
            let operation = &document["paths"][path]["get"];
            assert_eq!(operation["parameters"], json!([metadata]), "{path}");
            let statuses: Vec<_> = members(&operation["responses"])
                .map(|(status, _)| status.as_str())
                .collect();
            assert_eq!(statuses, ["200", "404"], "{path}");
        }
    }
}
