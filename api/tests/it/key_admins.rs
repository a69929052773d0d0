//! Who administers an organisation or a workspace looks after its keys, and after no others.

use http::Method;
use serde_json::{Value, json};
use towpath_domain::{Scope, Secret, TenantId};
use towpath_store::access;

use crate::dashboard::{cookie, form, sign_in};
use crate::world::{Answer, Call, KEY, World, on_both_databases};

on_both_databases!(
    the_keys_of_an_organisation_are_its_admins,
    the_keys_of_a_workspace_are_its_admins,
    a_key_without_scopes_administers_none,
    an_admin_looks_after_keys_on_their_page,
);

impl World {
    async fn keys_as(&self, key: &Secret, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let path = format!("/internal/keys{path}");
        let call = Call::new(method, &path).header("x-api-key", key.reveal());
        self.call(match body {
            Some(body) => call.json(body),
            None => call,
        })
        .await
    }

    /// The names of the keys that the holder of a key sees.
    async fn key_names(&self, key: &Secret) -> Vec<String> {
        let listed = self.keys_as(key, Method::GET, "", None).await.expect(200);
        let items = listed["items"].as_array().unwrap().iter();
        let mut names: Vec<String> = items.map(|key| key["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// The id of a key that an operator makes.
    async fn key_by_operator(&self, body: &Value) -> String {
        let made = self.keys_as(&Secret::new(KEY), Method::POST, "", Some(body)).await;
        made.expect(201)["id"].as_str().unwrap().to_owned()
    }

    /// A workspace of another organisation, and the id of a key of it.
    async fn key_elsewhere(&self) -> (TenantId, String) {
        let made = self.store.write(async |tx| {
            let organization = access::create_organization(tx, "other").await?;
            access::create_workspace(tx, organization, "other").await
        });
        let tenant = made.await.unwrap().id;
        let key = json!({"name": "foreign", "tenant_id": tenant});
        (tenant, self.key_by_operator(&key).await)
    }
}

async fn the_keys_of_an_organisation_are_its_admins(world: World) {
    let (foreign_tenant, foreign) = world.key_elsewhere().await;
    let admin = world.limited_key(&[Scope::OrgAdmin]).await;
    let sibling = world.second_workspace().await;
    let operators = json!({"name": "operators", "operator": true});
    let operators = world.key_by_operator(&operators).await;
    assert_eq!(world.key_names(&admin).await, ["first", "limited", "operators"]);

    // It gives every scope but those of operators, also what it may not do itself.
    let wanted = json!({"name": "ci", "tenant_id": sibling, "scopes": ["traces:write", "workspace:admin"]});
    let made = world.keys_as(&admin, Method::POST, "", Some(&wanted)).await.expect(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["workspaces"], json!([sibling]));
    for refused in [
        json!({"name": "x", "operator": true}),
        json!({"name": "x", "scopes": ["operator:read"]}),
    ] {
        let answer = world
            .keys_as(&admin, Method::POST, "", Some(&refused))
            .await
            .expect(403);
        let told = answer["detail"].as_str().unwrap();
        assert!(told.contains("cannot grant the scope operator"), "{told}");
    }
    let elsewhere = json!({"name": "x", "tenant_id": foreign_tenant});
    let answer = world.keys_as(&admin, Method::POST, "", Some(&elsewhere)).await;
    assert_eq!(answer.expect(404)["detail"], "workspace not found");

    for (action, body) in [("rotate", Some(json!({}))), ("revoke", None)] {
        let act = async |id: &str| {
            let path = format!("/{id}/{action}");
            world.keys_as(&admin, Method::POST, &path, body.as_ref()).await
        };
        let unknown = act(&foreign_tenant.to_string()).await;
        assert_eq!(unknown.status, 404);
        let of_others = act(&foreign).await;
        assert_eq!(
            (of_others.status, of_others.text),
            (unknown.status, unknown.text),
            "{action}"
        );
        act(&operators).await.expect(403);
        act(id).await.expect(200);
    }
    // Other routes of operators stay closed.
    world.keys_as(&admin, Method::POST, "/reseal", None).await.expect(403);
    let jobs = Call::new(Method::GET, "/internal/jobs").header("x-api-key", admin.reveal());
    world.call(jobs).await.expect(403);
}

async fn the_keys_of_a_workspace_are_its_admins(world: World) {
    let organization = world.organization().await;
    let sibling = world.second_workspace().await;
    let admin = world
        .key_with(organization, Some(world.tenant), &[Scope::WorkspaceAdmin])
        .await;
    let wide = json!({"name": "wide", "scopes": ["traces:read"]});
    let wide = world.key_by_operator(&wide).await;
    let of_sibling = json!({"name": "next door", "tenant_id": sibling});
    let of_sibling = world.key_by_operator(&of_sibling).await;
    let own = json!({"name": "own", "tenant_id": world.tenant});
    let own = world.key_by_operator(&own).await;
    assert_eq!(world.key_names(&admin).await, ["limited", "own"]);

    let wanted = json!({"name": "ci", "scopes": ["exports"]});
    let made = world.keys_as(&admin, Method::POST, "", Some(&wanted)).await.expect(201);
    assert_eq!(
        made["tenant_id"],
        json!(world.tenant),
        "the workspace of the key that asks"
    );
    let more = json!({"name": "x", "scopes": ["org:admin"]});
    world.keys_as(&admin, Method::POST, "", Some(&more)).await.expect(403);
    for tenant in [sibling, TenantId::new()] {
        let elsewhere = json!({"name": "x", "tenant_id": tenant, "scopes": ["exports"]});
        let answer = world.keys_as(&admin, Method::POST, "", Some(&elsewhere)).await;
        assert_eq!(answer.expect(404)["detail"], "workspace not found");
    }
    for (id, status) in [(&wide, 404), (&of_sibling, 404), (&own, 200)] {
        let path = format!("/{id}/revoke");
        world.keys_as(&admin, Method::POST, &path, None).await.expect(status);
    }
}

/// Keys did not look after others before there were scopes, and go on as they were.
async fn a_key_without_scopes_administers_none(world: World) {
    let key = world.key(None).await;
    for (method, body) in [(Method::GET, None), (Method::POST, Some(json!({"name": "x"})))] {
        let refused = world.keys_as(&key, method, "", body.as_ref()).await.expect(403);
        let told = refused["detail"].as_str().unwrap();
        assert!(told.starts_with("the API key lacks the scope operator"), "{told}");
    }
}

async fn an_admin_looks_after_keys_on_their_page(world: World) {
    let organization = world.organization().await;
    let admin = world
        .key_with(organization, Some(world.tenant), &[Scope::WorkspaceAdmin])
        .await;
    let signed_in = sign_in(&world, admin.reveal()).await;
    assert_eq!(signed_in.status, 303, "{}", signed_in.text);
    assert_eq!(signed_in.headers["location"], "/ui/keys");
    let cookie = cookie(&signed_in);
    let get = async |path: &str| world.call(Call::new(Method::GET, path).header("cookie", &cookie)).await;
    let post = async |path: &str, body: &str| world.call(form(path, body).header("cookie", &cookie)).await;

    let page = get("/ui/keys").await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains(">limited<"), "{}", page.text);
    assert!(!page.text.contains(">first<"), "{}", page.text);
    assert!(
        !page.text.contains("operator:read"),
        "a scope is offered that cannot be given"
    );
    assert!(
        !page.text.contains("href=\"/ui/queues\""),
        "a page is offered that they may not see"
    );
    assert_eq!(get("/ui/queues").await.status, 403);
    for path in ["/ui", "/ui/"] {
        let home = get(path).await;
        assert_eq!(home.status, 303, "{}", home.text);
        assert_eq!(home.headers["location"], "/ui/keys");
        let stranger = world.call(Call::new(Method::GET, path)).await;
        assert_eq!(stranger.headers["location"], "/ui/queues");
    }
    assert_eq!(post("/ui/queues/exports/pause", "").await.status, 403);

    let made = post("/ui/keys", "name=nightly&traces%3Aread=on&expires_in_days=30").await;
    assert_eq!(made.status, 200, "{}", made.text);
    let told = made.text.split("towpath_").nth(1).expect("the secret is shown");
    let digits = told.split('<').next().unwrap_or_default();
    let secret = format!("towpath_{digits}");
    let list = async || {
        let call = Call::new(Method::GET, "/sessions").header("x-api-key", &secret);
        world.call(call).await.status.as_u16()
    };
    assert_eq!(list().await, 200, "the new key opens at once");
    let page = get("/ui/keys").await.text;
    assert!(page.contains(">nightly<") && page.contains("in 30 d"), "{page}");
    assert!(!page.contains(&secret), "the secret is shown again");
    assert_eq!(post("/ui/keys", "name=x&operator=on").await.status, 403);

    let keys = world.keys_as(&admin, Method::GET, "", None).await.expect(200);
    let newest = &keys["items"][0];
    assert_eq!(newest["name"], "nightly");
    let path = format!("/ui/keys/{}", newest["id"].as_str().unwrap());
    let rotated = post(&format!("{path}/rotate"), "overlap_hours=1").await;
    assert!(rotated.text.contains("for another 1 h"), "{}", rotated.text);
    assert_eq!(list().await, 200, "the secret before goes on for an hour");
    assert_eq!(post(&format!("{path}/revoke"), "").await.status, 303);
    assert_eq!(list().await, 401);
    assert_eq!(post(&format!("{path}/forget"), "").await.status, 404);
}
