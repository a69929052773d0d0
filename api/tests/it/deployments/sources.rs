//! Archives, listeners, integrations and pushes.

use hmac::{Hmac, Mac as _};
use http::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use towpath_domain::deployment::RevisionStatus;

use super::{github, image, with};
use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(
    an_archive_is_sent_once_and_used_by_its_deployment,
    listeners_are_kept,
    pushes_make_revisions_of_those_who_follow,
    a_token_is_for_the_repositories_of_its_host,
);

impl World {
    async fn upload_url(&self, deployment: &Value) -> (String, Value) {
        let path = format!("/v2/deployments/{}/upload-url", deployment["id"].as_str().unwrap());
        let answer = self
            .post(&path, &json!({"supports_upload_headers": true}))
            .await
            .expect(200);
        let url = answer["upload_url"].as_str().unwrap();
        assert_eq!(answer["upload_headers"], json!({"Content-Type": "application/gzip"}));
        let path = url.strip_prefix("http://127.0.0.1:8400").unwrap().to_owned();
        (path, answer["object_path"].clone())
    }

    /// Without a key, as clients do.
    async fn put(&self, path: &str, body: &[u8]) -> Answer {
        let call = Call::new(Method::PUT, path).header("content-type", "application/gzip");
        self.call(call.body(body.to_vec())).await
    }
}

async fn an_archive_is_sent_once_and_used_by_its_deployment(world: World) {
    let new = json!({
        "name": "sent", "source": "internal_source", "secrets": [],
        "source_config": {"deployment_type": "dev_zero"}, "source_revision_config": {},
    });
    let made = world.deploy(&new).await;
    let first = world.revision(&made, &made["latest_revision_id"]).await;
    assert_eq!(first["status"], "SKIPPED", "there is nothing to deploy yet");
    let (url, path) = world.upload_url(&made).await;
    let change = json!({
        "revision_source": "internal_source", "tracked_packages": ["langgraph:1.0"],
        "source_revision_config": {"source_tarball_path": path, "langgraph_config_path": "langgraph.json"},
        "source_config": {"install_command": "npm ci"}, "secrets": [],
    });
    let early = world.change(&made, &change).await.expect(400);
    let text = "source_revision_config.source_tarball_path: nothing is uploaded there yet; PUT the archive to its \
                upload_url first";
    assert_eq!(early, json!({"detail": text}));
    assert_eq!(world.put(&url, b"no archive").await.status, 400);
    assert_eq!(world.put(&url, b"").await.status, 400);
    assert_eq!(world.put(&format!("{url}x"), &[0x1f, 0x8b, 8]).await.status, 403);
    let archive = [&[0x1f, 0x8b, 8][..], &vec![7; 300_000]].concat();
    assert_eq!(world.put(&url, &archive).await.status, 200);
    assert_eq!(world.put(&url, &archive).await.status, 409);
    let key = object_store::path::Path::from(path.as_str().unwrap());
    assert_eq!(world.app.objects.get(&key).await.unwrap(), archive);
    // Not by another deployment.
    let other = world.deploy(&with(new.clone(), "/name", json!("other"))).await;
    world.change(&other, &change).await.expect(400);
    let changed = world.change(&made, &change).await.expect(200);
    let second = world.revision(&made, &changed["latest_revision_id"]).await;
    assert_eq!(
        (second["status"].as_str(), second["source"].as_str()),
        (Some("CREATING"), Some("internal_source"))
    );
    assert_eq!(changed["source_config"]["install_command"], "npm ci");
    // The hour is over.
    let (url, _) = world.upload_url(&made).await;
    world.clock.advance(std::time::Duration::from_secs(3_601));
    assert_eq!(world.put(&url, &archive).await.status, 403);
}

#[tokio::test]
async fn who_may_push_and_send() {
    let world = World::new().await;
    let of_image = world.deploy(&image()).await;
    let path = format!("/v2/deployments/{}/push-token", of_image["id"].as_str().unwrap());
    let refused = world
        .post(&path, &json!({"supports_registry_username": true}))
        .await
        .expect(400);
    let text = "push tokens are only available for 'internal_docker' source deployments";
    assert_eq!(refused, json!({"detail": text}));
    let path = format!("/v2/deployments/{}/upload-url", of_image["id"].as_str().unwrap());
    world.post(&path, &json!({})).await.expect(400);
}

#[tokio::test]
async fn an_archive_that_is_too_large_is_refused() {
    let world = World::new().await;
    let new = json!({
        "name": "sent", "source": "internal_source", "secrets": [], "source_config": {}, "source_revision_config": {},
    });
    let made = world.deploy(&new).await;
    let (url, _) = world.upload_url(&made).await;
    let announced = Call::new(Method::PUT, &url).header("content-length", &((200 << 20) + 1).to_string());
    assert_eq!(world.call(announced.body(vec![0x1f, 0x8b])).await.status, 413);
}

async fn listeners_are_kept(world: World) {
    let listed = world.get("/v2/listeners").await.expect(200);
    assert_eq!(listed["resources"][0]["compute_type"], "process");
    assert_eq!(listed["offset"], 1);
    let new = json!({"compute_type": "k8s", "compute_id": "east", "compute_config": {"k8s_namespaces": ["b", "a"]}});
    let made = world.post("/v2/listeners", &new).await.expect(201);
    assert_eq!(made["compute_config"], json!({"k8s_namespaces": ["a", "b"]}));
    let path = format!("/v2/listeners/{}", made["id"].as_str().unwrap());
    assert_eq!(world.get(&path).await.expect(200), made);
    assert_eq!(
        world.get("/v2/listeners?limit=1&offset=1").await.expect(200)["resources"],
        json!([made])
    );
    world.post("/v2/listeners", &new).await.expect(409);
    world
        .post("/v2/listeners", &with(new.clone(), "/compute_type", json!("vm")))
        .await
        .expect(422);
    world
        .post("/v2/listeners", &with(new, "/compute_config/k8s_namespaces", json!([])))
        .await
        .expect(422);
    // This build has no backend for it, and says so.
    let body = with(image(), "/source_config/listener_id", made["id"].clone());
    let refused = world.post("/v2/deployments", &body).await.expect(400);
    let text = "source_config.listener_id: a listener of compute type k8s is not available in this build";
    assert_eq!(refused["detail"], text);
    let change = Call::new(Method::PATCH, &path).in_workspace(world.tenant);
    let changed = world
        .call(change.json(&json!({"compute_config": {"k8s_namespaces": ["c"]}})))
        .await
        .expect(200);
    assert_eq!(changed["compute_config"], json!({"k8s_namespaces": ["c"]}));
    assert_eq!(world.act(Method::DELETE, &path).await.status, 204);
    let gone = json!({"detail": format!("Listener ID {} not found.", made["id"].as_str().unwrap())});
    assert_eq!(world.get(&path).await.expect(404), gone);
    let built_in = listed["resources"][0]["id"].as_str().unwrap();
    world.get(&format!("/v2/listeners/{built_in}")).await.expect(200);
    world
        .act(Method::DELETE, &format!("/v2/listeners/{built_in}"))
        .await
        .expect(409);
    let body = with(image(), "/source_config/listener_id", json!(built_in));
    world.post("/v2/deployments", &body).await.expect(201);
}

const SECRET: &str = "a secret of the webhook";

fn push(name: &str, commit: &str) -> Value {
    json!({
        "ref": name, "after": commit, "created": false, "deleted": false,
        "repository": {"clone_url": "https://github.com/Acme/Agent.git", "ssh_url": "git@github.com:Acme/Agent.git"},
    })
}

impl World {
    async fn tell(&self, integration: &Value, event: &str, message: &Value) -> Answer {
        let body = message.to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(body.as_bytes());
        let signature = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
        self.tell_signed(integration, event, body, &signature).await
    }

    async fn tell_signed(&self, integration: &Value, event: &str, body: String, signature: &str) -> Answer {
        let path = format!(
            "/v1/integrations/github/{}/webhook",
            integration["id"].as_str().unwrap()
        );
        let call = Call::new(Method::POST, &path)
            .header("content-type", "application/json")
            .header("x-github-event", event)
            .header("x-hub-signature-256", signature);
        self.call(call.body(body)).await
    }
}

async fn pushes_make_revisions_of_those_who_follow(world: World) {
    let new = json!({"name": "acme", "token": "ghp_s3cret", "webhook_secret": SECRET});
    let integration = world.post("/v1/integrations/github", &new).await.expect(201);
    assert!(!integration.to_string().contains("s3cret"));
    assert_eq!(integration.get("webhook_secret"), None, "the caller has it");
    let listed = world.get("/v1/integrations/github/install").await.expect(200);
    assert_eq!(listed, json!([integration]));

    let follows = with(
        with(github(), "/source_config/build_on_push", json!(true)),
        "/source_config/integration_id",
        integration["id"].clone(),
    );
    let follower = world.deploy(&follows).await;
    let still = world.deploy(&with(github(), "/name", json!("still"))).await;
    let elsewhere = with(
        with(follows, "/name", json!("elsewhere")),
        "/source_revision_config/repo_ref",
        json!("next"),
    );
    let elsewhere = world.deploy(&elsewhere).await;
    for made in [&follower, &still, &elsewhere] {
        world.bring(&made["latest_revision_id"], RevisionStatus::Deployed).await;
    }
    let told = |answer: Answer| answer.expect(200)["revisions"].as_array().unwrap().clone();
    // What makes nothing.
    assert!(told(world.tell(&integration, "ping", &json!({"zen": "x"})).await).is_empty());
    for name in ["refs/tags/v1", "refs/heads/unknown"] {
        assert!(told(world.tell(&integration, "push", &push(name, "c1")).await).is_empty());
    }
    for flag in ["/created", "/deleted"] {
        let message = with(push("refs/heads/main", "c1"), flag, json!(true));
        assert!(told(world.tell(&integration, "push", &message).await).is_empty());
    }
    let signed = push("refs/heads/main", "c1").to_string();
    for signature in ["sha256=00", "sha256=zz", "", "sha1=00"] {
        let refused = world.tell_signed(&integration, "push", signed.clone(), signature).await;
        assert_eq!(refused.status, 401, "{signature}");
    }
    let nobody = json!({"id": "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"});
    assert_eq!(
        world.tell(&nobody, "push", &push("refs/heads/main", "c1")).await.status,
        401
    );
    // What makes one, and what follows quickly none.
    let made = told(world.tell(&integration, "push", &push("refs/heads/main", "c1")).await);
    assert_eq!(made.len(), 1);
    let revision = world.revision(&follower, &made[0]).await;
    assert_eq!(revision["status"], "CREATING");
    assert!(told(world.tell(&integration, "push", &push("refs/heads/main", "c2")).await).is_empty());
    // Once it builds, the next push queues one, and only one.
    world.bring(&made[0], RevisionStatus::Building).await;
    assert_eq!(
        told(world.tell(&integration, "push", &push("refs/heads/main", "c3")).await).len(),
        1
    );
    assert!(told(world.tell(&integration, "push", &push("refs/heads/main", "c4")).await).is_empty());
    let all = world
        .get(&format!(
            "/v2/deployments/{}/revisions",
            follower["id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(all.expect(200)["resources"].as_array().unwrap().len(), 3);

    let path = format!("/v1/integrations/github/{}", integration["id"].as_str().unwrap());
    assert_eq!(world.act(Method::DELETE, &path).await.status, 204);
    assert_eq!(
        world.get("/v1/integrations/github/install").await.expect(200),
        json!([])
    );
}

async fn a_token_is_for_the_repositories_of_its_host(world: World) {
    let made = async |new: Value| world.post("/v1/integrations/github", &new).await.expect(201)["id"].clone();
    let token = json!({"name": "acme", "token": "ghp_s3cret"});
    let github_token = made(token.clone()).await;
    let own_token = made(with(token, "/api_url", json!("https://git.acme.example/api/v3"))).await;
    let no_token = made(json!({"name": "open"})).await;
    let deploy = async |name: &str, integration: &Value, url: &str| {
        let request = with(
            with(github(), "/name", json!(name)),
            "/source_config/repo_url",
            json!(url),
        );
        let request = with(request, "/source_config/integration_id", integration.clone());
        world.post("/v2/deployments", &request).await
    };
    let (mine, evil) = ("https://git.acme.example/acme/agent", "https://evil.example/acme/agent");
    for (integration, url) in [(&github_token, mine), (&github_token, evil), (&own_token, evil)] {
        let refused = deploy("refused", integration, url).await.expect(400);
        let text = refused["detail"].as_str().unwrap();
        assert!(
            text.starts_with("source_config.integration_id: the integration's token is for"),
            "{text}"
        );
        assert!(!text.contains("s3cret"), "{text}");
    }
    deploy("of-github", &github_token, "https://github.com/acme/agent")
        .await
        .expect(201);
    deploy("of-acme", &own_token, mine).await.expect(201);
    deploy("open", &no_token, evil).await.expect(201);
}

#[tokio::test]
async fn an_integration_shows_its_own_secret_once_and_lists_repositories() {
    let world = World::new().await;
    let host = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = host.local_addr().unwrap();
    let list = json!([{"id": 7, "name": "agent", "owner": {"login": "acme"}, "html_url": "https://github.com/acme/agent",
                       "default_branch": "trunk"}]);
    let answer = list.clone();
    let router = axum::Router::new().route(
        "/user/repos",
        axum::routing::get(
            async move |headers: http::HeaderMap| match headers.get("authorization") {
                Some(key) if key == "Bearer ghp_good" => Ok(axum::Json(answer)),
                _ => Err(http::StatusCode::UNAUTHORIZED),
            },
        ),
    );
    tokio::spawn(async move { axum::serve(host, router).await.unwrap() });
    let made = async |token: Option<&str>| {
        let new = json!({"name": "acme", "token": token, "api_url": format!("http://{address}")});
        world.post("/v1/integrations/github", &new).await.expect(201)
    };
    let good = made(Some("ghp_good")).await;
    assert!(good["webhook_secret"].as_str().unwrap().len() >= 32);
    let repos = async |integration: &Value| {
        let path = format!("/v1/integrations/github/{}/repos", integration["id"].as_str().unwrap());
        world.get(&path).await
    };
    let expected = json!([{
        "host_integration_id": good["id"], "id": "7", "name": "agent", "owner": "acme",
        "url": "https://github.com/acme/agent", "default_branch": "trunk",
    }]);
    assert_eq!(repos(&good).await.expect(200), expected);
    let refused = repos(&made(Some("ghp_bad")).await).await.expect(409);
    assert_eq!(
        refused["detail"],
        "the repository host rejected the integration's token"
    );
    repos(&made(None).await).await.expect(409);
    let plain = json!({"name": "acme", "token": "ghp_good", "api_url": "http://git.acme.example/api/v3"});
    let plain = world.post("/v1/integrations/github", &plain).await.expect(201);
    let refused = repos(&plain).await.expect(409);
    assert!(refused["detail"].as_str().unwrap().contains("plain http"), "{refused}");
    for wrong in [
        json!({"name": ""}),
        json!({"name": "a", "token": "a b"}),
        json!({"name": "a", "webhook_secret": "short"}),
        json!({"name": "a", "api_url": "ftp://a"}),
        json!({"token": "a"}),
    ] {
        world.post("/v1/integrations/github", &wrong).await.expect(422);
    }
}
