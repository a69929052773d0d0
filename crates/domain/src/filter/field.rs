//! The fields of the filter language.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    Id,
    TraceId,
    ParentRunId,
    /// `reference_example`, `reference_example_id`
    ReferenceExample,
    SessionId,
    Name,
    RunType,
    Status,
    /// `error`; an empty string counts as absent.
    Error,
    IsRoot,
    /// `start_time`: the position of the run in its project, which also decides the day of an export.
    StartTime,
    EndTime,
    FirstTokenTime,
    /// `latency`: from start to end.
    Latency,
    TotalTokens,
    PromptTokens,
    CompletionTokens,
    TotalCost,
    PromptCost,
    CompletionCost,
    /// `execution_order`: only 1, the root of a trace, is stored.
    ExecutionOrder,
    Tags,
    /// `thread_id`: the first existing one of the metadata `thread_id`, `session_id`, `conversation_id`.
    ThreadId,
    Inputs,
    Outputs,
    Metadata,
    Extra,
    /// All text: name, error, tags, inputs, outputs, metadata. Only for `search`.
    Everything,
    Entry(Family, Entry),
}

/// A kind of entry. Conditions on one kind in one `and` apply to the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    Metadata,
    Input,
    Output,
    Feedback,
}

/// A part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Key,
    Value,
    /// `feedback_score`
    Score,
    /// `feedback_source`
    Source,
}

/// The type of a field's values, which decides the allowed functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Id,
    Text,
    Bool,
    Time,
    Span,
    Count,
    Cost,
    /// Only 1 or nothing.
    First,
    /// A list of strings.
    Texts,
    Json,
    /// A single JSON value: string, number, true, false or null.
    Scalar,
    Number,
    /// Cannot be compared.
    Everything,
}

/// The first name of a field is shown in messages.
const NAMES: [(&[&str], Field); 38] = [
    (&["id"], Field::Id),
    (&["trace_id"], Field::TraceId),
    (&["parent_run_id"], Field::ParentRunId),
    (&["reference_example", "reference_example_id"], Field::ReferenceExample),
    (&["session_id"], Field::SessionId),
    (&["name"], Field::Name),
    (&["run_type"], Field::RunType),
    (&["status"], Field::Status),
    (&["error"], Field::Error),
    (&["is_root"], Field::IsRoot),
    (&["start_time"], Field::StartTime),
    (&["end_time"], Field::EndTime),
    (&["first_token_time"], Field::FirstTokenTime),
    (&["latency"], Field::Latency),
    (&["total_tokens"], Field::TotalTokens),
    (&["prompt_tokens"], Field::PromptTokens),
    (&["completion_tokens"], Field::CompletionTokens),
    (&["total_cost"], Field::TotalCost),
    (&["prompt_cost"], Field::PromptCost),
    (&["completion_cost"], Field::CompletionCost),
    (&["execution_order"], Field::ExecutionOrder),
    (&["tags", "tag"], Field::Tags),
    (&["thread_id"], Field::ThreadId),
    (&["inputs"], Field::Inputs),
    (&["outputs"], Field::Outputs),
    (&["metadata"], Field::Metadata),
    (&["extra"], Field::Extra),
    (&["metadata_key"], Field::Entry(Family::Metadata, Entry::Key)),
    (&["metadata_value"], Field::Entry(Family::Metadata, Entry::Value)),
    (&["input_key"], Field::Entry(Family::Input, Entry::Key)),
    (&["input_value"], Field::Entry(Family::Input, Entry::Value)),
    (&["output_key"], Field::Entry(Family::Output, Entry::Key)),
    (&["output_value"], Field::Entry(Family::Output, Entry::Value)),
    (&["feedback_key"], Field::Entry(Family::Feedback, Entry::Key)),
    (&["feedback_score"], Field::Entry(Family::Feedback, Entry::Score)),
    (&["feedback_value"], Field::Entry(Family::Feedback, Entry::Value)),
    (&["feedback_source"], Field::Entry(Family::Feedback, Entry::Source)),
    (&[], Field::Everything),
];

impl Field {
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(names, _)| names.contains(&name))
            .map(|(_, field)| *field)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, field)| *field == self)
            .and_then(|(names, _)| names.first().copied())
            .unwrap_or("search")
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter_map(|(names, _)| names.first().copied())
    }

    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Id | Self::TraceId | Self::ParentRunId | Self::ReferenceExample | Self::SessionId => Kind::Id,
            Self::Name | Self::RunType | Self::Status | Self::Error | Self::ThreadId => Kind::Text,
            Self::IsRoot => Kind::Bool,
            Self::StartTime | Self::EndTime | Self::FirstTokenTime => Kind::Time,
            Self::Latency => Kind::Span,
            Self::TotalTokens | Self::PromptTokens | Self::CompletionTokens => Kind::Count,
            Self::TotalCost | Self::PromptCost | Self::CompletionCost => Kind::Cost,
            Self::ExecutionOrder => Kind::First,
            Self::Tags => Kind::Texts,
            Self::Inputs | Self::Outputs | Self::Metadata | Self::Extra => Kind::Json,
            Self::Everything => Kind::Everything,
            Self::Entry(_, Entry::Key | Entry::Source) => Kind::Text,
            Self::Entry(_, Entry::Value) => Kind::Scalar,
            Self::Entry(_, Entry::Score) => Kind::Number,
        }
    }
}
