//! Splits a decoded body into raw operations.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use towpath_domain::TraceRunId;
use uuid::Uuid;

use super::run::{Head, RawOperation, uuid};
use super::{Feedback, Refusal, Route};
use crate::body::Limits;
use crate::json;
use crate::multipart;
use crate::operation::Verb;

/// Longest name of an attachment, in bytes.
const MAX_ATTACHMENT_NAME: usize = 255;

/// A body, cut up.
#[derive(Default)]
pub struct RawBody<'a> {
    pub runs: Vec<RawOperation<'a>>,
    pub feedback: Vec<Feedback>,
    pub attachments: Vec<AttachmentPart<'a>>,
}

/// An attachment inside the body.
pub struct AttachmentPart<'a> {
    pub run: TraceRunId,
    pub name: &'a str,
    pub content_type: &'a str,
    pub data: &'a [u8],
}

impl AttachmentPart<'_> {
    /// Checks that the content type can be returned in a header. Only for new requests: bodies acknowledged without the
    /// check must stay readable.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.content_type.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Ok(());
        }
        let place = shown(&format!("attachment.{}.{}", self.run, self.name));
        let what = "its content type must consist of visible ASCII characters, such as `image/png`";
        Err(Refusal::invalid(place, what))
    }
}

/// How bytes are read as JSON: [`json::check`], or [`json::checked_text`] if they were checked before.
pub type ReadJson = for<'a> fn(&'a [u8]) -> Result<&'a str, json::InvalidJson>;

impl<'a> RawBody<'a> {
    /// Splits a decoded body and checks its syntax, but not yet its fields.
    pub fn of(
        route: Route,
        content_type: &str,
        plain: &'a [u8],
        limits: &Limits,
        read: ReadJson,
    ) -> Result<Self, Refusal> {
        let drafts = match route {
            Route::Multipart => Self::multipart(content_type, plain, limits, read)?,
            Route::Batch => Self::batch(whole(content_type, plain, read)?)?,
            Route::Run => Self::single(Verb::Post, None, whole(content_type, plain, read)?)?,
            Route::Patch(id) => Self::single(Verb::Patch, Some(id), whole(content_type, plain, read)?)?,
            Route::Feedback => Self {
                feedback: vec![feedback("body", None, whole(content_type, plain, read)?)?],
                ..Self::default()
            },
        };
        drafts.within(limits)?;
        Ok(drafts)
    }

    fn within(&self, limits: &Limits) -> Result<(), Refusal> {
        if self.runs.len() + self.feedback.len() + self.attachments.len() > limits.parts {
            return Err(Refusal::TooMany { limit: limits.parts });
        }
        Ok(())
    }

    fn single(verb: Verb, id: Option<TraceRunId>, text: &'a str) -> Result<Self, Refusal> {
        let head = Head::parse("body", text)?;
        Ok(Self {
            runs: vec![RawOperation::with_head(verb, id, head, "body")?],
            ..Self::default()
        })
    }

    fn batch(text: &'a str) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        struct Batch<'a> {
            #[serde(borrow, default)]
            post: Option<Vec<&'a RawValue>>,
            #[serde(borrow, default)]
            patch: Option<Vec<&'a RawValue>>,
        }
        // Serde would also accept a list of values for a struct.
        if !text.trim_start().starts_with('{') {
            return Err(Refusal::invalid("body", "expected a JSON object"));
        }
        let batch: Batch<'_> = serde_json::from_str(text).map_err(|error| Refusal::invalid("body", error))?;
        let mut runs = Vec::new();
        for (verb, list) in [(Verb::Post, batch.post), (Verb::Patch, batch.patch)] {
            for (index, raw) in list.into_iter().flatten().enumerate() {
                let place = format!("{}[{index}]", verb.as_str());
                runs.push(RawOperation::with_head(
                    verb,
                    None,
                    Head::parse(&place, raw.get())?,
                    &place,
                )?);
            }
        }
        Ok(Self {
            runs,
            ..Self::default()
        })
    }

    fn multipart(content_type: &str, plain: &'a [u8], limits: &Limits, read: ReadJson) -> Result<Self, Refusal> {
        let mut drafts = Self::default();
        // A body may change a trace run several times; a part belongs to the latest operation with its verb and id.
        let mut latest: HashMap<(Verb, TraceRunId), usize> = HashMap::new();
        for part in multipart::parts(plain, multipart::boundary(content_type)?) {
            let part = part?;
            let (kind, rest) = part.name.split_once('.').unwrap_or((part.name, ""));
            let (id, field) = rest
                .split_once('.')
                .map_or((rest, None), |(id, field)| (id, Some(field)));
            let id: Uuid = id
                .parse()
                .map_err(|_| Refusal::invalid(shown(part.name), "its name has no id"))?;
            let verb = match kind {
                "post" => Verb::Post,
                "patch" => Verb::Patch,
                "feedback" => {
                    let text = read(part.data).map_err(|error| Refusal::invalid(shown(part.name), error))?;
                    drafts.feedback.push(feedback(part.name, Some(id), text)?);
                    drafts.within(limits)?;
                    continue;
                }
                "attachment" => {
                    drafts.attach(&part, id.into(), field.unwrap_or_default())?;
                    drafts.within(limits)?;
                    continue;
                }
                _ => return Err(Refusal::invalid(shown(part.name), "unknown part name")),
            };
            let text = read(part.data).map_err(|error| Refusal::invalid(shown(part.name), error))?;
            drafts.run_part(&mut latest, part.name, (verb, id.into()), field, text)?;
            drafts.within(limits)?;
        }
        if let Some(draft) = drafts.runs.iter().find(|draft| draft.head.is_none()) {
            let place = format!("{}.{}", draft.verb.as_str(), draft.id);
            return Err(Refusal::invalid(place, "the part with the trace run is missing"));
        }
        Ok(drafts)
    }

    fn run_part(
        &mut self,
        latest: &mut HashMap<(Verb, TraceRunId), usize>,
        name: &str,
        key: (Verb, TraceRunId),
        field: Option<&str>,
        text: &'a str,
    ) -> Result<(), Refusal> {
        let (verb, id) = key;
        // Nearly every part follows the one before it.
        let known = match self.runs.last() {
            Some(last) if (last.verb, last.id) == key => Some(self.runs.len() - 1),
            _ => latest.get(&key).copied(),
        };
        let at = match known {
            // A second head begins a second operation on the same trace run.
            Some(at) if field.is_some() || self.runs[at].head.is_none() => at,
            _ => {
                self.runs.push(RawOperation::empty(verb, id));
                latest.insert(key, self.runs.len() - 1);
                self.runs.len() - 1
            }
        };
        let draft = &mut self.runs[at];
        match field {
            None => draft.set_head(Head::parse(name, text)?, name),
            Some(field) => draft
                .set_part(field, text)
                .map_err(|what| Refusal::invalid(shown(name), what)),
        }
    }

    fn attach(&mut self, part: &multipart::Part<'a>, run: TraceRunId, name: &str) -> Result<(), Refusal> {
        if name.is_empty() || name.len() > MAX_ATTACHMENT_NAME {
            let what = format!("the name of an attachment must have 1 to {MAX_ATTACHMENT_NAME} bytes");
            return Err(Refusal::invalid(shown(part.name), what));
        }
        // A slice of the body, so that it lives as long.
        let name = &part.name[part.name.len() - name.len()..];
        self.attachments.push(AttachmentPart {
            run,
            name,
            content_type: part.content_type,
            data: part.data,
        });
        Ok(())
    }
}

/// The body of a JSON route.
fn whole<'a>(content_type: &str, plain: &'a [u8], read: ReadJson) -> Result<&'a str, Refusal> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::NotJson(shown(kind)));
    }
    read(plain).map_err(|error| Refusal::invalid("body", error))
}

fn feedback(place: &str, id: Option<Uuid>, text: &str) -> Result<Feedback, Refusal> {
    let Some([own, run, key]) = json::members(text, ["id", "run_id", "key"]) else {
        return Err(Refusal::invalid(shown(place), "expected a JSON object"));
    };
    let own = uuid(place, "id", own)?;
    let id = id
        .or(own)
        .ok_or_else(|| Refusal::invalid(shown(place), "`id` is missing"))?;
    let run = uuid(place, "run_id", run)?.map(TraceRunId);
    let key = super::run::text(place, "key", key)?.ok_or_else(|| Refusal::invalid(shown(place), "`key` is missing"))?;
    Ok(Feedback {
        id,
        run,
        key: key.into_owned(),
        body: text.to_owned(),
    })
}

/// A name from the body as it may be in an answer and a log.
pub fn shown(name: &str) -> String {
    name.chars().take(200).collect()
}
