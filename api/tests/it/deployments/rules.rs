//! The rules of deployments, row by row: a body, and the answer it gets. `docs/deployment-rules.md` lists the rules; one that
//! no row shows fails here, and so does a row of no rule.

use std::collections::BTreeSet;
use std::path::Path;

use http::Method;
use serde_json::{Value, json};

use super::{github, image, with};
use crate::world::{Call, World};

/// An integration or a listener that is not there.
const NOBODY: &str = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d";

/// What a rule makes of a request.
struct Row {
    /// As the page names it.
    rule: &'static str,
    /// The deployment it is about, made before; none where it makes one.
    of: Option<Value>,
    body: Value,
    then: Then,
}

enum Then {
    /// 422 about this place of the body, with this word for programs.
    Shape(Vec<&'static str>, &'static str),
    /// 400 with exactly this text.
    Refused(&'static str),
    /// Done, and these pointers of the answer are so.
    Shows(Vec<(&'static str, Value)>),
    /// Done, with one new revision.
    Revision,
    /// Done, without a revision, and these pointers of the answer are so.
    NoRevision(Vec<(&'static str, Value)>),
}

use Then::{NoRevision, Refused, Revision, Shape, Shows};

fn new(rule: &'static str, body: Value, then: Then) -> Row {
    Row {
        rule,
        of: None,
        body,
        then,
    }
}

fn change(rule: &'static str, of: Value, body: Value, then: Then) -> Row {
    Row {
        rule,
        of: Some(of),
        body,
        then,
    }
}

fn without(mut body: Value, name: &str) -> Value {
    body.as_object_mut().unwrap().remove(name);
    body
}

fn internal(source: &str) -> Value {
    json!({"name": "agent", "source": source, "secrets": [], "source_config": {}, "source_revision_config": {}})
}

/// `base` with a field of its `source_config`.
fn config(base: Value, name: &str, value: impl Into<Value>) -> Value {
    with(base, &format!("/source_config/{name}"), value.into())
}

/// `base` with a field of its `source_revision_config`.
fn revision(base: Value, name: &str, value: impl Into<Value>) -> Value {
    with(base, &format!("/source_revision_config/{name}"), value.into())
}

fn secrets(list: Value) -> Value {
    with(github(), "/secrets", list)
}

fn spec(spec: Value) -> Value {
    config(image(), "resource_spec", spec)
}

/// The place of a field of the resource specification.
fn sized(rest: &[&'static str]) -> Vec<&'static str> {
    [&["source_config", "resource_spec"], rest].concat()
}

fn shape_of_requests() -> Vec<Row> {
    let mut rows: Vec<Row> = ["name", "source", "source_config", "source_revision_config", "secrets"]
        .into_iter()
        .map(|name| new("required", without(github(), name), Shape(vec![name], "missing")))
        .collect();
    rows.extend([
        new(
            "required",
            with(github(), "/secrets", Value::Null),
            Shape(vec!["secrets"], "type_error"),
        ),
        new(
            "types",
            with(github(), "/name", json!(7)),
            Shape(vec!["name"], "type_error"),
        ),
        new(
            "types",
            with(github(), "/source_config", json!([])),
            Shape(vec!["source_config"], "type_error"),
        ),
        new(
            "types",
            config(github(), "integration_id", "x"),
            Shape(vec!["source_config", "integration_id"], "uuid_parsing"),
        ),
        new(
            "types",
            with(github(), "/nmae", json!("a")),
            Shape(vec!["nmae"], "extra_forbidden"),
        ),
        new(
            "types",
            config(github(), "repo", "a"),
            Shape(vec!["source_config", "repo"], "extra_forbidden"),
        ),
        new(
            "name",
            with(github(), "/name", json!("")),
            Shape(vec!["name"], "value_error"),
        ),
        new(
            "name",
            with(github(), "/name", json!("a\nb")),
            Shape(vec!["name"], "value_error"),
        ),
        new(
            "name",
            with(github(), "/name", json!("x".repeat(256))),
            Shape(vec!["name"], "value_error"),
        ),
        new(
            "source",
            with(github(), "/source", json!("gitlab")),
            Shape(vec!["source"], "enum"),
        ),
        new("source", github(), Shows(vec![("/source", json!("github"))])),
        new("source", image(), Shows(vec![("/source", json!("external_docker"))])),
        new(
            "source.internal",
            internal("internal_docker"),
            Shows(vec![("/source", json!("internal_docker"))]),
        ),
        new(
            "source.internal",
            internal("internal_source"),
            Shows(vec![("/source", json!("internal_source"))]),
        ),
        new(
            "agent",
            with(
                without(github(), "name"),
                "/agent",
                json!({"agent_id": "a", "environment": "dev"}),
            ),
            Refused("a deployment of an agent (agent) is not available in this build"),
        ),
        new(
            "secret_references",
            with(github(), "/secret_references", json!([{"name": "a"}])),
            Refused("secret_references is not available in this build"),
        ),
    ]);
    rows
}

fn source_config() -> Vec<Row> {
    vec![
        new(
            "null",
            with(
                github(),
                "/source_config",
                json!({
                    "integration_id": null, "repo_url": "https://github.com/acme/agent", "deployment_type": null, "build_on_push": null,
                    "custom_url": null, "resource_spec": null, "listener_id": null, "listener_config": null, "install_command": null,
                    "build_command": null,
                }),
            ),
            Shows(vec![(
                "/source_config/repo_url",
                json!("https://github.com/acme/agent"),
            )]),
        ),
        new(
            "integration_id",
            config(image(), "integration_id", NOBODY),
            Refused("source_config.integration_id must be null when source is external_docker"),
        ),
        new(
            "integration_id",
            config(github(), "integration_id", NOBODY),
            Refused(
                "source_config.integration_id: there is no such integration in this workspace; \
                 GET /v1/integrations/github/install lists them",
            ),
        ),
        new(
            "repo_url",
            config(github(), "repo_url", Value::Null),
            Refused("source_config.repo_url is required when source is github"),
        ),
        new(
            "repo_url",
            config(image(), "repo_url", "https://github.com/a/b"),
            Refused("source_config.repo_url must be null when source is external_docker"),
        ),
        new(
            "repo_url",
            config(github(), "repo_url", "ext::sh -c x"),
            Shape(vec!["source_config", "repo_url"], "value_error"),
        ),
        new(
            "deployment_type",
            config(github(), "deployment_type", "huge"),
            Shape(vec!["source_config", "deployment_type"], "enum"),
        ),
        new(
            "deployment_type",
            config(image(), "deployment_type", "dev"),
            Refused("source_config.deployment_type must be null when source is external_docker"),
        ),
        new(
            "deployment_type",
            config(github(), "deployment_type", "dev_free"),
            Shows(vec![("/source_config/deployment_type", json!("dev_free"))]),
        ),
        new(
            "deployment_type",
            config(github(), "deployment_type", "dev"),
            Shows(vec![("/source_config/deployment_type", json!("dev"))]),
        ),
        new(
            "deployment_type",
            config(github(), "deployment_type", "prod"),
            Shows(vec![("/source_config/deployment_type", json!("prod"))]),
        ),
        new(
            "build_on_push",
            config(github(), "build_on_push", true),
            Shows(vec![("/source_config/build_on_push", json!(true))]),
        ),
        new(
            "build_on_push",
            config(image(), "build_on_push", true),
            Refused("source_config.build_on_push must be null when source is external_docker"),
        ),
        new(
            "custom_url",
            config(image(), "custom_url", "https://a.example/b"),
            Shows(vec![("/source_config/custom_url", json!("https://a.example/b"))]),
        ),
        new(
            "custom_url",
            config(image(), "custom_url", "javascript:1"),
            Shape(vec!["source_config", "custom_url"], "value_error"),
        ),
        new(
            "custom_url",
            config(internal("internal_docker"), "custom_url", "https://a.example"),
            Refused("source_config.custom_url must be null when source is internal_docker"),
        ),
        change(
            "custom_url.read_only",
            github(),
            json!({"source_config": {"custom_url": "https://a.example"}}),
            NoRevision(vec![]),
        ),
        change(
            "custom_url",
            config(image(), "custom_url", "https://a.example"),
            json!({"source_config": {"custom_url": "https://b.example"}}),
            NoRevision(vec![("/source_config/custom_url", json!("https://b.example"))]),
        ),
        new(
            "listener_id",
            config(github(), "listener_id", NOBODY),
            Refused("source_config.listener_id must be null when source is github"),
        ),
        new(
            "listener_id",
            config(image(), "listener_id", NOBODY),
            Refused(
                "source_config.listener_id: there is no such listener in this workspace; GET /v2/listeners lists them",
            ),
        ),
        new(
            "listener_config",
            config(github(), "listener_config", json!({})),
            Refused("source_config.listener_config must be null when source is github"),
        ),
        new(
            "listener_config",
            config(image(), "listener_config", json!({"k8s_namespace": null})),
            Shows(vec![]),
        ),
        new(
            "k8s_namespace",
            config(image(), "listener_config", json!({"k8s_namespace": "a"})),
            Refused("source_config.listener_config.k8s_namespace must be null: the listener's compute type is not k8s"),
        ),
        new(
            "install_command",
            config(github(), "install_command", "npm ci"),
            Shows(vec![("/source_config/install_command", json!("npm ci"))]),
        ),
        new(
            "install_command",
            config(image(), "install_command", "npm ci"),
            Refused("source_config.install_command must be null when source is external_docker"),
        ),
        new(
            "build_command",
            config(github(), "build_command", "npm run build"),
            Shows(vec![("/source_config/build_command", json!("npm run build"))]),
        ),
        new(
            "build_command",
            config(image(), "build_command", "npm run build"),
            Refused("source_config.build_command must be null when source is external_docker"),
        ),
        change(
            "clear",
            config(github(), "install_command", "npm ci"),
            json!({"source_config": {"install_command": null}}),
            NoRevision(vec![("/source_config/install_command", Value::Null)]),
        ),
        change(
            "clear",
            config(github(), "build_on_push", true),
            json!({"source_config": {"build_on_push": null}}),
            NoRevision(vec![("/source_config/build_on_push", Value::Null)]),
        ),
    ]
}

fn source_revision_config() -> Vec<Row> {
    const NO_TAG: &str =
        "source_config.build_on_push cannot be true when source_revision_config.repo_ref is a tag (refs/tags/…)";
    vec![
        new(
            "repo_ref",
            revision(github(), "repo_ref", Value::Null),
            Refused("source_revision_config.repo_ref is required when source is github"),
        ),
        new(
            "repo_ref",
            revision(image(), "repo_ref", "main"),
            Refused("source_revision_config.repo_ref must be null when source is external_docker"),
        ),
        new(
            "repo_ref",
            revision(github(), "repo_ref", "--upload-pack=x"),
            Shape(vec!["source_revision_config", "repo_ref"], "value_error"),
        ),
        new(
            "repo_ref",
            revision(github(), "repo_ref", "feature/one"),
            Shows(vec![("/source_revision_config/repo_ref", json!("feature/one"))]),
        ),
        new(
            "tag",
            revision(config(github(), "build_on_push", false), "repo_ref", "refs/tags/v1"),
            Shows(vec![("/source_revision_config/repo_ref", json!("refs/tags/v1"))]),
        ),
        new(
            "tag",
            revision(config(github(), "build_on_push", true), "repo_ref", "refs/tags/v1"),
            Refused(NO_TAG),
        ),
        change(
            "tag",
            config(github(), "build_on_push", true),
            json!({"source_revision_config": {"repo_ref": "refs/tags/v1"}}),
            Refused(NO_TAG),
        ),
        change(
            "tag",
            revision(github(), "repo_ref", "refs/tags/v1"),
            json!({"source_config": {"build_on_push": true}}),
            Refused(NO_TAG),
        ),
        change(
            "tag",
            config(github(), "build_on_push", true),
            json!({"source_config": {"build_on_push": false}, "source_revision_config": {"repo_ref": "refs/tags/v1"}}),
            Revision,
        ),
        new(
            "graph_config_path",
            revision(github(), "graph_config_path", Value::Null),
            Refused("source_revision_config.graph_config_path is required when source is github"),
        ),
        new(
            "graph_config_path",
            revision(image(), "graph_config_path", "langgraph.json"),
            Refused("source_revision_config.graph_config_path must be null when source is external_docker"),
        ),
        new(
            "graph_config_path",
            revision(github(), "graph_config_path", "../../etc/passwd"),
            Shape(vec!["source_revision_config", "graph_config_path"], "value_error"),
        ),
        new(
            "graph_config_path",
            revision(github(), "langgraph_config_path", "other.json"),
            Refused("source_revision_config.graph_config_path and langgraph_config_path are one field and must agree"),
        ),
        new(
            "image_uri",
            revision(image(), "image_uri", Value::Null),
            Refused("source_revision_config.image_uri is required when source is external_docker"),
        ),
        new(
            "image_uri",
            revision(github(), "image_uri", "a/b"),
            Refused("source_revision_config.image_uri must be null when source is github"),
        ),
        new(
            "image_uri",
            revision(image(), "image_uri", "not an image"),
            Shape(vec!["source_revision_config", "image_uri"], "value_error"),
        ),
        new(
            "image_uri",
            revision(internal("internal_docker"), "repo_ref", "main"),
            Refused("source_revision_config.repo_ref must be null when source is internal_docker"),
        ),
        new(
            "repo_commit_sha",
            revision(github(), "repo_commit_sha", "0".repeat(40)),
            Shows(vec![("/source_revision_config/repo_commit_sha", Value::Null)]),
        ),
        new(
            "source_tarball_path",
            revision(internal("internal_source"), "source_tarball_path", "x"),
            Refused("source_revision_config.graph_config_path is required when source is internal_source"),
        ),
        new(
            "source_tarball_path",
            revision(
                revision(internal("internal_source"), "source_tarball_path", "/etc/passwd"),
                "langgraph_config_path",
                "a.json",
            ),
            Refused(
                "source_revision_config.source_tarball_path: was not handed out for this deployment; \
                 POST /v2/deployments/{id}/upload-url hands one out",
            ),
        ),
    ]
}

fn secrets_and_sizes() -> Vec<Row> {
    let shown = |name: &'static str, value: Value| Shows(vec![(name, value)]);
    vec![
        new(
            "secrets",
            secrets(json!([{"name": "A"}])),
            Shape(vec!["secrets", "0", "value"], "missing"),
        ),
        new(
            "secrets",
            secrets(json!([{"value": "s3cret"}])),
            Shape(vec!["secrets", "0", "name"], "missing"),
        ),
        new(
            "secrets",
            secrets(json!([["A", "s3cret"]])),
            Shape(vec!["secrets", "0"], "type_error"),
        ),
        new(
            "secrets",
            secrets(json!([{"name": "1A", "value": "s3cret"}])),
            Shape(vec!["secrets", "0", "name"], "value_error"),
        ),
        new(
            "secrets",
            secrets(json!([{"name": "A", "value": "s3cret"}, {"name": "A", "value": "s3cret"}])),
            Shape(vec!["secrets", "1", "name"], "value_error"),
        ),
        new(
            "secrets.masked",
            github(),
            shown("/secrets", json!([{"name": "MODEL_KEY", "value": "********"}])),
        ),
        new(
            "secrets.masked",
            secrets(json!([{"name": "A", "value": "********"}])),
            Refused("secrets: A has the masked value, and no value is stored under that name"),
        ),
        new(
            "secrets.reserved",
            secrets(json!([{"name": "PORT", "value": "s3cret"}])),
            Refused("secrets: PORT is a reserved name and is set by the platform"),
        ),
        change(
            "secrets.reserved",
            github(),
            json!({"secrets": [{"name": "PORT", "value": "1"}]}),
            Refused("secrets: PORT is a reserved name and is set by the platform"),
        ),
        new(
            "secrets.predefined",
            secrets(json!([{"name": "LOG_LEVEL", "value": "DEBUG"}])),
            shown("/secrets/0/name", json!("LOG_LEVEL")),
        ),
        new(
            "resource_spec",
            config(github(), "resource_spec", json!({})),
            Refused("source_config.resource_spec must be null when source is github"),
        ),
        new(
            "resource_spec",
            spec(json!({"cpu": null, "labels": null})),
            Shows(vec![]),
        ),
        new("cpu", spec(json!({"cpu": 9})), Shape(sized(&["cpu"]), "value_error")),
        new(
            "cpu",
            spec(json!({"cpu": 1.5})),
            shown("/source_config/resource_spec/cpu", json!(1.5)),
        ),
        new(
            "cpu_limit",
            spec(json!({"cpu": 3})),
            shown("/source_config/resource_spec/cpu_limit", json!(6)),
        ),
        new(
            "cpu_limit",
            spec(json!({"cpu": 4, "cpu_limit": 2})),
            Refused("source_config.resource_spec.cpu_limit: cpu_limit must not be less than cpu (4)"),
        ),
        new(
            "memory_mb",
            spec(json!({"memory_mb": 1.5})),
            Shape(sized(&["memory_mb"]), "value_error"),
        ),
        new(
            "memory_limit_mb",
            spec(json!({"memory_mb": 700})),
            shown("/source_config/resource_spec/memory_limit_mb", json!(1400)),
        ),
        new(
            "scale",
            spec(json!({"min_scale": 3, "max_scale": 2})),
            Refused("source_config.resource_spec.max_scale: max_scale must not be less than min_scale (3)"),
        ),
        new(
            "scale",
            spec(json!({"min_scale": 2, "max_scale": 5})),
            Shows(vec![
                ("/source_config/resource_spec/min_scale", json!(2)),
                ("/source_config/resource_spec/max_scale", json!(5)),
            ]),
        ),
        new(
            "queue",
            spec(json!({"cpu": 2, "memory_mb": 300, "min_scale": 2, "max_scale": 5})),
            Shows(vec![
                ("/source_config/resource_spec/queue_min_scale", json!(2)),
                ("/source_config/resource_spec/queue_max_scale", json!(5)),
                ("/source_config/resource_spec/queue_cpu", json!(2)),
                ("/source_config/resource_spec/queue_cpu_limit", json!(4)),
                ("/source_config/resource_spec/queue_memory_mb", json!(300)),
                ("/source_config/resource_spec/queue_memory_limit_mb", json!(600)),
            ]),
        ),
        new(
            "queue",
            spec(json!({"queue_cpu": 3, "queue_memory_mb": 100})),
            Shows(vec![
                ("/source_config/resource_spec/queue_cpu_limit", json!(6)),
                ("/source_config/resource_spec/queue_memory_limit_mb", json!(200)),
            ]),
        ),
        new(
            "database",
            spec(json!({"db_cpu": 0.5, "db_memory_mb": 100, "db_storage_gi": 7, "db_max_connections": 9})),
            Shows(vec![
                ("/source_config/resource_spec/db_cpu_limit", json!(1)),
                ("/source_config/resource_spec/db_memory_limit_mb", json!(200)),
                ("/source_config/resource_spec/db_storage_gi", json!(7)),
                ("/source_config/resource_spec/db_max_connections", json!(9)),
            ]),
        ),
        new(
            "do_not_use",
            spec(json!({"orchestrator_cpu": 1, "executor_memory_mb": 10, "redis_memory_mb": 5})),
            Shows(vec![
                ("/source_config/resource_spec/orchestrator_cpu", json!(1)),
                ("/source_config/resource_spec/executor_memory_mb", json!(10)),
                ("/source_config/resource_spec/redis_memory_mb", json!(5)),
            ]),
        ),
        new(
            "labels",
            spec(json!({"labels": {"team": "a"}, "annotations": {"b": "c"}, "service_account_name": "d"})),
            Shows(vec![
                ("/source_config/resource_spec/labels", json!({"team": "a"})),
                ("/source_config/resource_spec/annotations", json!({"b": "c"})),
                ("/source_config/resource_spec/service_account_name", json!("d")),
            ]),
        ),
        new(
            "labels",
            spec(json!({"labels": {"team": 1}})),
            Shape(sized(&["labels", "team"]), "type_error"),
        ),
        new(
            "image_pull_secrets",
            spec(json!({"image_pull_secrets": [{"name": "acme"}]})),
            shown(
                "/source_config/resource_spec/image_pull_secrets",
                json!([{"name": "acme"}]),
            ),
        ),
        new(
            "image_pull_secrets",
            spec(json!({"image_pull_secrets": [{}]})),
            Shape(sized(&["image_pull_secrets", "0", "name"]), "missing"),
        ),
        new(
            "volumes",
            spec(
                json!({"volumes": [{"name": "data", "emptyDir": {}}], "volume_mounts": [{"name": "data", "mountPath": "/d"}]}),
            ),
            Shows(vec![
                ("/source_config/resource_spec/volumes/0/name", json!("data")),
                ("/source_config/resource_spec/volume_mounts/0/mountPath", json!("/d")),
            ]),
        ),
        new(
            "volumes",
            spec(json!({"volumes": [{"emptyDir": {}}]})),
            Shape(sized(&["volumes", "0", "name"]), "missing"),
        ),
        new(
            "volumes",
            spec(json!({"volumes": [{"name": "A"}]})),
            Shape(sized(&["volumes", "0", "name"]), "value_error"),
        ),
        new(
            "volumes",
            spec(json!({"volumes": [{"name": "a"}, {"name": "a"}]})),
            Refused("source_config.resource_spec.volumes: the volume name a is there twice"),
        ),
        new(
            "containers",
            spec(json!({"sidecars": [{"name": "a", "image": "b"}], "init_containers": [{"name": "c", "image": "d"}]})),
            Shows(vec![
                ("/source_config/resource_spec/sidecars/0/image", json!("b")),
                ("/source_config/resource_spec/init_containers/0/image", json!("d")),
            ]),
        ),
    ]
}

fn changes() -> Vec<Row> {
    let tenths = json!({"cpu": 2, "labels": {"a": "b"}});
    vec![
        change(
            "name.immutable",
            github(),
            json!({"name": "other"}),
            Refused("name cannot be changed after the deployment was created"),
        ),
        change(
            "source.immutable",
            github(),
            json!({"source": "external_docker"}),
            Refused("source cannot be changed after the deployment was created"),
        ),
        change(
            "repo_url.immutable",
            github(),
            json!({"source_config": {"repo_url": "https://github.com/a/b"}}),
            Refused("source_config.repo_url cannot be changed after the deployment was created"),
        ),
        change(
            "deployment_type.immutable",
            github(),
            json!({"source_config": {"deployment_type": "prod"}}),
            Refused("source_config.deployment_type cannot be changed after the deployment was created"),
        ),
        change(
            "integration_id.immutable",
            github(),
            json!({"source_config": {"integration_id": NOBODY}}),
            Refused("source_config.integration_id cannot be changed after the deployment was created"),
        ),
        change(
            "listener_id.immutable",
            image(),
            json!({"source_config": {"listener_id": NOBODY}}),
            Refused("source_config.listener_id cannot be changed after the deployment was created"),
        ),
        change(
            "k8s_namespace.immutable",
            image(),
            json!({"source_config": {"listener_config": {"k8s_namespace": "a"}}}),
            Refused("source_config.listener_config.k8s_namespace cannot be changed after the deployment was created"),
        ),
        change("same", github(), json!({"source": "github"}), NoRevision(vec![])),
        change(
            "same",
            github(),
            json!({"source_config": {"repo_url": "https://github.com/acme/agent"}}),
            NoRevision(vec![]),
        ),
        change(
            "same",
            github(),
            json!({"source_config": {"repo_url": null}}),
            NoRevision(vec![(
                "/source_config/repo_url",
                json!("https://github.com/acme/agent"),
            )]),
        ),
        change(
            "read_only",
            github(),
            json!({"id": "x", "status": "READY", "created_at": "x", "updated_at": 1, "latest_revision_id": null, "active_revision_id": NOBODY}),
            NoRevision(vec![
                ("/status", json!("AWAITING_DATABASE")),
                ("/active_revision_id", Value::Null),
            ]),
        ),
        change(
            "revision.config",
            github(),
            json!({"source_revision_config": {"repo_ref": "next"}}),
            Revision,
        ),
        change(
            "revision.config",
            github(),
            json!({"source_revision_config": {"repo_ref": "main"}}),
            Revision,
        ),
        change(
            "revision.config",
            github(),
            json!({"source_revision_config": {"langgraph_config_path": "b.json"}}),
            Revision,
        ),
        change(
            "revision.config",
            image(),
            json!({"source_revision_config": {"image_uri": "registry.example/agent:2"}}),
            Revision,
        ),
        change("revision.secrets", github(), json!({"secrets": []}), Revision),
        change(
            "revision.secrets",
            github(),
            json!({"secrets": [{"name": "MODEL_KEY", "value": "********"}]}),
            Revision,
        ),
        change(
            "revision.resource_spec",
            image(),
            json!({"source_config": {"resource_spec": {}}}),
            Revision,
        ),
        change(
            "revision.once",
            image(),
            json!({"source_revision_config": {"image_uri": "a/b:1"}, "secrets": [], "source_config": {"resource_spec": {"cpu": 2}}}),
            Revision,
        ),
        change(
            "revision.null",
            github(),
            json!({"source_revision_config": {"repo_ref": null}, "secrets": null}),
            NoRevision(vec![]),
        ),
        change(
            "revision.null",
            image(),
            json!({"source_config": {"resource_spec": null}}),
            NoRevision(vec![]),
        ),
        change(
            "revision.none",
            github(),
            json!({"source_config": {"install_command": "npm ci"}}),
            NoRevision(vec![("/source_config/install_command", json!("npm ci"))]),
        ),
        change(
            "revision.none",
            github(),
            json!({"source_config": {"build_on_push": true}}),
            NoRevision(vec![("/source_config/build_on_push", json!(true))]),
        ),
        change("revision.none", github(), json!({}), NoRevision(vec![])),
        change(
            "resource_spec.overwrites",
            config(image(), "resource_spec", tenths),
            json!({"source_config": {"resource_spec": {"memory_mb": 500}}}),
            Shows(vec![
                ("/source_config/resource_spec/cpu", json!(1)),
                ("/source_config/resource_spec/labels", Value::Null),
                ("/source_config/resource_spec/memory_mb", json!(500)),
            ]),
        ),
        change(
            "resource_spec",
            github(),
            json!({"source_config": {"resource_spec": {}}}),
            Refused("source_config.resource_spec must be null when source is github"),
        ),
        change(
            "image_uri",
            github(),
            json!({"source_revision_config": {"image_uri": "a/b"}}),
            Refused("source_revision_config.image_uri must be null when source is github"),
        ),
        change(
            "latest",
            github(),
            json!({"source_revision_config": {"repo_ref": "next"}}),
            Shows(vec![
                ("/source_revision_config/repo_ref", json!("next")),
                ("/source_revision_config/graph_config_path", json!("langgraph.json")),
            ]),
        ),
        change(
            "revision_source",
            github(),
            json!({"revision_source": "internal_docker"}),
            Refused("revision_source cannot be internal_docker of a deployment whose source is github"),
        ),
        change(
            "types",
            github(),
            json!({"source_config": []}),
            Shape(vec!["source_config"], "type_error"),
        ),
        change(
            "types",
            github(),
            json!({"secrets": {}}),
            Shape(vec!["secrets"], "type_error"),
        ),
        change(
            "types",
            github(),
            json!({"stauts": 1}),
            Shape(vec!["stauts"], "extra_forbidden"),
        ),
    ]
}

fn rows() -> Vec<Row> {
    [
        shape_of_requests(),
        source_config(),
        source_revision_config(),
        secrets_and_sizes(),
        changes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The place in a body as answers write it.
fn place(steps: &[&str]) -> Value {
    let step = |step: &&str| step.parse::<u64>().map_or_else(|_| json!(step), |index| json!(index));
    std::iter::once(json!("body")).chain(steps.iter().map(step)).collect()
}

#[tokio::test]
async fn each_row_is_so() {
    let world = World::new().await;
    for (number, row) in rows().into_iter().enumerate() {
        let told = format!("{} {}", row.rule, row.body);
        let before = match row.of {
            None => None,
            Some(of) => Some(world.deploy(&with(of, "/name", json!(format!("row-{number}")))).await),
        };
        let mut body = row.body;
        // Each has a name of its own, unless its name is what it is about.
        if before.is_none() && body["name"] == "agent" {
            body["name"] = json!(format!("row-{number}"));
        }
        let path = before.as_ref().map_or_else(
            || "/v2/deployments".to_owned(),
            |before| format!("/v2/deployments/{}", before["id"].as_str().unwrap()),
        );
        let (method, done) = if before.is_some() {
            (Method::PATCH, 200)
        } else {
            (Method::POST, 201)
        };
        let answer = world
            .call(Call::new(method, &path).in_workspace(world.tenant).json(&body))
            .await;
        assert!(!answer.text.contains("s3cret"), "{told}: {}", answer.text);
        let latest = before.as_ref().map(|before| before["latest_revision_id"].clone());
        let shown = match row.then {
            Shape(at, kind) => {
                let answer = answer.expect(422);
                let issues = answer["detail"].as_array().unwrap();
                assert_eq!(
                    (&issues[0]["loc"], &issues[0]["type"]),
                    (&place(&at), &json!(kind)),
                    "{told}: {answer}"
                );
                assert!(
                    issues[0]["msg"].as_str().is_some_and(|msg| !msg.is_empty()),
                    "{told}: {answer}"
                );
                unchanged(&world, before.as_ref()).await;
                continue;
            }
            Refused(text) => {
                assert_eq!(
                    (answer.status.as_u16(), answer.json()),
                    (400, json!({"detail": text})),
                    "{told}"
                );
                unchanged(&world, before.as_ref()).await;
                continue;
            }
            Shows(shown) => shown,
            Revision => {
                let answer = answer.expect(done);
                assert_ne!(Some(&answer["latest_revision_id"]), latest.as_ref(), "{told}");
                let listed = world.get(&format!("{path}/revisions")).await.expect(200);
                assert_eq!(
                    listed["resources"].as_array().unwrap().len(),
                    2,
                    "{told}: one revision was made"
                );
                continue;
            }
            NoRevision(shown) => {
                assert_eq!(Some(&answer.json()["latest_revision_id"]), latest.as_ref(), "{told}");
                shown
            }
        };
        let answer = answer.expect(done);
        for (at, value) in shown {
            assert_eq!(
                answer.pointer(at).unwrap_or(&Value::Null),
                &value,
                "{told}: {at} of {answer}"
            );
        }
        // A deployment answers the same to whoever asks for it.
        let id = answer["id"].as_str().unwrap();
        assert_eq!(
            world.get(&format!("/v2/deployments/{id}")).await.expect(200),
            answer,
            "{told}"
        );
    }
}

/// What was refused left the deployment as it was.
async fn unchanged(world: &World, before: Option<&Value>) {
    if let Some(before) = before {
        let path = format!("/v2/deployments/{}", before["id"].as_str().unwrap());
        assert_eq!(&world.get(&path).await.expect(200), before);
    }
}

#[test]
fn each_rule_has_a_row() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(top.join("docs/deployment-rules.md")).unwrap();
    let rows: BTreeSet<String> = rows().iter().map(|row| row.rule.to_owned()).collect();
    let mut ruled = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [rule, _, seen] = cells[..] else {
            panic!("three cells: {line}")
        };
        let rule = rule.trim_matches('`').to_owned();
        // What other tests see, they see: the test is there.
        let elsewhere: Vec<&str> = seen.split('`').filter(|part| part.contains("::")).collect();
        for test in &elsewhere {
            let (file, name) = test.split_once("::").unwrap();
            let text = std::fs::read_to_string(top.join(file)).unwrap_or_else(|_| panic!("{rule}: there is no {file}"));
            let is_there = ["fn", "def"]
                .iter()
                .any(|word| text.contains(&format!("{word} {name}(")));
            assert!(is_there, "{rule}: {file} has no test {name}");
        }
        let in_rows = seen.contains("a row");
        assert!(in_rows || !elsewhere.is_empty(), "{rule}: nothing is said to see it");
        if in_rows {
            assert!(rows.contains(&rule), "{rule} has no row");
            ruled.insert(rule);
        }
    }
    let unruled: Vec<_> = rows.difference(&ruled).collect();
    assert!(unruled.is_empty(), "rows of no rule: {unruled:?}");
    assert!(ruled.len() > 50, "the page was read");
}
