//! The API description at `/openapi.json`, and `/docs`: the same as a page, rendered here once, without scripts and
//! without anything from elsewhere, so it works offline and under a strict content policy.

use std::fmt::Write as _;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};

/// The version of the control plane's API description, which the contract fixes. The product's own stands in `/info`.
const API_VERSION: &str = "0.1.0";

/// The two routes over a finished document.
pub(crate) fn routes(document: &OpenApi) -> Router {
    let json = serde_json::to_value(document).expect("the document is plain data with text keys");
    let page = page_route(&json);
    let json = Bytes::from(json.to_string());
    let json_route = get(async move || ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")], json));
    Router::new()
        .route("/openapi.json", json_route)
        .route("/docs", page)
}

/// A document as a page.
pub(crate) fn page_route<S: Clone + Send + Sync + 'static>(document: &Value) -> MethodRouter<S> {
    let page = Bytes::from(page(document));
    get(async move || {
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-cache"),
            (
                CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
            ),
        ];
        (headers, page).into_response()
    })
}

/// Gives the collected paths their head: title, version, how to authenticate.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    document.info.title = "Towpath platform".to_owned();
    API_VERSION.clone_into(&mut document.info.version);
    document.info.description = Some("Trace ingest, tracing projects, bulk export, operations.".to_owned());
    let components = document.components.get_or_insert_default();
    let header =
        |name: &str, text: &str| SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(name, text)));
    components.add_security_scheme("api_key", header("X-API-Key", "An API key of the organization."));
    components.add_security_scheme(
        "tenant_id",
        header(
            "X-Tenant-Id",
            "The workspace. May be left out where the key opens only one.",
        ),
    );
    let both = SecurityRequirement::new::<_, [&str; 0], &str>("api_key", []).add::<_, [&str; 0], &str>("tenant_id", []);
    document.security = Some(vec![both]);
    document
}

/// The document as one page.
fn page(document: &Value) -> String {
    let mut html = String::with_capacity(64 * 1024);
    let title = text(&document["info"]["title"]);
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style>\
         <h1>{title} <small>{}</small></h1><p>{} The same for programs: <a href=\"openapi.json\">openapi.json</a>.",
        text(&document["info"]["version"]),
        text(&document["info"]["description"]),
    );
    for (path, item) in entries(&document["paths"]) {
        for (method, operation) in entries(item).filter(|(method, _)| METHODS.contains(&method.as_str())) {
            self::operation(&mut html, path, method, operation);
        }
    }
    html.push_str("<h2>Schemas</h2>");
    for (name, schema) in entries(&document["components"]["schemas"]) {
        let name = escape(name);
        let schema = escape(&serde_json::to_string_pretty(schema).unwrap_or_default());
        let _ = write!(
            html,
            "<details id=\"{name}\"><summary><b>{name}</b></summary><pre>{schema}</pre></details>"
        );
    }
    html.push_str("</html>\n");
    html
}

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

fn operation(html: &mut String, path: &str, method: &str, operation: &Value) {
    let lock = if operation["security"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one == &serde_json::json!({})))
    {
        "no key needed"
    } else {
        ""
    };
    let _ = write!(
        html,
        "<details><summary><code class=\"{method}\">{}</code> <code>{}</code> {} <small>{lock}</small></summary><p>{}",
        method.to_uppercase(),
        escape(path),
        text(&operation["summary"]),
        text(&operation["description"]),
    );
    let parameters = operation["parameters"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if !parameters.is_empty() {
        html.push_str("<table><tr><th>parameter<th>in<th>");
        for parameter in parameters {
            let _ = write!(
                html,
                "<tr><td><code>{}</code><td>{}<td>{}",
                text(&parameter["name"]),
                text(&parameter["in"]),
                text(&parameter["description"])
            );
        }
        html.push_str("</table>");
    }
    for (kind, body) in entries(&operation["requestBody"]["content"]) {
        let _ = write!(html, "<p>Body: <code>{}</code> {}", escape(kind), link(&body["schema"]));
    }
    html.push_str("<table><tr><th>answer<th><th>");
    for (status, answer) in entries(&operation["responses"]) {
        let schemas: Vec<_> = entries(&answer["content"])
            .map(|(_, body)| link(&body["schema"]))
            .collect();
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{}",
            escape(status),
            text(&answer["description"]),
            schemas.join(" ")
        );
    }
    html.push_str("</table></details>");
}

/// A link to a schema that is named, the schema itself otherwise.
fn link(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|at| at.rsplit('/').next()) {
        let name = escape(name);
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    if schema["type"] == "array" && !schema["items"]["$ref"].is_null() {
        return format!("list of {}", link(&schema["items"]));
    }
    if schema.is_null() {
        String::new()
    } else {
        format!("<code>{}</code>", escape(&schema.to_string()))
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
small{color:#666;font-weight:normal}details{border-top:1px solid #ddd;padding:.4rem 0}summary{cursor:pointer}\
td,th{text-align:left;padding:.1rem 1rem .1rem 0;vertical-align:top}pre{background:#f6f6f6;padding:1rem;overflow:auto}\
.get{color:#0a6}.post{color:#06c}.patch{color:#a60}.delete{color:#c22}\
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre{background:#1c1c1c}a{color:#6af}}";
