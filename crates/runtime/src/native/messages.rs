//! Messages: accepted input forms, the stored form, and how lists merge.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::{GraphError, ids};

const HELP: &str =
    "\nFor troubleshooting, visit: https://docs.langchain.com/oss/python/langchain/errors/MESSAGE_COERCION_FAILURE ";
/// Id of a remove message that empties the list.
const REMOVE_ALL: &str = "__remove_all__";
/// What every message has.
const BASE: [&str; 6] = [
    "content",
    "additional_kwargs",
    "response_metadata",
    "type",
    "name",
    "id",
];

/// Converts a list of messages of any form, or a single one, into typed messages with ids.
pub(super) fn coerce_all(value: Value) -> Result<Vec<Value>, GraphError> {
    match value {
        Value::Array(list) if !is_pair(&list) => list.into_iter().map(coerce).collect(),
        one => coerce(one).map(|message| vec![message]),
    }
}

/// Converts a message of any form into a typed message with an id: a text, `[role, content]`, `{role, content, …}`,
/// `{type, content, …}`, or langchain's serialized form.
pub(super) fn coerce(value: Value) -> Result<Value, GraphError> {
    match value {
        Value::String(text) => Ok(human(&text)),
        Value::Array(mut pair) if is_pair(&pair) => {
            let content = pair.pop().unwrap_or_default();
            let role = pair
                .pop()
                .and_then(|role| role.as_str().map(str::to_owned))
                .unwrap_or_default();
            typed(&role, content, Map::new())
        }
        Value::Object(fields) if is_typed(&fields) => Ok(Value::Object(fields)),
        Value::Object(fields) => from_fields(fields),
        other => Err(GraphError::new(
            "NotImplementedError",
            format!("Unsupported message type: {}{HELP}", kind(&other)),
        )),
    }
}

/// A human message.
pub(super) fn human(text: &str) -> Value {
    json!({
        "content": text, "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": null,
        "id": ids::message(),
    })
}

/// An AI message of plain text.
pub(super) fn ai(id: &str, text: &str) -> Value {
    json!({
        "content": text, "additional_kwargs": {}, "response_metadata": {}, "type": "ai", "name": null, "id": id,
        "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": null,
    })
}

/// A piece of an AI message that is being streamed.
pub(super) fn ai_chunk(id: &str, text: &str, last: bool) -> Value {
    json!({
        "content": text, "additional_kwargs": {}, "response_metadata": {}, "type": "AIMessageChunk", "name": null,
        "id": id, "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": null, "tool_call_chunks": [],
        "chunk_position": if last { Value::from("last") } else { Value::Null },
    })
}

/// The answer of a tool.
pub(super) fn tool_answer(name: &str, call_id: &str, content: &str) -> Value {
    tool_message(name, call_id, content, "success")
}

/// The failure of a tool call.
pub(super) fn tool_failure(name: &str, call_id: &str, content: &str) -> Value {
    tool_message(name, call_id, content, "error")
}

fn tool_message(name: &str, call_id: &str, content: &str, status: &str) -> Value {
    json!({
        "content": content, "additional_kwargs": {}, "response_metadata": {}, "type": "tool", "name": name,
        "id": ids::message(), "tool_call_id": call_id, "artifact": null,
        "status": status,
    })
}

/// The text of a message's content: itself, or its text blocks joined.
pub(super) fn text(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => blocks
            .iter()
            .filter_map(|block| block.as_str().or_else(|| block.get("text").and_then(Value::as_str)))
            .collect(),
        _ => String::new(),
    }
}

/// Merges messages into a list: one with a known id replaces, a remove message removes, others are appended.
pub(super) fn merge(mut into: Vec<Value>, messages: Vec<Value>) -> Result<Vec<Value>, GraphError> {
    if let Some(at) = messages
        .iter()
        .rposition(|message| is_removal(message) && id(message) == REMOVE_ALL)
    {
        return Ok(messages.into_iter().skip(at + 1).collect());
    }
    // For a few messages, a linear search is cheaper than an index of the whole list.
    let mut index: HashMap<String, usize> = match messages.len() {
        0..=8 => HashMap::new(),
        _ => into
            .iter()
            .enumerate()
            .map(|(at, message)| (id(message).to_owned(), at))
            .collect(),
    };
    let indexed = messages.len() > 8;
    let mut removed = Vec::new();
    for message in messages {
        let this = id(&message).to_owned();
        let known = if indexed {
            index.get(&this).copied()
        } else {
            into.iter().position(|other| id(other) == this)
        };
        match known {
            Some(_) if is_removal(&message) => removed.push(this),
            Some(at) => {
                removed.retain(|other| *other != this);
                into[at] = message;
            }
            None if is_removal(&message) => {
                return Err(GraphError::new(
                    "ValueError",
                    format!("Attempting to delete a message with an ID that doesn't exist ('{this}')"),
                ));
            }
            None => {
                if indexed {
                    index.insert(this, into.len());
                }
                into.push(message);
            }
        }
    }
    if !removed.is_empty() {
        into.retain(|message| !removed.iter().any(|gone| gone == id(message)));
    }
    Ok(into)
}

fn id(message: &Value) -> &str {
    message.get("id").and_then(Value::as_str).unwrap_or_default()
}

fn is_removal(message: &Value) -> bool {
    message.get("type").and_then(Value::as_str) == Some("remove")
}

/// `[role, content]`, which only its shape distinguishes from a list.
fn is_pair(list: &[Value]) -> bool {
    matches!(list, [Value::String(role), Value::String(_) | Value::Array(_)] if kind_of(role).is_some())
}

fn is_typed(fields: &Map<String, Value>) -> bool {
    let sort = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    matches!(sort, "human" | "ai" | "system" | "tool" | "remove")
        && fields.get("id").is_some_and(Value::is_string)
        && !fields.contains_key("role")
        && BASE.iter().all(|key| fields.contains_key(*key))
        && (sort != "ai"
            || ["tool_calls", "invalid_tool_calls", "usage_metadata"]
                .iter()
                .all(|key| fields.contains_key(*key)))
}

fn from_fields(mut fields: Map<String, Value>) -> Result<Value, GraphError> {
    // langchain's own form: {"lc": 1, "type": "constructor", "id": [..., "HumanMessage"], "kwargs": {...}}
    if fields.contains_key("lc") && fields.get("type").and_then(Value::as_str) == Some("constructor") {
        let class = fields
            .get("id")
            .and_then(Value::as_array)
            .and_then(|path| path.last())
            .and_then(Value::as_str);
        let class = class
            .unwrap_or_default()
            .trim_end_matches("Chunk")
            .trim_end_matches("Message")
            .to_lowercase();
        if let Some(Value::Object(kwargs)) = fields.remove("kwargs") {
            let mut inner = kwargs;
            inner.remove("role");
            inner.insert("type".to_owned(), Value::from(class));
            return from_fields(inner);
        }
    }
    let role = fields
        .get("role")
        .or_else(|| fields.get("type"))
        .and_then(Value::as_str)
        .map(str::to_owned);
    let (Some(role), Some(content)) = (role, fields.get("content").cloned()) else {
        if fields.get("type").and_then(Value::as_str) == Some("remove") && fields.contains_key("id") {
            return typed("remove", Value::from(""), fields);
        }
        return Err(GraphError::new(
            "ValueError",
            format!(
                "Message dict must contain 'role' and 'content' keys, got {}{HELP}",
                Value::Object(fields)
            ),
        ));
    };
    fields.remove("role");
    fields.remove("type");
    fields.remove("content");
    typed(&role, content, fields)
}

fn kind_of(role: &str) -> Option<&'static str> {
    Some(match role {
        "human" | "user" | "HumanMessageChunk" => "human",
        "ai" | "assistant" | "AIMessageChunk" => "ai",
        "system" | "developer" | "SystemMessageChunk" => "system",
        "tool" | "ToolMessageChunk" => "tool",
        "function" => "function",
        "remove" => "remove",
        _ => return None,
    })
}

fn typed(role: &str, content: Value, mut fields: Map<String, Value>) -> Result<Value, GraphError> {
    let Some(sort) = kind_of(role) else {
        return Err(GraphError::new(
            "ValueError",
            format!(
                "Unexpected message type: '{role}'. Use one of 'human', 'user', 'ai', 'assistant', 'function', 'tool', \
                 'system', or 'developer'.{HELP}"
            ),
        ));
    };
    let mut take = |key: &str| fields.remove(key).filter(|value| !value.is_null());
    let mut message = Map::new();
    let content = if content.is_null() { Value::from("") } else { content };
    message.insert("content".to_owned(), content);
    message.insert("type".to_owned(), Value::from(sort));
    message.insert("name".to_owned(), take("name").unwrap_or_default());
    let id = take("id").unwrap_or_else(|| Value::from(ids::message()));
    message.insert("id".to_owned(), id);
    message.insert(
        "response_metadata".to_owned(),
        take("response_metadata").unwrap_or_else(|| json!({})),
    );
    let mut extra = match take("additional_kwargs") {
        Some(Value::Object(extra)) => extra,
        _ => Map::new(),
    };
    if role == "developer" {
        extra.insert("__openai_role__".to_owned(), Value::from("developer"));
    }
    match sort {
        "ai" => {
            let calls = take("tool_calls").unwrap_or_else(|| json!([]));
            message.insert("tool_calls".to_owned(), tool_calls(calls));
            message.insert(
                "invalid_tool_calls".to_owned(),
                take("invalid_tool_calls").unwrap_or_else(|| json!([])),
            );
            message.insert("usage_metadata".to_owned(), take("usage_metadata").unwrap_or_default());
            take("tool_call_chunks");
            take("chunk_position");
        }
        "tool" => {
            let call = take("tool_call_id").ok_or_else(|| GraphError::new("KeyError", "'tool_call_id'"))?;
            message.insert("tool_call_id".to_owned(), call);
            message.insert("artifact".to_owned(), take("artifact").unwrap_or_default());
            message.insert(
                "status".to_owned(),
                take("status").unwrap_or_else(|| Value::from("success")),
            );
        }
        _ => {}
    }
    // Remaining fields belong to the caller; langchain also keeps them here.
    fields.retain(|_, value| !value.is_null());
    extra.append(&mut fields);
    message.insert("additional_kwargs".to_owned(), Value::Object(extra));
    Ok(Value::Object(message))
}

/// Tool calls in the format of OpenAI (`function.arguments` is a string) or langchain.
fn tool_calls(calls: Value) -> Value {
    let Value::Array(calls) = calls else {
        return json!([]);
    };
    calls
        .into_iter()
        .map(|call| match call.get("function") {
            Some(function) => {
                let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("{}");
                json!({
                    "name": function["name"], "id": call["id"], "type": "tool_call",
                    "args": serde_json::from_str::<Value>(arguments).unwrap_or_else(|_| json!({})),
                })
            }
            None => {
                let mut call = call;
                if let Some(call) = call.as_object_mut() {
                    call.entry("type").or_insert_with(|| Value::from("tool_call"));
                }
                call
            }
        })
        .collect()
}

/// The name Python has for a type.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}
