//! Messages in content blocks, of hosts that stream pieces of messages, or whole ones, with their metadata.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::super::event::{Channel, DraftEvent};
use super::blocks::{ContentBlock, parse_reasoning};

/// Messages that grow at once; of those beyond only their end is shown, by the state.
const MAX_OPEN_MESSAGES: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Messages {
    open: HashMap<String, OpenMessage>,
    /// Those that are over: what comes once more whole was shown.
    finished: HashSet<String>,
}

/// A message that grows.
#[derive(Debug)]
struct OpenMessage {
    namespace: Vec<String>,
    node: Option<String>,
    blocks: Vec<ContentBlock>,
    usage: Option<Value>,
    finish: Map<String, Value>,
}

/// Adds the usage of a piece of a message to that of the pieces before.
fn add_usage(sum: &mut Value, piece: &Value) {
    match (sum, piece) {
        (Value::Object(sum), Value::Object(piece)) => {
            for (name, value) in piece {
                match sum.get_mut(name) {
                    Some(before) => add_usage(before, value),
                    None => {
                        sum.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        (sum, piece) => match (sum.as_i64(), piece.as_i64()) {
            (Some(before), Some(more)) => *sum = json!(before.saturating_add(more)),
            _ if piece.is_null() => {}
            _ => sum.clone_from(piece),
        },
    }
}

impl Messages {
    /// The events of `[message or piece, metadata]`. Only what a model says is shown: the rest is in the state.
    pub fn accept(&mut self, namespace: &[String], pair: &Value) -> Vec<DraftEvent> {
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
            if self.open.len() >= MAX_OPEN_MESSAGES || self.finished.contains(id) {
                return Vec::new();
            }
            let open = OpenMessage {
                namespace: namespace.to_vec(),
                node,
                blocks: Vec::new(),
                usage: None,
                finish: Map::new(),
            };
            drafts.extend(open.draft(id, start_data(metadata)));
            self.open.insert(id.to_owned(), open);
        }
        let Some(open) = self.open.get_mut(id) else {
            return drafts;
        };
        open.append(id, message, &mut drafts);
        if whole || message["chunk_position"] == "last" {
            drafts.extend(self.finish(id));
        }
        drafts
    }

    /// Ends what a node had begun to say.
    pub fn finish_node(&mut self, namespace: &[String], node: &str) -> Vec<DraftEvent> {
        self.finish_where(|open| open.namespace == namespace && open.node.as_deref() == Some(node))
    }

    /// Ends everything.
    pub fn finish_all(&mut self) -> Vec<DraftEvent> {
        self.finish_where(|_| true)
    }

    fn finish_where(&mut self, ends: impl Fn(&OpenMessage) -> bool) -> Vec<DraftEvent> {
        let ended = self.open.iter().filter(|(_, open)| ends(open));
        let mut ids: Vec<String> = ended.map(|(id, _)| id.clone()).collect();
        // The same order for every reader.
        ids.sort();
        ids.iter().flat_map(|id| self.finish(id)).collect()
    }

    fn finish(&mut self, id: &str) -> Vec<DraftEvent> {
        let Some(open) = self.open.remove(id) else {
            return Vec::new();
        };
        if self.finished.len() < super::MAX_KNOWN_IDS {
            self.finished.insert(id.to_owned());
        }
        let ended = open.blocks.iter().enumerate();
        let mut data: Vec<Value> = ended
            .map(|(index, block)| json!({"event": "content-block-finish", "index": index, "content": block.to_json()}))
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

fn list_field<'m>(message: &'m Value, key: &str) -> &'m [Value] {
    message[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn start_data(metadata: &Value) -> Value {
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

impl OpenMessage {
    /// An event of this message. Messages of one node may grow at once, so each event says whose it is.
    fn draft(&self, id: &str, mut data: Value) -> Option<DraftEvent> {
        if data["event"] == "message-start" {
            data["id"] = json!(id);
        }
        data["message_id"] = json!(id);
        data["run_id"] = json!(id);
        let draft = DraftEvent::serialize(Channel::Messages, &self.namespace, &data)?;
        Some(draft.with_node(self.node.clone()))
    }

    /// Adds a piece, or all of a message.
    fn append(&mut self, id: &str, message: &Value, drafts: &mut Vec<DraftEvent>) {
        match &message["content"] {
            Value::String(text) => self.append_text(id, text, drafts),
            Value::Array(parts) => {
                for part in parts {
                    let text = part.as_str().or_else(|| match part["type"].as_str() {
                        Some("text") => part["text"].as_str(),
                        _ => None,
                    });
                    match text {
                        Some(text) => self.append_text(id, text, drafts),
                        // Their calls stand beside the content, too.
                        None if matches!(
                            part["type"].as_str(),
                            Some("tool_use" | "tool_call" | "input_json_delta")
                        ) => {}
                        None if part.is_object() => match parse_reasoning(part) {
                            Some(piece) => self.append_reasoning(id, piece, drafts),
                            None => self.append_other(id, part, drafts),
                        },
                        None => {}
                    }
                }
            }
            _ => {}
        }
        for piece in list_field(message, "tool_call_chunks") {
            self.append_tool_call(id, piece, drafts);
        }
        let is_whole = message["type"] == "ai";
        for call in list_field(message, "tool_calls").iter().filter(|_| is_whole) {
            let args = call["args"].to_string();
            let piece = json!({"index": null, "id": call["id"], "name": call["name"], "args": args});
            self.append_tool_call(id, &piece, drafts);
        }
        if message["usage_metadata"].is_object() {
            let usage = &message["usage_metadata"];
            match &mut self.usage {
                Some(sum) if !is_whole => add_usage(sum, usage),
                known => *known = Some(usage.clone()),
            }
        }
        if let Value::Object(more) = &message["response_metadata"] {
            self.finish.extend(more.clone());
        }
    }

    fn start_block(&mut self, id: &str, block: ContentBlock, skeleton: &Value, drafts: &mut Vec<DraftEvent>) -> usize {
        let index = self.blocks.len();
        self.blocks.push(block);
        let data = json!({"event": "content-block-start", "index": index, "content": skeleton});
        drafts.extend(self.draft(id, data));
        index
    }

    fn append_text(&mut self, id: &str, text: &str, drafts: &mut Vec<DraftEvent>) {
        if text.is_empty() {
            return;
        }
        let index = match self
            .blocks
            .iter()
            .rposition(|block| matches!(block, ContentBlock::Text(_)))
        {
            Some(index) if index + 1 == self.blocks.len() => index,
            _ => self.start_block(
                id,
                ContentBlock::Text(String::new()),
                &json!({"type": "text", "text": ""}),
                drafts,
            ),
        };
        if let Some(ContentBlock::Text(grown)) = self.blocks.get_mut(index) {
            grown.push_str(text);
        }
        let delta = json!({"type": "text-delta", "text": text});
        let data = json!({"event": "content-block-delta", "index": index, "delta": delta});
        drafts.extend(self.draft(id, data));
    }

    /// A piece of reasoning. It belongs to the block before it, unless its index is another one.
    fn append_reasoning(&mut self, id: &str, piece: Map<String, Value>, drafts: &mut Vec<DraftEvent>) {
        let of_piece = piece.get("index").cloned().unwrap_or_default();
        let goes_on = matches!(self.blocks.last(), Some(ContentBlock::Reasoning { index, .. }) if *index == of_piece);
        if !goes_on {
            let block = ContentBlock::Reasoning {
                index: of_piece,
                text: String::new(),
                extra: Map::new(),
            };
            self.start_block(id, block, &json!({"type": "reasoning", "reasoning": ""}), drafts);
        }
        let at = self.blocks.len() - 1;
        let Some(ContentBlock::Reasoning { text, extra: more, .. }) = self.blocks.last_mut() else {
            return;
        };
        let mut delta = json!({"type": "reasoning-delta", "reasoning": ""});
        for (name, value) in piece {
            if name == "reasoning" {
                text.push_str(value.as_str().unwrap_or_default());
                delta["reasoning"] = value;
            } else if name != "type" && name != "index" && !value.is_null() {
                more.insert(name, value);
            }
        }
        if delta["reasoning"] != "" {
            let data = json!({"event": "content-block-delta", "index": at, "delta": delta});
            drafts.extend(self.draft(id, data));
        }
    }

    fn append_other(&mut self, id: &str, part: &Value, drafts: &mut Vec<DraftEvent>) {
        self.start_block(id, ContentBlock::Other(part.clone()), part, drafts);
    }

    /// A piece of a call. Pieces of one call have one index; without one it is a call of its own.
    fn append_tool_call(&mut self, id: &str, piece: &Value, drafts: &mut Vec<DraftEvent>) {
        let (call, name) = (&piece["id"], &piece["name"]);
        let same = |block: &ContentBlock| match block {
            ContentBlock::ToolCall { index, .. } => !index.is_null() && *index == piece["index"],
            _ => false,
        };
        let at = match self.blocks.iter().position(same) {
            Some(at) => at,
            None => {
                let block = ContentBlock::ToolCall {
                    index: piece["index"].clone(),
                    id: call.clone(),
                    name: name.clone(),
                    args: String::new(),
                };
                let skeleton = json!({"type": "tool_call_chunk", "id": call, "name": name, "args": ""});
                self.start_block(id, block, &skeleton, drafts)
            }
        };
        let Some(ContentBlock::ToolCall {
            id: known,
            name: named,
            args,
            ..
        }) = self.blocks.get_mut(at)
        else {
            return;
        };
        let more = piece["args"].as_str().unwrap_or_default();
        args.push_str(more);
        // An id or a name that comes behind the first piece is shown with the whole call.
        if known.is_null() {
            known.clone_from(call);
        }
        if named.is_null() {
            named.clone_from(name);
        }
        if more.is_empty() {
            return;
        }
        let delta = json!({"type": "tool-call-delta", "args": more});
        let data = json!({"event": "content-block-delta", "index": at, "delta": delta});
        drafts.extend(self.draft(id, data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data of the events of pieces of one message, the last of which ends it.
    fn events(pieces: &[Value]) -> Vec<Value> {
        let mut messages = Messages::default();
        let mut all = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let mut message = json!({"type": "AIMessageChunk", "id": "m", "content": ""});
            for (name, value) in piece.as_object().unwrap() {
                message[name] = value.clone();
            }
            if at + 1 == pieces.len() {
                message["chunk_position"] = json!("last");
            }
            all.extend(messages.accept(&[], &json!([message, {}])));
        }
        all.iter()
            .map(|draft| serde_json::from_str(draft.data.get()).unwrap())
            .collect()
    }

    #[test]
    fn the_usage_of_all_pieces_is_summed() {
        let usage = |input: i64, output: i64| {
            json!({"usage_metadata": {"input_tokens": input, "output_tokens": output, "total_tokens": input + output,
                                      "input_token_details": {"cache_read": input}}})
        };
        let all = events(&[usage(7, 0), usage(0, 2), usage(0, 3)]);
        let expected = json!({"input_tokens": 7, "output_tokens": 5, "total_tokens": 12,
                              "input_token_details": {"cache_read": 7}});
        assert_eq!(all.last().unwrap()["usage"], expected);
    }

    #[test]
    fn pieces_of_reasoning_are_one_block() {
        let piece = |text: &str| json!({"content": [{"type": "thinking", "thinking": text, "index": 0}]});
        let signature = json!({"content": [{"type": "thinking", "signature": "s", "index": 0}]});
        let answer = json!({"content": [{"type": "text", "text": "yes", "index": 1}]});
        let all = events(&[piece("let "), piece("me see"), signature, answer]);
        let of = |event: &str| all.iter().filter(|data| data["event"] == event).collect::<Vec<_>>();
        assert_eq!(of("content-block-start").len(), 2, "{all:?}");
        let deltas: Vec<_> = of("content-block-delta")
            .iter()
            .map(|data| data["delta"].clone())
            .collect();
        assert_eq!(deltas[0], json!({"type": "reasoning-delta", "reasoning": "let "}));
        assert_eq!(deltas.len(), 3);
        let expected = json!({"type": "reasoning", "reasoning": "let me see", "extras": {"signature": "s"}});
        assert_eq!(of("content-block-finish")[0]["content"], expected);
    }

    #[test]
    fn each_piece_of_a_call_carries_its_own_arguments() {
        let piece =
            |id: Value, args: &str| json!({"tool_call_chunks": [{"index": 0, "id": id, "name": id, "args": args}]});
        let all = events(&[
            piece(json!("c"), "{\"city\""),
            piece(Value::Null, ": \"Ulm\""),
            piece(Value::Null, "}"),
        ]);
        assert_eq!(
            all[1]["content"],
            json!({"type": "tool_call_chunk", "id": "c", "name": "c", "args": ""})
        );
        let deltas: Vec<_> = all.iter().filter_map(|data| data["delta"]["args"].as_str()).collect();
        assert_eq!(deltas, ["{\"city\"", ": \"Ulm\"", "}"]);
        let expected = json!({"type": "tool_call", "id": "c", "name": "c", "args": {"city": "Ulm"}});
        assert_eq!(all[all.len() - 2]["content"], expected);
    }
}
