//! Drawings and schemas of a plan.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::channel::ChannelKind;
use super::names::{END, START};
use super::plan::{Body, Plan};
use crate::{Drawing, DrawnEdge, DrawnNode, NodeData, Schemas, Xray};

/// Nodes and edges; `xray` opens graphs that are nodes.
pub(super) fn drawing(plan: &Plan, xray: Xray) -> Drawing {
    let mut drawing = Drawing::default();
    draw(plan, "", xray, &mut drawing);
    drawing
        .edges
        .sort_by(|a, b| (&a.source, &a.target).cmp(&(&b.source, &b.target)));
    drawing
}

fn draw(plan: &Plan, prefix: &str, xray: Xray, into: &mut Drawing) {
    let inside = match xray {
        Xray::All => Some(Xray::All),
        Xray::Levels(levels) if levels > 0 => Some(Xray::Levels(levels - 1)),
        _ => None,
    };
    let opened = |node: &str| inside.and_then(|inside| Some((plan.opened(node)?, inside)));
    let mut later = Vec::new();
    for node in &plan.nodes {
        let id = format!("{prefix}{}", node.name);
        if let Some((graph, inside)) = opened(&node.name) {
            later.push((graph, format!("{id}:"), inside));
            continue;
        }
        // The start of an expanded subgraph is not drawn: edges lead to its first node.
        if !prefix.is_empty() && matches!(node.body, Body::Start) {
            continue;
        }
        let data = match &node.body {
            Body::Graph(_) => NodeData::Graph(id.clone()),
            _ => NodeData::Runnable(id.clone()),
        };
        into.nodes.push(DrawnNode { id, data: Some(data) });
    }
    into.nodes.push(DrawnNode {
        id: format!("{prefix}{END}"),
        data: None,
    });
    for node in &plan.nodes {
        if !prefix.is_empty() && matches!(node.body, Body::Start) {
            continue;
        }
        let source = match opened(&node.name) {
            Some(_) => format!("{prefix}{}:{END}", node.name),
            None => format!("{prefix}{}", node.name),
        };
        for (target, data, conditional) in &node.drawn {
            let entries = match opened(target) {
                Some((graph, _)) => graph
                    .entries()
                    .into_iter()
                    .map(|entry| format!("{target}:{entry}"))
                    .collect(),
                None => vec![target.clone()],
            };
            into.edges.extend(entries.into_iter().map(|entry| DrawnEdge {
                source: source.clone(),
                target: format!("{prefix}{entry}"),
                data: data.clone(),
                conditional: *conditional,
            }));
        }
    }
    for (graph, prefix, inside) in later {
        draw(graph, &prefix, inside, into);
    }
}

impl Plan {
    fn opened(&self, node: &str) -> Option<&Self> {
        match &self.nodes[*self.by_name.get(node)?].body {
            Body::Graph(plan) => Some(plan),
            _ => None,
        }
    }

    /// Nodes the start leads to.
    fn entries(&self) -> Vec<String> {
        self.nodes[self.by_name[START]]
            .drawn
            .iter()
            .map(|(target, ..)| target.clone())
            .collect()
    }
}

/// Schemas of input, output, state, config and context.
pub(super) fn schemas(plan: &Plan, graph_id: Option<&str>, title: &str) -> Schemas {
    let keys: Vec<String> = plan.keys().map(str::to_owned).collect();
    Schemas {
        graph_id: graph_id.map(str::to_owned),
        input_schema: Some(schema(plan, &plan.input, &format!("{title}Input"))),
        output_schema: Some(schema(plan, &plan.output, &format!("{title}Output"))),
        state_schema: Some(schema(plan, &keys, &format!("{title}State"))),
        config_schema: plan.config_schema.clone(),
        context_schema: plan.context_schema.clone(),
    }
}

fn schema(plan: &Plan, keys: &[String], title: &str) -> Value {
    let mut properties = Map::new();
    let mut messages = false;
    for key in keys {
        let Some(&at) = plan.index.get(key) else { continue };
        messages |= plan.channels[at].1 == ChannelKind::Messages;
        let mut schema = plan.schemas[at].clone();
        if let Some(schema) = schema.as_object_mut() {
            schema.entry("title").or_insert_with(|| Value::from(titled(key)));
        }
        properties.insert(key.clone(), schema);
    }
    let mut schema = json!({"type": "object", "title": title, "properties": properties});
    if messages {
        schema["$defs"] = definitions();
    }
    schema
}

/// `last_reply` → `Last Reply`.
fn titled(key: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        chars
            .next()
            .map(|first| first.to_uppercase().chain(chars).collect::<String>())
            .unwrap_or_default()
    };
    key.split('_').map(word).collect::<Vec<_>>().join(" ")
}

fn definitions() -> Value {
    let content = json!({"anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": true}]}},
    ]});
    let message = |sort: &str, title: &str, more: Value| {
        let nullable = json!({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null});
        let mut properties = json!({
            "content": content, "additional_kwargs": {"type": "object", "additionalProperties": true},
            "response_metadata": {"type": "object", "additionalProperties": true},
            "type": {"type": "string", "const": sort, "default": sort}, "name": nullable, "id": nullable,
        });
        if let (Value::Object(properties), Value::Object(more)) = (&mut properties, more) {
            properties.extend(more);
        }
        json!({"type": "object", "title": title, "required": ["content"], "properties": properties})
    };
    let calls = json!({"type": "array", "items": {"$ref": "#/$defs/ToolCall"}});
    let kinds = ["HumanMessage", "AIMessage", "SystemMessage", "ToolMessage"];
    let any: Vec<Value> = kinds
        .iter()
        .map(|kind| json!({"$ref": format!("#/$defs/{kind}")}))
        .collect();
    json!({
        "Messages": {"type": "array", "items": {"anyOf": any}},
        "HumanMessage": message("human", "HumanMessage", json!({})),
        "AIMessage": message("ai", "AIMessage", json!({"tool_calls": calls})),
        "SystemMessage": message("system", "SystemMessage", json!({})),
        "ToolMessage": message("tool", "ToolMessage", json!({"tool_call_id": {"type": "string"}})),
        "ToolCall": {
            "type": "object", "title": "ToolCall", "required": ["name", "args", "id"],
            "properties": {
                "name": {"type": "string"}, "args": {"type": "object", "additionalProperties": true},
                "id": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "type": {"const": "tool_call"},
            },
        },
    })
}

/// Schemas of graphs that are nodes, by namespace.
pub(super) fn subgraphs(plan: &Plan, namespace: Option<&str>, recurse: bool) -> BTreeMap<String, Schemas> {
    let mut found = BTreeMap::new();
    collect(plan, "", namespace, recurse, &mut found);
    found
}

fn collect(plan: &Plan, prefix: &str, asked: Option<&str>, recurse: bool, found: &mut BTreeMap<String, Schemas>) {
    for node in &plan.nodes {
        let Some(graph) = plan.subgraph(&node.name, 0) else {
            continue;
        };
        let namespace = format!("{prefix}{}", node.name);
        if asked.is_none_or(|asked| asked == namespace) {
            found.insert(namespace.clone(), schemas(graph, None, &node.name));
        }
        let on_the_way = asked.is_some_and(|asked| asked.starts_with(&format!("{namespace}|")));
        if recurse || on_the_way {
            collect(graph, &format!("{namespace}|"), asked, recurse, found);
        }
    }
}
