//! Sandboxes as requests see them; what the machine does is looked at elsewhere.

use http::Method;
use serde_json::{Value, json};
use towpath_api::Settings;
use towpath_domain::BoxId;
use towpath_domain::sandbox::SandboxQuota;
use towpath_store::sandboxes::boxes::{self, StartResult};
use towpath_store::sandboxes::network;

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(
    a_sandbox_is_made_once_however_often_it_is_asked_for,
    both_places_are_one_set,
    what_is_wrong_is_named,
    names_are_taken_and_freed,
    volumes_have_three_shapes_and_one_row,
    a_volume_that_is_used_is_not_deleted,
    one_sandbox_may_write_to_a_volume,
    templates_and_pools_stand_on_each_other,
    links_are_made_and_revoked,
    registries_keep_their_passwords,
    the_network_of_a_sandbox_is_configured,
    a_network_that_cannot_be_applied_is_refused,
    snapshots_wait_for_the_machine,
    sandboxes_of_another_workspace_are_not_there,
    a_sandbox_that_does_not_run_knows_no_command,
);

const BOXES: &str = "/v2/sandboxes/boxes";
const VOLUMES: &str = "/v2/sandboxes/volumes";

impl World {
    async fn send_json(&self, method: Method, path: &str, body: &Value) -> Answer {
        self.call(Call::new(method, path).in_workspace(self.tenant).json(body))
            .await
    }

    async fn remove(&self, path: &str) -> Answer {
        self.call(Call::new(Method::DELETE, path).in_workspace(self.tenant))
            .await
    }

    /// A sandbox that nobody starts here.
    async fn sandbox(&self, name: &str) -> Value {
        let made = self.post(BOXES, &json!({"name": name, "wait_for_ready": false})).await;
        made.expect(201)
    }
}

#[track_caller]
fn named(answer: &Answer, status: u16, error: &str) -> String {
    let body = answer.expect(status);
    assert_eq!(body["detail"]["error"], error, "{body}");
    body["detail"]["message"].as_str().expect("it has a message").to_owned()
}

async fn a_sandbox_is_made_once_however_often_it_is_asked_for(world: World) {
    let body = json!({"name": "a", "wait_for_ready": false, "labels": {"team": "canal"}, "vcpus": 2});
    let first = world.post(BOXES, &body).await.expect(201);
    assert_eq!(first["status"], "provisioning");
    let again = world.post(BOXES, &body).await.expect(201);
    assert_eq!(first["id"], again["id"]);
    let other = json!({"name": "a", "wait_for_ready": false, "vcpus": 1});
    named(&world.post(BOXES, &other).await, 409, "AlreadyExists");
    let listed = world.get(BOXES).await.expect(200);
    let sandboxes = listed["sandboxes"].as_array().unwrap();
    assert_eq!(sandboxes.len(), 1);
    for field in [
        "id",
        "name",
        "template_name",
        "dataplane_url",
        "created_at",
        "updated_at",
    ] {
        assert!(sandboxes[0][field].is_string(), "{field}: {}", sandboxes[0]);
    }
    assert_eq!(sandboxes[0]["idle_ttl_seconds"], 600);
    assert_eq!(sandboxes[0]["delete_after_stop_seconds"], 1_209_600);
    assert_eq!(sandboxes[0]["labels"], json!({"team": "canal"}));
    assert_eq!(sandboxes[0]["persistent"], true);
}

async fn both_places_are_one_set(world: World) {
    let made = world.sandbox("a").await;
    let id = made["id"].as_str().unwrap();
    for path in [
        format!("/api{BOXES}/a"),
        format!("{BOXES}/{id}"),
        format!("/api{BOXES}/{id}"),
    ] {
        assert_eq!(world.get(&path).await.expect(200)["id"], made["id"], "{path}");
    }
    let status = world.get(&format!("/api{BOXES}/a/status")).await.expect(200);
    assert_eq!(status, json!({"status": "provisioning", "status_message": null}));
    named(&world.get(&format!("/api{BOXES}/b")).await, 404, "NotFound");
    // Who has no key is told in the same shape.
    let answer = world.open(Method::GET, &format!("/api{BOXES}")).await;
    named(&answer, 401, "Unauthorized");
}

async fn what_is_wrong_is_named(world: World) {
    for (body, field) in [
        (json!({"name": "a b"}), "name"),
        (json!({"idle_ttl_seconds": 61}), "idle_ttl_seconds"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"vcpus": 0}), "vcpus"),
        (json!({"mem_bytes": 1}), "mem_bytes"),
        (json!({"run_config": {"work_dir": "x"}}), "run_config.work_dir"),
        (json!({"env_vars": {"A-B": "c"}}), "env_vars"),
        (
            json!({"volumes": [{"volume": "v", "mount_path": "/proc"}]}),
            "volumes.mount_path",
        ),
    ] {
        let answer = world.post(BOXES, &body).await.expect(422);
        let loc: Vec<&str> = answer["detail"][0]["loc"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part.as_str().unwrap())
            .collect();
        assert_eq!(loc.join("."), format!("body.{field}"), "{answer}");
        assert_eq!(answer["detail"][0]["type"], "value_error");
    }
    for (body, text) in [
        (json!({"proxy_config": {"callbacks": [{}]}}), "proxy_config.callbacks"),
        (json!({"preserve_memory_on_stop": true}), "memory"),
        (json!({"template_name": "a", "snapshot": "b"}), "template_name"),
    ] {
        let answer = world.post(BOXES, &body).await;
        let message = named(&answer, 400, "ValidationError");
        assert!(message.contains(text), "{message}");
    }
    // An empty one asks for nothing.
    let empty = json!({"proxy_config": {"rules": []}, "wait_for_ready": false});
    world.post(BOXES, &empty).await.expect(201);
    named(
        &world.post(BOXES, &json!({"template_name": "none"})).await,
        400,
        "TemplateNotFound",
    );
    named(
        &world.post(BOXES, &json!({"snapshot": "none:1"})).await,
        400,
        "SnapshotNotFound",
    );
}

async fn names_are_taken_and_freed(world: World) {
    let (a, _) = (world.sandbox("a").await, world.sandbox("b").await);
    let answer = world
        .send_json(Method::PATCH, &format!("{BOXES}/b"), &json!({"name": "a"}))
        .await;
    named(&answer, 409, "NameConflict");
    let answer = world
        .send_json(
            Method::PATCH,
            &format!("{BOXES}/b"),
            &json!({"name": "c", "idle_ttl_seconds": 0}),
        )
        .await;
    assert_eq!(answer.expect(200)["idle_ttl_seconds"], 0);
    named(&world.get(&format!("{BOXES}/b")).await, 404, "NotFound");
    assert_eq!(world.remove(&format!("{BOXES}/a")).await.status, 204);
    named(&world.remove(&format!("{BOXES}/a")).await, 404, "NotFound");
    // The machine still has the first one.
    let again = world.sandbox("a").await;
    assert_ne!(a["id"], again["id"]);
    let many = json!({"names": ["a", "c", "nobody"]});
    let answer = world.post(&format!("{BOXES}/batch-delete"), &many).await.expect(200);
    assert_eq!(answer["deleted"], json!(["a", "c"]));
    assert_eq!(answer["skipped"][0]["name"], "nobody");
}

async fn volumes_have_three_shapes_and_one_row(world: World) {
    let old = world
        .post(VOLUMES, &json!({"name": "old", "size": "1536Mi"}))
        .await
        .expect(201);
    assert_eq!(
        (&old["size"], &old["size_bytes"]),
        (&json!("1536Mi"), &json!(1_610_612_736))
    );
    let new = world
        .post(VOLUMES, &json!({"name": "new", "size_bytes": 1, "labels": {"a": "b"}}))
        .await
        .expect(201);
    assert_eq!(
        (&new["size"], &new["storage_class"]),
        (&json!("1Gi"), &json!("standard"))
    );
    named(
        &world.post(VOLUMES, &json!({"name": "new", "size": "1Gi"})).await,
        409,
        "AlreadyExists",
    );
    for body in [
        json!({"name": "New", "size": "1Gi"}),
        json!({"name": "x"}),
        json!({"name": "x", "size": "big"}),
    ] {
        assert_eq!(world.post(VOLUMES, &body).await.status, 422, "{body}");
    }
    let path = format!("{VOLUMES}/old");
    let grown = world
        .send_json(Method::PATCH, &path, &json!({"size": "2Gi", "name": "older"}))
        .await
        .expect(200);
    assert_eq!((&grown["size"], &grown["name"]), (&json!("2Gi"), &json!("older")));
    let shrunk = world
        .send_json(Method::PATCH, &format!("{VOLUMES}/older"), &json!({"size": "1Gi"}))
        .await;
    named(&shrunk, 400, "VolumeResize");
    let taken = world
        .send_json(Method::PATCH, &format!("{VOLUMES}/older"), &json!({"name": "new"}))
        .await;
    named(&taken, 409, "NameConflict");
    let copy = world
        .post(&format!("{VOLUMES}/older/clone"), &json!({"name": "copy"}))
        .await
        .expect(201);
    assert_eq!(
        (&copy["status"], &copy["source_volume_id"]),
        (&json!("provisioning"), &grown["id"])
    );
    // Nothing writes to the one or removes the other while files are copied.
    let writer = json!({"name": "writer", "wait_for_ready": false,
                        "volumes": [{"volume": "older", "mount_path": "/data"}]});
    named(&world.post(BOXES, &writer).await, 409, "Conflict");
    named(&world.remove(&format!("{VOLUMES}/copy")).await, 409, "Conflict");
    let listed = world.get(VOLUMES).await.expect(200);
    assert_eq!(listed["volumes"].as_array().unwrap().len(), 3);
}

async fn a_volume_that_is_used_is_not_deleted(world: World) {
    let path = format!("{VOLUMES}/data");
    let message = named(&world.remove(&path).await, 404, "NotFound");
    assert!(message.contains("data"), "{message}");
    world
        .post(VOLUMES, &json!({"name": "data", "size": "1Gi"}))
        .await
        .expect(201);
    let template = json!({
        "name": "python", "image": "host", "volume_mounts": [{"volume_name": "data", "mount_path": "/data"}],
    });
    let made = world.post("/v2/sandboxes/templates", &template).await.expect(201);
    assert_eq!(made["volume_mounts"], template["volume_mounts"]);
    assert_eq!(made["resources"]["cpu"], "500m");
    let message = named(&world.remove(&path).await, 409, "VolumeInUse");
    assert!(message.contains("'data'") && message.contains("'python'"), "{message}");
    assert_eq!(world.remove("/v2/sandboxes/templates/python").await.status, 204);
    assert_eq!(world.remove(&path).await.status, 204);
    named(&world.get(&path).await, 404, "NotFound");
}

async fn one_sandbox_may_write_to_a_volume(world: World) {
    world
        .post(VOLUMES, &json!({"name": "data", "size": "1Gi"}))
        .await
        .expect(201);
    let with = |name: &str, read_only: bool| {
        json!({"name": name, "wait_for_ready": false,
               "volumes": [{"volume": "data", "mount_path": "/data", "read_only": read_only}]})
    };
    for name in ["reader", "other-reader"] {
        world.post(BOXES, &with(name, true)).await.expect(201);
    }
    let message = named(&world.post(BOXES, &with("writer", false)).await, 409, "Conflict");
    assert!(message.contains("reader"), "{message}");
    let shown = world.get(&format!("{BOXES}/reader")).await.expect(200);
    assert_eq!(shown["volumes"][0]["volume_name"], "data");
    let shown = world.get(&format!("{VOLUMES}/data")).await.expect(200);
    assert_eq!(shown["attachments"].as_array().unwrap().len(), 2);
    let message = named(&world.remove(&format!("{VOLUMES}/data")).await, 409, "VolumeInUse");
    assert!(message.contains("'reader'"), "{message}");
}

async fn templates_and_pools_stand_on_each_other(world: World) {
    let template = json!({"name": "python", "image": "host", "resources": {"cpu": "2", "memory": "1Gi"}});
    world.post("/v2/sandboxes/templates", &template).await.expect(201);
    let pool = json!({"name": "ahead", "template_name": "python", "replicas": 1, "wait_for_ready": false});
    let made = world.post("/v2/sandboxes/pools", &pool).await.expect(201);
    assert_eq!(
        (&made["template_name"], &made["replicas"]),
        (&json!("python"), &json!(1))
    );
    let unknown = json!({"name": "other", "template_name": "none", "replicas": 1, "wait_for_ready": false});
    named(
        &world.post("/v2/sandboxes/pools", &unknown).await,
        400,
        "TemplateNotFound",
    );
    let message = named(
        &world.remove("/v2/sandboxes/templates/python").await,
        409,
        "TemplateInUse",
    );
    assert!(message.contains("'ahead'"), "{message}");
    let changed = world
        .send_json(Method::PATCH, "/v2/sandboxes/pools/ahead", &json!({"replicas": 3}))
        .await;
    assert_eq!(changed.expect(200)["replicas"], 3);
    let made = world
        .post(
            BOXES,
            &json!({"template_name": "python", "name": "a", "wait_for_ready": false}),
        )
        .await;
    let made = made.expect(201);
    assert_eq!(
        (&made["template_name"], &made["cpu_millicores"]),
        (&json!("python"), &json!(2000))
    );
    assert_eq!(world.remove("/v2/sandboxes/pools/ahead").await.status, 204);
    named(
        &world.remove("/v2/sandboxes/templates/python").await,
        409,
        "TemplateInUse",
    );
    assert_eq!(world.remove(&format!("{BOXES}/a")).await.status, 204);
    assert_eq!(world.remove("/v2/sandboxes/templates/python").await.status, 204);
}

async fn links_are_made_and_revoked(world: World) {
    let made = world.sandbox("a").await;
    let link = world
        .post(&format!("{BOXES}/a/service-url"), &json!({"port": 8080}))
        .await
        .expect(200);
    for field in ["browser_url", "service_url", "token", "expires_at"] {
        assert!(link[field].is_string(), "{field}: {link}");
    }
    let url = link["service_url"].as_str().unwrap();
    assert!(
        url.ends_with(&format!("/v2/sandboxes/services/{}/8080", made["id"].as_str().unwrap())),
        "{url}"
    );
    let path = &url[url.find("/v2/").unwrap()..];
    let shown = async |path: &str, token: &str| {
        let call = Call::new(Method::GET, path).header("x-langsmith-sandbox-service-token", token);
        world.call(call).await.status
    };
    let token = link["token"].as_str().unwrap();
    // Another port is not opened by it.
    assert_eq!(shown(&path.replace("8080", "8081"), token).await, 401);
    assert_eq!(shown(path, "x").await, 401);
    let entered = world
        .open(Method::GET, &format!("{path}/_svc/auth?token={token}&redirect=/a"))
        .await;
    assert_eq!(entered.status, 303);
    assert_eq!(entered.headers["location"], format!("{path}/a"));
    assert!(entered.headers["set-cookie"].to_str().unwrap().contains("HttpOnly"));
    let away = world
        .open(
            Method::GET,
            &format!("{path}/_svc/auth?token={token}&redirect=//example.org"),
        )
        .await;
    assert_eq!(away.headers["location"], format!("{path}/"));
    let listed = world.get(&format!("{BOXES}/a/service-urls")).await.expect(200);
    assert_eq!(listed["service_urls"][0]["port"], 8080);
    assert_eq!(
        world.remove(&format!("{BOXES}/a/service-urls?port=8080")).await.status,
        204
    );
    assert_eq!(shown(path, token).await, 401);

    let link = world
        .post(&format!("{BOXES}/a/download-url"), &json!({"path": "/tmp/x"}))
        .await
        .expect(200);
    assert_eq!(link["expires_at"], Value::Null);
    assert!(
        link["download_url"]
            .as_str()
            .unwrap()
            .contains("/v2/sandboxes/downloads/")
    );
    named(
        &world.open(Method::GET, "/v2/sandboxes/downloads/none").await,
        404,
        "NotFound",
    );
    let login = json!({"port": 1, "access": "workspace"});
    named(
        &world.post(&format!("{BOXES}/a/service-url"), &login).await,
        501,
        "Unsupported",
    );
    assert_eq!(
        world
            .post(&format!("{BOXES}/a/service-url"), &json!({"port": 0}))
            .await
            .status,
        422
    );
}

async fn registries_keep_their_passwords(world: World) {
    let path = "/v2/sandboxes/registries";
    let body = json!({"name": "acme", "url": "https://registry.example", "username": "me", "password": "s3cret"});
    let made = world.post(path, &body).await;
    assert!(!made.text.contains("s3cret"), "{}", made.text);
    assert_eq!(made.expect(201)["auth_type"], "DOCKER_CONFIG");
    named(&world.post(path, &body).await, 409, "AlreadyExists");
    let changed = world
        .send_json(Method::PATCH, &format!("{path}/acme"), &json!({"username": "you"}))
        .await;
    assert_eq!(changed.expect(200)["username"], "you");
    let listed = world.get(path).await;
    assert!(!listed.text.contains("s3cret"));
    assert_eq!(listed.expect(200)["items"].as_array().unwrap().len(), 1);
    assert_eq!(world.remove(&format!("{path}/acme")).await.status, 204);
    named(&world.get(&format!("{path}/acme")).await, 404, "NotFound");
}

async fn the_network_of_a_sandbox_is_configured(world: World) {
    let rule = |header: &Value| json!({"name": "api", "match_hosts": ["api.example.com"], "headers": [header]});
    let secret = json!({"name": "Authorization", "type": "opaque", "value": "hunter2"});
    let config = json!({"rules": [rule(&secret)], "access_control": {"allow_list": ["api.example.com"]}});
    let body = json!({"name": "a", "wait_for_ready": false, "proxy_config": config});
    let made = world.post(BOXES, &body).await;
    assert!(!made.text.contains("hunter2"), "{}", made.text);
    let made = made.expect(201);
    let shown = json!({"name": "Authorization", "type": "opaque", "is_set": true});
    assert_eq!(made["proxy_config"]["rules"][0]["headers"][0], shown);
    assert_eq!(made["proxy_config"]["access_control"], config["access_control"]);
    assert_eq!(made["network_sent_bytes"], 0);
    assert_eq!(world.sandbox("b").await["proxy_config"], Value::Null);
    for path in [BOXES.to_owned(), format!("{BOXES}/a")] {
        let answer = world.get(&path).await;
        assert!(
            answer.text.contains("is_set") && !answer.text.contains("hunter2"),
            "{}",
            answer.text
        );
    }

    let (path, tenant) = (format!("{BOXES}/a"), world.tenant);
    let kept = json!({"proxy_config": {"rules": [rule(&shown)]}});
    let message = named(
        &world.send_json(Method::PATCH, &path, &kept).await,
        400,
        "InvalidRequest",
    );
    assert!(message.contains("ready"), "{message}");
    let id = BoxId(made["id"].as_str().unwrap().parse().unwrap());
    let started = world.store.write(async |tx| {
        let placed = boxes::get(tx, tenant, id).await?;
        let result = StartResult {
            root: "{}",
            host_id: placed.host_id.expect("it was placed on the node of this process"),
            isolation: "namespace",
        };
        boxes::mark_ready(tx, tenant, id, 1, result).await
    });
    assert!(started.await.unwrap());
    let stored = async || {
        let found = world.store.read(async |tx| network::find(tx, tenant, id).await);
        found.await.unwrap()
    };
    let before = stored().await.unwrap();
    let changed = world.send_json(Method::PATCH, &path, &kept).await;
    assert!(!changed.text.contains("hunter2"));
    let changed = changed.expect(200);
    assert_eq!(
        changed["proxy_config"],
        json!({"rules": [{"name": "api", "enabled": true,
        "match_hosts": ["api.example.com"], "headers": [shown]}]})
    );
    let after = stored().await.unwrap();
    assert_eq!(after.version, before.version + 1);
    for row in [&before, &after] {
        let sealed = row.secrets.as_ref().expect("a secret without a new value is kept");
        assert!(!sealed.windows(7).any(|bytes| bytes == b"hunter2"));
    }
    // Other changes leave the network alone.
    let renamed = world
        .send_json(Method::PATCH, &path, &json!({"idle_ttl_seconds": 0}))
        .await;
    assert_eq!(renamed.expect(200)["proxy_config"], changed["proxy_config"]);
    let closed = world
        .send_json(Method::PATCH, &path, &json!({"proxy_config": {}}))
        .await;
    assert_eq!(closed.expect(200)["proxy_config"], Value::Null);
    assert!(stored().await.unwrap().secrets.is_none());
    let answer = world.send_json(Method::PATCH, &path, &kept).await.expect(422);
    assert_eq!(
        answer["detail"][0]["loc"],
        json!(["body", "proxy_config", "rules", 0, "headers", 0, "value"])
    );
    assert_eq!(world.remove(&path).await.status, 204);
    assert!(stored().await.is_none());
}

async fn a_network_that_cannot_be_applied_is_refused(world: World) {
    let with = |header: Value| {
        let rule = json!({"name": "api", "match_hosts": ["api.example.com"], "headers": [header]});
        json!({"rules": [rule]})
    };
    for (config, field) in [
        (json!([]), "proxy_config"),
        (json!({"rules": [{}]}), "proxy_config.rules.0.name"),
        (
            json!({"access_control": {"allow_list": ["https://a"]}}),
            "proxy_config.access_control.allow_list.0",
        ),
        (
            with(json!({"name": "Host", "type": "plaintext", "value": "a"})),
            "proxy_config.rules.0.headers.0.name",
        ),
        (
            with(json!({"name": "X-Key", "type": "opaque", "value": "hunter2\r\nX: y"})),
            "proxy_config.rules.0.headers.0.value",
        ),
    ] {
        let answer = world.post(BOXES, &json!({"proxy_config": config})).await;
        assert!(!answer.text.contains("hunter2"), "{}", answer.text);
        let answer = answer.expect(422);
        let loc = answer["detail"][0]["loc"].as_array().unwrap().iter();
        let loc: Vec<String> = loc.map(|part| part.to_string().replace('"', "")).collect();
        assert_eq!(loc.join("."), format!("body.{field}"), "{answer}");
    }
    for config in [
        with(json!({"name": "X-Key", "type": "workspace_secret", "value": "{KEY}"})),
        json!({"rules": [{"name": "aws", "type": "aws", "aws": {"role_arn": "arn"}}]}),
        json!({"access_control": {"allow_list": ["a"], "deny_list": ["b"]}}),
    ] {
        let answer = world.post(BOXES, &json!({"proxy_config": config})).await;
        named(&answer, 400, "ValidationError");
    }
    assert_eq!(world.get(BOXES).await.expect(200)["sandboxes"], json!([]));
}

async fn snapshots_wait_for_the_machine(world: World) {
    world.sandbox("a").await;
    let captured = world
        .post(&format!("{BOXES}/a/snapshot"), &json!({"name": "kept"}))
        .await;
    named(&captured, 400, "NotReady");
    let body = json!({"name": "base", "docker_image": "host", "fs_capacity_bytes": 1_073_741_824, "tag": "v1"});
    let made = world.post("/v2/sandboxes/snapshots", &body).await.expect(201);
    assert_eq!((&made["status"], &made["tags"]), (&json!("building"), &json!([])));
    let again = world.post("/v2/sandboxes/snapshots", &body).await.expect(201);
    assert_eq!(made["id"], again["id"]);
    let mut unknown = body.clone();
    unknown["registry_id"] = json!("nowhere");
    let refused = world.post("/v2/sandboxes/snapshots", &unknown).await.expect(422);
    assert!(refused.to_string().contains("registry_id"), "{refused}");
    for reference in ["base", made["id"].as_str().unwrap()] {
        let found = world
            .get(&format!("/v2/sandboxes/snapshots/{reference}"))
            .await
            .expect(200);
        assert_eq!(found["id"], made["id"], "{reference}");
    }
    let tags = world.get("/v2/sandboxes/snapshots-by-name/base").await.expect(200);
    assert_eq!(tags["tags"], json!([]), "it moves when the snapshot is ready");
    named(&world.get("/v2/sandboxes/snapshots/base:v1").await, 404, "NotFound");
    named(
        &world.post(BOXES, &json!({"snapshot": "base"})).await,
        400,
        "SnapshotNotReady",
    );
    assert_eq!(world.remove("/v2/sandboxes/snapshots/base").await.status, 204);
    named(&world.get("/v2/sandboxes/snapshots/base").await, 404, "NotFound");
    let usage = world.get("/v2/sandboxes/usage").await.expect(200);
    assert_eq!(
        (&usage["sandboxes"]["used"], &usage["snapshots"]["used"]),
        (&json!(1), &json!(0))
    );
}

async fn sandboxes_of_another_workspace_are_not_there(world: World) {
    let made = world.sandbox("a").await;
    let other = world.second_workspace().await;
    let id = made["id"].as_str().unwrap();
    for path in [
        format!("{BOXES}/a"),
        format!("{BOXES}/{id}"),
        format!("/v2/sandboxes/dp/{id}/download?path=/etc/hosts"),
    ] {
        let answer = world.call(Call::new(Method::GET, &path).in_workspace(other)).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_workspace_has_as_many_as_it_may() {
    let settings = Settings {
        sandbox_quota: SandboxQuota {
            boxes: 1,
            snapshots: 0,
            volumes: 1,
            volume_bytes: 1 << 31,
            templates: 1,
            pools: 1,
            registries: 1,
        },
        ..Settings::default()
    };
    let world = World::with(settings).await;
    world.sandbox("a").await;
    let refused = world.post(BOXES, &json!({"name": "b", "wait_for_ready": false})).await;
    // The words that clients look for.
    let message = named(&refused, 429, "QuotaExceeded");
    assert!(message.contains("sandbox") && message.contains("limit"), "{message}");
    assert!(refused.headers.contains_key("retry-after"));
    // Those of pools count, wherever they come from.
    let template = json!({"name": "python", "image": "host"});
    world.post("/v2/sandboxes/templates", &template).await.expect(201);
    let pool = |replicas: i64| json!({"name": "ahead", "template_name": "python", "replicas": replicas, "wait_for_ready": false});
    named(&world.post("/v2/sandboxes/pools", &pool(1)).await, 429, "QuotaExceeded");
    world.post("/v2/sandboxes/pools", &pool(0)).await.expect(201);
    let more = world
        .send_json(Method::PATCH, "/v2/sandboxes/pools/ahead", &json!({"replicas": 1}))
        .await;
    named(&more, 429, "QuotaExceeded");
    let registry = |name: &str| {
        json!({"name": name, "url": "registry.example", "auth_type": "DOCKER_CONFIG", "username": "me",
               "password": "s3cret"})
    };
    let path = "/v2/sandboxes/registries";
    world.post(path, &registry("acme")).await.expect(201);
    for (kind, another) in [
        ("templates", json!({"name": "other", "image": "host"})),
        (
            "pools",
            json!({"name": "other", "template_name": "python", "replicas": 0, "wait_for_ready": false}),
        ),
        ("registries", registry("other")),
    ] {
        let refused = world.post(&format!("/v2/sandboxes/{kind}"), &another).await;
        let message = named(&refused, 429, "QuotaExceeded");
        assert!(
            message.contains(&format!("sandboxes.{kind}_per_workspace")),
            "{message}"
        );
    }
    let large = world.post(VOLUMES, &json!({"name": "large", "size": "3Gi"})).await;
    let message = named(&large, 429, "QuotaExceeded");
    assert!(message.contains("storage"), "{message}");
    world
        .post(VOLUMES, &json!({"name": "v", "size": "1Gi"}))
        .await
        .expect(201);
    named(
        &world.post(VOLUMES, &json!({"name": "w", "size": "1Gi"})).await,
        429,
        "QuotaExceeded",
    );
}

async fn a_sandbox_that_does_not_run_knows_no_command(world: World) {
    let made = world.sandbox("a").await;
    let data = format!("/v2/sandboxes/dp/{}", made["id"].as_str().unwrap());
    let commands = world.get(&format!("{data}/commands")).await.expect(200);
    assert_eq!(commands, json!({"commands": []}));
    let output = world.get(&format!("{data}/commands/abc/output")).await;
    named(&output, 404, "CommandNotFound");
    for (path, field) in [
        ("commands/a.b/output", "body.command_id"),
        ("commands/abc/output?limit=0", "query.limit"),
    ] {
        let answer = world.get(&format!("{data}/{path}")).await.expect(422);
        let loc: Vec<_> = answer["detail"][0]["loc"].as_array().unwrap().iter().collect();
        let loc: Vec<&str> = loc.into_iter().map(|part| part.as_str().unwrap()).collect();
        assert_eq!(loc.join("."), field, "{answer}");
    }
    // Looking has not started it.
    let status = world.get(&format!("{BOXES}/a/status")).await.expect(200);
    assert_eq!(status["status"], "provisioning");
}
