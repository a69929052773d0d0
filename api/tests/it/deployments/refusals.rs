//! Every rule about deployments, with the answer it gives.

use http::Method;
use serde_json::{Value, json};
use towpath_domain::deployment::RESERVED;

use super::{github, image, with};
use crate::world::{Call, World};

/// What is wrong with a body: where, and the word for programs.
fn shape(place: &[&str], kind: &str) -> (u16, Value) {
    let mut loc = vec![json!("body")];
    loc.extend(
        place
            .iter()
            .map(|step| step.parse::<u64>().map_or_else(|_| json!(step), |index| json!(index))),
    );
    (422, json!({"loc": loc, "type": kind}))
}

fn rule(text: &str) -> (u16, Value) {
    (400, json!(text))
}

fn without(mut body: Value, name: &str) -> Value {
    body.as_object_mut().unwrap().remove(name);
    body
}

fn internal(source: &str) -> Value {
    json!({"name": "agent", "source": source, "secrets": [], "source_config": {}, "source_revision_config": {}})
}

fn secrets(list: Value) -> Value {
    with(github(), "/secrets", list)
}

async fn refuses(world: &World, method: &Method, path: &str, table: Vec<(Value, (u16, Value))>) {
    for (body, (status, expected)) in table {
        let call = Call::new(method.clone(), path).in_workspace(world.tenant).json(&body);
        let answer = world.call(call).await.expect(status);
        if status == 422 {
            let issue = &answer["detail"][0];
            assert_eq!(issue["loc"], expected["loc"], "{body}: {answer}");
            assert_eq!(issue["type"], expected["type"], "{body}: {answer}");
            assert!(issue["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{answer}");
        } else {
            assert_eq!(answer, json!({"detail": expected}), "{body}");
        }
        assert!(!answer.to_string().contains("s3cret"), "{answer}");
    }
}

#[tokio::test]
async fn of_what_is_made() {
    let world = World::new().await;
    let listener = json!("0194fdc2-fa2f-7cc0-81d3-ff120745ac1d");
    let table = vec![
        // Shape.
        (without(github(), "name"), shape(&["name"], "missing")),
        (without(github(), "source"), shape(&["source"], "missing")),
        (without(github(), "source_config"), shape(&["source_config"], "missing")),
        (
            without(github(), "source_revision_config"),
            shape(&["source_revision_config"], "missing"),
        ),
        (without(github(), "secrets"), shape(&["secrets"], "missing")),
        (
            with(github(), "/secrets", Value::Null),
            shape(&["secrets"], "type_error"),
        ),
        (with(github(), "/source", json!("gitlab")), shape(&["source"], "enum")),
        (
            with(github(), "/source_config", json!([])),
            shape(&["source_config"], "type_error"),
        ),
        (with(github(), "/name", json!(7)), shape(&["name"], "type_error")),
        (with(github(), "/name", json!("")), shape(&["name"], "value_error")),
        (with(github(), "/name", json!("a\nb")), shape(&["name"], "value_error")),
        (
            with(github(), "/name", json!("x".repeat(256))),
            shape(&["name"], "value_error"),
        ),
        (with(github(), "/nmae", json!("a")), shape(&["nmae"], "extra_forbidden")),
        (
            with(github(), "/source_config/repo", json!("a")),
            shape(&["source_config", "repo"], "extra_forbidden"),
        ),
        (
            with(github(), "/source_config/deployment_type", json!("huge")),
            shape(&["source_config", "deployment_type"], "enum"),
        ),
        (
            with(github(), "/source_config/integration_id", json!("x")),
            shape(&["source_config", "integration_id"], "uuid_parsing"),
        ),
        (
            with(github(), "/source_config/repo_url", json!("ext::sh -c x")),
            shape(&["source_config", "repo_url"], "value_error"),
        ),
        (
            with(github(), "/source_revision_config/repo_ref", json!("--upload-pack=x")),
            shape(&["source_revision_config", "repo_ref"], "value_error"),
        ),
        (
            with(
                github(),
                "/source_revision_config/graph_config_path",
                json!("../../etc/passwd"),
            ),
            shape(&["source_revision_config", "graph_config_path"], "value_error"),
        ),
        (
            with(image(), "/source_revision_config/image_uri", json!("not an image")),
            shape(&["source_revision_config", "image_uri"], "value_error"),
        ),
        (
            with(image(), "/source_config/custom_url", json!("javascript:1")),
            shape(&["source_config", "custom_url"], "value_error"),
        ),
        // By source.
        (
            with(github(), "/source_config/repo_url", Value::Null),
            rule("source_config.repo_url is required when source is github"),
        ),
        (
            with(github(), "/source_revision_config/repo_ref", Value::Null),
            rule("source_revision_config.repo_ref is required when source is github"),
        ),
        (
            with(github(), "/source_revision_config/graph_config_path", Value::Null),
            rule("source_revision_config.graph_config_path is required when source is github"),
        ),
        (
            with(github(), "/source_revision_config/image_uri", json!("a/b")),
            rule("source_revision_config.image_uri must be null when source is github"),
        ),
        (
            with(github(), "/source_config/resource_spec", json!({})),
            rule("source_config.resource_spec must be null when source is github"),
        ),
        (
            with(github(), "/source_config/listener_id", listener.clone()),
            rule("source_config.listener_id must be null when source is github"),
        ),
        (
            with(github(), "/source_config/listener_config", json!({})),
            rule("source_config.listener_config must be null when source is github"),
        ),
        (
            with(image(), "/source_revision_config/image_uri", Value::Null),
            rule("source_revision_config.image_uri is required when source is external_docker"),
        ),
        (
            with(image(), "/source_revision_config/repo_ref", json!("main")),
            rule("source_revision_config.repo_ref must be null when source is external_docker"),
        ),
        (
            with(
                image(),
                "/source_revision_config/graph_config_path",
                json!("langgraph.json"),
            ),
            rule("source_revision_config.graph_config_path must be null when source is external_docker"),
        ),
        (
            with(image(), "/source_config/repo_url", json!("https://github.com/a/b")),
            rule("source_config.repo_url must be null when source is external_docker"),
        ),
        (
            with(image(), "/source_config/integration_id", listener.clone()),
            rule("source_config.integration_id must be null when source is external_docker"),
        ),
        (
            with(image(), "/source_config/deployment_type", json!("dev")),
            rule("source_config.deployment_type must be null when source is external_docker"),
        ),
        (
            with(image(), "/source_config/build_on_push", json!(true)),
            rule("source_config.build_on_push must be null when source is external_docker"),
        ),
        (
            with(image(), "/source_config/install_command", json!("npm ci")),
            rule("source_config.install_command must be null when source is external_docker"),
        ),
        (
            with(
                internal("internal_docker"),
                "/source_config/custom_url",
                json!("https://a.example"),
            ),
            rule("source_config.custom_url must be null when source is internal_docker"),
        ),
        (
            with(
                internal("internal_docker"),
                "/source_revision_config/repo_ref",
                json!("main"),
            ),
            rule("source_revision_config.repo_ref must be null when source is internal_docker"),
        ),
        (
            with(
                internal("internal_source"),
                "/source_revision_config/source_tarball_path",
                json!("x"),
            ),
            rule("source_revision_config.graph_config_path is required when source is internal_source"),
        ),
        (
            with(
                internal("internal_source"),
                "/source_revision_config",
                json!({"source_tarball_path": "/etc/passwd", "langgraph_config_path": "langgraph.json"}),
            ),
            rule(
                "source_revision_config.source_tarball_path: was not handed out for this deployment; \
                 POST /v2/deployments/{id}/upload-url hands one out",
            ),
        ),
        // Across fields.
        (
            with(
                with(github(), "/source_config/build_on_push", json!(true)),
                "/source_revision_config/repo_ref",
                json!("refs/tags/v1"),
            ),
            rule(
                "source_config.build_on_push cannot be true when source_revision_config.repo_ref is a tag (refs/tags/…)",
            ),
        ),
        (
            with(
                github(),
                "/source_revision_config/langgraph_config_path",
                json!("other.json"),
            ),
            rule("source_revision_config.graph_config_path and langgraph_config_path are one field and must agree"),
        ),
        (
            with(github(), "/source_config/integration_id", listener.clone()),
            rule(
                "source_config.integration_id: there is no such integration in this workspace; \
                 GET /v1/integrations/github/install lists them",
            ),
        ),
        (
            with(image(), "/source_config/listener_id", listener.clone()),
            rule(
                "source_config.listener_id: there is no such listener in this workspace; GET /v2/listeners lists them",
            ),
        ),
        (
            with(image(), "/source_config/listener_config", json!({"k8s_namespace": "a"})),
            rule("source_config.listener_config.k8s_namespace must be null: the listener's compute type is not k8s"),
        ),
        // Sizes.
        (
            with(image(), "/source_config/resource_spec", json!({"cpu": 9})),
            shape(&["source_config", "resource_spec", "cpu"], "value_error"),
        ),
        (
            with(image(), "/source_config/resource_spec", json!({"memory_mb": 1.5})),
            shape(&["source_config", "resource_spec", "memory_mb"], "value_error"),
        ),
        (
            with(
                image(),
                "/source_config/resource_spec",
                json!({"cpu": 4, "cpu_limit": 2}),
            ),
            rule("source_config.resource_spec.cpu_limit: cpu_limit must not be less than cpu (4)"),
        ),
        (
            with(
                image(),
                "/source_config/resource_spec",
                json!({"min_scale": 3, "max_scale": 2}),
            ),
            rule("source_config.resource_spec.max_scale: max_scale must not be less than min_scale (3)"),
        ),
        // Secrets.
        (
            secrets(json!([{"name": "A"}])),
            shape(&["secrets", "0", "value"], "missing"),
        ),
        (
            secrets(json!([["A", "s3cret"]])),
            shape(&["secrets", "0"], "type_error"),
        ),
        (
            secrets(json!([{"name": "1A", "value": "s3cret"}])),
            shape(&["secrets", "0", "name"], "value_error"),
        ),
        (
            secrets(json!([{"name": "A", "value": "s3cret"}, {"name": "A", "value": "s3cret"}])),
            shape(&["secrets", "1", "name"], "value_error"),
        ),
        (
            secrets(json!([{"name": "A", "value": "********"}])),
            rule("secrets: A has the masked value, and no value is stored under that name"),
        ),
        // What this build does not have.
        (
            with(
                without(github(), "name"),
                "/agent",
                json!({"agent_id": "a", "environment": "dev"}),
            ),
            rule("a deployment of an agent (agent) is not available in this build"),
        ),
        (
            with(github(), "/secret_references", json!([{"name": "a"}])),
            rule("secret_references is not available in this build"),
        ),
    ];
    refuses(&world, &Method::POST, "/v2/deployments", table).await;
    for name in RESERVED {
        let body = secrets(json!([{"name": name, "value": "s3cret"}]));
        let text = format!("secrets: {name} is a reserved name and is set by the platform");
        assert_eq!(
            world.post("/v2/deployments", &body).await.expect(400),
            json!({"detail": text})
        );
    }
    for command in [
        "npm ci; x",
        "npm ci && x",
        "a | b",
        "a > b",
        "$(x)",
        "`x`",
        "a 'b'",
        "a\nb",
    ] {
        let body = with(github(), "/source_config/install_command", json!(command));
        let refused = world.post("/v2/deployments", &body).await.expect(400);
        assert!(
            refused["detail"]
                .as_str()
                .unwrap()
                .starts_with("source_config.install_command"),
            "{refused}"
        );
    }
    // Nothing was kept of all that.
    assert_eq!(world.get("/v2/deployments").await.expect(200)["resources"], json!([]));
    world.post("/v2/deployments", &github()).await.expect(201);
    let taken = world.post("/v2/deployments", &image()).await.expect(400);
    assert_eq!(
        taken,
        json!({"detail": "name: this workspace has a deployment named agent already"})
    );
}

#[tokio::test]
async fn a_taken_name_is_one_on_every_database() {
    for world in World::on_each().await {
        world.post("/v2/deployments", &github()).await.expect(201);
        let taken = world.post("/v2/deployments", &github()).await.expect(400);
        assert_eq!(
            taken,
            json!({"detail": "name: this workspace has a deployment named agent already"})
        );
    }
}

#[tokio::test]
async fn of_what_is_changed() {
    let world = World::new().await;
    let made = world.post("/v2/deployments", &github()).await.expect(201);
    let fixed = |field: &str| rule(&format!("{field} cannot be changed after the deployment was created"));
    let table = vec![
        (json!({"name": "other"}), fixed("name")),
        (json!({"source": "external_docker"}), fixed("source")),
        (
            json!({"source_config": {"repo_url": "https://github.com/a/b"}}),
            fixed("source_config.repo_url"),
        ),
        (
            json!({"source_config": {"deployment_type": "prod"}}),
            fixed("source_config.deployment_type"),
        ),
        (
            json!({"source_config": {"integration_id": "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d"}}),
            fixed("source_config.integration_id"),
        ),
        (
            json!({"source_config": {"resource_spec": {}}}),
            rule("source_config.resource_spec must be null when source is github"),
        ),
        (
            json!({"source_revision_config": {"image_uri": "a/b"}}),
            rule("source_revision_config.image_uri must be null when source is github"),
        ),
        (
            json!({"source_config": {"build_on_push": true}, "source_revision_config": {"repo_ref": "refs/tags/v1"}}),
            rule(
                "source_config.build_on_push cannot be true when source_revision_config.repo_ref is a tag (refs/tags/…)",
            ),
        ),
        (
            json!({"revision_source": "internal_docker"}),
            rule("revision_source cannot be internal_docker of a deployment whose source is github"),
        ),
        (
            json!({"secrets": [{"name": "PORT", "value": "1"}]}),
            rule("secrets: PORT is a reserved name and is set by the platform"),
        ),
        (json!({"source_config": []}), shape(&["source_config"], "type_error")),
        (json!({"secrets": {}}), shape(&["secrets"], "type_error")),
        (json!({"stauts": 1}), shape(&["stauts"], "extra_forbidden")),
    ];
    let path = format!("/v2/deployments/{}", made["id"].as_str().unwrap());
    refuses(&world, &Method::PATCH, &path, table).await;
    let now = world.get(&path).await.expect(200);
    assert_eq!(now, made, "nothing was changed");
    // What is so already is no change; what is read-only is ignored; null clears, or says nothing.
    for same in [
        json!({"name": "agent", "source": "github"}),
        json!({"source_config": {"repo_url": "https://github.com/acme/agent", "custom_url": "https://a.example"}}),
        json!({"source_config": {"repo_url": null, "install_command": null}, "source_revision_config": {"repo_ref": null}}),
        json!({"secrets": null, "status": "READY", "id": "x"}),
    ] {
        let call = Call::new(Method::PATCH, &path).in_workspace(world.tenant).json(&same);
        let answer = world.call(call).await.expect(200);
        assert_eq!(answer["latest_revision_id"], made["latest_revision_id"], "{same}");
        assert_eq!(answer["source_config"], made["source_config"], "{same}");
    }
}

#[tokio::test]
async fn of_paths_queries_and_kinds_of_body() {
    let world = World::new().await;
    let bad = world.get("/v2/deployments/nonsense").await.expect(422);
    assert_eq!(bad["detail"][0]["loc"], json!(["path", "deployment_id"]));
    let bad = world
        .get(&format!(
            "/v2/deployments/{}/revisions/x",
            towpath_domain::DeploymentId::new()
        ))
        .await;
    assert_eq!(bad.expect(422)["detail"][0]["loc"], json!(["path", "revision_id"]));
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("offset=-1", "offset"),
        ("status=DONE", "status"),
        ("deployment_ids=x", "deployment_ids"),
        ("deployment_type=big", "deployment_type"),
    ] {
        let refused = world.get(&format!("/v2/deployments?{query}")).await.expect(422);
        assert_eq!(
            refused["detail"][0]["loc"],
            json!(["query", field]),
            "{query}: {refused}"
        );
    }
    for field in ["tag_value_ids", "remote_reconciled", "agent_id", "agent_environment"] {
        let refused = world.get(&format!("/v2/deployments?{field}=x")).await.expect(400);
        assert_eq!(
            refused["detail"],
            format!("the filter {field} is not available in this build")
        );
    }
    let text = Call::new(Method::POST, "/v2/deployments").in_workspace(world.tenant);
    world
        .call(text.header("content-type", "text/plain").body("{}"))
        .await
        .expect(415);
    let open = world.open(Method::GET, "/v2/deployments").await;
    assert_eq!(open.status, 401);
}
