//! The filter language of trace runs: from text to a typed tree.
//!
//! ```text
//! expr   := and(expr, …) | or(expr, …) | not(expr) | test
//! test   := eq|neq|gt|gte|lt|lte(field, value) | in(field, [value, …]) | like(field, "a%") | has(field, value)
//!         | search("text") | search(field, "text")
//! value  := "text" | number | true | false | null
//! ```
//!
//! Every test is true or false, never "unknown": a value that is not there equals `null` and nothing else, and is
//! neither more nor less than anything. So `neq(f, v)` is `not(eq(f, v))`.
//!
//! A JSON field (metadata, inputs, outputs) is a list of **entries**, one per key, nested keys joined by dots and
//! arrays looked through: `{"messages": [{"content": "hi"}]}` has `messages` and `messages.content` = `hi`. Feedback is
//! a list of entries with a key, a score, a value and a source. Tests on the same kind of entry that stand directly in
//! one `and` speak of the *same* entry; see [`pairs`].

mod entry_scopes;
mod field;
mod literal;
mod parse;
mod tokens;

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::{Timestamp, json};
pub use entry_scopes::{ScopedConditions, group_by_entry};
pub use field::{Entry, Family, Field, Kind};

pub const MAX_BYTES: usize = 16 * 1024;
pub const MAX_DEPTH: usize = 32;
pub const MAX_NODES: usize = 512;
/// Most values in the list of an `in`.
pub const MAX_VALUES: usize = 1000;

/// A parsed filter.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Condition(Condition),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub field: Field,
    pub comparison: Comparison,
}

/// The condition on the field.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    Equal(Value),
    NotEqual(Value),
    /// The value exists and is on that side.
    Inequality(Inequality, Value),
    In(Vec<Value>),
    /// The text matches the pattern: `%` stands for any characters, `_` for one, a backslash escapes either.
    Like(String),
    /// A list of strings contains this one.
    HasText(String),
    /// A JSON value contains this one.
    HasJson(json::Value<'static>),
    /// A text contains this one, case-insensitive.
    Search(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inequality {
    /// `lt`
    Less,
    /// `lte`
    LessOrEqual,
    /// `gt`
    Greater,
    /// `gte`
    GreaterOrEqual,
}

impl Inequality {
    /// Whether a value that compares like this to the operand is on that side.
    #[must_use]
    pub const fn holds(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    /// For `is_root` and JSON values.
    Bool(bool),
    /// For text fields, and for JSON values, whose numbers and booleans also match as text.
    Text(String),
    Id(Uuid),
    Time(Timestamp),
    /// Microseconds, for `latency`.
    Span(i64),
    /// For tokens.
    Count(i64),
    /// For costs, in units of 10⁻¹⁰.
    Cost(i128),
    /// For scores and JSON values. Integers compare exactly.
    Number(json::Number<'static>),
}

/// Why a filter cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {message}")]
pub struct FilterError {
    /// The position of the error, in characters from 1.
    pub position: usize,
    pub message: String,
}

impl Filter {
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        parse::parse(text)
    }

    /// Calls `each` with every condition.
    pub fn for_each_condition<'a>(&'a self, each: &mut impl FnMut(&'a Condition)) {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.for_each_condition(each)),
            Self::Not(inner) => inner.for_each_condition(each),
            Self::Condition(test) => each(test),
        }
    }

    /// Whether any condition reads feedback.
    #[must_use]
    pub fn needs_feedback(&self) -> bool {
        let mut needed = false;
        self.for_each_condition(&mut |test| needed |= matches!(test.field, Field::Entry(Family::Feedback, _)));
        needed
    }

    /// The traces to which a matching run must belong; `None` if any.
    #[must_use]
    pub fn traces(&self) -> Option<BTreeSet<Uuid>> {
        let id = |value: &Value| match value {
            Value::Id(id) => Some(*id),
            _ => None,
        };
        match self {
            Self::Condition(Condition {
                field: Field::TraceId,
                comparison: check,
            }) => match check {
                Comparison::Equal(value) => id(value).map(|id| BTreeSet::from([id])),
                Comparison::In(values) => values.iter().map(id).collect(),
                _ => None,
            },
            Self::And(parts) => parts.iter().filter_map(Self::traces).reduce(|a, b| &a & &b),
            Self::Or(parts) => {
                let traces: Option<Vec<BTreeSet<Uuid>>> = parts.iter().map(Self::traces).collect();
                traces.map(|traces| traces.into_iter().flatten().collect())
            }
            Self::Not(_) | Self::Condition(_) => None,
        }
    }

    /// Bounds of the start time of matching rows, start inclusive and end exclusive.
    #[must_use]
    pub fn start_bounds(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let after = |time: Timestamp| Timestamp::from_micros(time.micros().saturating_add(1));
        match self {
            Self::Condition(Condition {
                field: Field::StartTime,
                comparison: check,
            }) => match check {
                Comparison::Equal(Value::Time(at)) => (Some(*at), Some(after(*at))),
                Comparison::Inequality(Inequality::Less, Value::Time(end)) => (None, Some(*end)),
                Comparison::Inequality(Inequality::LessOrEqual, Value::Time(last)) => (None, Some(after(*last))),
                Comparison::Inequality(Inequality::GreaterOrEqual, Value::Time(start)) => (Some(*start), None),
                Comparison::Inequality(Inequality::Greater, Value::Time(before)) => (Some(after(*before)), None),
                _ => (None, None),
            },
            Self::And(parts) => parts.iter().map(Self::start_bounds).fold((None, None), |a, b| {
                (
                    a.0.into_iter().chain(b.0).max(),
                    match (a.1, b.1) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    },
                )
            }),
            _ => (None, None),
        }
    }
}

#[cfg(test)]
mod tests;
