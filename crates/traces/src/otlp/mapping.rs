//! The meaning of span attributes: the semantic conventions for generative AI, and those of the tracing clients.

use serde_json::{Map, Value, json};
use towpath_domain::{Timestamp, json};
use uuid::Uuid;

use super::{Event, Span, list, retrieval, usage};

pub type Attributes = [(String, Value)];

/// Attributes that are shown in their own fields; all others become metadata.
const KNOWN: [&str; 29] = [
    "langsmith.span.id",
    "langsmith.trace.id",
    "langsmith.span.parent_id",
    "langsmith.span.dotted_order",
    "langsmith.span.kind",
    "langsmith.span.tags",
    "langsmith.span.runtime",
    "langsmith.trace.name",
    "langsmith.trace.session_id",
    "langsmith.trace.session_name",
    "langsmith.reference_example_id",
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "input.value",
    "output.value",
    "traceloop.entity.input",
    "traceloop.entity.output",
    "llm.request.type",
    "traceloop.span.kind",
    "openinference.span.kind",
    "gen_ai.conversation.id",
    "gen_ai.retrieval.documents",
    "gen_ai.tool.definitions",
    "llm.invocation_parameters",
    "tag.tags",
];

/// Attributes with a number in their names: messages, documents and tools one by one.
const NUMBERED: [&str; 9] = [
    "gen_ai.prompt.",
    "gen_ai.completion.",
    "llm.input_messages.",
    "llm.output_messages.",
    "llm.request.functions.",
    "llm.tools.",
    "reranker.input_documents.",
    "reranker.output_documents.",
    "retrieval.documents.",
];

/// Attributes that are all of the inputs.
const INPUTS: [&str; 4] = [
    "gen_ai.prompt",
    "input.value",
    "traceloop.entity.input",
    "gen_ai.tool.call.arguments",
];

/// Attributes that are all of the outputs.
const OUTPUTS: [&str; 4] = [
    "gen_ai.completion",
    "output.value",
    "traceloop.entity.output",
    "gen_ai.tool.call.result",
];

const INSTRUCTIONS: &str = "gen_ai.system_instructions";

/// Parts of the inputs, unless one attribute is all of them.
const INPUT_PARTS: [&str; 3] = [INSTRUCTIONS, "gen_ai.retrieval.query.text", "reranker.query"];

/// The event with everything about a call of a model.
pub const DETAILS_EVENT: &str = "gen_ai.client.inference.operation.details";

/// Events of an older convention with one message to a model each.
pub const INPUT_EVENTS: [&str; 4] = [
    "gen_ai.system.message",
    "gen_ai.user.message",
    "gen_ai.assistant.message",
    "gen_ai.tool.message",
];

/// The event of an older convention with one message from a model.
pub const OUTPUT_EVENT: &str = "gen_ai.choice";

/// Why a span is not a run.
pub const IDS: &str = "expected a trace id of 16 bytes and a span id of 8 bytes";

/// What a span is called as a trace run.
pub struct SpanIds {
    pub run: Uuid,
    pub trace: Uuid,
    trace_bytes: [u8; 16],
}

/// The ids of a span with `attributes`, which may state others than those that follow from its own.
pub fn ids(attributes: &Attributes, trace_id: &[u8], span_id: &[u8]) -> Result<SpanIds, &'static str> {
    let trace_bytes: [u8; 16] = trace_id.try_into().map_err(|_| IDS)?;
    let own = id(&trace_bytes, span_id).ok_or(IDS)?;
    Ok(SpanIds {
        run: uuid(attributes, "langsmith.span.id").unwrap_or(own),
        trace: uuid(attributes, "langsmith.trace.id").unwrap_or(Uuid::from_bytes(trace_bytes)),
        trace_bytes,
    })
}

/// A text that is not empty.
pub fn text<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    get(attributes, name)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

fn uuid(attributes: &Attributes, name: &str) -> Option<Uuid> {
    text(attributes, name).and_then(|text| text.parse().ok())
}

/// A span as the JSON of a post.
pub fn run(span: &Span, ids: &SpanIds, resource: &Attributes, project: Option<&str>) -> Value {
    let text = |name: &str| text(&span.attributes, name);
    let uuid = |name: &str| uuid(&span.attributes, name);
    let parent = id(&ids.trace_bytes, &span.parent_span_id);

    let mut run = Map::new();
    let mut set = |name: &str, value: Value| {
        if !value.is_null() {
            run.insert(name.to_owned(), value);
        }
    };
    set("id", json!(ids.run));
    set("trace_id", json!(ids.trace));
    set("parent_run_id", json!(uuid("langsmith.span.parent_id").or(parent)));
    set("dotted_order", json!(text("langsmith.span.dotted_order")));
    set("name", json!(text("langsmith.trace.name").unwrap_or(&span.name)));
    set("run_type", json!(run_type(&span.attributes)));
    set("start_time", time(span.start_nanos));
    set("end_time", time(span.end_nanos));
    set("reference_example_id", json!(uuid("langsmith.reference_example_id")));
    match (
        uuid("langsmith.trace.session_id"),
        text("langsmith.trace.session_name").or(project),
    ) {
        (Some(session), _) => set("session_id", json!(session)),
        (None, Some(name)) => set("session_name", json!(name)),
        (None, None) => {}
    }
    let tags = tags(&span.attributes);
    set("tags", if tags.is_empty() { Value::Null } else { json!(tags) });
    set("inputs", inputs(span).unwrap_or_else(|| json!({})));
    set("outputs", outputs(span).unwrap_or_default());
    set("error", json!(error(span)));
    set("events", events(&span.events));
    set("extra", extra(span, resource));
    Value::Object(run)
}

/// What log records say of a span, as the JSON of a patch of its run: `told` has their attributes and messages. `None`
/// if they say nothing.
pub fn patch(run: Uuid, told: &Span) -> Option<Value> {
    let mut patch = Map::new();
    if let Some(inputs) = inputs(told) {
        patch.insert("inputs".to_owned(), inputs);
    }
    if let Some(outputs) = outputs(told) {
        patch.insert("outputs".to_owned(), outputs);
    }
    if !told.attributes.is_empty() {
        let mut extra = extra(told, &[]);
        // The resource of a log record says nothing about the run.
        if let Some(fields) = extra.as_object_mut() {
            fields.remove("runtime");
        }
        patch.insert("extra".to_owned(), extra);
    }
    if patch.is_empty() {
        return None;
    }
    patch.insert("id".to_owned(), json!(run));
    Some(Value::Object(patch))
}

pub fn get<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a Value> {
    attributes
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value)
}

/// Unique among all spans and deterministic.
fn id(trace: &[u8; 16], span: &[u8]) -> Option<Uuid> {
    let span: [u8; 8] = span.try_into().ok()?;
    let mut bytes = *trace;
    bytes[8..].copy_from_slice(&span);
    Some(Uuid::from_bytes(bytes))
}

/// Null if there is none.
pub fn time(nanos: u64) -> Value {
    let micros = i64::try_from(nanos / 1000).unwrap_or_default();
    if micros == 0 {
        return Value::Null;
    }
    json!(Timestamp::from_micros(micros))
}

fn run_type(attributes: &Attributes) -> String {
    let text = |name: &str| {
        get(attributes, name)
            .and_then(Value::as_str)
            .map(str::to_ascii_lowercase)
    };
    if let Some(kind) = text("langsmith.span.kind") {
        return kind;
    }
    let kind = text("openinference.span.kind")
        .or_else(|| text("traceloop.span.kind"))
        .or_else(|| text("gen_ai.operation.name"))
        .or_else(|| text("llm.request.type"));
    let known = match kind.as_deref() {
        Some("llm" | "chat" | "completion" | "text_completion" | "generate_content") => "llm",
        Some("tool" | "execute_tool") => "tool",
        Some("retriever" | "retrieval" | "rerank" | "reranker") => "retriever",
        Some("embedding" | "embeddings") => "embedding",
        Some("prompt") => "prompt",
        Some(_) => "chain",
        None if get(attributes, "gen_ai.request.model").is_some() => "llm",
        None => "chain",
    };
    known.to_owned()
}

fn tags(attributes: &Attributes) -> Vec<String> {
    let text = get(attributes, "langsmith.span.tags")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut tags: Vec<String> = text
        .split(',')
        .map(str::trim)
        .filter(|tag| !tag.is_empty())
        .map(str::to_owned)
        .collect();
    if let Some(Value::Array(own)) = get(attributes, "tag.tags").map(parsed) {
        tags.extend(own.iter().filter_map(Value::as_str).map(str::to_owned));
    }
    tags
}

fn inputs(span: &Span) -> Option<Value> {
    let own = &span.attributes;
    single(own, &INPUTS, "input")
        .or_else(|| retrieval::inputs(own))
        .or_else(|| input_messages(own))
        .or_else(|| input_messages(&details(span)?.attributes))
        .or_else(|| from_events(span, "gen_ai.content.prompt", "gen_ai.prompt", "input"))
        .or_else(|| messages_of_events(span, &INPUT_EVENTS))
}

fn outputs(span: &Span) -> Option<Value> {
    let own = &span.attributes;
    retrieval::outputs(own)
        .or_else(|| single(own, &OUTPUTS, "output"))
        .or_else(|| output_messages(own))
        .or_else(|| output_messages(&details(span)?.attributes))
        .or_else(|| from_events(span, "gen_ai.content.completion", "gen_ai.completion", "output"))
        .or_else(|| messages_of_events(span, &[OUTPUT_EVENT]))
}

fn single(attributes: &Attributes, names: &[&str], field: &str) -> Option<Value> {
    let value = names.iter().find_map(|name| get(attributes, name))?;
    Some(object(value, field))
}

/// The messages to a model, after the instructions that were sent apart from them.
fn input_messages(attributes: &Attributes) -> Option<Value> {
    let messages = get(attributes, "gen_ai.input.messages")
        .map(parsed)
        .or_else(|| numbered(attributes, &["gen_ai.prompt.", "llm.input_messages."]));
    let Some(instructions) = get(attributes, INSTRUCTIONS).map(parsed) else {
        return messages.map(|messages| json!({ "messages": messages }));
    };
    let field = if instructions.is_array() { "parts" } else { "content" };
    let system = json!({ "role": "system", field: instructions });
    let messages: Vec<Value> = match messages {
        Some(Value::Array(others)) => std::iter::once(system).chain(others).collect(),
        Some(other) => vec![system, other],
        None => vec![system],
    };
    Some(json!({ "messages": messages }))
}

fn output_messages(attributes: &Attributes) -> Option<Value> {
    let messages = get(attributes, "gen_ai.output.messages")
        .map(parsed)
        .or_else(|| numbered(attributes, &["gen_ai.completion.", "llm.output_messages."]))?;
    Some(json!({ "messages": messages }))
}

/// The event with the messages of a span that has none itself.
fn details(span: &Span) -> Option<&Event> {
    span.events.iter().find(|event| event.name == DETAILS_EVENT)
}

/// `gen_ai.prompt.0.role`, `gen_ai.prompt.0.content`, … as a list of messages, under the first of the names that is
/// there.
fn numbered(attributes: &Attributes, prefixes: &[&str]) -> Option<Value> {
    let mut lists = prefixes.iter().map(|prefix| list::objects(attributes, prefix));
    let messages = lists.find(|messages| !messages.is_empty())?;
    Some(messages.into_iter().map(message).collect())
}

/// OpenInference has the parts of a content under another name.
fn message(own: Value) -> Value {
    let mut fields = match own {
        Value::Object(fields) if !fields.contains_key("content") => fields,
        other => return other,
    };
    if let Some(contents) = fields.remove("contents") {
        let content: Value = match contents {
            Value::Array(parts) => parts.into_iter().map(part).collect(),
            other => other,
        };
        fields.insert("content".to_owned(), content);
    }
    Value::Object(fields)
}

/// OpenInference has the address of an image two levels down.
fn part(own: Value) -> Value {
    match own.pointer("/image/image/url") {
        Some(url) => json!({"type": "image_url", "image_url": { "url": url }}),
        None => own,
    }
}

/// Nesting limit for JSON in text attributes: with the run and the batch around it, it must stay readable.
const MOST_LEVELS: usize = json::MAX_DEPTH - 16;

/// JSON in a text is meant as JSON.
pub fn parsed(value: &Value) -> Value {
    let text = value
        .as_str()
        .map(str::trim_start)
        .filter(|text| text.starts_with(['{', '[']));
    text.and_then(|text| json::Value::parse(text).ok())
        .filter(|json| json.depth() <= MOST_LEVELS)
        .map_or_else(|| value.clone(), Value::from)
}

fn object(value: &Value, name: &str) -> Value {
    match parsed(value) {
        Value::Object(fields) => Value::Object(fields),
        other => json!({ name: other }),
    }
}

fn from_events(span: &Span, event: &str, attribute: &str, name: &str) -> Option<Value> {
    let found = span.events.iter().find(|own| own.name == event)?;
    get(&found.attributes, attribute).map(|value| object(value, name))
}

fn messages_of_events(span: &Span, names: &[&str]) -> Option<Value> {
    let events = span.events.iter().filter(|event| names.contains(&event.name.as_str()));
    let messages: Vec<Value> = events
        .map(|event| {
            let mut message: Map<String, Value> = fields(&event.attributes);
            // A choice has its message one level down.
            if let Some(Value::Object(own)) = message.get("message").cloned() {
                message.remove("message");
                for (name, value) in own {
                    message.entry(name).or_insert(value);
                }
            }
            let role = event
                .name
                .strip_prefix("gen_ai.")
                .and_then(|name| name.strip_suffix(".message"));
            if let Some(role) = role {
                message.entry("role").or_insert_with(|| json!(role));
            }
            Value::Object(message)
        })
        .collect();
    (!messages.is_empty()).then(|| json!({ "messages": messages }))
}

fn fields(attributes: &Attributes) -> Map<String, Value> {
    attributes
        .iter()
        .map(|(name, value)| (name.clone(), parsed(value)))
        .collect()
}

fn error(span: &Span) -> Option<String> {
    let message = span.error.as_ref()?;
    let exception = span.events.iter().find(|event| event.name == "exception");
    let of = |name: &str| {
        exception
            .and_then(|event| get(&event.attributes, name))
            .and_then(Value::as_str)
    };
    let parts = [of("exception.message"), of("exception.stacktrace")];
    let told = parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n");
    Some(match (message.is_empty(), told.is_empty()) {
        (true, true) => "error".to_owned(),
        (true, false) => told,
        (false, true) => message.clone(),
        (false, false) if told.contains(message) => told,
        (false, false) => format!("{message}\n\n{told}"),
    })
}

fn events(events: &[Event]) -> Value {
    if events.is_empty() {
        return Value::Null;
    }
    let all = events.iter().map(|event| {
        json!({
            "name": event.name,
            "time": time(event.nanos),
            "kwargs": fields(&event.attributes),
        })
    });
    all.collect()
}

/// Metadata: what the clients read by name (`ls_provider`, `usage_metadata`, …), then every attribute that is not shown
/// elsewhere.
fn extra(span: &Span, resource: &Attributes) -> Value {
    let at = |name: &str| get(&span.attributes, name).filter(|value| !value.is_null());
    let first = |names: &[&str]| names.iter().find_map(|name| at(name)).cloned();
    let mut metadata = Map::new();
    let has_parts = !INPUTS.iter().any(|name| get(&span.attributes, name).is_some());
    for (name, value) in &span.attributes {
        match name.strip_prefix("langsmith.metadata.") {
            Some(own) => {
                metadata.insert(own.to_owned(), parsed(value));
            }
            None if KNOWN.contains(&name.as_str()) || NUMBERED.iter().any(|prefix| name.starts_with(prefix)) => {}
            None if has_parts && INPUT_PARTS.contains(&name.as_str()) => {}
            None if name == "metadata" => match parsed(value) {
                Value::Object(own) => {
                    for (name, value) in own {
                        metadata.entry(name).or_insert(value);
                    }
                }
                other => {
                    metadata.insert(name.clone(), other);
                }
            },
            None => {
                metadata.insert(name.clone(), value.clone());
            }
        }
    }
    let named = [
        (
            "ls_provider",
            &["gen_ai.provider.name", "gen_ai.system", "llm.system", "llm.provider"][..],
        ),
        (
            "ls_model_name",
            &[
                "gen_ai.request.model",
                "gen_ai.response.model",
                "llm.model_name",
                "embedding.model_name",
                "reranker.model_name",
            ],
        ),
        ("ls_temperature", &["gen_ai.request.temperature"]),
        ("ls_max_tokens", &["gen_ai.request.max_tokens"]),
        ("thread_id", &["gen_ai.conversation.id", "session.id"]),
    ];
    for (name, attributes) in named {
        if let Some(value) = first(attributes) {
            metadata.entry(name).or_insert(value);
        }
    }
    if let Some(usage) = usage::of(&span.attributes) {
        metadata.entry("usage_metadata").or_insert(usage);
    }
    let mut extra = Map::new();
    extra.insert("metadata".to_owned(), Value::Object(metadata));
    let runtime = at("langsmith.span.runtime").map(parsed).filter(Value::is_object);
    let runtime = runtime.unwrap_or_else(|| Value::Object(fields(resource)));
    extra.insert("runtime".to_owned(), runtime);
    let parameters = invocation_parameters(&span.attributes);
    if !parameters.is_empty() {
        extra.insert("invocation_params".to_owned(), Value::Object(parameters));
    }
    Value::Object(extra)
}

/// How a model was called, with the tools that it was given.
fn invocation_parameters(attributes: &Attributes) -> Map<String, Value> {
    const NAME: &str = "llm.invocation_parameters";
    let mut parameters = match get(attributes, NAME).map(parsed) {
        Some(Value::Object(parameters)) => parameters,
        Some(other) => Map::from_iter([(NAME.to_owned(), other)]),
        None => Map::new(),
    };
    if let Some(tools) = tools(attributes) {
        parameters.entry("tools").or_insert(tools);
    }
    parameters
}

/// Tools from the first convention that the span follows.
fn tools(attributes: &Attributes) -> Option<Value> {
    if let Some(tools) = get(attributes, "gen_ai.tool.definitions") {
        return Some(parsed(tools));
    }
    let mut tools = list::objects(attributes, "llm.tools.");
    for tool in &mut tools {
        if let Some(schema) = tool.get("json_schema").map(parsed) {
            *tool = schema;
        }
    }
    if tools.is_empty() {
        tools = list::objects(attributes, "llm.request.functions.");
        for tool in &mut tools {
            if let Some(parameters) = tool.get("parameters").map(parsed) {
                tool["parameters"] = parameters;
            }
            *tool = json!({"type": "function", "function": tool.take()});
        }
    }
    (!tools.is_empty()).then_some(Value::Array(tools))
}
