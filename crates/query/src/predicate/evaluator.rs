//! Tests of JSON, lists and sets, row by row.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use towpath_domain::filter::{Comparison, Condition, Entry, Family, Field, Value};
use towpath_domain::json::{Value as Json, members};
use towpath_domain::trace::thread_id;
use uuid::Uuid;

use super::entries::{self, any, contains, passes, searched};
use super::text::contains_ignoring_case;

pub enum Cell<'a> {
    Nothing,
    Text(&'a str),
    Texts(ArrayRef),
}

/// A test that is not a DataFusion expression.
#[derive(Debug)]
pub enum Evaluator {
    /// One entry passes all tests.
    Entry {
        family: Family,
        tests: Vec<Condition>,
    },
    /// One text of a list passes.
    Texts(Comparison),
    /// The thread in the metadata passes.
    Thread(Comparison),
    /// The JSON of a column contains `wanted`.
    Contains {
        wanted: Json<'static>,
        form: ColumnFormat,
    },
    /// One of the columns contains `needle`, which is in lower case.
    Search {
        needle: String,
        forms: Vec<ColumnFormat>,
    },
    Trace(Arc<HashSet<Uuid>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnFormat {
    Plain,
    Json,
    /// JSON of which only `metadata` counts.
    Metadata,
}

impl ColumnFormat {
    /// The relevant JSON.
    fn read(self, text: &str) -> Option<Json<'_>> {
        match self {
            Self::Plain => None,
            Self::Json => parse(text),
            Self::Metadata => metadata(text),
        }
    }
}

impl Evaluator {
    pub fn search(text: &str, forms: &[ColumnFormat]) -> Self {
        Self::Search {
            needle: text.to_lowercase(),
            forms: forms.to_vec(),
        }
    }

    pub fn contains(wanted: &Json<'static>, form: ColumnFormat) -> Self {
        Self::Contains {
            wanted: wanted.clone(),
            form,
        }
    }

    /// Whether the test passes for a row.
    pub fn matches<'a>(&self, mut cells: impl Iterator<Item = Cell<'a>>) -> bool {
        match self {
            Self::Entry { family, tests } => match cells.next() {
                Some(Cell::Text(json)) => entry(*family, tests, json),
                // A missing value passes only tests for absence, which are negations and handled elsewhere.
                _ => false,
            },
            Self::Texts(check) => match cells.next() {
                Some(Cell::Texts(list)) => {
                    let texts = list.as_string::<i32>();
                    texts.iter().any(|text| text.is_some() && entries::text(check, text))
                }
                _ => false,
            },
            Self::Thread(check) => {
                let metadata = match cells.next() {
                    Some(Cell::Text(extra)) => metadata(extra),
                    _ => None,
                };
                entries::text(check, metadata.as_ref().and_then(thread_id).as_deref())
            }
            Self::Contains { wanted, form } => match cells.next() {
                Some(Cell::Text(text)) => form.read(text).is_some_and(|json| contains(&json, wanted)),
                _ => false,
            },
            Self::Search { needle, forms } => forms.iter().zip(cells).any(|(form, cell)| match (form, cell) {
                (_, Cell::Nothing) => false,
                (_, Cell::Texts(list)) => list
                    .as_string::<i32>()
                    .iter()
                    .flatten()
                    .any(|text| contains_ignoring_case(needle, text)),
                (ColumnFormat::Plain, Cell::Text(text)) => contains_ignoring_case(needle, text),
                // Without escapes, the texts contain only what the bytes contain.
                (_, Cell::Text(text)) if !text.contains('\\') && !contains_ignoring_case(needle, text) => false,
                (form, Cell::Text(text)) => form.read(text).is_some_and(|json| searched(needle, &json)),
            }),
            Self::Trace(traces) => match cells.next() {
                Some(Cell::Text(id)) => id.parse().is_ok_and(|id: Uuid| traces.contains(&id)),
                _ => false,
            },
        }
    }
}

fn entry(family: Family, tests: &[Condition], text: &str) -> bool {
    if !tests.iter().all(|test| matches_optional(test, text)) {
        return false;
    }
    match family {
        Family::Metadata => metadata(text).is_some_and(|metadata| one(tests, &metadata)),
        Family::Input | Family::Output => parse(text).is_some_and(|json| one(tests, &json)),
        Family::Feedback => {
            let given = parse(text);
            let mut given = given.iter().filter_map(Json::as_array).flatten();
            given.any(|feedback| {
                let key = feedback.get("key").and_then(Json::as_str).unwrap_or_default();
                let value = feedback.get("value").unwrap_or(&Json::Null);
                tests.iter().all(|test| passes(test, key, Some(value), Some(feedback)))
            })
        }
    }
}

fn one(tests: &[Condition], json: &Json<'_>) -> bool {
    any(json, &mut |key, value| {
        tests.iter().all(|test| passes(test, key, value, None))
    })
}

/// A cheap check that avoids parsing most rows: false if a passing entry must appear literally in the text and does
/// not.
fn matches_optional(test: &Condition, text: &str) -> bool {
    let Comparison::Equal(Value::Text(wanted)) = &test.comparison else {
        return true;
    };
    let part = match test.field {
        Field::Entry(_, Entry::Key) => wanted.rsplit('.').next().unwrap_or_default(),
        // Numbers may be written in other ways.
        Field::Entry(_, Entry::Value) if wanted.parse::<f64>().is_err() => wanted,
        _ => return true,
    };
    text.contains('\\') || part.contains(|c: char| c == '"' || c.is_control()) || text.contains(part)
}

/// The JSON of a column. Ingest has validated it; invalid JSON counts as empty.
fn parse(text: &str) -> Option<Json<'_>> {
    Json::parse(text).ok()
}

/// The metadata in `extra`, without building the rest.
pub fn metadata(extra: &str) -> Option<Json<'_>> {
    let [metadata] = members(extra, ["metadata"])?;
    parse(metadata?)
}
