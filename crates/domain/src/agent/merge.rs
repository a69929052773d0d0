//! How the configuration of a run is merged.

use serde_json::{Map, Value};

pub type Object = Map<String, Value>;

/// Keys of `configurable`, and of a context, that only the server may set; those of clients are dropped.
pub const RESERVED_CONFIGURABLE: [&str; 13] = [
    "langgraph_auth_user",
    "langgraph_auth_user_id",
    "langgraph_auth_permissions",
    "langgraph_request_id",
    "__langsmith_project__",
    "__langsmith_example_id__",
    "__request_start_time_ms__",
    "__after_seconds__",
    "__otel_traceparent__",
    "__otel_tracestate__",
    "__dd_trace_headers__",
    "__pregel_node_finished",
    "__context_provided__",
];

/// Keys of `metadata` that only the server may set for a run; those of clients are dropped.
pub const RESERVED_METADATA: [&str; 5] = [
    "thread_id",
    "assistant_id",
    "run_id",
    "cron_id",
    "counters_since_delta_snapshot",
];

/// Drops keys of a `configurable` or a context that only the server may set. Both must be filtered: the two mirror each
/// other.
pub fn drop_reserved_configurable(object: &mut Object) {
    object.retain(|key, _| !RESERVED_CONFIGURABLE.contains(&key.as_str()));
}

/// Drops keys of metadata that only the server may set for a run.
pub fn drop_reserved_metadata(metadata: &mut Object) {
    metadata.retain(|key, _| !RESERVED_METADATA.contains(&key.as_str()));
}

/// Key of `configurable` that marks a run for the thread-centric streaming protocol: its graph streams in every mode
/// that the protocol has a channel for.
pub const EVENT_STREAMING: &str = "__event_streaming_v2";

/// Keys of `configurable` that set where a run starts and how it streams. They are not kept with the thread.
pub const RUN_ONLY_KEYS: [&str; 5] = [
    "checkpoint_id",
    "checkpoint_ns",
    "checkpoint_map",
    "thread_ts",
    EVENT_STREAMING,
];

/// The layers of a run's configuration, weakest first.
#[derive(Clone, Copy, Debug)]
pub struct ConfigLayers<'a> {
    pub assistant_config: &'a Object,
    pub assistant_metadata: &'a Object,
    pub thread_config: &'a Object,
    pub thread_metadata: &'a Object,
    pub config: &'a Object,
    pub metadata: &'a Object,
    /// Set by the server: `run_id`, `thread_id`, `graph_id`, `assistant_id`, `user_id`.
    pub server_values: &'a Object,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MergedConfig {
    /// The run's `config`: `configurable`, `metadata` and whatever else the layers hold.
    pub config: Object,
    pub metadata: Object,
    /// The new `config` of the thread.
    pub thread_config: Object,
}

/// Merges the layers key by key; later layers win. `configurable` and `metadata` are merged one level deeper. Reserved
/// keys are dropped from every layer, because clients also write assistants and threads.
#[must_use]
pub fn merge(layers: ConfigLayers<'_>) -> MergedConfig {
    let part = |config: &Object, name: &str| match config.get(name) {
        Some(Value::Object(part)) => part.clone(),
        _ => Object::new(),
    };
    let mut kept = part(layers.assistant_config, "configurable");
    kept.extend(part(layers.thread_config, "configurable"));
    drop_reserved_configurable(&mut kept);
    let mut asked = part(layers.config, "configurable");
    drop_reserved_configurable(&mut asked);
    let mut configurable = kept.clone();
    configurable.extend(asked.clone());
    configurable.extend(layers.server_values.clone());
    asked.retain(|key, _| !RUN_ONLY_KEYS.contains(&key.as_str()) && !layers.server_values.contains_key(key));
    kept.extend(asked);

    let mut metadata = layers.assistant_metadata.clone();
    metadata.extend(layers.thread_metadata.clone());
    metadata.extend(part(layers.config, "metadata"));
    metadata.extend(layers.metadata.clone());
    drop_reserved_metadata(&mut metadata);
    if let Some(assistant) = layers.server_values.get("assistant_id") {
        metadata.insert("assistant_id".to_owned(), assistant.clone());
    }
    if let Some(graph) = layers.server_values.get("graph_id") {
        metadata.entry("graph_id").or_insert_with(|| graph.clone());
    }

    let mut config = layers.assistant_config.clone();
    config.extend(layers.thread_config.clone());
    config.extend(layers.config.clone());
    let mut thread_config = config.clone();
    thread_config.remove("metadata");
    thread_config.insert("configurable".to_owned(), Value::Object(kept));
    config.insert("configurable".to_owned(), Value::Object(configurable));
    config.insert("metadata".to_owned(), Value::Object(metadata.clone()));
    MergedConfig {
        config,
        metadata,
        thread_config,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        match value {
            Value::Object(object) => object,
            _ => unreachable!(),
        }
    }

    #[test]
    fn the_request_beats_the_thread_and_the_thread_the_assistant() {
        let assistant = object(json!({"tags": ["a"], "configurable": {"model": "small", "tone": "dry"}}));
        let thread = object(json!({"configurable": {"model": "large", "user": "u"}}));
        let config = object(json!({
            "recursion_limit": 5,
            "configurable": {"tone": "warm", "run_id": "mine", "langgraph_auth_user": "root", "checkpoint_id": "c"},
            "metadata": {"from": "config", "run_id": "mine"},
        }));
        let forced = object(json!({"run_id": "r", "thread_id": "t", "graph_id": "g", "assistant_id": "a"}));
        let merged = merge(ConfigLayers {
            assistant_config: &assistant,
            assistant_metadata: &object(json!({"who": "assistant", "created_by": "system"})),
            thread_config: &thread,
            thread_metadata: &object(json!({"who": "thread"})),
            config: &config,
            metadata: &object(json!({"from": "request"})),
            server_values: &forced,
        });
        assert_eq!(
            merged.config["configurable"],
            json!({"model": "large", "tone": "warm", "user": "u", "run_id": "r", "checkpoint_id": "c",
                   "thread_id": "t", "graph_id": "g", "assistant_id": "a"})
        );
        assert_eq!(merged.config["tags"], json!(["a"]));
        assert_eq!(merged.config["recursion_limit"], json!(5));
        assert_eq!(
            Value::Object(merged.metadata),
            json!({"who": "thread", "created_by": "system", "from": "request", "assistant_id": "a", "graph_id": "g"})
        );
        assert_eq!(
            merged.thread_config["configurable"],
            json!({"model": "large", "user": "u", "tone": "warm"}),
            "the place of one run is not the thread's"
        );
    }

    /// A caller that may write an assistant or a thread must not set server values in other callers' runs.
    #[test]
    fn reserved_keys_are_dropped_from_every_layer() {
        let forged = || {
            let mut configurable =
                Object::from_iter(RESERVED_CONFIGURABLE.map(|key| (key.to_owned(), json!("forged"))));
            configurable.insert("mine".to_owned(), json!(1));
            object(json!({ "configurable": configurable }))
        };
        let metadata = || {
            let mut metadata = Object::from_iter(RESERVED_METADATA.map(|key| (key.to_owned(), json!("forged"))));
            metadata.insert("mine".to_owned(), json!(1));
            metadata
        };
        let nothing = Object::new();
        let forced = object(json!({"run_id": "r", "assistant_id": "a"}));
        let none = ConfigLayers {
            assistant_config: &nothing,
            assistant_metadata: &nothing,
            thread_config: &nothing,
            thread_metadata: &nothing,
            config: &nothing,
            metadata: &nothing,
            server_values: &forced,
        };
        let (config, metadata) = (forged(), metadata());
        for (layer, layers) in [
            (
                "assistant",
                ConfigLayers {
                    assistant_config: &config,
                    assistant_metadata: &metadata,
                    ..none
                },
            ),
            (
                "thread",
                ConfigLayers {
                    thread_config: &config,
                    thread_metadata: &metadata,
                    ..none
                },
            ),
            (
                "request",
                ConfigLayers {
                    config: &config,
                    metadata: &metadata,
                    ..none
                },
            ),
        ] {
            let merged = merge(layers);
            assert_eq!(
                merged.config["configurable"],
                json!({"mine": 1, "run_id": "r", "assistant_id": "a"}),
                "the {layer}'s config"
            );
            assert_eq!(
                merged.thread_config["configurable"],
                json!({"mine": 1}),
                "what the thread keeps of the {layer}'s config"
            );
            assert_eq!(
                Value::Object(merged.metadata),
                json!({"mine": 1, "assistant_id": "a"}),
                "the {layer}'s metadata"
            );
        }
    }
}
