//! Blocks of a message, which grow piece by piece.

use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(super) enum ContentBlock {
    Text(String),
    Reasoning {
        /// Of the provider: pieces of one block have the same one.
        index: Value,
        text: String,
        /// What else the pieces say.
        extra: Map<String, Value>,
    },
    ToolCall {
        /// Of the call within the message; null where there is none.
        index: Value,
        id: Value,
        name: Value,
        /// JSON text.
        args: String,
    },
    /// What came whole.
    Other(Value),
}

impl ContentBlock {
    /// The block once its message is over.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Reasoning { text, extra: more, .. } => {
                let mut block = json!({"type": "reasoning", "reasoning": text});
                for (name, value) in more {
                    block[name] = value.clone();
                }
                block
            }
            Self::ToolCall { id, name, args, .. } => {
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

/// A part that holds reasoning, as clients know it: `{type, reasoning, …}`. Some providers call it thinking.
pub(super) fn parse_reasoning(part: &Value) -> Option<Map<String, Value>> {
    let mut fields = part.as_object()?.clone();
    match part["type"].as_str()? {
        "reasoning" if part["reasoning"].is_string() => {}
        "thinking" => {
            let text = fields.remove("thinking").filter(Value::is_string);
            let signature = fields.remove("signature");
            fields.insert(
                "reasoning".to_owned(),
                text.or_else(|| signature.as_ref().map(|_| json!("")))?,
            );
            if let Some(signature) = signature {
                fields.insert("extras".to_owned(), json!({"signature": signature}));
            }
        }
        _ => return None,
    }
    Some(fields)
}
