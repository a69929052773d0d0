//! One trace run of a body: the JSON object that names it, the parts beside it, and the rules on its fields.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use towpath_domain::json::{decode, mend};
use towpath_domain::trace::{self, ProjectRef, check_project_name};
use towpath_domain::{Timestamp, TraceRunId};
use uuid::Uuid;

use super::Refusal;
use super::parts::shown;
use crate::body::Limits;
use crate::operation::{Fields, Operation, Verb, stated_start};

/// Earliest and latest point in time that fits the nanosecond columns of a segment.
const TIMES: (Timestamp, Timestamp) = (
    Timestamp::from_micros(-9_200_000_000_000_000),
    Timestamp::from_micros(9_200_000_000_000_000),
);

/// The JSON object of a trace run, nothing of it interpreted. Unknown keys (`child_runs`, …) are left out.
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
    /// Reads a text that [`json::check`](crate::json::check) has passed.
    pub fn parse(place: &str, text: &'a str) -> Result<Self, Refusal> {
        if !text.trim_start().starts_with('{') {
            return Err(Refusal::invalid(shown(place), "expected a JSON object"));
        }
        serde_json::from_str(text).map_err(|error| Refusal::invalid(shown(place), error))
    }
}

/// The fields that may come as parts of their own.
#[derive(Default)]
struct Big<'a> {
    inputs: Option<&'a str>,
    outputs: Option<&'a str>,
    events: Option<&'a str>,
    extra: Option<&'a str>,
    error: Option<&'a str>,
    serialized: Option<&'a str>,
}

/// One operation as it lies in the body.
pub struct Draft<'a> {
    pub verb: Verb,
    pub id: TraceRunId,
    pub head: Option<Head<'a>>,
    /// Parts beside the head. They go before fields of the same name in it.
    big: Big<'a>,
    seen: u8,
}

/// A project as a draft names it; sorts and compares without owning the name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedProject<'a> {
    Id(towpath_domain::ProjectId),
    Name(Cow<'a, str>),
}

impl NamedProject<'_> {
    pub fn into_ref(self) -> ProjectRef {
        match self {
            Self::Id(id) => ProjectRef::Id(id),
            Self::Name(name) => ProjectRef::Name(name.into_owned()),
        }
    }
}

impl<'a> Draft<'a> {
    pub fn empty(verb: Verb, id: TraceRunId) -> Self {
        Self {
            verb,
            id,
            head: None,
            big: Big::default(),
            seen: 0,
        }
    }

    /// A draft whose id stands in its head, or in the address of the request (`id`), or in both.
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
            return Err(Refusal::rule(shown(place), "`id` is not the id it was sent under"));
        }
        self.head = Some(head);
        Ok(())
    }

    /// Adds a part. Its text has passed [`json::check`](crate::json::check).
    pub fn set_part(&mut self, field: &str, text: &'a str) -> Result<(), &'static str> {
        let (slot, bit) = match field {
            "inputs" => (&mut self.big.inputs, 1),
            "outputs" => (&mut self.big.outputs, 2),
            "events" => (&mut self.big.events, 4),
            "extra" => (&mut self.big.extra, 8),
            "error" => (&mut self.big.error, 16),
            "serialized" => (&mut self.big.serialized, 32),
            _ => return Err("trace runs have no part of this name"),
        };
        if self.seen & bit != 0 {
            return Err("the same part twice");
        }
        self.seen |= bit;
        *slot = Some(text);
        Ok(())
    }

    /// The project it names.
    pub fn project(&self) -> Result<Option<NamedProject<'a>>, Refusal> {
        let Some(head) = &self.head else { return Ok(None) };
        let session_name = self.project_name("session_name", head.session_name)?;
        // Where both are sent the id is the exact one.
        if let Some(id) = uuid(self.place(), "session_id", raw(head.session_id))? {
            return Ok(Some(NamedProject::Id(id.into())));
        }
        let name = match session_name {
            Some(name) => Some(name),
            None => self.project_name("address", head.address)?,
        };
        Ok(name.map(NamedProject::Name))
    }

    fn project_name(&self, field: &'static str, sent: Option<&'a RawValue>) -> Result<Option<Cow<'a, str>>, Refusal> {
        let name = text(self.place(), field, raw(sent))?.filter(|name| !name.is_empty());
        if let Some(name) = &name {
            check_project_name(name).map_err(|error| self.bad(field, error))?;
        }
        Ok(name)
    }

    /// Checks all that [`Draft::to_operation`] relies on, and builds nothing. Answers the start that it states, if it
    /// does.
    pub fn check(&self, limits: &Limits) -> Result<Option<Timestamp>, Refusal> {
        self.check_sizes(limits.field_bytes)?;
        let small = self.small()?;
        if let Some(tags) = self.head.as_ref().and_then(|head| head.tags) {
            serde_json::from_str::<Strings>(tags.get()).map_err(|_| self.bad("tags", "expected a list of strings"))?;
        }
        match self.extra() {
            Some(extra) if !extra.trim_start().starts_with('{') => Err(self.bad("extra", "expected a JSON object")),
            _ => Ok(stated_start(self.verb, small.dotted_order.as_deref(), small.start_time)),
        }
    }

    /// What stands in one column has to be read and written in one piece, so each field has a limit.
    fn check_sizes(&self, limit: usize) -> Result<(), Refusal> {
        let none = Head::default();
        let head = self.head.as_ref().unwrap_or(&none);
        let fields = [
            ("inputs", self.big.inputs, head.inputs),
            ("outputs", self.big.outputs, head.outputs),
            ("events", self.big.events, head.events),
            ("extra", self.big.extra, head.extra),
            ("error", self.big.error, head.error),
            ("serialized", self.big.serialized, head.serialized),
            ("name", None, head.name),
            ("run_type", None, head.run_type),
            ("status", None, head.status),
            ("tags", None, head.tags),
            ("dotted_order", None, head.dotted_order),
        ];
        for (field, part, in_head) in fields {
            let text = part.or(in_head.map(RawValue::get)).unwrap_or_default();
            if text.len() > limit {
                let place = format!("{} `{field}`", self.place());
                return Err(Refusal::FieldTooLarge { place, limit });
            }
        }
        Ok(())
    }

    /// The fields that are cheap to read, read.
    fn small(&self) -> Result<Small<'a>, Refusal> {
        let none = Head::default();
        let head = self.head.as_ref().unwrap_or(&none);
        let place = self.place();
        let small = Small {
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
        for link in trace::links(order) {
            let link = link.ok_or_else(|| self.against("dotted_order", "expected <time>Z<id> links joined by dots"))?;
            if link.start < TIMES.0 || link.start > TIMES.1 {
                return Err(self.against("dotted_order", "a time out of range"));
            }
            own = Some(link.id);
        }
        if own == Some(self.id.0) {
            Ok(())
        } else {
            Err(self.against("dotted_order", "it does not end with the run's own id"))
        }
    }

    /// The operation, owned.
    pub fn to_operation(&self) -> Result<Operation, Refusal> {
        let project = self.project()?.map(NamedProject::into_ref);
        let small = self.small()?;
        let none = Head::default();
        let head = self.head.as_ref().unwrap_or(&none);
        let tags: Option<Vec<String>> = match head.tags {
            Some(raw) => {
                serde_json::from_str(&mend(raw.get())).map_err(|_| self.bad("tags", "expected a list of strings"))?
            }
            None => None,
        };
        let extra = match self.extra() {
            Some(text) => {
                let Keys(keys) = serde_json::from_str(text).map_err(|_| self.bad("extra", "expected a JSON object"))?;
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
                error: owned(self.big.error, head.error)
                    .map(|error| decode(&error).map_or(error.clone(), Cow::into_owned)),
                tags,
                inputs: owned(self.big.inputs, head.inputs),
                outputs: owned(self.big.outputs, head.outputs),
                events: owned(self.big.events, head.events),
                serialized: owned(self.big.serialized, head.serialized),
                extra,
            },
        })
    }

    /// `extra`, unless it is null.
    fn extra(&self) -> Option<&'a str> {
        let in_head = self.head.as_ref().and_then(|head| head.extra).map(RawValue::get);
        self.big
            .extra
            .or(in_head)
            .map(str::trim_ascii)
            .filter(|text| *text != "null")
    }

    fn place(&self) -> Place {
        Place {
            verb: self.verb,
            id: self.id,
        }
    }

    fn bad(&self, field: &str, what: impl ToString) -> Refusal {
        Refusal::invalid(format!("{} `{field}`", self.place()), what)
    }

    fn against(&self, field: &str, what: &'static str) -> Refusal {
        Refusal::rule(format!("{} `{field}`", self.place()), what)
    }
}

/// Which operation an error is about. A type of its own, so that no text is made where there is none.
struct Place {
    verb: Verb,
    id: TraceRunId,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.verb.as_str(), self.id)
    }
}

struct Small<'a> {
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
            "a time out of range",
        )),
        None => Err(wrong(
            &place,
            field,
            "expected an ISO 8601 date-time or whole milliseconds since 1970",
        )),
    }
}

/// A whole number, which JSON may write as `57.0` or `5.7e1`. One that is larger than any time saturates.
fn whole(raw: &str) -> Option<i64> {
    raw.parse::<i64>().ok().or_else(|| {
        let number: f64 = raw.parse().ok()?;
        // As `as` does it: what does not fit becomes the nearest that does.
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
        struct Look;
        impl<'de> Visitor<'de> for Look {
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
        from.deserialize_seq(Look)
    }
}

/// The keys of an object in order with their raw texts. Of a key that comes twice the last counts.
struct Keys(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys: Vec<(String, String)> = Vec::new();
                let mut known: std::collections::HashMap<Cow<'_, str>, usize> = std::collections::HashMap::new();
                while let Some((raw, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    let key = decode(raw.get()).ok_or_else(|| serde::de::Error::custom("a key that is no text"))?;
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
        from.deserialize_map(Look)
    }
}
