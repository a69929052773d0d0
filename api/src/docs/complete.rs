//! What is the same in every operation, said once: who may call, what each refusal looks like, which statuses come
//! from the layers around the handlers.

use http::Method;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::{body_schemas, rules};
use crate::paths::{has_problems, is_sandbox_path, is_tracing, stores_body};

/// The version of the control plane's API description, which the contract fixes. The product's own stands in `/info`.
const API_VERSION: &str = "0.1.0";

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The description of all collected paths, finished.
pub(crate) fn complete(document: &OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("the document is plain data with text keys");
    document["info"] = json!({
        "title": "Towpath platform",
        "version": API_VERSION,
        "description": "Trace ingest, tracing projects, bulk export, operations.",
    });
    document["components"]["securitySchemes"] = schemes();
    // The workspace may be left out where the key opens only one.
    document["security"] = json!([
        {"api_key": []},
        {"api_key": [], "tenant_id": []},
        {"bearer": [], "tenant_id": []},
    ]);
    document["components"]["schemas"]["TracingError"] = json!({
        "description": "An error of a route that tracing clients call.",
        "type": "object",
        "properties": {
            "error": {"type": "string", "description": "What is wrong, for programs."},
            "details": {"type": "string", "description": "What is wrong and what to do."},
        },
        "required": ["error", "details"],
    });
    document["components"]["schemas"]["Problem"] = json!({
        "description": "An error as problem details (RFC 9457).",
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "What is wrong and what to do."},
        },
        "required": ["type", "title", "status", "detail"],
    });
    for (name, schema) in body_schemas::schemas() {
        document["components"]["schemas"][name] = schema;
    }
    // First: the statuses they add get the shapes that all have.
    for file in [rules::PLATFORM, rules::DEPLOYMENTS, rules::SANDBOXES] {
        rules::apply(&mut document, file);
    }
    let paths = document["paths"].as_object_mut().expect("a document has paths");
    for (path, item) in paths {
        let item = item.as_object_mut().expect("a path item is an object");
        for (name, operation) in item.iter_mut().filter(|(name, _)| METHODS.contains(&name.as_str())) {
            let method = Method::from_bytes(name.to_ascii_uppercase().as_bytes());
            complete_operation(&method.unwrap_or_default(), path, operation);
        }
    }
    plain_nullables(&mut document);
    document
}

fn schemes() -> Value {
    let header = |name: &str, text: &str| json!({"type": "apiKey", "in": "header", "name": name, "description": text});
    json!({
        "api_key": header("X-API-Key", "An API key of the organization."),
        "tenant_id": header("X-Tenant-Id", "The workspace. May be left out where the key opens only one."),
        "bearer": {"type": "http", "scheme": "bearer", "description": "The token of a session (`POST /auth/session`)."},
    })
}

fn complete_operation(method: &Method, path: &str, operation: &mut Value) {
    let open = operation["security"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one == &json!({})));
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    // One that is written as JSON has a `content` in its place.
    for schema in parameters
        .into_iter()
        .flatten()
        .filter_map(|parameter| parameter.get_mut("schema"))
    {
        not_null(schema);
    }
    let body = operation.get_mut("requestBody");
    let has_body = body.is_some();
    if let Some(body) = body {
        // None of ours reads an absent one as anything.
        body["required"] = true.into();
    }
    let responses = operation["responses"]
        .as_object_mut()
        .expect("an operation has responses");
    let mut add = |status: &str, description: &str| {
        responses
            .entry(status)
            .or_insert_with(|| json!({ "description": description }));
    };
    if has_body {
        add("408", "The body arrived too slowly");
        add("413", "The body is larger than this route takes");
        add("415", "The body is of another content type or encoding");
    }
    if !open {
        add("429", "Too much at once; `Retry-After` says when to come back");
    }
    if stores_body(method, path) {
        add(
            "507",
            "There is no room to keep it; `Retry-After` says when to come back",
        );
    }
    let tracing = is_tracing(path);
    for (status, response) in responses {
        let refusal = status.starts_with(['4', '5']);
        if !refusal {
            continue;
        }
        let bare = response.get("content").is_none();
        if bare {
            let schema = if status == "422" { "InvalidRequest" } else { "Error" };
            response["content"] = json!({"application/json": {"schema": named(schema)}});
        }
        let Some(schema) = response.pointer_mut("/content/application~1json/schema") else {
            continue;
        };
        if *schema != named("Error") && *schema != named("InvalidRequest") {
            continue;
        }
        if tracing {
            *schema = named("TracingError");
        }
        if is_sandbox_path(path) && *schema == named("Error") {
            *schema = named("SandboxError");
        }
        if matches!(status.as_str(), "429" | "503" | "507") {
            response["headers"]["Retry-After"] = json!({
                "description": "Seconds until what is under way is worked off.",
                "schema": {"type": "integer", "minimum": 1},
                "required": true,
            });
        }
        if has_problems(path) {
            response["content"] = json!({"application/problem+json": {"schema": named("Problem")}});
        }
        if status == "401" {
            response["headers"]["WWW-Authenticate"] = json!({"schema": {"type": "string"}, "required": true});
        }
    }
}

fn named(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// A parameter that may be left out cannot be null all the same.
pub(crate) fn not_null(schema: &mut Value) {
    if let Some(kinds) = schema["type"].as_array() {
        let kinds: Vec<Value> = kinds.iter().filter(|kind| *kind != "null").cloned().collect();
        if let [kind] = &kinds[..] {
            schema["type"] = kind.clone();
        }
    }
}

/// Writes `{"type": ["string", "null"], "format": …}` as a choice between the two: what is said about the text says
/// nothing about null, and not every reader knows.
pub(crate) fn plain_nullables(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            split(fields);
            fields.values_mut().for_each(plain_nullables);
        }
        Value::Array(items) => items.iter_mut().for_each(plain_nullables),
        _ => {}
    }
}

fn split(fields: &mut Map<String, Value>) {
    const ABOUT_TEXT: [&str; 5] = ["format", "pattern", "minLength", "maxLength", "enum"];
    let nullable = fields.get("type") == Some(&json!(["string", "null"]));
    if !nullable || !ABOUT_TEXT.iter().any(|name| fields.contains_key(*name)) {
        return;
    }
    fields.remove("type");
    let mut text = Map::from_iter([("type".to_owned(), json!("string"))]);
    for name in ABOUT_TEXT {
        if let Some(mut value) = fields.remove(name) {
            if let Some(choices) = value.as_array_mut() {
                choices.retain(|choice| !choice.is_null());
            }
            text.insert(name.to_owned(), value);
        }
    }
    fields.insert("anyOf".to_owned(), json!([text, {"type": "null"}]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_a_text_says_nothing_about_null() {
        let mut schema =
            json!({"properties": {"id": {"type": ["string", "null"], "format": "uuid", "description": "x"}}});
        plain_nullables(&mut schema);
        let id = json!({"description": "x", "anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]});
        assert_eq!(schema, json!({"properties": {"id": id}}));
    }

    #[test]
    fn refusals_have_the_shape_of_their_route() {
        let operation = || json!({"responses": {"404": {"description": "no"}}, "requestBody": {}});
        let (mut platform, mut tracing) = (operation(), operation());
        complete_operation(&Method::PATCH, "/api/v1/bulk-exports/{id}", &mut platform);
        complete_operation(&Method::PATCH, "/api/v1/sessions/{id}", &mut tracing);
        let schema =
            |of: &Value, status: &str| of["responses"][status]["content"]["application/json"]["schema"].clone();
        assert_eq!(schema(&platform, "404"), named("Error"));
        assert_eq!(schema(&tracing, "404"), named("TracingError"));
        assert_eq!(schema(&platform, "415"), named("Error"));
        assert_eq!(platform["responses"]["429"]["headers"]["Retry-After"]["required"], true);
    }
}
