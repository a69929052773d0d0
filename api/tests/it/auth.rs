//! Keys and workspaces, over every operation of the API description.

use std::path::Path;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use towpath_domain::{Secret, TenantId};
use towpath_store::access::{self, NewKey};

use crate::documents::operations;
use crate::world::{Call, KEY, World};

/// What needs no key. A new route that should stand here has to be written here.
const OPEN: [&str; 21] = [
    "/info",
    "/api/v1/info",
    "/attachments/{link}",
    "/api/v1/attachments/{link}",
    "/v1/metadata/submit",
    "/api/v1/v1/metadata/submit",
    "/v1/beacon",
    "/api/v1/v1/beacon",
    "/livez",
    "/readyz",
    "/ok",
    "/metrics",
    "/openapi.json",
    "/docs",
    // A token or a signature stands in for the key.
    "/feedback/tokens/{token}",
    "/api/v1/feedback/tokens/{token}",
    "/v2/sandboxes/downloads/{token}",
    "/v2/uploads/{upload_id}",
    "/api-host/v2/uploads/{upload_id}",
    "/v1/integrations/github/{integration_id}/webhook",
    "/api-host/v1/integrations/github/{integration_id}/webhook",
];

#[tokio::test]
async fn every_operation_asks_for_a_key() {
    let world = World::new().await;
    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    let mut asked = 0;
    for (path, method, operation) in operations(&document) {
        let at = fill(path);
        let open = OPEN.contains(&path.as_str());
        assert_eq!(
            open,
            operation["security"] == json!([{}]),
            "{path} is described otherwise"
        );
        let bare = world.open(method.clone(), &at).await;
        if open {
            assert_ne!(bare.status, StatusCode::UNAUTHORIZED, "{method} {path}");
            continue;
        }
        asked += 1;
        let foreign = TenantId::new().to_string();
        let calls = [
            (401, Call::new(method.clone(), &at)),
            (401, Call::new(method.clone(), &at).header("x-api-key", "tp_not-a-key")),
            (401, Call::new(method.clone(), &at).header("x-api-key", "")),
            (
                401,
                Call::new(method.clone(), &at).header("authorization", &format!("Bearer {KEY}")),
            ),
            // The workspace is looked at only once the key is good.
            (401, Call::new(method.clone(), &at).header("x-tenant-id", "not-a-uuid")),
            (
                403,
                Call::new(method.clone(), &at)
                    .header("x-api-key", KEY)
                    .header("x-tenant-id", &foreign),
            ),
            (
                422,
                Call::new(method.clone(), &at)
                    .header("x-api-key", KEY)
                    .header("x-tenant-id", "not-a-uuid"),
            ),
            (
                400,
                Call::new(method.clone(), &at)
                    .header("x-api-key", KEY)
                    .header("x-api-key", KEY),
            ),
            (
                400,
                Call::new(method.clone(), &at)
                    .header("x-api-key", KEY)
                    .header("x-tenant-id", &world.tenant.to_string())
                    .header("X-Tenant-Id", &foreign),
            ),
        ];
        // Where it names what opens it, that is a key alone: no workspace is wanted there.
        let in_workspace = operation["security"].is_null();
        // What ends a session takes no key at all.
        let by_key = in_workspace || operation["security"].to_string().contains("api_key");
        let calls = calls
            .into_iter()
            .filter(|(status, call)| (in_workspace || !call.names("x-tenant-id")) && (by_key || *status == 401));
        for (number, (status, call)) in calls.enumerate() {
            let answer = world.call(call).await;
            assert_eq!(answer.status, status, "{method} {path}, call {number}: {}", answer.text);
            assert_eq!(
                answer.headers.contains_key("www-authenticate"),
                status == 401,
                "{method} {path}"
            );
            shape(path, &answer.json());
        }
    }
    assert!(asked > 20, "only {asked} operations ask for a key");
}

/// Tracing routes and the rest answer in different shapes.
fn shape(path: &str, body: &Value) {
    let tracing = ["/runs", "/sessions", "/feedback", "/otel", "/settings", "/attachments"]
        .iter()
        .filter_map(|start| path.strip_prefix("/api/v1").unwrap_or(path).strip_prefix(start))
        .any(|rest| rest.is_empty() || rest.starts_with('/'));
    let of_sandboxes = path.strip_prefix("/api").unwrap_or(path).starts_with("/v2/sandboxes/");
    let problem = path.starts_with("/api/v2/") && !of_sandboxes;
    let keys: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    if problem {
        assert_eq!(keys, ["detail", "status", "title", "type"], "{path}: {body}");
    } else if tracing {
        assert_eq!(keys, ["details", "error"], "{path}: {body}");
    } else {
        assert_eq!(keys, ["detail"], "{path}: {body}");
    }
}

fn fill(path: &str) -> String {
    path.split('/')
        .map(|part| {
            if part.starts_with('{') {
                "00000000-0000-0000-0000-000000000001"
            } else {
                part
            }
        })
        .collect::<Vec<_>>()
        .join("/")
}

#[tokio::test]
async fn a_key_of_one_workspace_needs_no_header() {
    let world = World::new().await;
    let call = Call::new(Method::GET, "/sessions").header("X-API-KEY", KEY);
    assert_eq!(world.call(call).await.expect(200), json!([]));
}

#[tokio::test]
async fn a_key_of_several_workspaces_has_to_name_one() {
    let world = World::new().await;
    let other = world.second_workspace().await;
    let sessions = Call::new(Method::GET, "/api/v1/sessions").header("x-api-key", KEY);
    let refused = world.call(sessions.clone()).await.expect(403);
    assert_eq!(refused["error"], "org_scoped_key_requires_workspace");
    let exports = Call::new(Method::GET, "/api/v1/bulk-exports").header("x-api-key", KEY);
    let refused = world.call(exports).await.expect(403);
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("requires workspace specification"),
        "{refused}"
    );

    world
        .call(sessions.clone().header("x-tenant-id", &world.tenant.to_string()))
        .await
        .expect(200);
    world
        .call(sessions.header("x-tenant-id", &other.to_string()))
        .await
        .expect(200);
}

#[tokio::test]
async fn a_key_bound_to_a_workspace_opens_only_that() {
    let world = World::new().await;
    let other = world.second_workspace().await;
    let secret = world.key(Some(other)).await;
    let bound = Call::new(Method::GET, "/sessions").header("x-api-key", secret.reveal());
    world.call(bound.clone()).await.expect(200);
    world
        .call(bound.header("x-tenant-id", &world.tenant.to_string()))
        .await
        .expect(403);
}

#[tokio::test]
async fn a_revoked_key_opens_nothing() {
    let world = World::new().await;
    let secret = world.key(None).await;
    let call = Call::new(Method::GET, "/sessions").header("x-api-key", secret.reveal());
    world.call(call.clone()).await.expect(200);

    let organization = world.organization().await;
    let revoke = world.store.write(async |tx| {
        let key = access::list_keys(tx, Some(organization), None, 10)
            .await?
            .into_iter()
            .find(|key| key.name == "test")
            .unwrap();
        access::revoke_key(tx, organization, key.id).await?;
        // Again, and it keeps its first time; another organisation cannot.
        let again = access::revoke_key(tx, organization, key.id).await?;
        assert!(again.revoked_at.is_some());
        let foreign = access::revoke_key(tx, towpath_domain::OrganizationId::new(), key.id).await;
        assert!(matches!(foreign, Err(towpath_store::Error::NotFound)));
        Ok(())
    });
    revoke.await.unwrap();
    // Other processes believe their last answer for a few seconds; this one was told.
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(
        world.call(call).await.expect(401)["details"],
        "the API key is not valid"
    );
}

#[tokio::test]
async fn the_first_pair_is_made_once() {
    let world = World::new().await;
    let again = world
        .store
        .write(async |tx| access::ensure_first(tx, &Secret::new(KEY), world.tenant).await)
        .await
        .unwrap();
    assert_eq!(again.workspaces, [world.tenant]);
    let keys = world
        .store
        .read(async |tx| access::list_keys(tx, Some(again.organization), None, 10).await)
        .await
        .unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].prefix, KEY[..4]);

    // The same key with another workspace: one more workspace of its organisation.
    let second = TenantId::new();
    let both = world
        .store
        .write(async |tx| access::ensure_first(tx, &Secret::new(KEY), second).await)
        .await
        .unwrap();
    assert_eq!(both.organization, again.organization);
    assert_eq!(both.workspaces.len(), 2);

    let short = world
        .store
        .write(async |tx| access::ensure_first(tx, &Secret::new("too short"), second).await)
        .await;
    assert!(matches!(short, Err(towpath_store::Error::Rejected(_))), "{short:?}");
}

#[tokio::test]
async fn a_stolen_database_has_no_secret() {
    let world = World::new().await;
    let secret = world.key(None).await;
    world.store.close().await;
    let file = Path::new(world.database.uri.strip_prefix("sqlite://").unwrap());
    assert!(file.is_file(), "{}", file.display());
    for file in std::fs::read_dir(file.parent().unwrap()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        for needle in [secret.reveal(), KEY] {
            assert!(!bytes.windows(needle.len()).any(|window| window == needle.as_bytes()));
        }
    }
}

#[tokio::test]
async fn a_key_cannot_be_bound_to_a_foreign_workspace() {
    let world = World::new().await;
    let tried = world
        .store
        .write(async |tx| {
            let organization = access::create_organization(tx, "other").await?;
            access::create_key(
                tx,
                NewKey {
                    organization,
                    workspace: Some(world.tenant),
                    name: "x",
                    operator: false,
                },
            )
            .await
        })
        .await;
    assert!(matches!(tried, Err(towpath_store::Error::NotFound)));
}
