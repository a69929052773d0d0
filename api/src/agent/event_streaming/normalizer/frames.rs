//! One frame of a run.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::agent::Frame;

use super::super::event::{Channel, DraftEvent};
use super::{MAX_KNOWN_IDS, RunState};

/// Key of a state, or of an update, that holds interrupts.
const INTERRUPT_KEY: &str = "__interrupt__";
/// Key by which a graph host names the node beside the data.
const NODE_KEY: &str = "__node";

#[derive(Deserialize)]
struct Interrupt {
    id: String,
    #[serde(default)]
    value: Option<Box<RawValue>>,
}

/// What of a checkpoint is shown.
#[derive(Deserialize)]
struct Checkpoint {
    config: Option<Config>,
    parent_config: Option<Config>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Config {
    configurable: Option<Configurable>,
}

#[derive(Deserialize)]
struct Configurable {
    checkpoint_id: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    step: Option<i64>,
    source: Option<String>,
}

impl Config {
    fn id(self) -> Option<String> {
        self.configurable?.checkpoint_id
    }
}

impl RunState {
    /// The events of a frame. Frames that the protocol does not know have none.
    pub(super) fn drafts(&mut self, frame: &Frame<'_>) -> Vec<DraftEvent> {
        let mut parts = frame.event.split('|');
        let mode = parts.next().unwrap_or_default();
        let namespace: Vec<String> = parts.map(str::to_owned).collect();
        match mode {
            "values" => self.values(&namespace, frame.data),
            "updates" => self.updates(&namespace, frame.data),
            "messages" => self.messages(&namespace, frame.data),
            "tools" => tool_events(&namespace, frame.data),
            "tasks" => self.tasks(&namespace, frame.data),
            "checkpoints" => self.checkpoint(&namespace, frame.data).into_iter().collect(),
            "custom" => custom_event(None, &namespace, frame.data).into_iter().collect(),
            "error" => {
                let error: Value = serde_json::from_str(frame.data).unwrap_or_default();
                let message = error.get("message").and_then(Value::as_str);
                self.error = Some(message.map_or_else(|| error.to_string(), str::to_owned));
                Vec::new()
            }
            _ => match mode.strip_prefix("custom:").filter(|name| !name.is_empty()) {
                Some(name) => custom_event(Some(name), &namespace, frame.data).into_iter().collect(),
                None => Vec::new(),
            },
        }
    }

    fn values(&mut self, namespace: &[String], data: &str) -> Vec<DraftEvent> {
        let (mut drafts, rest) = self.split_interrupts(namespace, data);
        drafts.extend(rest.map(|rest| DraftEvent::raw(Channel::Values, namespace, rest)));
        drafts
    }

    fn updates(&mut self, namespace: &[String], data: &str) -> Vec<DraftEvent> {
        let (mut drafts, rest) = self.split_interrupts(namespace, data);
        let Some(rest) = rest else { return drafts };
        let nodes: BTreeMap<String, &RawValue> = serde_json::from_str(rest.get()).unwrap_or_default();
        let node = match nodes.into_keys().collect::<Vec<_>>().as_slice() {
            [node] => Some(node.clone()),
            _ => None,
        };
        if let Some(node) = &node {
            drafts.extend(self.messages.finish_node(namespace, node));
        }
        drafts.push(DraftEvent::raw(Channel::Updates, namespace, rest).with_node(node));
        drafts
    }

    /// Interrupts as requests for input, and what is left of the data beside them.
    fn split_interrupts(&mut self, namespace: &[String], data: &str) -> (Vec<DraftEvent>, Option<Box<RawValue>>) {
        let whole = || RawValue::from_string(data.to_owned()).ok();
        // Texts of users seldom hold it; where they do, they are looked through for nothing.
        if !data.contains(INTERRUPT_KEY) {
            return (Vec::new(), whole());
        }
        let Ok(mut fields) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(data) else {
            return (Vec::new(), whole());
        };
        let Some(interrupts) = fields.remove(INTERRUPT_KEY) else {
            return (Vec::new(), whole());
        };
        let interrupts: Vec<Interrupt> = serde_json::from_str(interrupts.get()).unwrap_or_default();
        let requests = interrupts
            .iter()
            .filter_map(|interrupt| self.input_request(namespace, interrupt));
        let drafts = requests.collect();
        let rest = (!fields.is_empty()).then(|| serde_json::value::to_raw_value(&fields).ok());
        (drafts, rest.flatten())
    }

    fn input_request(&mut self, namespace: &[String], interrupt: &Interrupt) -> Option<DraftEvent> {
        self.interrupted = true;
        if self.shown_interrupts.len() >= MAX_KNOWN_IDS || !self.shown_interrupts.insert(interrupt.id.clone()) {
            return None;
        }
        let id = self.event_id(&["input", &interrupt.id]);
        // Some clients read one, some the other.
        let data = json!({"interrupt_id": interrupt.id, "payload": interrupt.value, "value": interrupt.value});
        Some(DraftEvent::serialize(Channel::Input, namespace, &data)?.with_id(id))
    }

    fn messages(&mut self, namespace: &[String], data: &str) -> Vec<DraftEvent> {
        let Ok(mut data) = serde_json::from_str::<Value>(data) else {
            return Vec::new();
        };
        if data.is_array() {
            return self.messages.accept(namespace, &data);
        }
        let node = take_node(&mut data);
        let draft = DraftEvent::serialize(Channel::Messages, namespace, &data);
        draft.map(|draft| draft.with_node(node)).into_iter().collect()
    }

    fn tasks(&mut self, namespace: &[String], data: &str) -> Vec<DraftEvent> {
        let (Ok(raw), Ok(task)) = (
            RawValue::from_string(data.to_owned()),
            serde_json::from_str::<Value>(data),
        ) else {
            return Vec::new();
        };
        let mut drafts = Vec::new();
        let node = task.get("name").and_then(Value::as_str).map(str::to_owned);
        let event = DraftEvent::raw(Channel::Tasks, namespace, raw).with_node(node);
        if task.get("result").is_some() {
            drafts.push(event);
            let ended = self.namespaces.end_task(namespace, &task);
            drafts.extend(ended.iter().filter_map(super::namespaces::SubgraphChange::draft));
        } else {
            let started = self.namespaces.start_task(namespace, &task);
            drafts.extend(started.and_then(|started| started.draft()));
            drafts.push(event);
        }
        drafts
    }

    fn checkpoint(&mut self, namespace: &[String], data: &str) -> Option<DraftEvent> {
        let checkpoint: Checkpoint = serde_json::from_str(data).ok()?;
        let id = checkpoint.config?.id()?;
        let key = format!("{}|{id}", namespace.join("|"));
        if self.checkpoints.len() >= MAX_KNOWN_IDS || !self.checkpoints.insert(key.clone()) {
            return None;
        }
        let metadata = checkpoint.metadata;
        let (step, source) = metadata.map_or((None, None), |metadata| (metadata.step, metadata.source));
        let mut shown =
            json!({"id": id, "step": step.unwrap_or_default(), "source": source.unwrap_or_else(|| "loop".to_owned())});
        if let Some(parent) = checkpoint.parent_config.and_then(Config::id) {
            shown["parent_id"] = json!(parent);
        }
        let id = self.event_id(&["checkpoint", &key]);
        Some(DraftEvent::serialize(Channel::Checkpoints, namespace, &shown)?.with_id(id))
    }
}

fn custom_event(name: Option<&str>, namespace: &[String], data: &str) -> Option<DraftEvent> {
    let payload = serde_json::from_str::<&RawValue>(data).ok()?;
    let quoted = name.and_then(|name| serde_json::value::to_raw_value(name).ok());
    let mut fields = BTreeMap::from([("payload", payload)]);
    if let Some(quoted) = &quoted {
        fields.insert("name", quoted);
    }
    let mut draft = DraftEvent::serialize(Channel::Custom, namespace, &fields)?;
    draft.name = name.map(str::to_owned);
    Some(draft)
}

/// The event of a tool, and when it has ended, its answer as a message.
fn tool_events(namespace: &[String], data: &str) -> Vec<DraftEvent> {
    let Ok(mut data) = serde_json::from_str::<Value>(data) else {
        return Vec::new();
    };
    let node = take_node(&mut data);
    let event = DraftEvent::serialize(Channel::Tools, namespace, &data).map(|draft| draft.with_node(node));
    let mut drafts: Vec<DraftEvent> = event.into_iter().collect();
    if data["event"] == "tool-finished" {
        drafts.extend(tool_message(namespace, &data));
    }
    drafts
}

/// What a tool answered, as a message below the namespace of its graph.
fn tool_message(namespace: &[String], event: &Value) -> Vec<DraftEvent> {
    let output = &event["output"];
    if !output.is_object() {
        return Vec::new();
    }
    let call = event["tool_call_id"]
        .as_str()
        .or_else(|| output["tool_call_id"].as_str());
    let id = match (output["id"].as_str().filter(|id| !id.is_empty()), call) {
        (Some(id), _) => id.to_owned(),
        (None, Some(call)) => format!("tool-{call}"),
        (None, None) => return Vec::new(),
    };
    let text = match &output["content"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut place = namespace.to_vec();
    place.extend(call.map(|call| format!("tools:{call}")));
    let mut start = json!({"event": "message-start", "role": "tool", "id": id});
    if let Some(call) = call {
        start["tool_call_id"] = json!(call);
    }
    let whole = json!({"type": "text", "text": text});
    let events = [
        start,
        json!({"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}}),
        json!({"event": "content-block-delta", "index": 0, "delta": {"type": "text-delta", "text": text}}),
        json!({"event": "content-block-finish", "index": 0, "content": whole}),
        json!({"event": "message-finish"}),
    ];
    events
        .iter()
        .filter_map(|data| DraftEvent::serialize(Channel::Messages, &place, data))
        .collect()
}

fn take_node(data: &mut Value) -> Option<String> {
    match data.as_object_mut()?.remove(NODE_KEY)? {
        Value::String(node) => Some(node),
        _ => None,
    }
}
