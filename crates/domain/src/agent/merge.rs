//! How the configuration of a run comes together.

use serde_json::{Map, Value};

/// A JSON object.
pub type Object = Map<String, Value>;

/// Keys of `configurable` that only the server may set; a request's are dropped.
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

/// Keys of `metadata` that only the server may set; a request's are dropped.
pub const RESERVED_METADATA: [&str; 5] = [
    "thread_id",
    "assistant_id",
    "run_id",
    "cron_id",
    "counters_since_delta_snapshot",
];

/// Keys of `configurable` that say where a run starts. They hold for that run and not for the thread.
pub const PLACE: [&str; 4] = ["checkpoint_id", "checkpoint_ns", "checkpoint_map", "thread_ts"];

/// What a run's configuration is made of, weakest first.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// The assistant's `config`.
    pub assistant_config: &'a Object,
    /// The assistant's `metadata`.
    pub assistant_metadata: &'a Object,
    /// The thread's `config`.
    pub thread_config: &'a Object,
    /// The thread's `metadata`.
    pub thread_metadata: &'a Object,
    /// The request's `config`.
    pub config: &'a Object,
    /// The request's `metadata`.
    pub metadata: &'a Object,
    /// What the server knows better: `run_id`, `thread_id`, `graph_id`, `assistant_id`, `user_id`.
    pub forced: &'a Object,
}

/// The configuration of a run, and what its thread keeps of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The run's `config`: `configurable`, `metadata` and whatever else the layers hold.
    pub config: Object,
    /// The run's `metadata`.
    pub metadata: Object,
    /// The thread's `config` from now on.
    pub thread_config: Object,
}

/// Merges the layers: key by key, the later one wins; `configurable` and `metadata` are merged one level deeper.
#[must_use]
pub fn merge(layers: Layers<'_>) -> Merged {
    let part = |config: &Object, name: &str| match config.get(name) {
        Some(Value::Object(part)) => part.clone(),
        _ => Object::new(),
    };
    let mut kept = part(layers.assistant_config, "configurable");
    kept.extend(part(layers.thread_config, "configurable"));
    let mut asked = part(layers.config, "configurable");
    asked.retain(|key, _| !RESERVED_CONFIGURABLE.contains(&key.as_str()));
    let mut configurable = kept.clone();
    configurable.extend(asked.clone());
    configurable.extend(layers.forced.clone());
    asked.retain(|key, _| !PLACE.contains(&key.as_str()) && !layers.forced.contains_key(key));
    kept.extend(asked);

    let mut metadata = layers.assistant_metadata.clone();
    metadata.extend(layers.thread_metadata.clone());
    for asked in [part(layers.config, "metadata"), layers.metadata.clone()] {
        let allowed = asked
            .into_iter()
            .filter(|(key, _)| !RESERVED_METADATA.contains(&key.as_str()));
        metadata.extend(allowed);
    }
    if let Some(assistant) = layers.forced.get("assistant_id") {
        metadata.insert("assistant_id".to_owned(), assistant.clone());
    }
    if let Some(graph) = layers.forced.get("graph_id") {
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
    Merged {
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
        let merged = merge(Layers {
            assistant_config: &assistant,
            assistant_metadata: &object(json!({"who": "assistant", "created_by": "system"})),
            thread_config: &thread,
            thread_metadata: &object(json!({"who": "thread"})),
            config: &config,
            metadata: &object(json!({"from": "request"})),
            forced: &forced,
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
}
