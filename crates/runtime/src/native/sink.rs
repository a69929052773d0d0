//! Chunks of a run's stream: selection and order.

use std::collections::HashSet;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::{Clock, Timestamp};

use crate::{Chunk, Execution, GraphError, Host, StreamMode};

/// Collects chunks and hands them to the host in order.
pub(super) struct Sink<'a> {
    host: &'a dyn Host,
    clock: &'a Clock,
    enabled_modes: [bool; StreamMode::ALL.len()],
    subgraphs: bool,
    state: Mutex<SinkState>,
    /// One hand-over at a time, so that the order stays.
    flush_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct SinkState {
    chunks: Vec<Chunk>,
    /// Ids of messages that were told, or were there before.
    seen: HashSet<String>,
    /// Ids whose metadata was told.
    announced: HashSet<String>,
    failed: Option<String>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(host: &'a dyn Host, clock: &'a Clock, execution: &Execution) -> Self {
        Self {
            host,
            clock,
            enabled_modes: StreamMode::ALL.map(|mode| execution.modes.contains(&mode)),
            subgraphs: execution.subgraphs,
            state: Mutex::default(),
            flush_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Whether chunks of this mode are wanted from there.
    pub(super) fn wants(&self, mode: StreamMode, namespace: &[String]) -> bool {
        self.enabled_modes[mode as usize] && (self.subgraphs || namespace.is_empty())
    }

    /// Whether messages are wanted from there.
    pub(super) fn wants_messages(&self, namespace: &[String]) -> bool {
        self.wants(StreamMode::Messages, namespace) || self.wants(StreamMode::MessagesTuple, namespace)
    }

    /// Adds a chunk, when it is wanted.
    pub(super) fn push(&self, mode: StreamMode, namespace: &[String], data: &impl Serialize) {
        if self.wants(mode, namespace) {
            self.add(mode.as_str(), namespace, data);
        }
    }

    /// Adds a checkpoint or a task, and the same for `debug`.
    pub(super) fn push_debug<T: Serialize>(
        &self,
        mode: StreamMode,
        namespace: &[String],
        data: &T,
        debug: impl FnOnce() -> (i64, &'static str, Value),
    ) {
        self.push(mode, namespace, data);
        if self.wants(StreamMode::Debug, namespace) {
            let (step, sort, payload) = debug();
            let timestamp = rfc3339(self.clock.now());
            let data = json!({"step": step, "timestamp": timestamp, "type": sort, "payload": payload});
            self.add("debug", namespace, &data);
        }
    }

    /// Whether tasks or checkpoints are wanted in any form.
    pub(super) fn wants_debug(&self, mode: StreamMode, namespace: &[String]) -> bool {
        self.wants(mode, namespace) || self.wants(StreamMode::Debug, namespace)
    }

    /// A piece of a message. `whole` is the message so far.
    pub(super) fn token(
        &self,
        namespace: &[String],
        chunk: &Value,
        metadata: &RawValue,
        whole: impl FnOnce() -> Value,
    ) {
        let id = chunk["id"].as_str().unwrap_or_default();
        self.state.lock().seen.insert(id.to_owned());
        if self.wants(StreamMode::MessagesTuple, namespace) {
            self.add("messages", namespace, &(chunk, metadata));
        }
        if self.wants(StreamMode::Messages, namespace) {
            self.announce(namespace, id, metadata);
            self.add("messages/partial", namespace, &[whole()]);
        }
    }

    /// A message that was not streamed, unless it was told already.
    pub(super) fn message(&self, namespace: &[String], message: &Value, metadata: &RawValue) {
        let id = message["id"].as_str().unwrap_or_default();
        if !self.state.lock().seen.insert(id.to_owned()) {
            return;
        }
        if self.wants(StreamMode::MessagesTuple, namespace) {
            self.add("messages", namespace, &(message, metadata));
        }
        if self.wants(StreamMode::Messages, namespace) {
            self.announce(namespace, id, metadata);
            self.add("messages/complete", namespace, &[message]);
        }
    }

    /// Messages that a node was given are not news.
    pub(super) fn mark_seen(&self, message: &Value) {
        if let Some(id) = message["id"].as_str() {
            self.state.lock().seen.insert(id.to_owned());
        }
    }

    fn announce(&self, namespace: &[String], id: &str, metadata: &RawValue) {
        if self.state.lock().announced.insert(id.to_owned()) {
            let mut data = std::collections::BTreeMap::new();
            data.insert(id, json!({"metadata": metadata}));
            self.add("messages/metadata", namespace, &data);
        }
    }

    fn add(&self, mode: &'static str, namespace: &[String], data: &impl Serialize) {
        match serde_json::value::to_raw_value(data) {
            Ok(data) => self.state.lock().chunks.push(Chunk {
                mode: mode.into(),
                namespace: namespace.to_vec(),
                data: data.into(),
            }),
            Err(error) => self.state.lock().failed = Some(error.to_string()),
        }
    }

    /// Hands over what has been collected.
    pub(super) async fn flush(&self) -> Result<(), GraphError> {
        if self.state.lock().chunks.is_empty() {
            return Ok(());
        }
        let _order = self.flush_lock.lock().await;
        let (chunks, failed) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.chunks), state.failed.take())
        };
        if let Some(error) = failed {
            return Err(GraphError::new(
                "ValueError",
                format!("a chunk cannot be written as JSON: {error}"),
            ));
        }
        if chunks.is_empty() {
            return Ok(());
        }
        Ok(self.host.emit(chunks).await?)
    }
}

/// As Python writes a time: microseconds and `+00:00`.
pub(super) fn rfc3339(time: Timestamp) -> String {
    time.to_utc().to_rfc3339_opts(chrono::SecondsFormat::Micros, false)
}
