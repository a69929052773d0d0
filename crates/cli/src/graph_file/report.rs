//! What the author of a graph file should know about it.

/// Keys of the file that mean something here.
const KNOWN: [&str; 11] = [
    "graphs",
    "dependencies",
    "env",
    "store",
    "checkpointer",
    "auth",
    "encryption",
    "http",
    "webhooks",
    "python_version",
    "pip_config_file",
];
/// Keys that only say how an image is built, or what its pages look like.
const OF_IMAGES: [&str; 13] = [
    "$schema",
    "node_version",
    "api_version",
    "base_image",
    "image_distro",
    "pip_installer",
    "source",
    "keep_pkg_tools",
    "dockerfile_lines",
    "_INTERNAL_docker_tag",
    "ui",
    "ui_config",
    "priority",
];
const KNOWN_OF_HTTP: [&str; 16] = [
    "app",
    "cors",
    "configurable_headers",
    "mount_prefix",
    "disable_assistants",
    "disable_threads",
    "disable_runs",
    "disable_store",
    "disable_meta",
    "disable_ui",
    "disable_mcp",
    "disable_a2a",
    "disable_webhooks",
    "disable_event_streaming",
    "enable_custom_route_auth",
    "logging_headers",
];

const KNOWN_OF_CORS: [&str; 7] = [
    "allow_origins",
    "allow_origin_regex",
    "allow_methods",
    "allow_headers",
    "allow_credentials",
    "expose_headers",
    "max_age",
];

/// Whether something at this place asks for anything.
fn in_use(config: &serde_json::Value, place: &str) -> bool {
    use serde_json::Value;
    !matches!(config.pointer(place), None | Some(Value::Null | Value::Bool(false)))
}

/// Says which keys of the file nobody knows, and which have no effect.
pub fn report(text: &str, file: &str) {
    let config: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let Some(keys) = config.as_object().map(serde_json::Map::keys) else {
        return;
    };
    if config.pointer("/webhooks/url/disable_loopback") == Some(&serde_json::Value::Bool(false)) {
        tracing::warn!("{file}: webhooks.url.disable_loopback: this machine is called where outbound.allow names it");
    }
    let unknown = keys.filter(|key| !KNOWN.contains(&key.as_str()) && !OF_IMAGES.contains(&key.as_str()));
    for key in unknown {
        tracing::warn!("{file}: unknown key {key:?}");
    }
    let http = config.get("http").and_then(serde_json::Value::as_object);
    let unknown = http.into_iter().flat_map(serde_json::Map::keys);
    for key in unknown.filter(|key| !KNOWN_OF_HTTP.contains(&key.as_str())) {
        tracing::warn!("{file}: unknown key \"http.{key}\"");
    }
    if in_use(&config, "/http/logging_headers") {
        tracing::info!("{file}: http.logging_headers: no header of a request is logged");
    }
    let cors = http
        .and_then(|http| http.get("cors"))
        .and_then(serde_json::Value::as_object);
    for key in cors
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .filter(|key| !KNOWN_OF_CORS.contains(&key.as_str()))
    {
        tracing::warn!("{file}: unknown key \"http.cors.{key}\"");
    }
    if in_use(&config, "/store/index") {
        tracing::warn!(
            "{file}: store.index: this build keeps no vectors; a search with a query finds by filter and time"
        );
    }
}
