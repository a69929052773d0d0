//! Warnings about the keys of a graph file.

use serde_json::{Map, Value};

/// Effect of a key on this server.
enum Effect {
    /// As documented.
    Some,
    /// Used by image builds, which report it themselves.
    Image,
    /// None: the text names the reason or the alternative.
    None(&'static str),
}

/// Every known key, with nested ones after a dot. `docs/agent-server.md` lists the same keys; a test compares them.
const KEYS: &[(&str, Effect)] = &[
    ("$schema", Effect::Some),
    ("graphs", Effect::Some),
    ("dependencies", Effect::Some),
    ("env", Effect::Some),
    ("python_version", Effect::Some),
    ("pip_config_file", Effect::Some),
    ("store", Effect::Some),
    ("store.ttl", Effect::Some),
    ("store.ttl.default_ttl", Effect::Some),
    ("store.ttl.refresh_on_read", Effect::Some),
    ("store.ttl.sweep_interval_minutes", Effect::None(EXPIRY_PACE)),
    ("store.index", Effect::Some),
    ("store.index.dims", Effect::Some),
    ("store.index.embed", Effect::Some),
    ("store.index.fields", Effect::Some),
    ("store.path", Effect::None("the server stores items itself")),
    ("checkpointer", Effect::Some),
    ("checkpointer.ttl", Effect::Some),
    ("checkpointer.ttl.strategy", Effect::Some),
    ("checkpointer.ttl.default_ttl", Effect::Some),
    ("checkpointer.ttl.sweep_interval_minutes", Effect::None(EXPIRY_PACE)),
    ("checkpointer.ttl.sweep_limit", Effect::None(EXPIRY_PACE)),
    ("checkpointer.serde", Effect::Some),
    (
        "checkpointer.path",
        Effect::None("the server stores checkpoints itself"),
    ),
    (
        "checkpointer.backend",
        Effect::None("the server stores checkpoints itself"),
    ),
    ("auth", Effect::Some),
    ("auth.path", Effect::Some),
    ("auth.cache", Effect::Some),
    ("auth.cache.cache_keys", Effect::Some),
    ("auth.cache.ttl_seconds", Effect::Some),
    ("auth.cache.max_size", Effect::Some),
    ("auth.disable_studio_auth", Effect::Some),
    ("auth.openapi", Effect::None("the API description names only API keys")),
    ("encryption", Effect::Some),
    ("http", Effect::Some),
    ("http.app", Effect::Some),
    ("http.cors", Effect::Some),
    ("http.cors.allow_origins", Effect::Some),
    ("http.cors.allow_origin_regex", Effect::Some),
    ("http.cors.allow_methods", Effect::Some),
    ("http.cors.allow_headers", Effect::Some),
    ("http.cors.allow_credentials", Effect::Some),
    ("http.cors.expose_headers", Effect::Some),
    ("http.cors.max_age", Effect::Some),
    ("http.configurable_headers", Effect::Some),
    ("http.mount_prefix", Effect::Some),
    ("http.disable_assistants", Effect::Some),
    ("http.disable_threads", Effect::Some),
    ("http.disable_runs", Effect::Some),
    ("http.disable_store", Effect::Some),
    ("http.disable_meta", Effect::Some),
    ("http.disable_ui", Effect::Some),
    ("http.disable_mcp", Effect::Some),
    ("http.disable_a2a", Effect::Some),
    ("http.disable_webhooks", Effect::Some),
    ("http.disable_event_streaming", Effect::Some),
    ("http.enable_custom_route_auth", Effect::Some),
    ("http.middleware_order", Effect::Some),
    ("http.logging_headers", Effect::Some),
    ("webhooks", Effect::Some),
    ("webhooks.env_prefix", Effect::Some),
    ("webhooks.url", Effect::Some),
    ("webhooks.url.require_https", Effect::Some),
    ("webhooks.url.allowed_domains", Effect::Some),
    ("webhooks.url.allowed_ports", Effect::Some),
    ("webhooks.url.max_url_length", Effect::Some),
    ("webhooks.url.disable_loopback", Effect::Some),
    ("webhooks.headers", Effect::Some),
    ("webhooks.allowed_fields", Effect::Some),
    ("node_version", Effect::Image),
    ("base_image", Effect::Image),
    ("dockerfile_lines", Effect::Image),
    ("image_distro", Effect::Image),
    ("pip_installer", Effect::Image),
    ("keep_pkg_tools", Effect::Image),
    ("_INTERNAL_docker_tag", Effect::Image),
    ("api_version", Effect::None("it is the version of another server")),
    ("source", Effect::Some),
    ("source.kind", Effect::Some),
    ("source.root", Effect::Some),
    ("source.package", Effect::Some),
    ("ui", Effect::None("pages of the author are not served")),
    ("ui_config", Effect::None("pages of the author are not served")),
    (
        "priority",
        Effect::None("runs are claimed in the order of their creation"),
    ),
];

const EXPIRY_PACE: &str = "the server deletes expired rows at its own pace";

/// Logs unknown keys and keys without effect.
pub fn report(text: &str, file: &str) {
    let config: Value = serde_json::from_str(text).unwrap_or_default();
    for finding in findings(&config) {
        tracing::warn!("{file}: {finding}");
    }
}

fn findings(config: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(keys) = config.as_object() {
        check_keys("", keys, &mut found);
    }
    if let Some(cache) = config.pointer("/auth/cache").filter(|cache| has_effect(cache)) {
        let keys = cache.get("cache_keys").and_then(Value::as_array);
        if keys.is_none_or(Vec::is_empty) {
            found.push("auth.cache: without effect: cache_keys names no header that distinguishes callers".to_owned());
        }
    }
    found
}

fn check_keys(place: &str, keys: &Map<String, Value>, found: &mut Vec<String>) {
    for (key, value) in keys {
        let name = format!("{place}{key}");
        match KEYS.iter().find(|(known, _)| *known == name) {
            None => found.push(format!("unknown key {name:?}")),
            Some((_, Effect::None(why))) if has_effect(value) => found.push(format!("{name}: without effect: {why}")),
            Some(_) => {}
        }
        let inside = format!("{name}.");
        let inner = value
            .as_object()
            .filter(|_| KEYS.iter().any(|(known, _)| known.starts_with(&inside)));
        if let Some(inner) = inner {
            check_keys(&inside, inner, found);
        }
    }
}

/// Whether a value differs from the default.
fn has_effect(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && value != "default"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_nothing_is_said() {
        let config = json!({
            "graphs": {"any": {"native": "echo"}}, "env": {"ANY": "x"}, "graph": {}, "ui": null,
            "api_version": "0.2", "base_image": "x",
            "store": {"ttl": {"default_ttl": 5, "sweep_interval_minutes": 10}, "index": {"dims": 3, "distance": "l2"}},
            "checkpointer": {"backend": "default", "path": "./mine.py:saver", "time": 5},
            "auth": {"cache": {"ttl_seconds": 5}},
            "http": {"cors": {"allow_origin": []}, "disable_mcp": true, "logging_headers": false},
            "webhooks": {"url": {"disable_loopback": false}, "headers": {"x-any": "y"}},
        });
        let found: BTreeSet<String> = findings(&config)
            .into_iter()
            .map(|text| text.split(':').next().unwrap_or_default().to_owned())
            .collect();
        let expected = [
            "api_version",
            "auth.cache",
            "checkpointer.path",
            "store.ttl.sweep_interval_minutes",
            "unknown key \"checkpointer.time\"",
            "unknown key \"graph\"",
            "unknown key \"http.cors.allow_origin\"",
            "unknown key \"store.index.distance\"",
        ];
        assert_eq!(found, BTreeSet::from(expected.map(str::to_owned)));
    }

    #[test]
    fn the_reference_lists_every_key() {
        let reference = include_str!("../../../../docs/agent-server.md");
        let (_, section) = reference.split_once("\n## The graph file\n").unwrap();
        let section = section.split("\n## ").next().unwrap_or_default();
        let listed: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
        assert_eq!(listed, known);
        for (key, effect) in KEYS {
            let row = section.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
            let none = row.unwrap_or_default().contains("| no effect: ");
            assert_eq!(none, matches!(effect, Effect::None(_)), "{key}");
        }
    }
}
