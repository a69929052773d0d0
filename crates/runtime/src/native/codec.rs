//! Packets and interrupts in the JSON of langgraph's serializer.

use serde_json::{Map, Value, json};

use super::names::TASKS;
use crate::Shared;

/// Marks among the writes of a task, and their indexes.
pub(super) const ERROR: &str = "__error__";
pub(super) const INTERRUPT: &str = "__interrupt__";
pub(super) const RESUME: &str = "__resume__";
pub(super) const NO_WRITES: &str = "__no_writes__";
/// Stands for what a command wrote.
pub(super) const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";

/// Where a write is among a task's writes when saved.
pub(super) fn index(channel: &str, at: usize) -> i32 {
    match channel {
        ERROR => -1,
        "__scheduled__" => -2,
        INTERRUPT => -3,
        RESUME => -4,
        _ => i32::try_from(at).unwrap_or(i32::MAX),
    }
}

/// Whether a channel is a mark with a slot of its own.
pub(super) fn is_mark(channel: &str) -> bool {
    index(channel, 0) < 0
}

/// A packet for a node, as channels hold it.
pub(super) fn packet(node: &str, input: Value) -> Value {
    Value::Object(Map::from_iter([
        ("node".to_owned(), Value::from(node)),
        ("arg".to_owned(), input),
    ]))
}

/// The stored form of a channel's value, which may be a list of writes.
pub(super) fn saved_value(channel: &str, value: &Shared) -> Shared {
    saved(channel, value, true)
}

/// The stored form of a single write.
pub(super) fn saved_write(channel: &str, value: &Shared) -> Shared {
    saved(channel, value, false)
}

fn saved(channel: &str, value: &Shared, list: bool) -> Shared {
    let envelope = match channel {
        TASKS => |value: &Value| constructor("Send", value.clone()),
        INTERRUPT => |value: &Value| {
            let mut fields = value.clone();
            if let Some(fields) = fields.as_object_mut() {
                fields.retain(|key, value| key != "response_schema" || !value.is_null());
            }
            constructor("Interrupt", fields)
        },
        _ => return value.clone(),
    };
    match (value.value(), channel) {
        (Value::Array(entries), INTERRUPT) => entries.iter().map(envelope).collect::<Value>().into(),
        (Value::Array(entries), _) if list => entries.iter().map(envelope).collect::<Value>().into(),
        (value, _) => envelope(value).into(),
    }
}

/// The reverse of [`saved`].
pub(super) fn loaded(channel: &str, value: Shared) -> Shared {
    if !matches!(channel, TASKS | INTERRUPT) {
        return value;
    }
    match value.into_value() {
        Value::Array(entries) => entries.into_iter().map(opened).collect::<Value>().into(),
        value => opened(value).into(),
    }
}

fn constructor(class: &str, fields: Value) -> Value {
    let mut envelope = json!({"lc": 2, "type": "constructor", "id": ["langgraph", "types", class]});
    envelope["kwargs"] = fields;
    envelope
}

fn opened(mut value: Value) -> Value {
    if value.get("lc").is_none() {
        return value;
    }
    let interrupt = value.pointer("/id/2").and_then(Value::as_str) == Some("Interrupt");
    let mut fields = value.get_mut("kwargs").map(Value::take).unwrap_or_default();
    if interrupt && let Some(fields) = fields.as_object_mut() {
        fields.entry("response_schema").or_insert(Value::Null);
    }
    fields
}

/// As Python prints an exception: what langgraph keeps of one.
pub(super) fn repr(class: &str, message: &str) -> String {
    let quote = if message.contains('\'') && !message.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut text = String::with_capacity(message.len() + 2);
    for c in message.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            c if c == quote => {
                text.push('\\');
                text.push(c);
            }
            c => text.push(c),
        }
    }
    format!("{class}({quote}{text}{quote})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_survive_a_round_trip() {
        let list = Shared::from(json!([packet("a", json!({"x": 1}))]));
        let kept = saved_value(TASKS, &list);
        assert_eq!(kept.pointer("/0/id/2"), Some(&json!("Send")));
        assert_eq!(loaded(TASKS, kept), list);
        let one = Shared::from(packet("a", json!([1])));
        assert_eq!(loaded(TASKS, saved_write(TASKS, &one)), one);
        let interrupts = Shared::from(json!([{"value": 1, "id": "i", "response_schema": null}]));
        let kept = saved_write(INTERRUPT, &interrupts);
        assert_eq!(kept.pointer("/0/kwargs"), Some(&json!({"value": 1, "id": "i"})));
        assert_eq!(loaded(INTERRUPT, kept), interrupts);
    }

    #[test]
    fn exceptions_print_like_pythons() {
        assert_eq!(repr("ValueError", "boom"), "ValueError('boom')");
        assert_eq!(repr("KeyError", "'x'"), "KeyError(\"'x'\")");
        assert_eq!(repr("E", "a\n'\""), "E('a\\n\\'\"')");
    }
}
