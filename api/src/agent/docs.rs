//! OpenAPI description of the agent API, as JSON and as a page.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use parking_lot::Mutex;
use serde_json::{Value, json};
use towpath_domain::agent::cron;
use towpath_runtime::GraphSet;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};

use super::{assistants, crons, runs, threads};
use crate::docs::{Document, rules};

/// Adds title, version and security schemes.
fn complete(mut document: OpenApi) -> OpenApi {
    document.merge(super::errors::ErrorSchemas::openapi());
    document.info.title = "Towpath agent server".to_owned();
    env!("CARGO_PKG_VERSION").clone_into(&mut document.info.version);
    let about = "Assistants, threads, runs, crons and a long-term store of one deployment.";
    document.info.description = Some(about.to_owned());
    let components = document.components.get_or_insert_default();
    let key = ApiKeyValue::with_description("X-API-Key", "An API key, if the server requires one.");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(key)));
    let key = SecurityRequirement::new::<_, [&str; 0], &str>("api_key", []);
    document.security = Some(vec![key, SecurityRequirement::default()]);
    name_operations(&mut document);
    document
}

/// Derives operation ids from method and path, so that they are unique across modules.
fn name_operations(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let words = path.split(|letter: char| !letter.is_ascii_alphanumeric());
        let mut place: String = words
            .filter(|word| !word.is_empty())
            .map(|word| format!("_{word}"))
            .collect();
        // The path without it may be another one.
        if path.len() > 1 && path.ends_with('/') {
            place.push_str("_slash");
        }
        let operations = [
            ("get", &mut item.get),
            ("post", &mut item.post),
            ("put", &mut item.put),
            ("patch", &mut item.patch),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                operation.operation_id = Some(format!("{method}{place}"));
            }
        }
    }
}

/// The description with the names of the graphs, which `dev` may replace at any time.
struct AgentDocument {
    build: fn() -> OpenApi,
    graphs: GraphSet,
    cached: Mutex<(Vec<String>, Document)>,
}

impl AgentDocument {
    fn new(collected: fn() -> OpenApi, graphs: GraphSet) -> Self {
        let named = names(&graphs);
        Self {
            build: collected,
            graphs,
            cached: Mutex::new((named.clone(), document(collected, named))),
        }
    }

    /// The description with the current graphs.
    fn document(&self) -> Document {
        let named = names(&self.graphs);
        let mut last = self.cached.lock();
        if last.0 != named {
            *last = (named.clone(), document(self.build, named));
        }
        last.1.clone()
    }
}

fn names(graphs: &GraphSet) -> Vec<String> {
    graphs.current().ids().map(str::to_owned).collect()
}

fn document(collected: fn() -> OpenApi, graphs: Vec<String>) -> Document {
    Document::new(move || {
        let document = complete(collected());
        let mut json = serde_json::to_value(document).expect("the document is plain data with text keys");
        finish(&mut json, &graphs);
        json
    })
}

/// Both routes of a description.
pub(super) fn routes(collected: fn() -> OpenApi, graphs: GraphSet) -> Router {
    let described = Arc::new(AgentDocument::new(collected, graphs));
    let as_page = Arc::clone(&described);
    let json = async move |headers: HeaderMap| {
        let json = described.document().json().await;
        let text = match prefix(&headers) {
            None => json,
            Some(prefix) => below(&json, prefix).into(),
        };
        ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")], text)
    };
    Router::new()
        .route("/openapi.json", get(json))
        .route("/docs", get(async move || as_page.document().page().await))
}

/// Adds what Rust types cannot express.
fn finish(document: &mut Value, graphs: &[String]) {
    for (schema, fields) in [
        ("AssistantSearch", &assistants::FIELDS[..]),
        ("CronSearch", &crons::FIELDS),
        ("RunSearch", &runs::FIELDS),
        ("ThreadSearch", &threads::FIELDS),
    ] {
        document["components"]["schemas"][schema]["properties"]["select"]["items"]["enum"] = json!(fields);
    }
    let named = document["components"]["schemas"].clone();
    for (path, method, name) in [
        ("/assistants/search", "post", "Assistant"),
        ("/runs/crons/search", "post", "Cron"),
        ("/runs/search", "post", "Run"),
        ("/threads/search", "post", "Thread"),
        ("/threads/{thread_id}/runs", "get", "Run"),
    ] {
        // Only selected fields are returned.
        let mut selected = named[name].clone();
        if let Some(schema) = selected.as_object_mut() {
            schema.remove("required");
        }
        let selected_name = format!("Selected{name}");
        let answer = &mut document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"];
        answer["items"] = json!({"$ref": format!("#/components/schemas/{selected_name}")});
        document["components"]["schemas"][selected_name] = selected;
    }
    let paths = document["paths"].as_object_mut().expect("a document has paths");
    let operations = paths.values_mut().filter_map(Value::as_object_mut);
    for operation in operations.flat_map(|item| item.values_mut()) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            crate::docs::not_null(&mut parameter["schema"]);
            if parameter["name"] == "select" {
                parameter["schema"]["items"]["enum"] = json!(runs::FIELDS);
            }
        }
        if let Some(body) = operation.get_mut("requestBody") {
            // A missing body is read as an empty object.
            let schema = &body["content"]["application/json"]["schema"];
            let name = schema["$ref"].as_str().and_then(|place| place.rsplit('/').next());
            let optional = name.is_some_and(|name| named[name].get("required").is_none());
            body["required"] = json!(!optional);
        }
    }
    let schemas = &mut document["components"]["schemas"];
    schemas["AssistantName"] = json!({
        "description": "An assistant's id, or the name of a graph.",
        "anyOf": [{"type": "string", "format": "uuid"}, {"type": "string", "enum": graphs}],
    });
    let asked = &mut schemas["CronRequest"]["properties"];
    asked["schedule"]["pattern"] = cron::pattern().into();
    asked["schedule"]["maxLength"] = cron::LONGEST.into();
    asked["timezone"]["enum"] = cron::zones().collect();
    rules::apply(document, rules::AGENT);
    crate::docs::plain_nullables(document);
}

/// Path prefix from a proxy, if it is a valid path.
fn prefix(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("x-forwarded-prefix")?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    (text.starts_with('/') && text.len() <= 256 && text.bytes().all(plain)).then_some(text)
}

fn below(document: &[u8], prefix: &str) -> String {
    let mut document: Value = serde_json::from_slice(document).expect("it was written here");
    document["servers"] = json!([{ "url": prefix }]);
    document.to_string()
}
