//! Messages in content blocks, of hosts that stream pieces of messages, or whole ones, with their metadata.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::super::event::{Channel, Draft};

/// Messages that grow at once; of those beyond only their end is shown, by the state.
const MOST_OPEN: usize = 1000;

/// The messages of one run.
#[derive(Debug, Default)]
pub(super) struct Messages {
    open: HashMap<String, Open>,
    /// Those that are over: what comes once more whole was shown.
    over: HashSet<String>,
}

/// A message that grows.
#[derive(Debug)]
struct Open {
    namespace: Vec<String>,
    node: Option<String>,
    blocks: Vec<Block>,
    usage: Option<Value>,
    finish: Map<String, Value>,
}

#[derive(Debug)]
enum Block {
    Text(String),
    /// Which call of the message, its id and name, and its arguments as JSON text.
    Call {
        index: Value,
        id: Value,
        name: Value,
        args: String,
    },
    /// What came whole.
    Other(Value),
}

impl Block {
    fn whole(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Call { id, name, args, .. } => {
                let text = if args.is_empty() { "{}" } else { args.as_str() };
                match serde_json::from_str::<Value>(text) {
                    Ok(args) if args.is_object() => json!({"type": "tool_call", "id": id, "name": name, "args": args}),
                    _ => json!({"type": "invalid_tool_call", "id": id, "name": name, "args": args,
                                "error": "Malformed args."}),
                }
            }
            Self::Other(block) => block.clone(),
        }
    }
}

impl Messages {
    /// The events of `[message or piece, metadata]`. Only what a model says is shown: the rest is in the state.
    pub fn take(&mut self, namespace: &[String], pair: &Value) -> Vec<Draft> {
        let (message, metadata) = (&pair[0], &pair[1]);
        let Some(id) = message["id"].as_str() else {
            return Vec::new();
        };
        let whole = match message["type"].as_str() {
            Some("ai") => true,
            Some("AIMessageChunk") => false,
            _ => return Vec::new(),
        };
        let node = metadata["langgraph_node"].as_str().map(str::to_owned);
        let mut drafts = Vec::new();
        if !self.open.contains_key(id) {
            if self.open.len() >= MOST_OPEN || self.over.contains(id) {
                return Vec::new();
            }
            let open = Open {
                namespace: namespace.to_vec(),
                node,
                blocks: Vec::new(),
                usage: None,
                finish: Map::new(),
            };
            drafts.extend(open.draft(id, start(metadata)));
            self.open.insert(id.to_owned(), open);
        }
        let Some(open) = self.open.get_mut(id) else {
            return drafts;
        };
        open.grow(id, message, &mut drafts);
        if whole || message["chunk_position"] == "last" {
            drafts.extend(self.finish(id));
        }
        drafts
    }

    /// Ends what a node had begun to say.
    pub fn finish_of(&mut self, namespace: &[String], node: &str) -> Vec<Draft> {
        self.finish_where(|open| open.namespace == namespace && open.node.as_deref() == Some(node))
    }

    /// Ends everything.
    pub fn finish_all(&mut self) -> Vec<Draft> {
        self.finish_where(|_| true)
    }

    fn finish_where(&mut self, ends: impl Fn(&Open) -> bool) -> Vec<Draft> {
        let ended = self.open.iter().filter(|(_, open)| ends(open));
        let mut ids: Vec<String> = ended.map(|(id, _)| id.clone()).collect();
        // The same order for every reader.
        ids.sort();
        ids.iter().flat_map(|id| self.finish(id)).collect()
    }

    fn finish(&mut self, id: &str) -> Vec<Draft> {
        let Some(open) = self.open.remove(id) else {
            return Vec::new();
        };
        if self.over.len() < super::MOST_KNOWN {
            self.over.insert(id.to_owned());
        }
        let ended = open.blocks.iter().enumerate();
        let mut data: Vec<Value> = ended
            .map(|(index, block)| json!({"event": "content-block-finish", "index": index, "content": block.whole()}))
            .collect();
        let mut finish = json!({"event": "message-finish"});
        if let Some(usage) = &open.usage {
            finish["usage"] = usage.clone();
        }
        if !open.finish.is_empty() {
            finish["metadata"] = Value::Object(open.finish.clone());
        }
        data.push(finish);
        data.into_iter().filter_map(|data| open.draft(id, data)).collect()
    }
}

fn list<'m>(message: &'m Value, key: &str) -> &'m [Value] {
    message[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What a message begins with.
fn start(metadata: &Value) -> Value {
    let mut data = json!({"event": "message-start", "role": "ai"});
    let mut shown = Map::new();
    for (name, key) in [("provider", "ls_provider"), ("model", "ls_model_name")] {
        if let Some(text) = metadata[key].as_str() {
            shown.insert(name.to_owned(), json!(text));
        }
    }
    if !shown.is_empty() {
        data["metadata"] = Value::Object(shown);
    }
    data
}

impl Open {
    /// An event of this message. Messages of one node may grow at once, so each event says whose it is.
    fn draft(&self, id: &str, mut data: Value) -> Option<Draft> {
        if data["event"] == "message-start" {
            data["id"] = json!(id);
        }
        data["message_id"] = json!(id);
        data["run_id"] = json!(id);
        let draft = Draft::of(Channel::Messages, &self.namespace, &data)?;
        Some(draft.with_node(self.node.clone()))
    }

    /// Adds a piece, or all of a message.
    fn grow(&mut self, id: &str, message: &Value, drafts: &mut Vec<Draft>) {
        match &message["content"] {
            Value::String(text) => self.text(id, text, drafts),
            Value::Array(parts) => {
                for part in parts {
                    let text = part.as_str().or_else(|| match part["type"].as_str() {
                        Some("text") => part["text"].as_str(),
                        _ => None,
                    });
                    match text {
                        Some(text) => self.text(id, text, drafts),
                        // Their calls stand beside the content, too.
                        None if matches!(
                            part["type"].as_str(),
                            Some("tool_use" | "tool_call" | "input_json_delta")
                        ) => {}
                        None if part.is_object() => self.other(id, part, drafts),
                        None => {}
                    }
                }
            }
            _ => {}
        }
        for piece in list(message, "tool_call_chunks") {
            self.call(id, piece, drafts);
        }
        let is_whole = message["type"] == "ai";
        for call in list(message, "tool_calls").iter().filter(|_| is_whole) {
            let args = call["args"].to_string();
            let piece = json!({"index": null, "id": call["id"], "name": call["name"], "args": args});
            self.call(id, &piece, drafts);
        }
        if message["usage_metadata"].is_object() {
            self.usage = Some(message["usage_metadata"].clone());
        }
        if let Value::Object(more) = &message["response_metadata"] {
            self.finish.extend(more.clone());
        }
    }

    fn begin(&mut self, id: &str, block: Block, skeleton: &Value, drafts: &mut Vec<Draft>) -> usize {
        let index = self.blocks.len();
        self.blocks.push(block);
        let data = json!({"event": "content-block-start", "index": index, "content": skeleton});
        drafts.extend(self.draft(id, data));
        index
    }

    fn text(&mut self, id: &str, text: &str, drafts: &mut Vec<Draft>) {
        if text.is_empty() {
            return;
        }
        let index = match self.blocks.iter().rposition(|block| matches!(block, Block::Text(_))) {
            Some(index) if index + 1 == self.blocks.len() => index,
            _ => self.begin(
                id,
                Block::Text(String::new()),
                &json!({"type": "text", "text": ""}),
                drafts,
            ),
        };
        if let Some(Block::Text(grown)) = self.blocks.get_mut(index) {
            grown.push_str(text);
        }
        let delta = json!({"type": "text-delta", "text": text});
        let data = json!({"event": "content-block-delta", "index": index, "delta": delta});
        drafts.extend(self.draft(id, data));
    }

    fn other(&mut self, id: &str, part: &Value, drafts: &mut Vec<Draft>) {
        self.begin(id, Block::Other(part.clone()), part, drafts);
    }

    /// A piece of a call. Pieces of one call have one index; without one it is a call of its own.
    fn call(&mut self, id: &str, piece: &Value, drafts: &mut Vec<Draft>) {
        let (call, name) = (&piece["id"], &piece["name"]);
        let same = |block: &Block| match block {
            Block::Call { index, .. } => !index.is_null() && *index == piece["index"],
            _ => false,
        };
        let at = match self.blocks.iter().position(same) {
            Some(at) => at,
            None => {
                let block = Block::Call {
                    index: piece["index"].clone(),
                    id: call.clone(),
                    name: name.clone(),
                    args: String::new(),
                };
                let skeleton = json!({"type": "tool_call_chunk", "id": call, "name": name, "args": ""});
                self.begin(id, block, &skeleton, drafts)
            }
        };
        let Some(Block::Call {
            id: known,
            name: named,
            args,
            ..
        }) = self.blocks.get_mut(at)
        else {
            return;
        };
        args.push_str(piece["args"].as_str().unwrap_or_default());
        if known.is_null() {
            known.clone_from(call);
        }
        if named.is_null() {
            named.clone_from(name);
        }
        // A snapshot, which replaces the one before.
        let fields = json!({"type": "tool_call_chunk", "id": known, "name": named, "args": args});
        let delta = json!({"type": "block-delta", "fields": fields});
        let data = json!({"event": "content-block-delta", "index": at, "delta": delta});
        drafts.extend(self.draft(id, data));
    }
}

/// What a tool answered, as a message below the namespace of its graph.
pub(super) fn of_tool(namespace: &[String], event: &Value) -> Vec<Draft> {
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
        .filter_map(|data| Draft::of(Channel::Messages, &place, data))
        .collect()
}
