//! Lists of objects in attributes, which have only one value each: `llm.input_messages.0.message.role`, ….

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::mapping::Attributes;

/// Most levels of a name. What follows is one name.
const MAX_LEVELS: usize = 12;

/// Names between the number of an object and its fields.
const KINDS: [&str; 5] = ["document", "message", "message_content", "tool", "tool_call"];

#[derive(Default)]
struct Node {
    value: Option<Value>,
    children: BTreeMap<String, Self>,
}

/// The objects below `prefix`, in the order of their numbers.
pub fn objects(attributes: &Attributes, prefix: &str) -> Vec<Value> {
    let mut root = Node::default();
    for (name, value) in attributes {
        let path = name.strip_prefix(prefix).and_then(|path| path.split_once('.'));
        let Some((first, fields)) = path.filter(|(first, _)| number(first).is_some()) else {
            continue;
        };
        let mut node = root.children.entry(first.to_owned()).or_default();
        let mut is_object = true;
        let mut names = fields.splitn(MAX_LEVELS, '.').peekable();
        while let Some(name) = names.next() {
            if is_object && KINDS.contains(&name) && names.peek().is_some() {
                is_object = false;
                continue;
            }
            is_object = number(name).is_some();
            node = node.children.entry(name.to_owned()).or_default();
        }
        node.value = Some(value.clone());
    }
    root.into_list()
}

fn number(name: &str) -> Option<u32> {
    name.parse().ok()
}

impl Node {
    fn into_json(self) -> Value {
        if self.children.is_empty() {
            return self.value.unwrap_or_default();
        }
        if self.value.is_none() && self.children.keys().all(|name| number(name).is_some()) {
            return Value::Array(self.into_list());
        }
        let fields = self.children.into_iter().map(|(name, node)| (name, node.into_json()));
        let mut fields: Map<String, Value> = fields.collect();
        if let Some(value) = self.value {
            fields.entry("value").or_insert(value);
        }
        Value::Object(fields)
    }

    fn into_list(self) -> Vec<Value> {
        let items = self.children.into_iter();
        let mut items: Vec<(u32, Value)> = items
            .filter_map(|(name, node)| Some((number(&name)?, node.into_json())))
            .collect();
        items.sort_by_key(|(number, _)| *number);
        items.into_iter().map(|(_, value)| value).collect()
    }
}
