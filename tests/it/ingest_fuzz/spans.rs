//! Spans of OpenTelemetry: as they are sent, and the operations that they are.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Message, Status};
use prost::Message as _;
use towpath_tests::{Random, rfc3339};
use uuid::Uuid;

use super::json::{Json, quoted};
use super::operation::{Acceptance, Field, Handle, Moment, Operation, Verb, object};

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Attribute {
    Text(String),
    Int(i64),
    Bool(bool),
    Half(i32),
}

#[derive(Clone, Debug)]
pub struct Span {
    /// No bytes, or too few, where the span is to be refused.
    pub trace: Vec<u8>,
    pub span: Vec<u8>,
    pub parent: Option<[u8; 8]>,
    pub name: String,
    /// Microseconds since 1970; 0 is not said.
    pub start: i64,
    pub end: i64,
    pub attributes: Vec<(String, Attribute)>,
    /// The message of its status, where that says error.
    pub error: Option<String>,
}

/// What resources of the spans say of themselves.
pub const RESOURCE: [(&str, &str); 2] = [("service.name", "fuzz"), ("host.name", "ünï")];

impl Span {
    /// A span of a trace with attributes of the kinds that are shown in fields of their own, and of others.
    pub fn new(dice: &mut Random, trace: Uuid, parent: Option<[u8; 8]>, start: i64) -> Self {
        let mut attributes = Vec::new();
        let mut add = |name: &str, value: Attribute| attributes.push((name.to_owned(), value));
        let text = |text: &str| Attribute::Text(text.to_owned());
        if dice.one_in(2) {
            add(
                "langsmith.span.kind",
                text(dice.pick::<&str>(&["llm", "tool", "CHAIN"])),
            );
        }
        if !dice.one_in(3) {
            add("input.value", text(dice.pick::<&str>(&VALUES)));
        }
        if !dice.one_in(3) {
            add("output.value", text(dice.pick::<&str>(&VALUES)));
        }
        if dice.one_in(3) {
            add("langsmith.span.tags", text("one, two,, three "));
        }
        if dice.one_in(2) {
            add(
                "langsmith.metadata.user",
                Attribute::Int(i64::try_from(dice.below(9)).expect("small")),
            );
            add("langsmith.metadata.nested", text("{\"a\": [1, \"b\"]}"));
        }
        if dice.one_in(3) {
            add("custom.flag", Attribute::Bool(dice.one_in(2)));
            add("custom.half", Attribute::Half(1));
            add("custom.text", text("{\"stays\": \"a text\"}"));
        }
        if dice.one_in(3) {
            add("gen_ai.usage.input_tokens", Attribute::Int(7));
            add(
                "gen_ai.usage.output_tokens",
                Attribute::Int(i64::try_from(dice.below(99)).expect("small")),
            );
        }
        if dice.one_in(4) {
            add("session.id", text("thread ✓"));
        }
        let end = if dice.one_in(4) { 0 } else { start + 5_000_001 };
        Self {
            trace: trace.as_bytes().to_vec(),
            span: dice.next_u64().to_be_bytes().to_vec(),
            parent,
            name: (*dice.pick(&["span", "", "ünï \"quoted\"", "tab\t"])).to_owned(),
            start,
            end,
            attributes,
            error: dice.one_in(5).then(|| (*dice.pick(&["", "boom ✓"])).to_owned()),
        }
    }

    /// Its id as a run's.
    pub fn id(&self) -> Uuid {
        run_id(&self.trace, &self.span)
    }

    fn get(&self, name: &str) -> Option<&Attribute> {
        self.attributes
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Attribute::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The post that it is. `project` is where it goes.
    pub fn operation(&self, step: usize, project: Handle, acceptance: &Arc<Acceptance>) -> Operation {
        let mut post = Operation::new(step, Verb::Post, self.id(), acceptance);
        post.project = Some(project);
        post.verbatim = false;
        let moment = |micros: i64| {
            (micros != 0).then(|| Moment {
                raw: quoted(&rfc3339(micros)),
                micros,
            })
        };
        post.start = moment(self.start);
        post.end = moment(self.end);
        let trace = Uuid::from_slice(&self.trace).expect("16 bytes");
        let mut set = |field: Field, raw: String| post.fields.insert(field, raw);
        set(Field::TraceId, quoted(&trace.to_string()));
        if let Some(parent) = self.parent {
            set(Field::Parent, quoted(&run_id(&self.trace, &parent).to_string()));
        }
        set(Field::Name, quoted(&self.name));
        let kind = self.text("langsmith.span.kind").unwrap_or("chain").to_lowercase();
        set(Field::RunType, quoted(&kind));
        if let Some(tags) = self.text("langsmith.span.tags") {
            let tags = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty());
            set(Field::Tags, Json::List(tags.map(Json::text).collect()).to_string());
        }
        let inputs = self.text("input.value").map(|text| wrapped(text, "input"));
        set(Field::Inputs, inputs.unwrap_or_else(|| "{}".to_owned()));
        if let Some(text) = self.text("output.value") {
            set(Field::Outputs, wrapped(text, "output"));
        }
        if let Some(message) = &self.error {
            let message = if message.is_empty() { "error" } else { message };
            set(Field::Error, quoted(message));
        }
        set(Field::Extra, self.extra());
        post
    }

    fn extra(&self) -> String {
        const SHOWN: [&str; 6] = [
            "langsmith.span.kind",
            "langsmith.span.tags",
            "langsmith.trace.session_name",
            "langsmith.trace.session_id",
            "input.value",
            "output.value",
        ];
        let mut metadata: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, raw: String| metadata.push((quoted(name), raw));
        for (name, value) in &self.attributes {
            match name.strip_prefix("langsmith.metadata.") {
                Some(own) => add(own, value.meant().to_string()),
                None if SHOWN.contains(&name.as_str()) => {}
                None => add(name, value.json().to_string()),
            }
        }
        if let Some(session) = self.text("session.id") {
            add("thread_id", quoted(session));
        }
        let count = |name: &str| match self.get(name) {
            Some(Attribute::Int(count)) => Some(*count),
            _ => None,
        };
        let (input, output) = (count("gen_ai.usage.input_tokens"), count("gen_ai.usage.output_tokens"));
        if let (Some(input), Some(output)) = (input, output) {
            let total = input + output;
            let usage = format!("{{\"input_tokens\":{input},\"output_tokens\":{output},\"total_tokens\":{total}}}");
            add("usage_metadata", usage);
        }
        let runtime: Vec<_> = RESOURCE
            .iter()
            .map(|(name, text)| (quoted(name), quoted(text)))
            .collect();
        format!(
            "{{\"metadata\":{},\"runtime\":{}}}",
            object(&metadata),
            object(&runtime)
        )
    }

    fn json_form(&self) -> String {
        let attributes: Vec<String> = self.attributes.iter().map(|(name, value)| pair(name, value)).collect();
        let mut members = vec![
            format!("\"traceId\":\"{}\"", hex(&self.trace)),
            format!("\"spanId\":\"{}\"", hex(&self.span)),
            format!("\"name\":{}", quoted(&self.name)),
            // Numbers of 64 bits are texts in protobuf's JSON.
            format!("\"startTimeUnixNano\":\"{}\"", nanos(self.start)),
            format!("\"endTimeUnixNano\":\"{}\"", nanos(self.end)),
            format!("\"attributes\":[{}]", attributes.join(",")),
            "\"unknownField\":{\"a\":1}".to_owned(),
        ];
        if let Some(parent) = self.parent {
            members.push(format!("\"parentSpanId\":\"{}\"", hex(&parent)));
        }
        if let Some(message) = &self.error {
            members.push(format!("\"status\":{{\"code\":2,\"message\":{}}}", quoted(message)));
        }
        format!("{{{}}}", members.join(","))
    }

    fn message(&self) -> Message {
        Message {
            trace_id: self.trace.clone(),
            span_id: self.span.clone(),
            parent_span_id: self.parent.map(Vec::from).unwrap_or_default(),
            name: self.name.clone(),
            start_time_unix_nano: nanos(self.start),
            end_time_unix_nano: nanos(self.end),
            attributes: self
                .attributes
                .iter()
                .map(|(name, value)| key_value(name, value))
                .collect(),
            status: self.error.as_ref().map(|message| Status {
                message: message.clone(),
                code: 2,
            }),
            ..Message::default()
        }
    }
}

/// What input and output of a span hold: JSON in texts, and texts.
const VALUES: [&str; 6] = [
    "{\"question\": \"why ✓\", \"n\": 1}",
    "[1, {\"a\": null}]",
    "a text",
    "",
    "{not JSON",
    "{}",
];

/// JSON in a text is meant as JSON; what is not an object is put into one.
fn wrapped(text: &str, name: &str) -> String {
    match meant(text) {
        object @ Json::Object(_) => object.to_string(),
        other => Json::object([(name, other)]).to_string(),
    }
}

fn meant(text: &str) -> Json {
    let looks = text.trim_start().starts_with(['{', '[']);
    let read = if looks { Json::parse(text).ok() } else { None };
    read.unwrap_or_else(|| Json::text(text))
}

impl Attribute {
    fn json(&self) -> Json {
        match self {
            Self::Text(text) => Json::text(text.as_str()),
            Self::Int(number) => Json::number(number),
            Self::Bool(value) => Json::Bool(*value),
            Self::Half(halves) => Json::number(f64::from(*halves) / 2.0),
        }
    }

    fn meant(&self) -> Json {
        match self {
            Self::Text(text) => meant(text),
            other => other.json(),
        }
    }
}

fn run_id(trace: &[u8], span: &[u8]) -> Uuid {
    Uuid::from_slice(&[&trace[..8], span].concat()).expect("16 bytes")
}

fn nanos(micros: i64) -> u64 {
    // What is below a microsecond is cut off.
    if micros == 0 {
        0
    } else {
        micros.cast_unsigned() * 1000 + 999
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pair(name: &str, value: &Attribute) -> String {
    let value = match value {
        Attribute::Text(text) => format!("\"stringValue\":{}", quoted(text)),
        Attribute::Int(number) => format!("\"intValue\":\"{number}\""),
        Attribute::Bool(value) => format!("\"boolValue\":{value}"),
        Attribute::Half(_) => format!("\"doubleValue\":{}", value.json()),
    };
    format!("{{\"key\":{},\"value\":{{{value}}}}}", quoted(name))
}

fn key_value(name: &str, value: &Attribute) -> KeyValue {
    let value = match value {
        Attribute::Text(text) => Any::StringValue(text.clone()),
        Attribute::Int(number) => Any::IntValue(*number),
        Attribute::Bool(value) => Any::BoolValue(*value),
        Attribute::Half(halves) => Any::DoubleValue(f64::from(*halves) / 2.0),
    };
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// A request in JSON.
pub fn json_request(spans: &[Span]) -> Vec<u8> {
    let resource: Vec<String> = RESOURCE
        .iter()
        .map(|(name, text)| pair(name, &Attribute::Text((*text).to_owned())))
        .collect();
    let spans: Vec<String> = spans.iter().map(Span::json_form).collect();
    let text = format!(
        "{{\"resourceSpans\":[{{\"resource\":{{\"attributes\":[{}]}},\"scopeSpans\":[{{\"scope\":null,\"spans\":[{}]}}]}}]}}",
        resource.join(","),
        spans.join(",")
    );
    text.into_bytes()
}

pub fn protobuf_request(spans: &[Span]) -> Vec<u8> {
    let attributes = RESOURCE
        .iter()
        .map(|(name, text)| key_value(name, &Attribute::Text((*text).to_owned())));
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: attributes.collect(),
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans {
                spans: spans.iter().map(Span::message).collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    request.encode_to_vec()
}
