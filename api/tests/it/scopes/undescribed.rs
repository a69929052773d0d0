//! The dashboard, the gateway and the registry, whose routes no description lists: they are enumerated from their routers.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Method;
use serde_json::{Value, json};
use towpath_api::{Route, UndescribedRoutes, required_scopes};
use towpath_domain::{DeploymentId, Scope, Secret, TenantId};

use super::{SCOPES, UNKNOWN, columns, filled, send};
use crate::dashboard::form;
use crate::world::{Answer, Call, World};

/// What the pages answer to somebody who may see them, where everything they name is unknown.
const PAGES: &[(&str, &str, u16)] = &[
    ("GET", "/ui/traces", 200),
    ("GET", "/ui/traces/{project_id}", 404),
    ("GET", "/ui/traces/{project_id}/{run_id}", 404),
    ("GET", "/ui/datasets", 200),
    ("GET", "/ui/datasets/{dataset_id}", 404),
    ("GET", "/ui/prompts", 200),
    ("GET", "/ui/prompts/{tenant_id}/{name}", 404),
    ("GET", "/ui/quarantine", 200),
    ("GET", "/ui/quarantine/{entry_id}", 404),
    ("POST", "/ui/quarantine/{entry_id}/{action}", 404),
    ("GET", "/ui/queues", 200),
    ("POST", "/ui/queues/{pool}/{action}", 404),
    ("GET", "/ui/jobs", 200),
    ("GET", "/ui/jobs/{job_id}", 404),
    ("POST", "/ui/jobs/{job_id}/{action}", 404),
    ("GET", "/ui/workers", 200),
    ("POST", "/ui/workers/{worker_id}/{action}", 404),
    ("GET", "/ui/deployments", 200),
    ("GET", "/ui/deployments/{deployment_id}", 404),
    ("POST", "/ui/deployments/{deployment_id}/delete", 404),
    ("GET", "/ui/revisions/{revision_id}", 404),
    ("POST", "/ui/revisions/{revision_id}/{action}", 404),
    ("GET", "/ui/sandboxes", 200),
    ("GET", "/ui/sandboxes/{box_id}", 404),
    ("POST", "/ui/sandboxes/{box_id}/snapshot", 404),
    ("POST", "/ui/sandboxes/{box_id}/{action}", 404),
    ("POST", "/ui/sandbox-nodes/{node_id}/{action}", 404),
    ("GET", "/ui/exports", 200),
    ("GET", "/ui/exports/destinations", 200),
    ("POST", "/ui/exports/destinations/{destination_id}/delete", 404),
    ("GET", "/ui/exports/{export_id}", 404),
    ("GET", "/ui/schedules", 200),
    ("POST", "/ui/schedules/{schedule_id}/{action}", 404),
    ("GET", "/ui/limits", 200),
    ("GET", "/ui/dead", 200),
    ("POST", "/ui/dead/{job_id}/retry", 404),
    ("GET", "/ui/keys", 200),
    // Without a name.
    ("POST", "/ui/keys", 422),
    ("POST", "/ui/keys/{key_id}/{action}", 404),
];

/// What everybody gets of the dashboard.
const OPEN_PAGES: &[(&str, &str, u16)] = &[
    ("GET", "/", 303),
    ("GET", "/ui", 303),
    ("GET", "/ui/", 303),
    ("GET", "/o/{tenant_id}/host/deployments/{deployment_id}", 303),
    ("GET", "/o/{tenant_id}/datasets/{dataset_id}", 303),
    ("GET", "/o/{tenant_id}/datasets/{dataset_id}/compare", 303),
    ("GET", "/o/{tenant_id}/projects/p/{project_id}", 303),
    ("GET", "/prompts/{name}", 303),
    ("GET", "/prompts/{name}/{commit}", 303),
    ("GET", "/ui/assets/{name}", 404),
    ("GET", "/ui/sign-in", 200),
    ("POST", "/ui/sign-in", 422),
    ("POST", "/ui/sign-out", 303),
    ("GET", "/ui/enter", 401),
    ("GET", "/guide", 200),
    ("GET", "/guide/", 303),
    ("GET", "/guide/{*path}", 404),
    ("GET", "/llms.txt", 200),
    ("GET", "/llms-full.txt", 200),
];

const GATEWAY: &[(&str, &str)] = &[
    ("*", "/d/{deployment}"),
    ("*", "/d/{deployment}/"),
    ("*", "/d/{deployment}/{*path}"),
];

const SERVICES: &[(&str, &str)] = &[
    ("*", "/v2/sandboxes/services/{box_id}/{port}"),
    ("*", "/v2/sandboxes/services/{box_id}/{port}/"),
    ("*", "/v2/sandboxes/services/{box_id}/{port}/{*path}"),
];

/// What the registry answers to a token of the deployment, where everything else is unknown; the query that is needed.
const REGISTRY: &[(&str, &str, &str, u16)] = &[
    ("GET", "/v2", "", 200),
    ("GET", "/v2/", "", 200),
    ("POST", "/v2/images/{deployment}/blobs/uploads/", "", 202),
    ("GET", "/v2/images/{deployment}/blobs/uploads/{upload}", "", 404),
    ("PATCH", "/v2/images/{deployment}/blobs/uploads/{upload}", "", 404),
    ("PUT", "/v2/images/{deployment}/blobs/uploads/{upload}", DIGEST, 404),
    ("DELETE", "/v2/images/{deployment}/blobs/uploads/{upload}", "", 404),
    // No digest.
    ("GET", "/v2/images/{deployment}/blobs/{digest}", "", 400),
    ("GET", "/v2/images/{deployment}/manifests/{reference}", "", 404),
    // No manifest.
    ("PUT", "/v2/images/{deployment}/manifests/{reference}", "", 400),
    ("GET", "/v2/images/{deployment}/tags/list", "", 200),
];

const DIGEST: &str = "?digest=sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Holds lines to the routes of a router.
fn covered(routes: &[Route], lines: impl Iterator<Item = (&'static str, &'static str)>) {
    let routes: BTreeSet<_> = routes.iter().map(|route| (route.method, route.path)).collect();
    let lines: BTreeSet<_> = lines.collect();
    assert_eq!(routes, lines, "the router's routes, and the lines of this test");
}

fn method(name: &str) -> Method {
    name.parse().expect("it is a method")
}

/// A request as a browser sends it.
fn browse(name: &str, path: &str, cookie: Option<&str>) -> Call {
    let call = if name == "POST" {
        form(path, "")
    } else {
        Call::new(method(name), path)
    };
    match cookie {
        Some(cookie) => call.header("cookie", cookie),
        None => call,
    }
}

/// The cookie of a session that a key begins.
async fn session(world: &World, key: &Secret) -> String {
    let begin = Call::new(Method::POST, "/auth/session").header("x-api-key", key.reveal());
    let begun = world.call(begin).await.expect(201);
    format!("towpath_session={}", begun["token"].as_str().expect("it has a token"))
}

#[tokio::test]
async fn each_page_takes_the_scope_it_declares_and_no_other() {
    let routes = UndescribedRoutes::all();
    covered(&routes.pages, PAGES.iter().map(|(method, path, _)| (*method, *path)));
    covered(
        &routes.open_pages,
        OPEN_PAGES.iter().map(|(method, path, _)| (*method, *path)),
    );
    let world = World::new().await;
    let mut cells = 0;
    for (name, path, status) in OPEN_PAGES {
        let answer = world.call(browse(name, &filled(path, |_| None), None)).await;
        assert_eq!(answer.status, *status, "{name} {path}: {}", answer.text);
        cells += 1;
    }
    let ended = session(&world, &world.ending_key().await).await;
    world.clock.advance(Duration::from_secs(60));
    let organization = world.organization().await;
    let mut sessions = Vec::new();
    for scope in columns() {
        let key = world.key_with(organization, Some(world.tenant), &[scope]).await;
        sessions.push((scope, session(&world, &key).await));
    }
    for (name, path, status) in PAGES {
        let at = filled(path, |_| None);
        // A page asks who it is, and a form leads to where that is asked.
        let asked: u16 = if *name == "GET" { 401 } else { 303 };
        for cookie in [None, Some(ended.as_str())] {
            let answer = world.call(browse(name, &at, cookie)).await;
            assert_eq!(answer.status, asked, "{name} {path} without a session: {}", answer.text);
            cells += 1;
        }
        let needed = required_scopes(&method(name), path).expect("it declares a scope");
        for (scope, cookie) in &sessions {
            let answer = world.call(browse(name, &at, Some(cookie))).await;
            let allows = needed.iter().any(|needed| scope.includes(*needed));
            let expected = if allows { *status } else { 403 };
            assert_eq!(answer.status, expected, "{name} {path} with {scope}: {}", answer.text);
            cells += 1;
        }
        if *name == "POST" {
            let foreign = Call::new(Method::POST, &at)
                .header("cookie", &sessions[9].1)
                .header("content-type", "application/x-www-form-urlencoded")
                .header("sec-fetch-site", "cross-site");
            let answer = world.call(foreign).await;
            assert_eq!(answer.status, 403, "{name} {path} from a page of elsewhere");
            cells += 1;
        }
    }
    println!("{cells} cells checked");
    assert!(cells > 350, "only {cells} cells were checked");
}

/// They ask for a token of their own, and no key stands in for it.
#[tokio::test]
async fn services_of_sandboxes_take_no_key() {
    covered(&UndescribedRoutes::all().services, SERVICES.iter().copied());
    let world = World::new().await;
    let key = world
        .key_with(world.organization().await, Some(world.tenant), &SCOPES)
        .await;
    for path in ["", "/", "/a/b", "/_svc/auth", "/_svc/auth?token=x"] {
        let path = format!("/v2/sandboxes/services/{UNKNOWN}/80{path}");
        let answer = send(&world, &key, world.tenant, Method::GET, &path, None).await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.text);
    }
}

async fn deployed(world: &World, key: &Secret, tenant: TenantId, source: &str) -> String {
    let revision = match source {
        "external_docker" => json!({"image_uri": "registry.example/agent:1"}),
        _ => json!({}),
    };
    let new: Value = json!({
        "name": "agent", "source": source, "secrets": [], "source_config": {}, "source_revision_config": revision,
    });
    let made = send(world, key, tenant, Method::POST, "/v2/deployments", Some(&new)).await;
    made.expect(201)["id"].as_str().expect("it has an id").to_owned()
}

/// Those of the organisation's workspaces are open to its keys; others' are as those that nobody has.
#[tokio::test]
async fn the_gateway_takes_keys_that_may_call() {
    covered(&UndescribedRoutes::all().gateway, GATEWAY.iter().copied());
    let world = World::new().await;
    let sibling = world.second_workspace().await;
    let own = world.organization().await;
    let (elsewhere, foreign) = world.elsewhere().await;
    let here = world.key_with(own, Some(world.tenant), &SCOPES).await;
    let next_door = world.key_with(own, Some(sibling), &SCOPES).await;
    let far = world.key_with(elsewhere, None, &SCOPES).await;
    let own_id = deployed(&world, &here, world.tenant, "external_docker").await;
    let sibling_id = deployed(&world, &next_door, sibling, "external_docker").await;
    let foreign_id = deployed(&world, &far, foreign, "external_docker").await;
    let ended = [world.revoked_key().await, world.ending_key().await];
    let one: DeploymentId = own_id.parse().expect("it is an id");
    let mut keys = Vec::new();
    for scope in columns().into_iter().chain([Scope::AgentsInvokeOf(one)]) {
        keys.push((scope, world.limited_key(&[scope]).await));
    }
    world.clock.advance(Duration::from_secs(60));

    let mut cells = 0;
    for (_, path) in GATEWAY {
        let ask = async |id: &str, key: Option<&Secret>| -> Answer {
            let at = path.replace("{deployment}", id).replace("{*path}", "threads");
            let call = Call::new(Method::POST, &at);
            world
                .call(match key {
                    Some(key) => call.header("x-api-key", key.reveal()),
                    None => call,
                })
                .await
        };
        for key in [None, Some(&ended[0]), Some(&ended[1])] {
            for id in [own_id.as_str(), UNKNOWN] {
                assert_eq!(ask(id, key).await.status, 401, "{path}");
                cells += 1;
            }
        }
        for (scope, key) in &keys {
            let unknown = ask(UNKNOWN, Some(key)).await;
            assert_eq!(unknown.status, 404, "{path} with {scope}");
            let of_others = ask(&foreign_id, Some(key)).await;
            assert_eq!(
                (of_others.status, of_others.text),
                (unknown.status, unknown.text),
                "{path} with {scope}"
            );
            for id in [&own_id, &sibling_id] {
                let needed = Scope::AgentsInvokeOf(id.parse().expect("it is an id"));
                // Nothing serves yet, which only those hear who may call it.
                let expected: u16 = if scope.includes(needed) { 503 } else { 403 };
                let answer = ask(id, Some(key)).await;
                assert_eq!(answer.status, expected, "{path} with {scope}: {}", answer.text);
            }
            cells += 4;
        }
    }
    println!("{cells} cells checked");
    assert!(cells > 150, "only {cells} cells were checked");
}

/// No key opens the registry, and a token opens the images of its deployment alone.
#[tokio::test]
async fn the_registry_takes_tokens_of_the_deployment() {
    let routes = UndescribedRoutes::all().registry;
    covered(&routes, REGISTRY.iter().map(|(method, path, ..)| (*method, *path)));
    let world = World::new().await;
    let sibling = world.second_workspace().await;
    let own = world.organization().await;
    let (elsewhere, foreign) = world.elsewhere().await;
    let here = world.key_with(own, Some(world.tenant), &SCOPES).await;
    let next_door = world.key_with(own, Some(sibling), &SCOPES).await;
    let far = world.key_with(elsewhere, None, &SCOPES).await;
    let own_id = deployed(&world, &here, world.tenant, "internal_docker").await;
    let sibling_id = deployed(&world, &next_door, sibling, "internal_docker").await;
    let foreign_id = deployed(&world, &far, foreign, "internal_docker").await;
    let path = format!("/v2/deployments/{own_id}/push-token");
    let token = send(&world, &here, world.tenant, Method::POST, &path, None)
        .await
        .expect(200);
    let token = token["token"].as_str().expect("it is a token");

    let mut cells = 0;
    for (name, path, query, status) in REGISTRY {
        let ask = async |deployment: &str, password: Option<&str>| {
            let at = filled(path, |name| (name == "deployment").then_some(deployment));
            let call = Call::new(method(name), &format!("{at}{query}"));
            let call = match password {
                Some(password) => {
                    let basic = BASE64.encode(format!("towpath:{password}"));
                    call.header("authorization", &format!("Basic {basic}"))
                }
                None => call,
            };
            world.call(call).await
        };
        for password in [None, Some("guess"), Some(here.reveal())] {
            for id in [own_id.as_str(), UNKNOWN] {
                let answer = ask(id, password).await;
                assert_eq!(answer.status, 401, "{name} {path}: {}", answer.text);
                cells += 1;
            }
        }
        let answer = ask(&own_id, Some(token)).await;
        assert_eq!(answer.status, *status, "{name} {path}: {}", answer.text);
        cells += 1;
        if !path.contains("{deployment}") {
            continue;
        }
        let unknown = ask(UNKNOWN, Some(token)).await;
        assert_eq!(unknown.status, 403, "{name} {path}: {}", unknown.text);
        for id in [&sibling_id, &foreign_id] {
            let answer = ask(id, Some(token)).await;
            assert_eq!(
                (answer.status, &answer.text),
                (unknown.status, &unknown.text),
                "{name} {path}"
            );
            cells += 1;
        }
    }
    println!("{cells} cells checked");
    assert!(cells > 80, "only {cells} cells were checked");
}
