//! The shape of a request: what it has to hold, and what it may not.

use serde_json::{Value, json};

use super::super::{github, image, with};
use super::Expectation::{Refused, Shape, Shows};
use super::{Row, config, internal, new, without};

pub(super) fn shape_of_requests() -> Vec<Row> {
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
