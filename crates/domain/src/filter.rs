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
//! A JSON field (metadata, inputs, outputs) is a list of **entries**, one per key, nested keys joined by dots and arrays
//! looked through: `{"messages": [{"content": "hi"}]}` has `messages` and `messages.content` = `hi`. Feedback is a list
//! of entries with a key, a score, a value and a source. Tests on the same kind of entry that stand directly in one
//! `and` speak of the *same* entry; see [`pairs`].

mod field;
mod literal;
mod pairs;
mod parse;
mod tokens;

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::{Timestamp, json};
pub use field::{Entry, Family, Field, Kind};
pub use pairs::{Scoped, pairs};

/// Longest text of a filter, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;
/// Deepest nesting of `and`, `or` and `not`.
pub const MAX_DEPTH: usize = 32;
/// Most tests and connectives in a filter.
pub const MAX_NODES: usize = 512;
/// Most values in the list of an `in`.
pub const MAX_VALUES: usize = 1000;

/// A filter that was understood.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// All of them hold.
    And(Vec<Filter>),
    /// At least one of them holds.
    Or(Vec<Filter>),
    /// It does not hold.
    Not(Box<Filter>),
    /// A test.
    Test(Test),
}

/// One test of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// What is looked at.
    pub field: Field,
    /// What has to be so.
    pub check: Check,
}

/// What has to be so about a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// It is this value.
    Equal(Value),
    /// It is not.
    NotEqual(Value),
    /// It is there, and on that side of the value.
    Order(Order, Value),
    /// It is one of them.
    In(Vec<Value>),
    /// Its text matches: `%` stands for any characters, `_` for one, a backslash takes their meaning away.
    Like(String),
    /// A list of texts has this one.
    HasText(String),
    /// A JSON value has everything that this one has.
    HasJson(json::Value<'static>),
    /// One of its texts has this one in it, in upper or lower case.
    Search(String),
}

/// On which side of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `lt`
    Less,
    /// `lte`
    LessOrEqual,
    /// `gt`
    Greater,
    /// `gte`
    GreaterOrEqual,
}

impl Order {
    /// Whether a value that compares like this to the given one is on that side.
    #[must_use]
    pub const fn admits(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// A value of the type of its field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// Of `is_root` and of values in JSON.
    Bool(bool),
    /// Of texts and of values in JSON, whose numbers and booleans also match as text.
    Text(String),
    /// Of ids.
    Id(Uuid),
    /// Of times.
    Time(Timestamp),
    /// Microseconds, of `latency`.
    Span(i64),
    /// Of tokens.
    Count(i64),
    /// In units of 10⁻¹⁰, of costs.
    Cost(i128),
    /// Of scores and of values in JSON. Integers compare exactly.
    Number(json::Number<'static>),
}

/// Why a filter was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {message}")]
pub struct FilterError {
    /// The character it is about, from 1.
    pub position: usize,
    /// What is wrong there and what was expected.
    pub message: String,
}

impl Filter {
    /// Understands a filter.
    ///
    /// # Errors
    /// Where it stops being one, and why.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        parse::parse(text)
    }

    /// Calls `each` with every test in it.
    pub fn for_each_test<'a>(&'a self, each: &mut impl FnMut(&'a Test)) {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.for_each_test(each)),
            Self::Not(inner) => inner.for_each_test(each),
            Self::Test(test) => each(test),
        }
    }

    /// Whether any of its tests looks at feedback.
    #[must_use]
    pub fn needs_feedback(&self) -> bool {
        let mut needed = false;
        self.for_each_test(&mut |test| needed |= matches!(test.field, Field::Entry(Family::Feedback, _)));
        needed
    }

    /// The traces that a run has to be of for it to hold; `None` where it may be of any.
    #[must_use]
    pub fn traces(&self) -> Option<BTreeSet<Uuid>> {
        let id = |value: &Value| match value {
            Value::Id(id) => Some(*id),
            _ => None,
        };
        match self {
            Self::Test(Test {
                field: Field::TraceId,
                check,
            }) => match check {
                Check::Equal(value) => id(value).map(|id| BTreeSet::from([id])),
                Check::In(values) => values.iter().map(id).collect(),
                _ => None,
            },
            Self::And(parts) => parts.iter().filter_map(Self::traces).reduce(|a, b| &a & &b),
            Self::Or(parts) => {
                let traces: Option<Vec<BTreeSet<Uuid>>> = parts.iter().map(Self::traces).collect();
                traces.map(|traces| traces.into_iter().flatten().collect())
            }
            Self::Not(_) | Self::Test(_) => None,
        }
    }

    /// Start inclusive and end exclusive of the starts that rows can have for which it holds, where it says so.
    #[must_use]
    pub fn start_bounds(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let after = |time: Timestamp| Timestamp::from_micros(time.micros().saturating_add(1));
        match self {
            Self::Test(Test {
                field: Field::StartTime,
                check,
            }) => match check {
                Check::Equal(Value::Time(at)) => (Some(*at), Some(after(*at))),
                Check::Order(Order::Less, Value::Time(end)) => (None, Some(*end)),
                Check::Order(Order::LessOrEqual, Value::Time(last)) => (None, Some(after(*last))),
                Check::Order(Order::GreaterOrEqual, Value::Time(start)) => (Some(*start), None),
                Check::Order(Order::Greater, Value::Time(before)) => (Some(after(*before)), None),
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
