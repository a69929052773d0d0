//! Secrets, and the size of what runs.

use serde_json::{Value, json};

use super::super::github;
use super::Expectation::{Refused, Shape, Shows};
use super::{Row, change, config, new, secrets, sized, spec};

pub(super) fn secrets_and_sizes() -> Vec<Row> {
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
            Refused("secrets: A has the masked value, but no value is stored under that name"),
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
            Refused("source_config.resource_spec.volumes: duplicate volume name a"),
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
