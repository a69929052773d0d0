//! Tests of JSON, of lists and of sets, row by row.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use towpath_domain::filter::{Check, Entry, Family, Field, Test, Value};
use towpath_domain::json::{Value as Json, members};
use towpath_domain::trace::thread_id;
use uuid::Uuid;

use super::entries::{self, any, contains, passes, searched};
use super::text::found;

/// What stands in a cell.
pub enum Cell<'a> {
    Nothing,
    Text(&'a str),
    Texts(ArrayRef),
}

/// A test that is no expression.
#[derive(Debug)]
pub enum Judge {
    /// One entry passes all of them.
    Entry { family: Family, tests: Vec<Test> },
    /// One of the texts of a list passes.
    Texts(Check),
    /// The thread named in the metadata passes.
    Thread(Check),
    /// The JSON of a column has all of this.
    Contains { wanted: Json<'static>, form: Form },
    /// One of the columns has this, which is in lower case, in it.
    Search { needle: String, forms: Vec<Form> },
    /// The id is one of them.
    Trace(Arc<HashSet<Uuid>>),
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text, or texts.
    Plain,
    /// JSON.
    Json,
    /// JSON of which only `metadata` counts.
    Metadata,
}

impl Form {
    /// The JSON that counts.
    fn read(self, text: &str) -> Option<Json<'_>> {
        match self {
            Self::Plain => None,
            Self::Json => parse(text),
            Self::Metadata => metadata(text),
        }
    }
}

impl Judge {
    pub fn search(text: &str, forms: &[Form]) -> Self {
        Self::Search {
            needle: text.to_lowercase(),
            forms: forms.to_vec(),
        }
    }

    pub fn contains(wanted: &Json<'static>, form: Form) -> Self {
        Self::Contains {
            wanted: wanted.clone(),
            form,
        }
    }

    /// Whether the test holds for a row.
    pub fn holds<'a>(&self, mut cells: impl Iterator<Item = Cell<'a>>) -> bool {
        match self {
            Self::Entry { family, tests } => match cells.next() {
                Some(Cell::Text(json)) => entry(*family, tests, json),
                // Where nothing is, only what asks for nothing holds; and that is a negation, made elsewhere.
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
                (_, Cell::Texts(list)) => list.as_string::<i32>().iter().flatten().any(|text| found(needle, text)),
                (Form::Plain, Cell::Text(text)) => found(needle, text),
                // Without escapes, what is in none of the bytes is in none of the texts.
                (_, Cell::Text(text)) if !text.contains('\\') && !found(needle, text) => false,
                (form, Cell::Text(text)) => form.read(text).is_some_and(|json| searched(needle, &json)),
            }),
            Self::Trace(traces) => match cells.next() {
                Some(Cell::Text(id)) => id.parse().is_ok_and(|id: Uuid| traces.contains(&id)),
                _ => false,
            },
        }
    }
}

fn entry(family: Family, tests: &[Test], text: &str) -> bool {
    if !tests.iter().all(|test| perhaps(test, text)) {
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

fn one(tests: &[Test], json: &Json<'_>) -> bool {
    any(json, &mut |key, value| {
        tests.iter().all(|test| passes(test, key, value, None))
    })
}

/// False where an entry that passes would have to stand in the text letter by letter, and does not. Saves the parsing
/// of nearly every row.
fn perhaps(test: &Test, text: &str) -> bool {
    let Check::Equal(Value::Text(wanted)) = &test.check else {
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

/// The JSON in a column. Ingest has checked it; where it is none all the same, nothing is in it.
fn parse(text: &str) -> Option<Json<'_>> {
    Json::parse(text).ok()
}

/// The metadata in `extra`. Of the rest of it nothing is built.
fn metadata(extra: &str) -> Option<Json<'_>> {
    let [metadata] = members(extra, ["metadata"])?;
    parse(metadata?)
}
