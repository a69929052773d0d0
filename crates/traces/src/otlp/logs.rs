//! Log records that are events of generative AI: messages of a model call, and results of evaluations.

use std::collections::HashMap;

use serde_json::Value;
use uuid::Uuid;

use super::mapping::{self, SpanIds};
use super::{
    Event, Format, Item, OtlpError, Part, PartKind, RejectedItems, Request, Signal, Span, UnreadableItem, evaluation,
    json, proto, shown,
};

/// A log record, however it was written.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub trace_id: Vec<u8>,
    pub span_id: Vec<u8>,
    /// When it happened, or else when it was seen.
    pub nanos: u64,
    /// Empty if the name is in an attribute, or if it is no event.
    pub event_name: String,
    pub attributes: Vec<(String, Value)>,
    pub body: Value,
}

/// What the records of one span say about its run.
struct RunPatch {
    /// The id of the span, as senders show it.
    source: String,
    run: Uuid,
    records: u64,
    told: Span,
}

pub fn items(request: &Request<'_>) -> Result<(Vec<Item>, RejectedItems), OtlpError> {
    let signal = Signal::Logs;
    let records = match request.format {
        Format::Protobuf => proto::records(request.body).map_err(|error| signal.protobuf_error(error))?,
        Format::Json => json::records(request.body).map_err(|error| signal.json_error(error))?,
    };
    let (mut items, mut rejected) = (Vec::new(), RejectedItems::default());
    let (mut patches, mut known): (Vec<RunPatch>, HashMap<Uuid, usize>) = (Vec::new(), HashMap::new());
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(UnreadableItem { id, why }) => {
                rejected.add(signal, &id, &why);
                continue;
            }
        };
        let source = shown(&record.span_id);
        match read(record) {
            Ok((ids, Content::Evaluation(event))) => match evaluation::feedback(&ids, &event) {
                Ok(part) => items.push(Item {
                    source,
                    count: 1,
                    parts: vec![part],
                }),
                Err(why) => rejected.add(signal, &source, &why),
            },
            Ok((ids, content)) => {
                let at = *known.entry(ids.run).or_insert_with(|| {
                    patches.push(RunPatch {
                        source,
                        run: ids.run,
                        records: 0,
                        told: Span::default(),
                    });
                    patches.len() - 1
                });
                patches[at].add(content);
            }
            Err(why) => rejected.add(signal, &source, &why),
        }
    }
    items.extend(patches.into_iter().filter_map(RunPatch::into_item));
    Ok((items, rejected))
}

/// What a record is about.
enum Content {
    /// Everything about a call of a model.
    Details(Vec<(String, Value)>),
    /// One message to or from a model.
    Message(Event),
    Evaluation(Event),
}

fn read(record: Record) -> Result<(SpanIds, Content), String> {
    let name = match record.event_name.as_str() {
        "" => mapping::text(&record.attributes, "event.name").unwrap_or_default(),
        name => name,
    };
    let name = name.to_owned();
    let is_message = mapping::INPUT_EVENTS.contains(&name.as_str()) || name == mapping::OUTPUT_EVENT;
    if !is_message && name != mapping::DETAILS_EVENT && name != evaluation::EVENT {
        let got = if name.is_empty() {
            "a record without the name of an event".to_owned()
        } else {
            format!("the event `{}`", name.chars().take(100).collect::<String>())
        };
        return Err(format!(
            "expected an event with messages (`{}`) or an evaluation (`{}`), not {got}",
            mapping::DETAILS_EVENT,
            evaluation::EVENT,
        ));
    }
    // Senders write a missing id as zeros, too.
    let is_zero = |id: &[u8]| id.iter().all(|byte| *byte == 0);
    if is_zero(&record.trace_id) || is_zero(&record.span_id) {
        return Err(format!("the event `{name}` belongs to no span: {}", mapping::IDS));
    }
    let ids = mapping::ids(&record.attributes, &record.trace_id, &record.span_id)?;
    let event = |attributes| Event {
        nanos: record.nanos,
        name: name.clone(),
        attributes,
    };
    let content = if is_message {
        Content::Message(event(message(record.attributes, record.body)))
    } else {
        let mut attributes = record.attributes;
        attributes.retain(|(name, _)| name != "event.name");
        if let Value::Object(fields) = record.body {
            attributes.extend(fields);
        }
        if name == evaluation::EVENT {
            Content::Evaluation(event(attributes))
        } else {
            Content::Details(attributes)
        }
    };
    Ok((ids, content))
}

/// The fields of a message: the body of its record, else the attributes.
fn message(attributes: Vec<(String, Value)>, body: Value) -> Vec<(String, Value)> {
    match body {
        Value::Object(fields) => fields.into_iter().collect(),
        Value::Null => {
            let about = ["event.name", "gen_ai.system", "gen_ai.provider.name"];
            let own = attributes.into_iter();
            own.filter(|(name, _)| !about.contains(&name.as_str())).collect()
        }
        text => vec![("content".to_owned(), text)],
    }
}

impl RunPatch {
    fn add(&mut self, content: Content) {
        self.records += 1;
        match content {
            // One call has one; of several the last counts, as of patches.
            Content::Details(attributes) => self.told.attributes = attributes,
            Content::Message(event) | Content::Evaluation(event) => self.told.events.push(event),
        }
    }

    fn into_item(mut self) -> Option<Item> {
        // The sort is stable: messages of the same moment keep their order.
        self.told.events.sort_by_key(|event| event.nanos);
        let patch = mapping::patch(self.run, &self.told)?;
        Some(Item {
            source: self.source,
            count: self.records,
            parts: vec![Part {
                kind: PartKind::Patch,
                id: self.run,
                json: patch.to_string().into_bytes(),
            }],
        })
    }
}
