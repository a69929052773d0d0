//! What a change may change, and what makes a revision.

use serde_json::{Value, json};

use super::super::{github, image};
use super::Expectation::{NoRevision, Refused, Revision, Shape, Shows};
use super::{NOBODY, Row, change, config};

pub(super) fn changes() -> Vec<Row> {
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
            "revision.key_scopes",
            github(),
            json!({"source_config": {"key_scopes": ["sandboxes"]}}),
            Revision,
        ),
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
