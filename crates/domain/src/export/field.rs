//! The fields an export may carry.

use serde::{Deserialize, Serialize};

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// A field of a trace run that can be exported, in the order of the columns of a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Field {$(
            $(#[$doc])*
            #[serde(rename = $name)]
            $variant,
        )*}

        impl Field {
            pub const ALL: [Self; 29] = [$(Self::$variant),*];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {$(Self::$variant => $name),*}
            }

            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    /// The trace run's own id.
    Id = "id",
    /// Workspace.
    TenantId = "tenant_id",
    /// Tracing project.
    SessionId = "session_id",
    /// Id of the root of its trace.
    TraceId = "trace_id",
    ParentRunId = "parent_run_id",
    /// Root first.
    ParentRunIds = "parent_run_ids",
    /// Dataset example it was made from.
    ReferenceExampleId = "reference_example_id",
    Name = "name",
    /// Type: `llm`, `chain`, `tool` …
    RunType = "run_type",
    /// When it began.
    StartTime = "start_time",
    /// When it ended.
    EndTime = "end_time",
    /// `success`, `error` or `pending`.
    Status = "status",
    /// Whether nothing is above it.
    IsRoot = "is_root",
    /// Position in its trace.
    DottedOrder = "dotted_order",
    /// Retention tier.
    TraceTier = "trace_tier",
    /// Inputs, JSON text.
    Inputs = "inputs",
    /// Outputs, JSON text.
    Outputs = "outputs",
    /// Error text.
    Error = "error",
    /// Metadata and the like, JSON text.
    Extra = "extra",
    /// Events, JSON text.
    Events = "events",
    Tags = "tags",
    /// Feedback by key, JSON text.
    FeedbackStats = "feedback_stats",
    /// Tokens in and out.
    TotalTokens = "total_tokens",
    /// Input tokens.
    PromptTokens = "prompt_tokens",
    /// Tokens out.
    CompletionTokens = "completion_tokens",
    /// Cost in and out.
    TotalCost = "total_cost",
    /// Input cost.
    PromptCost = "prompt_cost",
    /// Cost out.
    CompletionCost = "completion_cost",
    /// When the first token came.
    FirstTokenTime = "first_token_time",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_order_is_the_columns_order() {
        for field in Field::ALL {
            assert_eq!(Field::parse(field.name()), Some(field));
            assert_eq!(serde_json::to_value(field).unwrap(), field.name());
        }
        assert!(Field::ALL.is_sorted());
        assert_eq!(Field::parse("serialized"), None);
    }
}
