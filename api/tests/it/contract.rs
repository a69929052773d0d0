//! The API description tells the truth about the router: the same routes, the same methods, and it is checked in.

use std::collections::{BTreeMap, BTreeSet};

use http::{Method, StatusCode};
use serde_json::Value;

use crate::world::World;

const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Routes that are no part of the interface, each with why.
const UNDESCRIBED: [(&str, &str); 27] = [
    ("/ui", "pages for people, which link to one another"),
    (
        "/o/{tenant_id}/host/deployments/{deployment_id}",
        "leads to the page, from where `langgraph deploy` says it is",
    ),
    (
        "/o/{tenant_id}/datasets/{dataset_id}",
        "leads to the page, from where clients say it is",
    ),
    ("/o/{tenant_id}/datasets/{dataset_id}/compare", "the same"),
    ("/o/{tenant_id}/projects/p/{project_id}", "the same"),
    ("/prompts/{name}", "the same"),
    ("/prompts/{name}/{commit}", "the same"),
    (
        "/v2/sandboxes/services/{box_id}/{port}",
        "a gateway: what a program in a sandbox serves",
    ),
    ("/v2/sandboxes/services/{box_id}/{port}/", "the same"),
    ("/v2/sandboxes/services/{box_id}/{port}/{*path}", "the same"),
    ("/d/{deployment}", "the gateway: what a deployment serves"),
    ("/d/{deployment}/", "the same"),
    ("/d/{deployment}/{*path}", "the same"),
    (
        "/v2",
        "the registry of images, which the OCI Distribution Specification describes",
    ),
    ("/v2/", "the same"),
    ("/v2/images/{deployment}/blobs/uploads/", "the same"),
    ("/v2/images/{deployment}/blobs/uploads/{upload}", "the same"),
    ("/v2/images/{deployment}/blobs/{digest}", "the same"),
    ("/v2/images/{deployment}/manifests/{reference}", "the same"),
    ("/v2/images/{deployment}/tags/list", "the same"),
    ("/guide", "the documentation, which links to its pages"),
    ("/guide/", "the same"),
    ("/guide/{*path}", "the same"),
    ("/llms.txt", "the index of the documentation for language models"),
    ("/llms-full.txt", "the documentation in one file"),
    ("/", "leads to the pages"),
    ("/{*__private__axum_fallback}", "axum's own, for what is no route"),
];

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "says that the file is to be written anew")]
async fn the_description_is_checked_in() {
    let world = World::new().await;
    let served = world.open(Method::GET, "/openapi.json").await.expect(200);
    let served = format!("{}\n", serde_json::to_string_pretty(&served).unwrap());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    if std::env::var_os("TOWPATH_UPDATE").is_some() {
        std::fs::write(file, &served).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    let line = kept
        .lines()
        .zip(served.lines())
        .position(|(kept, served)| kept != served);
    assert!(
        kept == served,
        "docs/openapi.json is not what is served (line {:?}); refresh it with\n  \
         TOWPATH_UPDATE=1 cargo test --workspace --test it -- contract::the_description_is_checked_in",
        line.map(|line| line + 1)
    );
}

/// Paths with the methods they are described with.
fn described(document: &Value) -> BTreeMap<String, BTreeSet<Method>> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .map(|(path, item)| {
            let methods = METHODS
                .into_iter()
                .filter(|method| item.get(method.as_str().to_lowercase()).is_some());
            (path.clone(), methods.collect())
        })
        .collect()
}

/// Paths the router holds. It has no list of them to ask for, but it shows them to who debugs it.
fn routed(world: &World) -> BTreeSet<String> {
    let shown = format!("{:?}", world.router);
    let paths: BTreeSet<String> = shown
        .split("RouteId(")
        .filter_map(|piece| {
            let (_, path) = piece.split_once("): \"")?;
            Some(path.split('"').next()?.to_owned())
        })
        .filter(|path| path.starts_with('/'))
        .collect();
    assert!(
        paths.contains("/livez") && paths.contains("/runs/{run_id}"),
        "cannot read the router: {shown:.2000}"
    );
    paths
}

#[tokio::test]
async fn every_route_is_described_and_every_description_is_routed() {
    let world = World::new().await;
    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    let described = described(&document);
    let routed: BTreeSet<String> = routed(&world)
        .into_iter()
        .filter(|path| {
            !UNDESCRIBED
                .iter()
                .any(|(prefix, _)| path == prefix || *prefix == "/ui" && path.starts_with("/ui/"))
        })
        .collect();
    let missing: Vec<_> = routed.iter().filter(|path| !described.contains_key(*path)).collect();
    assert!(missing.is_empty(), "routes without a description: {missing:?}");
    let invented: Vec<_> = described.keys().filter(|path| !routed.contains(*path)).collect();
    assert!(invented.is_empty(), "descriptions without a route: {invented:?}");
}

#[tokio::test]
async fn methods_are_those_of_the_description() {
    let world = World::new().await;
    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    for (template, methods) in described(&document) {
        let path = template
            .split('/')
            .map(|part| {
                if part.starts_with('{') {
                    "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"
                } else {
                    part
                }
            })
            .collect::<Vec<_>>()
            .join("/");
        for method in METHODS {
            let answer = world.open(method.clone(), &path).await;
            let refused = answer.status == StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(
                !refused,
                methods.contains(&method),
                "{method} {template}: {}",
                answer.status
            );
            if refused {
                let allowed: BTreeSet<Method> = answer.headers["allow"]
                    .to_str()
                    .unwrap()
                    .split(',')
                    .map(|name| name.trim().parse().unwrap())
                    // They come with GET, and with what pages of elsewhere may call.
                    .filter(|method| !matches!(*method, Method::HEAD | Method::OPTIONS))
                    .collect();
                assert_eq!(allowed, methods, "Allow of {template}");
            }
        }
    }
}

#[tokio::test]
async fn every_refusal_has_its_shape_described() {
    let world = World::new().await;
    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let Some(responses) = operation["responses"].as_object() else {
                continue;
            };
            for (status, response) in responses.iter().filter(|(status, _)| status.starts_with('4')) {
                assert!(
                    response["content"].is_object(),
                    "{method} {path} {status} has no body described"
                );
            }
        }
    }
}
