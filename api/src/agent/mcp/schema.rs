//! What a tool takes: the input of its graph, told so that a language model can write it.
//!
//! A list of messages is one text, which goes in as a message of a human. An input that is no object, which the protocol has no
//! words for, is the one argument `input`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use towpath_domain::agent::Object;

/// Under which name an input goes in that is no object.
const WHOLE_INPUT: &str = "input";

/// Where definitions stand.
const DEFINITIONS: &str = "$defs";
const DEFINITION_PREFIX: &str = "#/$defs/";

/// The definitions that lists of messages lead to.
const MESSAGE_DEFINITIONS: [&str; 13] = [
    "BaseMessage",
    "AIMessage",
    "AIMessageChunk",
    "HumanMessage",
    "HumanMessageChunk",
    "ChatMessage",
    "ChatMessageChunk",
    "SystemMessage",
    "SystemMessageChunk",
    "FunctionMessage",
    "FunctionMessageChunk",
    "ToolMessage",
    "ToolMessageChunk",
];

/// The arguments of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arguments {
    /// Their JSON schema: an object's.
    pub schema: Value,
    /// Those that stand for lists of messages.
    messages: Vec<String>,
    /// Whether there is one, which is the whole input.
    whole: bool,
}

impl Arguments {
    /// Of a graph that takes this; anything where it does not say.
    pub(super) fn from_input_schema(input: Option<Value>) -> Self {
        let mut schema = input.filter(Value::is_object).unwrap_or_else(|| json!({}));
        remove_header_hints(&mut schema);
        let whole = schema.get("type").is_some_and(|kind| kind != "object");
        if whole {
            schema = wrap_in_object(schema);
        } else {
            schema["type"] = json!("object");
        }
        let messages = replace_message_lists(&mut schema);
        if !messages.is_empty() {
            drop_unused_definitions(&mut schema);
        }
        Self {
            schema,
            messages,
            whole,
        }
    }

    /// The input that these arguments are.
    pub(super) fn to_graph_input(&self, mut given: Object) -> Value {
        for name in &self.messages {
            if let Some(argument) = given.get_mut(name)
                && argument.is_string()
            {
                let text = argument.take();
                *argument = json!([{"type": "human", "content": text}]);
            }
        }
        if self.whole {
            return given.remove(WHOLE_INPUT).unwrap_or_default();
        }
        Value::Object(given)
    }
}

/// The schema of an object whose one member is this. Definitions stay where references look for them.
fn wrap_in_object(mut schema: Value) -> Value {
    let definitions = schema.as_object_mut().and_then(|schema| schema.remove(DEFINITIONS));
    let mut object = json!({"type": "object", "properties": {WHOLE_INPUT: schema}, "required": [WHOLE_INPUT]});
    if let Some(definitions) = definitions {
        object[DEFINITIONS] = definitions;
    }
    object
}

/// Takes away what would have clients repeat arguments in headers (`x-mcp-header`), which this server does not compare.
fn remove_header_hints(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.retain(|name, value| name != "x-mcp-header" || !value.is_string());
            members.values_mut().for_each(remove_header_hints);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_header_hints),
        _ => {}
    }
}

/// Describes lists of messages as texts; answers which those are.
fn replace_message_lists(schema: &mut Value) -> Vec<String> {
    let definitions = schema.get(DEFINITIONS).cloned().unwrap_or_default();
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    let mut changed = Vec::new();
    for (name, property) in properties {
        if !is_list_of_messages(property, &definitions) {
            continue;
        }
        let title = property.get("title").cloned().unwrap_or_else(|| json!(name));
        *property = json!({"type": "string", "title": title, "description": "The message of the user."});
        changed.push(name.clone());
    }
    changed
}

fn is_list_of_messages(property: &Value, definitions: &Value) -> bool {
    let list = match definition(property) {
        Some(name) => &definitions[name],
        None => property,
    };
    let items = &list["items"];
    let choices = items["oneOf"].as_array().or_else(|| items["anyOf"].as_array());
    let choices = choices.map_or(std::slice::from_ref(items), Vec::as_slice);
    let is_message = |choice: &Value| definition(choice).is_some_and(|name| MESSAGE_DEFINITIONS.contains(&name));
    list["type"] == "array" && choices.iter().any(is_message)
}

/// The definition that a schema refers to.
fn definition(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(DEFINITION_PREFIX)
}

/// Keeps the definitions that something refers to.
fn drop_unused_definitions(schema: &mut Value) {
    let Some(Value::Object(mut definitions)) = schema.as_object_mut().and_then(|schema| schema.remove(DEFINITIONS))
    else {
        return;
    };
    let mut used = BTreeSet::new();
    let mut open = references(schema);
    while let Some(name) = open.pop() {
        if let Some(definition) = definitions.get(&name)
            && used.insert(name)
        {
            open.extend(references(definition));
        }
    }
    definitions.retain(|name, _| used.contains(name));
    if !definitions.is_empty() {
        schema[DEFINITIONS] = Value::Object(definitions);
    }
}

/// The definitions that a schema refers to.
fn references(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(members) => {
                found.extend(definition(value).map(str::to_owned));
                open.extend(members.values());
            }
            Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        let Value::Object(object) = value else {
            panic!("no object");
        };
        object
    }

    #[test]
    fn a_list_of_messages_is_a_text() {
        let arguments = Arguments::from_input_schema(Some(json!({
            "title": "State",
            "properties": {
                "messages": {"type": "array", "title": "Messages", "items": {"oneOf": [
                    {"$ref": "#/$defs/HumanMessage"}, {"$ref": "#/$defs/AIMessage"}]}},
                "older": {"$ref": "#/$defs/Messages"},
                "base": {"type": "array", "items": {"$ref": "#/$defs/BaseMessage"}},
                "place": {"$ref": "#/$defs/Place", "x-mcp-header": "Place"},
            },
            "$defs": {"Messages": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/HumanMessage"}]}},
                      "HumanMessage": {"type": "object"}, "AIMessage": {"properties": {"usage": {"$ref": "#/$defs/Usage"}}},
                      "BaseMessage": {"type": "object"},
                      "Usage": {}, "Place": {"properties": {"country": {"$ref": "#/$defs/Country"}}}, "Country": {}},
        })));
        let text = |title: &str| json!({"type": "string", "title": title, "description": "The message of the user."});
        assert_eq!(
            arguments.schema,
            json!({
                "type": "object",
                "title": "State",
                "properties": {"messages": text("Messages"), "older": text("older"), "base": text("base"),
                               "place": {"$ref": "#/$defs/Place"}},
                "$defs": {"Place": {"properties": {"country": {"$ref": "#/$defs/Country"}}}, "Country": {}},
            })
        );
        assert_eq!(
            arguments.to_graph_input(object(json!({"messages": "hello", "place": 1}))),
            json!({"messages": [{"type": "human", "content": "hello"}], "place": 1})
        );
        let messages = json!({"messages": [{"role": "user", "content": "hello"}]});
        assert_eq!(
            arguments.to_graph_input(object(messages.clone())),
            messages,
            "what is a list already"
        );
    }

    #[test]
    fn an_input_that_is_no_object_is_one_argument() {
        let arguments = Arguments::from_input_schema(Some(
            json!({"type": "array", "items": {"$ref": "#/$defs/One"}, "$defs": {"One": {"type": "integer"}}}),
        ));
        assert_eq!(
            arguments.schema,
            json!({
                "type": "object",
                "properties": {"input": {"type": "array", "items": {"$ref": "#/$defs/One"}}},
                "required": ["input"],
                "$defs": {"One": {"type": "integer"}},
            })
        );
        assert_eq!(
            arguments.to_graph_input(object(json!({"input": [1, 2]}))),
            json!([1, 2])
        );
        let anything = Arguments::from_input_schema(None);
        assert_eq!(anything.schema, json!({"type": "object"}));
        assert_eq!(anything.to_graph_input(object(json!({"a": 1}))), json!({"a": 1}));
    }
}
