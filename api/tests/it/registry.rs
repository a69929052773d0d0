//! The registry of images as clients of registries speak to it, and the logins of other registries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use towpath_domain::DeploymentId;
use towpath_store::image_pull_secrets;

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(image_pull_secrets_are_kept_sealed,);

const KIND: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn basic(token: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("towpath:{token}")))
}

/// A deployment whose images are pushed, and the right to push them.
struct Pusher<'a> {
    world: &'a World,
    base: String,
    token: String,
}

impl<'a> Pusher<'a> {
    async fn new(world: &'a World, name: &str) -> Self {
        let new = json!({"name": name, "source": "internal_docker", "secrets": [], "source_config": {},
                         "source_revision_config": {}});
        let made = world.post("/v2/deployments", &new).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        let path = format!("/v2/deployments/{id}/push-token");
        let told = world
            .post(&path, &json!({"supports_registry_username": true}))
            .await
            .expect(200);
        assert_eq!(told["registry_url"], "127.0.0.1:8400");
        assert_eq!(told["repository_url"], format!("127.0.0.1:8400/images/{id}"));
        assert_eq!(told["username"], "towpath");
        Self {
            world,
            base: format!("/v2/images/{id}"),
            token: told["token"].as_str().unwrap().to_owned(),
        }
    }

    fn call(&self, method: Method, path: &str) -> Call {
        Call::new(method, path).header("authorization", &basic(&self.token))
    }

    async fn send(&self, method: Method, rest: &str) -> Answer {
        self.world
            .call(self.call(method, &format!("{}{rest}", self.base)))
            .await
    }

    async fn begin(&self) -> String {
        let begun = self.send(Method::POST, "/blobs/uploads/").await;
        assert_eq!(begun.status, 202, "{}", begun.text);
        begun.headers["location"].to_str().unwrap().to_owned()
    }

    /// As `docker push` does: all of it in one PATCH, then an empty PUT.
    async fn blob(&self, bytes: &[u8]) -> String {
        let place = self.begin().await;
        let sent = self
            .world
            .call(self.call(Method::PATCH, &place).body(bytes.to_vec()))
            .await;
        assert_eq!(sent.status, 202, "{}", sent.text);
        let digest = digest(bytes);
        let put = self.call(Method::PUT, &format!("{place}?digest={digest}"));
        let put = self.world.call(put).await;
        assert_eq!(put.status, 201, "{}", put.text);
        assert_eq!(put.headers["docker-content-digest"], digest.as_str());
        digest
    }

    async fn manifest(&self, reference: &str, manifest: &Value) -> Answer {
        let path = format!("{}/manifests/{reference}", self.base);
        let call = self.call(Method::PUT, &path).header("content-type", KIND);
        self.world.call(call.body(manifest.to_string())).await
    }
}

fn image(config: &str, layers: &[&str]) -> Value {
    let layers: Vec<Value> = layers
        .iter()
        .map(|digest| json!({"digest": digest, "size": 1}))
        .collect();
    json!({"schemaVersion": 2, "mediaType": KIND, "config": {"digest": config, "size": 2}, "layers": layers})
}

fn code(answer: &Answer) -> (u16, String) {
    let code = answer.json()["errors"][0]["code"].as_str().unwrap().to_owned();
    (answer.status.as_u16(), code)
}

#[tokio::test]
async fn an_image_is_pushed_and_pulled() {
    let world = World::new().await;
    let pusher = Pusher::new(&world, "pushed").await;
    assert_eq!(
        world.call(pusher.call(Method::GET, "/v2/")).await.expect(200),
        json!({})
    );
    assert_eq!(
        pusher
            .send(Method::HEAD, &format!("/blobs/{}", digest(b"{}")))
            .await
            .status,
        404
    );
    let config = pusher.blob(b"{}").await;
    let layer = pusher.blob(b"a layer").await;
    let empty = pusher.blob(b"").await;
    let head = pusher.send(Method::HEAD, &format!("/blobs/{layer}")).await;
    assert_eq!(
        (head.status.as_u16(), head.headers["content-length"].to_str().unwrap()),
        (200, "7")
    );
    assert_eq!(
        pusher.send(Method::GET, &format!("/blobs/{layer}")).await.text,
        "a layer"
    );

    let manifest = image(&config, &[&layer, &empty]);
    let name = digest(manifest.to_string().as_bytes());
    let put = pusher.manifest("latest", &manifest).await;
    assert_eq!(put.status, 201, "{}", put.text);
    assert_eq!(put.headers["docker-content-digest"], name.as_str());
    for reference in ["latest", &name] {
        let read = pusher.send(Method::GET, &format!("/manifests/{reference}")).await;
        assert_eq!(read.text, manifest.to_string());
        assert_eq!(read.headers["content-type"], KIND);
        assert_eq!(read.headers["docker-content-digest"], name.as_str());
        assert_eq!(read.headers["docker-distribution-api-version"], "registry/2.0");
        assert_eq!(
            pusher
                .send(Method::HEAD, &format!("/manifests/{reference}"))
                .await
                .status,
            200
        );
    }
    let tags = pusher.send(Method::GET, "/tags/list").await.expect(200);
    assert_eq!(tags["tags"], json!(["latest"]));
    // A list of images, under its digest.
    let list = json!({"schemaVersion": 2, "manifests": [{"digest": name, "mediaType": KIND, "size": 1}]});
    let of_list = digest(list.to_string().as_bytes());
    let path = format!("{}/manifests/{of_list}", pusher.base);
    let put = world.call(pusher.call(Method::PUT, &path).body(list.to_string())).await;
    assert_eq!(put.status, 201, "{}", put.text);
}

/// Five gigabytes are what S3 copies at once: nobody sends them to be told so.
#[tokio::test]
async fn a_layer_that_is_too_large_is_refused_before_it_is_sent() {
    let world = World::new().await;
    let pusher = Pusher::new(&world, "large").await;
    let place = pusher.begin().await;
    let announced = ((5_u64 << 30) + 1).to_string();
    let sent = pusher.call(Method::PATCH, &place).header("content-length", &announced);
    let refused = world.call(sent.body("the first of it")).await;
    assert_eq!(refused.status, 413, "{}", refused.text);
    let there = world.call(pusher.call(Method::GET, &place)).await;
    assert_eq!(there.status, 204);
    assert_eq!(there.headers["range"], "0-0", "nothing of it came");
}

#[tokio::test]
async fn a_blob_may_come_in_pieces() {
    let world = World::new().await;
    let pusher = Pusher::new(&world, "pieces").await;
    let place = pusher.begin().await;
    let piece = async |range: Option<&str>, bytes: &'static [u8]| {
        let call = pusher.call(Method::PATCH, &place).body(bytes);
        let call = match range {
            Some(range) => call.header("content-range", range),
            None => call,
        };
        let answer = world.call(call).await;
        (
            answer.status.as_u16(),
            answer.headers["range"].to_str().unwrap().to_owned(),
        )
    };
    assert_eq!(piece(Some("0-3"), b"abcd").await, (202, "0-3".to_owned()));
    // One that was sent already, or from behind: says where to go on.
    assert_eq!(piece(Some("0-3"), b"abcd").await, (416, "0-3".to_owned()));
    assert_eq!(piece(Some("9-10"), b"xy").await, (416, "0-3".to_owned()));
    let asked = world.call(pusher.call(Method::GET, &place)).await;
    assert_eq!(
        (asked.status.as_u16(), asked.headers["range"].to_str().unwrap()),
        (204, "0-3")
    );
    assert_eq!(piece(None, b"efgh").await, (202, "0-7".to_owned()));
    let whole = digest(b"abcdefghij");
    let put = pusher.call(Method::PUT, &format!("{place}?digest={whole}")).body("ij");
    assert_eq!(world.call(put).await.status, 201);
    assert_eq!(
        pusher.send(Method::GET, &format!("/blobs/{whole}")).await.text,
        "abcdefghij"
    );
    // It is over.
    assert_eq!(
        code(&world.call(pusher.call(Method::GET, &place)).await),
        (404, "BLOB_UPLOAD_UNKNOWN".to_owned())
    );

    let place = pusher.begin().await;
    world.call(pusher.call(Method::PATCH, &place).body("something")).await;
    let lied = pusher.call(Method::PUT, &format!("{place}?digest={}", digest(b"else")));
    assert_eq!(code(&world.call(lied).await), (400, "DIGEST_INVALID".to_owned()));
    assert_eq!(
        pusher
            .send(Method::GET, &format!("/blobs/{}", digest(b"else")))
            .await
            .status,
        404
    );
    let place = pusher.begin().await;
    assert_eq!(world.call(pusher.call(Method::DELETE, &place)).await.status, 204);
    assert_eq!(world.call(pusher.call(Method::PATCH, &place)).await.status, 404);
}

#[tokio::test]
async fn what_is_no_image_is_refused() {
    let world = World::new().await;
    let pusher = Pusher::new(&world, "refused").await;
    let config = pusher.blob(b"{}").await;
    let absent = digest(b"absent");
    for (reference, manifest, expected) in [
        ("latest", image(&config, &[&absent]), "MANIFEST_BLOB_UNKNOWN"),
        ("latest", json!({"schemaVersion": 1}), "MANIFEST_INVALID"),
        (
            "latest",
            json!({"schemaVersion": 2, "mediaType": "text/plain"}),
            "MANIFEST_INVALID",
        ),
        ("latest", image("sha256:../../x", &[]), "DIGEST_INVALID"),
        (absent.as_str(), image(&config, &[]), "DIGEST_INVALID"),
        ("-x", image(&config, &[]), "TAG_INVALID"),
        ("..", image(&config, &[]), "TAG_INVALID"),
    ] {
        let refused = pusher.manifest(reference, &manifest).await;
        assert_eq!(code(&refused), (400, expected.to_owned()), "{reference} {manifest}");
    }
    for path in ["/blobs/sha256:x", "/blobs/md5:00", "/manifests/sha256:00"] {
        assert_eq!(
            code(&pusher.send(Method::GET, path).await),
            (400, "DIGEST_INVALID".to_owned()),
            "{path}"
        );
    }
    assert_eq!(
        code(&pusher.send(Method::GET, "/manifests/none").await),
        (404, "MANIFEST_UNKNOWN".to_owned())
    );
}

#[tokio::test]
async fn a_token_opens_the_images_of_its_deployment_for_an_hour() {
    let world = World::new().await;
    let (one, other) = (Pusher::new(&world, "one").await, Pusher::new(&world, "other").await);
    let blob = one.blob(b"secret").await;
    let path = format!("{}/blobs/{blob}", one.base);
    for call in [
        Call::new(Method::GET, "/v2/"),
        Call::new(Method::GET, "/v2/").header("authorization", &basic("x")),
        Call::new(Method::GET, "/v2/").header("authorization", &format!("Bearer {}", one.token)),
        // A key opens the API, not images.
        Call::new(Method::GET, &path).in_workspace(world.tenant),
    ] {
        let refused = world.call(call).await;
        assert_eq!(code(&refused), (401, "UNAUTHORIZED".to_owned()));
        assert!(
            refused.headers["www-authenticate"]
                .to_str()
                .unwrap()
                .starts_with("Basic realm=")
        );
    }
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::POST, format!("{}/blobs/uploads/", one.base)),
    ] {
        assert_eq!(
            code(&world.call(other.call(method, &path)).await),
            (403, "DENIED".to_owned())
        );
    }
    // Being deleted, it takes nothing more.
    let deployment = other.base.rsplit('/').next().unwrap();
    let delete = Call::new(Method::DELETE, &format!("/v2/deployments/{deployment}")).in_workspace(world.tenant);
    assert_eq!(world.call(delete).await.status, 204);
    let refused = other.send(Method::POST, "/blobs/uploads/").await;
    assert_eq!(code(&refused), (404, "NAME_UNKNOWN".to_owned()));
    world.clock.advance(std::time::Duration::from_secs(3_601));
    assert_eq!(one.send(Method::GET, &format!("/blobs/{blob}")).await.status, 401);
}

#[tokio::test]
async fn what_nothing_names_goes_after_a_day() {
    let world = World::new().await;
    let pusher = Pusher::new(&world, "swept").await;
    let config = pusher.blob(b"{}").await;
    let (old, named) = (pusher.blob(b"old").await, pusher.blob(b"named").await);
    let first = image(&config, &[&old]);
    pusher.manifest("latest", &first).await;
    let second = image(&config, &[&named]);
    let put = pusher.manifest("latest", &second).await;
    let second = put.headers["docker-content-digest"].to_str().unwrap().to_owned();
    // A revision names this one.
    let deployment = pusher.base.rsplit('/').next().unwrap();
    let path = format!("/v2/deployments/{deployment}");
    let uri = format!("127.0.0.1:8400/images/{deployment}@{second}");
    let change = json!({"source_revision_config": {"image_uri": uri}, "revision_source": "internal_docker"});
    let call = Call::new(Method::PATCH, &path).in_workspace(world.tenant).json(&change);
    world.call(call).await.expect(200);
    // Files are as old as this machine's clock says; the world's stands still until it is moved far ahead.
    let ahead = 20 * 365 * 24 * 60 * 60;
    world.clock.advance(std::time::Duration::from_secs(ahead));
    let told = world.post(&format!("{path}/push-token"), &json!({})).await.expect(200);
    let pusher = Pusher {
        token: told["token"].as_str().unwrap().to_owned(),
        ..pusher
    };
    let third = image(&config, &[]);
    pusher.manifest("latest", &third).await;
    let is_there = async |rest: String| pusher.send(Method::HEAD, &rest).await.status == 200;
    assert!(!is_there(format!("/manifests/{}", digest(first.to_string().as_bytes()))).await);
    assert!(!is_there(format!("/blobs/{old}")).await);
    assert!(is_there(format!("/manifests/{second}")).await);
    assert!(is_there(format!("/blobs/{named}")).await);
    assert!(is_there("/manifests/latest".to_owned()).await);
    assert!(is_there(format!("/blobs/{config}")).await);
}

async fn image_pull_secrets_are_kept_sealed(world: World) {
    let put = async |name: &str, body: &Value| {
        let path = format!("/v2/image-pull-secrets/{name}");
        world
            .call(Call::new(Method::PUT, &path).in_workspace(world.tenant).json(body))
            .await
    };
    let one = json!({"registry": "https://Registry.example:5000/", "username": "me", "password": "s3cret"});
    let made = put("acme", &one).await.expect(201);
    assert_eq!(made["registries"], json!(["registry.example:5000"]));
    assert!(
        !made.to_string().contains("s3cret") && !made.to_string().contains("\"me\""),
        "{made}"
    );
    let auth = BASE64.encode("you:s3cret-too");
    let several = json!({"docker_config": {"auths": {"ghcr.io": {"auth": auth}, "docker.io": {"auth": auth}}}});
    let replaced = put("acme", &several).await.expect(200);
    assert_eq!(replaced["id"], made["id"]);
    let listed = world.get("/v2/image-pull-secrets").await.expect(200);
    assert_eq!(listed["resources"], json!([replaced]));
    let rows = world
        .store
        .read(async |tx| image_pull_secrets::list(tx, world.tenant).await)
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(&rows[0].logins).contains(&auth));
    let logins = rows[0].logins(&world.app.sealer).unwrap();
    assert_eq!(logins[1].registry, "ghcr.io");
    assert_eq!(
        (logins[1].username.as_str(), logins[1].password.reveal()),
        ("you", "s3cret-too")
    );
    // Not of another workspace.
    let other = world.second_workspace().await;
    let listed = world
        .call(Call::new(Method::GET, "/v2/image-pull-secrets").in_workspace(other))
        .await;
    assert_eq!(listed.expect(200)["resources"], json!([]));
    let path = "/v2/image-pull-secrets/acme";
    assert_eq!(
        world
            .call(Call::new(Method::DELETE, path).in_workspace(other))
            .await
            .status,
        404
    );
    assert_eq!(
        world
            .call(Call::new(Method::DELETE, path).in_workspace(world.tenant))
            .await
            .status,
        204
    );
    assert_eq!(
        world
            .call(Call::new(Method::DELETE, path).in_workspace(world.tenant))
            .await
            .status,
        404
    );

    for (name, body, field) in [
        ("Acme", &one, "name"),
        ("a..b", &one, "name"),
        (
            "acme",
            &json!({"registry": "a b", "username": "me", "password": "s3cret"}),
            "registry",
        ),
        (
            "acme",
            &json!({"registry": "a.b", "username": "m:e", "password": "s3cret"}),
            "username",
        ),
        (
            "acme",
            &json!({"registry": "a.b", "username": "me", "password": ""}),
            "password",
        ),
        ("acme", &json!({"docker_config": {"auths": {}}}), "docker_config"),
        (
            "acme",
            &json!({"docker_config": {"auths": {"a.b": {"auth": "s3cret"}}}}),
            "docker_config",
        ),
    ] {
        let refused = put(name, body).await.expect(422);
        assert_eq!(
            refused["detail"][0]["loc"].as_array().unwrap().last().unwrap(),
            field,
            "{refused}"
        );
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
    }
    let refused = put("acme", &json!({"registry": "a.b"})).await.expect(400);
    let text = "either registry, username and password, or docker_config";
    assert!(refused["detail"].as_str().unwrap().contains(text), "{refused}");
}

#[tokio::test]
async fn no_one_pushes_below_a_path() {
    let settings = towpath_api::Settings {
        public_url: "https://example.org/towpath".to_owned(),
        ..towpath_api::Settings::default()
    };
    let world = World::with(settings).await;
    let new = json!({"name": "a", "source": "internal_docker", "secrets": [], "source_config": {},
                     "source_revision_config": {}});
    let made = world.post("/v2/deployments", &new).await.expect(201);
    let path = format!("/v2/deployments/{}/push-token", made["id"].as_str().unwrap());
    let refused = world.post(&path, &json!({})).await.expect(400);
    assert!(
        refused["detail"].as_str().unwrap().contains("public_url has a path"),
        "{refused}"
    );
    let absent = format!("/v2/deployments/{}/push-token", DeploymentId::new());
    world.post(&absent, &json!({})).await.expect(404);
}
