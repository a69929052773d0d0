//! Where a deployment comes from, and where each revision does.

use serde_json::{Value, json};

use super::super::{github, image, with};
use super::Expectation::{NoRevision, Refused, Revision, Shape, Shows};
use super::{NOBODY, Row, change, config, internal, new, revision};

pub(super) fn source_config() -> Vec<Row> {
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
        new(
            "key_scopes",
            config(github(), "key_scopes", json!(["traces:read", "agents:invoke"])),
            Shows(vec![(
                "/source_config/key_scopes",
                json!(["traces:read", "agents:invoke"]),
            )]),
        ),
        new(
            "key_scopes",
            config(image(), "key_scopes", json!(["deployments"])),
            Refused(
                "source_config.key_scopes cannot contain deployments: the key of a deployment supports traces:read, sandboxes, \
                 agents:invoke and agents:invoke:<deployment id>",
            ),
        ),
        new(
            "key_scopes",
            config(github(), "key_scopes", json!([format!("agents:invoke:{NOBODY}")])),
            Refused("source_config.key_scopes: agents:invoke:<deployment id>: this workspace has no such deployment"),
        ),
        new(
            "own_auth",
            config(github(), "own_auth", true),
            Refused(
                "source_config.own_auth: this server asks for its own keys at every deployment; its operator may allow \
                 others with the setting gateway.own_auth = allow",
            ),
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

pub(super) fn source_revision_config() -> Vec<Row> {
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
            Refused("source_revision_config.graph_config_path and langgraph_config_path are aliases and must agree"),
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
                "source_revision_config.source_tarball_path: was not issued for this deployment; \
                 POST /v2/deployments/{id}/upload-url issues one",
            ),
        ),
    ]
}
