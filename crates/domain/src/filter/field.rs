//! What a filter can look at.

/// A field of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `id`
    Id,
    /// `trace_id`
    TraceId,
    /// `parent_run_id`
    ParentRunId,
    /// `reference_example`, `reference_example_id`
    ReferenceExample,
    /// `session_id`
    SessionId,
    /// `name`
    Name,
    /// `run_type`
    RunType,
    /// `status`
    Status,
    /// `error`; an empty one is none.
    Error,
    /// `is_root`
    IsRoot,
    /// `start_time`: where the run stands in the order of its project, by which exports are cut too.
    StartTime,
    /// `end_time`
    EndTime,
    /// `first_token_time`
    FirstTokenTime,
    /// `latency`: from start to end.
    Latency,
    /// `total_tokens`
    TotalTokens,
    /// `prompt_tokens`
    PromptTokens,
    /// `completion_tokens`
    CompletionTokens,
    /// `total_cost`
    TotalCost,
    /// `prompt_cost`
    PromptCost,
    /// `completion_cost`
    CompletionCost,
    /// `execution_order`: 1 is the root of a trace; nothing else is kept of it.
    ExecutionOrder,
    /// `tags`
    Tags,
    /// `thread_id`: the first of the metadata `thread_id`, `session_id`, `conversation_id` that is there.
    ThreadId,
    /// `inputs`
    Inputs,
    /// `outputs`
    Outputs,
    /// `metadata`
    Metadata,
    /// `extra`
    Extra,
    /// All that is text: name, error, tags, inputs, outputs, metadata. Only of `search`.
    Everything,
    /// A part of an entry.
    Entry(Family, Entry),
}

/// A kind of entry. Tests of one kind in one `and` speak of the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `metadata_…`
    Metadata,
    /// `input_…`
    Input,
    /// `output_…`
    Output,
    /// `feedback_…`
    Feedback,
}

/// A part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// `…_key`
    Key,
    /// `…_value`
    Value,
    /// `feedback_score`
    Score,
    /// `feedback_source`
    Source,
}

/// Which values a field has, and so which checks go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UUIDs.
    Id,
    /// Text.
    Text,
    /// True or false.
    Bool,
    /// Points in time.
    Time,
    /// Seconds.
    Span,
    /// Whole numbers.
    Count,
    /// Amounts of money.
    Cost,
    /// A number that is 1 or nothing.
    First,
    /// A list of texts.
    Texts,
    /// Any JSON.
    Json,
    /// A single JSON value: text, number, true, false or null.
    Scalar,
    /// Numbers.
    Number,
    /// Nothing that could be compared.
    Everything,
}

/// Every field with its names; the first is the one shown.
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
    /// The field of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(names, _)| names.contains(&name))
            .map(|(_, field)| *field)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, field)| *field == self)
            .and_then(|(names, _)| names.first().copied())
            .unwrap_or("search")
    }

    /// Names of all fields.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter_map(|(names, _)| names.first().copied())
    }

    /// Which values it has.
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
