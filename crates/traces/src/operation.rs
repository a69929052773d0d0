//! An operation of a client on one trace run, and its basic rules.

use serde::{Deserialize, Serialize};
use towpath_domain::trace::{self, ProjectRef};
use towpath_domain::{Timestamp, TraceRunId};
use uuid::Uuid;

/// Whether a client made a trace run or changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Made. The first post of a trace run wins among posts.
    Post,
    /// Changed. Any patch beats any post, field by field.
    Patch,
}

impl Verb {
    /// As it is at the head of a part name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Patch => "patch",
        }
    }
}

/// One statement of a client about one trace run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Made or changed.
    pub verb: Verb,
    pub id: TraceRunId,
    /// Its project. `None` only for a patch that names no project: its post has it.
    pub project: Option<ProjectRef>,
    /// What is said.
    pub fields: Fields,
}

impl Operation {
    /// The sort time, which also decides the day: the start in its own part of `dotted_order`, else for a post its
    /// `start_time`. `None` for a patch without `dotted_order`: its post may have one that differs from `start_time` by
    /// microseconds, and both must have the same location.
    #[must_use]
    pub fn sort_time(&self) -> Option<Timestamp> {
        let Fields {
            dotted_order,
            start_time,
            ..
        } = &self.fields;
        stated_start(self.verb, dotted_order.as_deref(), *start_time)
    }

    /// About how many bytes it holds; to bound what is in memory.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.fields.weight() + size_of::<Self>()
    }
}

/// The rule of [`Operation::sort_time`].
pub(crate) fn stated_start(verb: Verb, dotted_order: Option<&str>, start_time: Option<Timestamp>) -> Option<Timestamp> {
    let own = dotted_order.and_then(trace::last_part).map(|link| link.start);
    match verb {
        Verb::Post => own.or(start_time),
        Verb::Patch => own,
    }
}

/// The fields of an operation. `None` means not sent, or sent as null, which the official clients use for "no change".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fields {
    /// Root of the tree. `dotted_order` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<Uuid>,
    /// Parent in the tree. `dotted_order` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<Uuid>,
    /// Start and id of every ancestor and of the trace run itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dotted_order: Option<String>,
    /// The example of a data set it was run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_example_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `chain`, `llm`, `tool`, `retriever`, … any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Timestamp>,
    /// One of the [statuses](towpath_domain::trace::status); `error` and `end_time` take precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Raw JSON text, as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// Raw JSON text, as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,
    /// Raw JSON text, as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<String>,
    /// Raw JSON text, as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serialized: Option<String>,
    /// Top-level keys with their raw JSON text. Merged key by key; `metadata` and `runtime` by their inner keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<Vec<(String, String)>>,
}

impl Fields {
    /// About how many bytes are behind the fields.
    pub(crate) fn weight(&self) -> usize {
        let text = |field: &Option<String>| field.as_ref().map_or(0, String::len);
        let texts = [
            &self.inputs,
            &self.outputs,
            &self.events,
            &self.serialized,
            &self.error,
            &self.dotted_order,
            &self.name,
            &self.run_type,
            &self.status,
        ];
        // Short ones take more room than their letters.
        let tags = self.tags.iter().flatten().map(|tag| tag.len() + size_of::<String>());
        let keys = self.extra.iter().flatten();
        let keys = keys.map(|(key, text)| key.len() + text.len() + 2 * size_of::<String>());
        texts.into_iter().map(text).sum::<usize>() + tags.sum::<usize>() + keys.sum::<usize>()
    }
}
