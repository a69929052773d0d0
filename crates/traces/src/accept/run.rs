//! A trace run in a body: its JSON object, its separate parts, and the rules for its fields.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use towpath_domain::json::{decode, replace_lone_surrogates};
use towpath_domain::trace::{self, ProjectRef, check_project_name};
use towpath_domain::{Timestamp, TraceRunId};
use uuid::Uuid;

use super::Refusal;
use super::parts::shown;
use crate::body::Limits;
use crate::operation::{Fields, Operation, Verb, stated_start};

/// The range of times that nanosecond columns can hold.
const TIMES: (Timestamp, Timestamp) = (
    Timestamp::from_micros(-9_200_000_000_000_000),
    Timestamp::from_micros(9_200_000_000_000_000),
);

/// The JSON object of a trace run, uninterpreted. Unknown keys (`child_runs`, …) are dropped.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Head<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    session_name: Option<&'a RawValue>,
    #[serde(borrow)]
    address: Option<&'a RawValue>,
    #[serde(borrow)]
    trace_id: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_run_id: Option<&'a RawValue>,
    #[serde(borrow)]
    dotted_order: Option<&'a RawValue>,
    #[serde(borrow)]
    reference_example_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    run_type: Option<&'a RawValue>,
    #[serde(borrow)]
    start_time: Option<&'a RawValue>,
    #[serde(borrow)]
    end_time: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    tags: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(borrow)]
    outputs: Option<&'a RawValue>,
    #[serde(borrow)]
    events: Option<&'a RawValue>,
    #[serde(borrow)]
    extra: Option<&'a RawValue>,
    #[serde(borrow)]
    serialized: Option<&'a RawValue>,
}

impl<'a> Head<'a> {
    /// Parses text that [`json::check`](crate::json::check) has accepted.
    pub fn parse(place: &str, text: &'a str) -> Result<Self, Refusal> {
        if !text.trim_start().starts_with('{') {
            return Err(Refusal::invalid(shown(place), "expected a JSON object"));
        }
        serde_json::from_str(text).map_err(|error| Refusal::invalid(shown(place), error))
    }
}

/// The fields that may come as parts of their own.
#[derive(Default)]
struct LargeFields<'a> {
    inputs: Option<&'a str>,
    outputs: Option<&'a str>,
    events: Option<&'a str>,
    extra: Option<&'a str>,
    error: Option<&'a str>,
    serialized: Option<&'a str>,
}

/// One operation as it is in the body.
pub struct RawOperation<'a> {
    pub verb: Verb,
    pub id: TraceRunId,
    pub head: Option<Head<'a>>,
    /// Separate parts. They take precedence over fields of the same name in the head.
    large_fields: LargeFields<'a>,
    seen: u8,
}

/// A project reference that sorts and compares without owning the name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum ProjectKey<'a> {
    Id(towpath_domain::ProjectId),
    Name(Cow<'a, str>),
}

impl ProjectKey<'_> {
    pub fn into_ref(self) -> ProjectRef {
        match self {
            Self::Id(id) => ProjectRef::Id(id),
            Self::Name(name) => ProjectRef::Name(name.into_owned()),
        }
    }
}

impl<'a> RawOperation<'a> {
    pub fn empty(verb: Verb, id: TraceRunId) -> Self {
        Self {
            verb,
            id,
            head: None,
            large_fields: LargeFields::default(),
            seen: 0,
        }
    }

    /// A draft whose id is in its head, in the address of the request (`id`), or both.
    pub fn with_head(verb: Verb, id: Option<TraceRunId>, head: Head<'a>, place: &str) -> Result<Self, Refusal> {
        let own = uuid(place, "id", raw(head.id))?.map(TraceRunId);
        let id = id
            .or(own)
            .ok_or_else(|| Refusal::invalid(shown(place), "`id` is missing"))?;
        let mut draft = Self::empty(verb, id);
        draft.set_head(head, place)?;
        Ok(draft)
    }

    pub fn set_head(&mut self, head: Head<'a>, place: &str) -> Result<(), Refusal> {
        if uuid(place, "id", raw(head.id))?.is_some_and(|id| id != self.id.0) {
            return Err(Refusal::rule(shown(place), "`id` differs from the id in the part name"));
        }
        self.head = Some(head);
        Ok(())
    }

    /// Adds a part. Its text was accepted by [`json::check`](crate::json::check).
    pub fn set_part(&mut self, field: &str, text: &'a str) -> Result<(), &'static str> {
        let (slot, bit) = match field {
            "inputs" => (&mut self.large_fields.inputs, 1),
            "outputs" => (&mut self.large_fields.outputs, 2),
            "events" => (&mut self.large_fields.events, 4),
            "extra" => (&mut self.large_fields.extra, 8),
            "error" => (&mut self.large_fields.error, 16),
            "serialized" => (&mut self.large_fields.serialized, 32),
            _ => return Err("unknown part of a trace run"),
        };
        if self.seen & bit != 0 {
            return Err("duplicate part");
        }
        self.seen |= bit;
        *slot = Some(text);
        Ok(())
    }

    /// The project it names.
    pub fn project(&self) -> Result<Option<ProjectKey<'a>>, Refusal> {
        let Some(head) = &self.head else { return Ok(None) };
        let session_name = self.project_name("session_name", head.session_name)?;
        // Where both are sent the id is the exact one.
        if let Some(id) = uuid(self.operation_ref(), "session_id", raw(head.session_id))? {
            return Ok(Some(ProjectKey::Id(id.into())));
        }
        let name = match session_name {
            Some(name) => Some(name),
            None => self.project_name("address", head.address)?,
        };
        Ok(name.map(ProjectKey::Name))
    }

    fn project_name(&self, field: &'static str, sent: Option<&'a RawValue>) -> Result<Option<Cow<'a, str>>, Refusal> {
        let name = text(self.operation_ref(), field, raw(sent))?.filter(|name| !name.is_empty());
        if let Some(name) = &name {
            check_project_name(name).map_err(|error| self.invalid_field(field, error))?;
        }
        Ok(name)
    }

    /// Checks everything that [`RawOperation::to_operation`] relies on, without building anything. Returns the start,
    /// if it states one.
    pub fn check(&self, limits: &Limits) -> Result<Option<Timestamp>, Refusal> {
        self.check_sizes(limits.field_bytes)?;
        let small = self.small()?;
        if let Some(tags) = self.head.as_ref().and_then(|head| head.tags) {
            serde_json::from_str::<Strings>(tags.get())
                .map_err(|_| self.invalid_field("tags", "expected a list of strings"))?;
        }
        match self.extra() {
            Some(extra) if !extra.trim_start().starts_with('{') => {
                Err(self.invalid_field("extra", "expected a JSON object"))
            }
            _ => Ok(stated_start(self.verb, small.dotted_order.as_deref(), small.start_time)),
        }
    }

    /// A value is read and written as a whole, so each field has a size limit.
    fn check_sizes(&self, limit: usize) -> Result<(), Refusal> {
        let none = Head::default();
        let head = self.head.as_ref().unwrap_or(&none);
        let fields = [
            ("inputs", self.large_fields.inputs, head.inputs),
            ("outputs", self.large_fields.outputs, head.outputs),
            ("events", self.large_fields.events, head.events),
            ("extra", self.large_fields.extra, head.extra),
            ("error", self.large_fields.error, head.error),
            ("serialized", self.large_fields.serialized, head.serialized),
            ("name", None, head.name),
            ("run_type", None, head.run_type),
            ("status", None, head.status),
            ("tags", None, head.tags),
            ("dotted_order", None, head.dotted_order),
        ];
        for (field, part, in_head) in fields {
            let text = part.or(in_head.map(RawValue::get)).unwrap_or_default();
            if text.len() > limit {
                let place = format!("{} `{field}`", self.operation_ref());
                return Err(Refusal::FieldTooLarge { place, limit });
            }
        }
        Ok(())
    }

    /// The fields that are cheap to read, read.
    fn small(&self) -> Result<SmallFields<'a>, Refusal> {
        let none = Head::default();
        let head = self.head.as_ref().unwrap_or(&none);
        let place = self.operation_ref();
        let small = SmallFields {
            trace_id: uuid(&place, "trace_id", raw(head.trace_id))?,
            parent_run_id: uuid(&place, "parent_run_id", raw(head.parent_run_id))?,
            reference_example_id: uuid(&place, "reference_example_id", raw(head.reference_example_id))?,
            dotted_order: text(&place, "dotted_order", raw(head.dotted_order))?,
            name: text(&place, "name", raw(head.name))?,
            run_type: text(&place, "run_type", raw(head.run_type))?,
            status: text(&place, "status", raw(head.status))?,
            start_time: time(&place, "start_time", head.start_time)?,
            end_time: time(&place, "end_time", head.end_time)?,
        };
        if let Some(order) = &small.dotted_order {
            self.check_order(order)?;
        }
        Ok(small)
    }

    fn check_order(&self, order: &str) -> Result<(), Refusal> {
        let mut own = None;
        for link in trace::dotted_order_parts(order) {
            let link =
                link.ok_or_else(|| self.rule_violation("dotted_order", "expected <time>Z<id> parts joined by dots"))?;
            if link.start < TIMES.0 || link.start > TIMES.1 {
                return Err(self.rule_violation("dotted_order", "time out of range"));
            }
            own = Some(link.id);
        }
        if own == Some(self.id.0) {
            Ok(())
        } else {
            Err(self.rule_violation("dotted_order", "it does not end with the run's own id"))
        }
    }

    /// The operation, owned.
    pub fn to_operation(&self) -> Result<Operation, Refusal> {
        let project = self.project()?.map(ProjectKey::into_ref);
        let small = self.small()?;
        let none = Head::default();
        let head = self.head.as_ref().unwrap_or(&none);
        let tags: Option<Vec<String>> = match head.tags {
            Some(raw) => serde_json::from_str(&replace_lone_surrogates(raw.get()))
                .map_err(|_| self.invalid_field("tags", "expected a list of strings"))?,
            None => None,
        };
        let extra = match self.extra() {
            Some(text) => {
                let Keys(keys) =
                    serde_json::from_str(text).map_err(|_| self.invalid_field("extra", "expected a JSON object"))?;
                Some(keys)
            }
            None => None,
        };
        let owned = |part: Option<&str>, raw: Option<&RawValue>| {
            part.or_else(|| raw.map(RawValue::get))
                .map(str::trim_ascii)
                .filter(|text| *text != "null")
                .map(str::to_owned)
        };
        Ok(Operation {
            verb: self.verb,
            id: self.id,
            project,
            fields: Fields {
                trace_id: small.trace_id,
                parent_run_id: small.parent_run_id,
                dotted_order: small.dotted_order.map(Cow::into_owned),
                reference_example_id: small.reference_example_id,
                name: small.name.map(Cow::into_owned),
                run_type: small.run_type.map(Cow::into_owned),
                start_time: small.start_time,
                end_time: small.end_time,
                status: small.status.and_then(|sent| trace::status(&sent)).map(str::to_owned),
                // Text, or whatever else was sent, as the text that it is.
                error: owned(self.large_fields.error, head.error)
                    .map(|error| decode(&error).map_or(error.clone(), Cow::into_owned)),
                tags,
                inputs: owned(self.large_fields.inputs, head.inputs),
                outputs: owned(self.large_fields.outputs, head.outputs),
                events: owned(self.large_fields.events, head.events),
                serialized: owned(self.large_fields.serialized, head.serialized),
                extra,
            },
        })
    }

    /// `extra`, unless it is null.
    fn extra(&self) -> Option<&'a str> {
        let in_head = self.head.as_ref().and_then(|head| head.extra).map(RawValue::get);
        self.large_fields
            .extra
            .or(in_head)
            .map(str::trim_ascii)
            .filter(|text| *text != "null")
    }

    fn operation_ref(&self) -> OperationRef {
        OperationRef {
            verb: self.verb,
            id: self.id,
        }
    }

    fn invalid_field(&self, field: &str, what: impl ToString) -> Refusal {
        Refusal::invalid(format!("{} `{field}`", self.operation_ref()), what)
    }

    fn rule_violation(&self, field: &str, what: &'static str) -> Refusal {
        Refusal::rule(format!("{} `{field}`", self.operation_ref()), what)
    }
}

/// The operation of an error. A separate type, so that the text is only built for an error.
struct OperationRef {
    verb: Verb,
    id: TraceRunId,
}

impl std::fmt::Display for OperationRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.verb.as_str(), self.id)
    }
}

struct SmallFields<'a> {
    trace_id: Option<Uuid>,
    parent_run_id: Option<Uuid>,
    reference_example_id: Option<Uuid>,
    dotted_order: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    run_type: Option<Cow<'a, str>>,
    status: Option<Cow<'a, str>>,
    start_time: Option<Timestamp>,
    end_time: Option<Timestamp>,
}

fn raw(value: Option<&RawValue>) -> Option<&str> {
    value.map(RawValue::get)
}

/// A text or nothing; nothing else.
pub fn text<'a>(
    place: impl std::fmt::Display,
    field: &str,
    raw: Option<&'a str>,
) -> Result<Option<Cow<'a, str>>, Refusal> {
    raw.map(|raw| decode(raw).ok_or_else(|| wrong(&place, field, "expected a string")))
        .transpose()
}

/// An id as text, or nothing.
pub fn uuid(place: impl std::fmt::Display, field: &str, raw: Option<&str>) -> Result<Option<Uuid>, Refusal> {
    let Some(raw) = raw else { return Ok(None) };
    let id = decode(raw).and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| wrong(&place, field, "expected a UUID"))
}

/// ISO 8601 text, or whole milliseconds since 1970, which the JS client sends as `end_time`.
fn time(place: impl std::fmt::Display, field: &str, raw: Option<&RawValue>) -> Result<Option<Timestamp>, Refusal> {
    let Some(raw) = raw.map(RawValue::get) else {
        return Ok(None);
    };
    let time = match decode(raw) {
        Some(text) => Timestamp::parse(&text).ok(),
        None => whole(raw).map(|millis| Timestamp::from_micros(millis.saturating_mul(1000))),
    };
    match time {
        Some(time) if time >= TIMES.0 && time <= TIMES.1 => Ok(Some(time)),
        Some(_) => Err(Refusal::rule(
            format!("{} `{field}`", shown(&place.to_string())),
            "time out of range",
        )),
        None => Err(wrong(
            &place,
            field,
            "expected an ISO 8601 date-time or whole milliseconds since 1970",
        )),
    }
}

/// A whole number, which JSON may write as `57.0` or `5.7e1`. Larger values saturate.
fn whole(raw: &str) -> Option<i64> {
    raw.parse::<i64>().ok().or_else(|| {
        let number: f64 = raw.parse().ok()?;
        // Saturating, like `as`.
        (number.fract() == 0.0 || number.is_infinite()).then_some(number as i64)
    })
}

fn wrong(place: &impl std::fmt::Display, field: &str, what: &'static str) -> Refusal {
    Refusal::invalid(format!("{} `{field}`", shown(&place.to_string())), what)
}

/// A list of strings, only looked at.
struct Strings;

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = Strings;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Strings, A::Error> {
                while let Some(raw) = list.next_element::<&RawValue>()? {
                    if !raw.get().starts_with('"') {
                        return Err(serde::de::Error::custom("not a string"));
                    }
                }
                Ok(Strings)
            }
        }
        from.deserialize_seq(ListVisitor)
    }
}

/// The keys of an object in order with their raw texts. For duplicate keys, the last one counts.
struct Keys(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys: Vec<(String, String)> = Vec::new();
                let mut known: std::collections::HashMap<Cow<'_, str>, usize> = std::collections::HashMap::new();
                while let Some((raw, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    let key =
                        decode(raw.get()).ok_or_else(|| serde::de::Error::custom("a key that is not a string"))?;
                    match known.get(&key).copied() {
                        Some(at) => keys[at].1 = value.get().to_owned(),
                        None => {
                            keys.push((key.clone().into_owned(), value.get().to_owned()));
                            known.insert(key, keys.len() - 1);
                        }
                    }
                }
                Ok(Keys(keys))
            }
        }
        from.deserialize_map(KeysVisitor)
    }
}
