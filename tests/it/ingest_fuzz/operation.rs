//! What the fuzz sends: operations on trace runs, feedback and files, as they are written and as they are meant.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;
use uuid::Uuid;

use super::json::quoted;

/// A workspace, by its place in the list of them.
pub type Tenant = usize;
/// A project, by its place in the list of all that were ever made.
pub type Handle = usize;

/// A workspace's trace run.
pub type Run = (Tenant, Uuid);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Post,
    Patch,
}

impl Verb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Patch => "patch",
        }
    }
}

/// A field whose value is any JSON, as far as the oracle is concerned. Times, `dotted_order`, ids and projects stand in
/// fields of [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    TraceId,
    Parent,
    Example,
    Name,
    RunType,
    Status,
    Tags,
    Error,
    Inputs,
    Outputs,
    Events,
    Serialized,
    Extra,
}

impl Field {
    pub const fn name(self) -> &'static str {
        match self {
            Self::TraceId => "trace_id",
            Self::Parent => "parent_run_id",
            Self::Example => "reference_example_id",
            Self::Name => "name",
            Self::RunType => "run_type",
            Self::Status => "status",
            Self::Tags => "tags",
            Self::Error => "error",
            Self::Inputs => "inputs",
            Self::Outputs => "outputs",
            Self::Events => "events",
            Self::Serialized => "serialized",
            Self::Extra => "extra",
        }
    }

    /// Whether a multipart body may hold it in a part of its own.
    pub const fn may_be_a_part(self) -> bool {
        matches!(
            self,
            Self::Error | Self::Inputs | Self::Outputs | Self::Events | Self::Serialized | Self::Extra
        )
    }
}

/// A time in microseconds since 1970, and as JSON.
#[derive(Clone, Debug)]
pub struct Moment {
    pub raw: String,
    pub micros: i64,
}

/// A link of `dotted_order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub start: i64,
    pub id: Uuid,
}

/// A `dotted_order`: its links, and its text.
#[derive(Clone, Debug)]
pub struct Order {
    pub text: String,
    pub links: Vec<Link>,
}

/// When a request came in, and whether it was taken.
#[derive(Debug, Default)]
pub struct Acceptance {
    sent: OnceLock<i64>,
    answered: OnceLock<i64>,
    shown: OnceLock<i64>,
    taken: OnceLock<bool>,
}

impl Acceptance {
    pub fn sends(&self) {
        let _ = self.sent.set(now());
    }

    pub fn is_answered(&self, taken: bool) {
        let _ = self.answered.set(now());
        let _ = self.taken.set(taken);
    }

    /// `None` while no one knows.
    pub fn taken(&self) -> Option<bool> {
        self.taken.get().copied()
    }

    /// Between which times it came in. The server's clock is that of the test.
    pub fn bounds(&self) -> (i64, i64) {
        let read = |time: &OnceLock<i64>| time.get().copied().unwrap_or_else(now);
        // Both read the same clock, but the server may cut off what is below a microsecond.
        (read(&self.sent) - 1_000, read(&self.answered) + 1_000)
    }

    /// Whether it can have come in at `micros`. The first time that is shown holds for ever.
    pub fn is_at(&self, micros: i64) -> bool {
        let (after, before) = self.bounds();
        (after..=before).contains(&micros) && *self.shown.get_or_init(|| micros) == micros
    }
}

/// This moment, in microseconds since 1970.
pub fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(now.expect("it is later than 1970").as_micros()).expect("it is earlier than 292277")
}

/// How a project is named.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// By `session_id`, which goes before the name.
    pub id: Option<Handle>,
    /// By `session_name`: JSON.
    pub name: Option<String>,
}

/// One statement about one trace run.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The step that sends it.
    pub step: usize,
    pub verb: Verb,
    pub id: Uuid,
    /// The id as it is written in the body; `None` leaves it out, where the address says it.
    pub id_text: Option<String>,
    /// The project that is meant.
    pub project: Option<Handle>,
    pub naming: Naming,
    pub order: Option<Order>,
    pub start: Option<Moment>,
    pub end: Option<Moment>,
    /// JSON.
    pub fields: BTreeMap<Field, String>,
    /// Members that no one knows, as JSON on both sides of the colon.
    pub unknown: Vec<(String, String)>,
    /// Whether the server keeps what was sent byte for byte. Spans are put into other words.
    pub verbatim: bool,
    /// Whether its request is known to be taken before it is sent.
    pub certain: bool,
    pub acceptance: Arc<Acceptance>,
}

impl Operation {
    pub fn new(step: usize, verb: Verb, id: Uuid, acceptance: &Arc<Acceptance>) -> Self {
        Self {
            step,
            verb,
            id,
            id_text: Some(id.to_string()),
            project: None,
            naming: Naming::default(),
            order: None,
            start: None,
            end: None,
            fields: BTreeMap::new(),
            unknown: Vec::new(),
            verbatim: true,
            certain: true,
            acceptance: Arc::clone(acceptance),
        }
    }

    /// Its JSON object. `apart` leaves out the fields that come in parts of their own.
    pub fn head(&self, project: impl Fn(Handle) -> Uuid, apart: bool) -> String {
        let mut members: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, raw: String| members.push((quoted(name), raw));
        if let Some(id) = &self.id_text {
            add("id", quoted(id));
        }
        if let Some(handle) = self.naming.id {
            add("session_id", quoted(&project(handle).to_string()));
        }
        if let Some(name) = &self.naming.name {
            add("session_name", name.clone());
        }
        if let Some(order) = &self.order {
            add("dotted_order", quoted(&order.text));
        }
        if let Some(start) = &self.start {
            add("start_time", start.raw.clone());
        }
        if let Some(end) = &self.end {
            add("end_time", end.raw.clone());
        }
        for (field, raw) in &self.fields {
            if !(apart && field.may_be_a_part()) {
                add(field.name(), raw.clone());
            }
        }
        members.extend(self.unknown.iter().cloned());
        object(&members)
    }

    /// In one line, for people.
    pub fn story(&self) -> String {
        let time = |moment: &Option<Moment>| moment.as_ref().map(|moment| moment.raw.clone());
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|(field, raw)| format!("{}={}", field.name(), shortened(raw)))
            .collect();
        format!(
            "step {} {} project={:?} ({:?}) order={:?} start={:?} end={:?} taken={:?} {}",
            self.step,
            self.verb.as_str(),
            self.project,
            self.naming,
            self.order.as_ref().map(|order| shortened(&order.text)),
            time(&self.start),
            time(&self.end),
            self.acceptance.taken(),
            fields.join(" "),
        )
    }
}

/// A text of bounded length.
pub fn shortened(text: &str) -> String {
    const LONGEST: usize = 160;
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
    }
}

/// A JSON object of members that are JSON already.
pub fn object(members: &[(String, String)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// A judgement on a trace run.
#[derive(Clone, Debug)]
pub struct Feedback {
    pub id: Uuid,
    pub run: Option<Uuid>,
    pub key: String,
    /// Beside `id`, `run_id` and `key`: names, and values as JSON.
    pub members: Vec<(&'static str, String)>,
}

impl Feedback {
    /// Its JSON object.
    pub fn body(&self, with_id: bool) -> String {
        let mut members = vec![(quoted("key"), quoted(&self.key))];
        if with_id {
            members.push((quoted("id"), quoted(&self.id.to_string())));
        }
        if let Some(run) = self.run {
            members.push((quoted("run_id"), quoted(&run.to_string())));
        }
        members.extend(self.members.iter().map(|(name, raw)| (quoted(name), raw.clone())));
        object(&members)
    }
}

/// A file that comes with a trace run.
#[derive(Clone, Debug)]
pub struct Attachment {
    pub run: Uuid,
    pub name: String,
    pub content_type: String,
    pub data: Bytes,
}
