//! The API description, and what requests outside of it are answered.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::World;

#[tokio::test]
async fn the_description_is_complete() {
    let world = World::new().await;
    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    assert_eq!(document["info"]["version"], "0.1.0");
    assert_eq!(
        document["components"]["securitySchemes"]["api_key"]["name"],
        "X-API-Key"
    );
    for path in [
        "/info",
        "/api/v1/info",
        "/runs/multipart",
        "/api/v1/runs/multipart",
        "/runs/{run_id}",
        "/sessions",
        "/livez",
        "/metrics",
        "/api/v1/bulk-exports",
        "/api/v1/bulk-exports/destinations",
    ] {
        assert!(document["paths"][path].is_object(), "{path} is missing");
    }

    let mut ids: Vec<_> = operations(&document)
        .map(|(_, _, operation)| operation["operationId"].to_string())
        .collect();
    ids.sort();
    let twice: Vec<_> = ids.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "operation ids are not unique: {twice:?}");

    // Every reference leads somewhere.
    let text = document.to_string();
    for at in text.split("\"$ref\":\"#").skip(1) {
        let pointer = at.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
    }
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let world = World::new().await;
    let page = world.open(Method::GET, "/docs").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text.contains("/runs/multipart") && page.text.contains("bulk-exports"));
    for foreign in ["http://", "https://", "src=", "<script"] {
        assert!(!page.text.contains(foreign), "the page contains {foreign}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_in_json() {
    let world = World::new().await;
    let missing = world.open(Method::GET, "/nothing/here").await;
    assert_eq!(missing.expect(404), json!({"detail": "no such route"}));

    let wrong = world.open(Method::DELETE, "/docs").await;
    assert_eq!(wrong.headers["allow"], "GET,HEAD");
    assert_eq!(
        wrong.expect(405),
        json!({"detail": "this route does not support this method"})
    );

    let tracing = world.open(Method::DELETE, "/api/v1/runs/batch").await;
    assert_eq!(tracing.headers["allow"], "POST");
    assert_eq!(
        tracing.expect(405),
        json!({"error": "method not allowed", "details": "this route does not support this method"})
    );
    let sessions = world.open(Method::PUT, "/sessions").await;
    assert_eq!(sessions.headers["allow"], "POST,GET,HEAD");
}

#[tokio::test]
async fn answers_carry_an_id_and_are_not_sniffed() {
    let world = World::new().await;
    let answer = world.open(Method::GET, "/info").await;
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers["x-frame-options"], "DENY");
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(
        answer.headers["content-security-policy"],
        "default-src 'none'; frame-ancestors 'none'"
    );
    assert_eq!(answer.headers["x-request-id"].len(), 36);
    let info = answer.expect(200);
    assert_eq!(info["version"], "0.16.14");
    assert_eq!(info["product_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        info["instance_flags"],
        json!({
            "zstd_compression_enabled": true,
            "gzip_body_enabled": true,
            "dataset_examples_multipart_enabled": true,
        })
    );
    assert_eq!(info["batch_ingest_config"]["size_limit_bytes"], 20_971_520);
}

/// Every operation of a description: path, method, the operation.
pub fn operations(document: &Value) -> impl Iterator<Item = (&String, Method, &Value)> {
    document["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
        item.as_object().unwrap().iter().filter_map(move |(method, operation)| {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            operation["responses"].is_object().then_some((path, method, operation))
        })
    })
}
