//! Rules for datasets: names, data types, and the splits of examples.

mod filter;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Rejection, Timestamp};

pub use filter::{ExampleFilter, ExampleFilterError};

pub const MAX_NAME_LENGTH: usize = 512;
/// The limit for names of tags, splits and files, in characters.
pub const MAX_LABEL_LENGTH: usize = 512;
/// Limit per request.
pub const MAX_EXAMPLES: usize = 10_000;
/// Limit per example.
pub const MAX_SPLITS: usize = 100;
pub const MAX_MIME_TYPE_LENGTH: usize = 255;
/// The start of the year 1, the earliest time of a dataset.
pub const MIN_TIME: Timestamp = Timestamp::from_micros(-62_135_596_800_000_000);
/// The end of the year 9999, the latest time of a dataset.
pub const MAX_TIME: Timestamp = Timestamp::from_micros(253_402_300_799_999_999);
/// The key of an example's metadata that names its splits.
pub const SPLIT_KEY: &str = "dataset_split";
/// The split of an example without an explicit split.
pub const BASE_SPLIT: &str = "base";

/// The shape of the inputs and outputs of a dataset's examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    /// Any keys and values.
    #[default]
    Kv,
    /// Text in, text out.
    Llm,
    /// Messages in, one message out.
    Chat,
}

impl DataType {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Llm => "llm",
            Self::Chat => "chat",
        }
    }
}

/// Checks a dataset's name.
///
/// # Errors
/// `Invalid` naming `name`.
pub fn check_name(name: &str) -> Result<(), Rejection> {
    check_text("name", name, MAX_NAME_LENGTH)
}

/// Checks the name of a tag, a split or a file.
///
/// # Errors
/// `Invalid` naming `field`.
pub fn check_label(field: &str, label: &str) -> Result<(), Rejection> {
    check_text(field, label, MAX_LABEL_LENGTH)
}

/// Checks a time of a request.
///
/// # Errors
/// `Invalid` naming `field`.
pub fn check_time(field: &str, time: Timestamp) -> Result<(), Rejection> {
    if (MIN_TIME..=MAX_TIME).contains(&time) {
        return Ok(());
    }
    Err(Rejection::invalid(field, "expected a year from 1 to 9999"))
}

/// Checks the media type of a file, which becomes a header when the file is read.
///
/// # Errors
/// `Invalid` naming `attachments`.
pub fn check_mime_type(mime_type: &str) -> Result<(), Rejection> {
    if mime_type.len() > MAX_MIME_TYPE_LENGTH {
        let text = format!("expected types of at most {MAX_MIME_TYPE_LENGTH} bytes");
        return Err(Rejection::invalid("attachments", text));
    }
    if mime_type.chars().any(char::is_control) {
        return Err(Rejection::invalid(
            "attachments",
            "expected types without control characters",
        ));
    }
    Ok(())
}

fn check_text(field: &str, text: &str, longest: usize) -> Result<(), Rejection> {
    if text.is_empty() || text.chars().count() > longest {
        return Err(Rejection::invalid(field, format!("expected 1 to {longest} characters")));
    }
    if text.contains('\0') {
        return Err(Rejection::invalid(field, "expected text without NUL characters"));
    }
    Ok(())
}

#[must_use]
pub fn splits(metadata: &Map<String, Value>) -> Vec<String> {
    match metadata.get(SPLIT_KEY) {
        Some(Value::String(split)) => vec![split.clone()],
        Some(Value::Array(splits)) => splits.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// The new metadata of an example: the sent metadata replace the stored ones. Splits sent as their own field win over
/// those in the metadata; stored splits stay if neither names any.
///
/// # Errors
/// `Invalid` naming `split`.
pub fn merge_metadata(
    stored: Option<Map<String, Value>>,
    sent: Option<Map<String, Value>>,
    split: Option<Vec<String>>,
) -> Result<Map<String, Value>, Rejection> {
    let kept = stored.as_ref().map(splits).unwrap_or_default();
    let mut metadata = sent.or(stored).unwrap_or_default();
    let mut named = split.unwrap_or_else(|| splits(&metadata));
    if named.is_empty() {
        named = kept;
    }
    if named.is_empty() {
        named.push(BASE_SPLIT.to_owned());
    }
    set_splits(&mut metadata, named)?;
    Ok(metadata)
}

/// Replaces the splits of an example.
///
/// # Errors
/// `Invalid` naming `split`.
pub fn set_splits(metadata: &mut Map<String, Value>, splits: Vec<String>) -> Result<(), Rejection> {
    if splits.len() > MAX_SPLITS {
        return Err(Rejection::invalid(
            "split",
            format!("expected at most {MAX_SPLITS} splits"),
        ));
    }
    for split in &splits {
        check_label("split", split)?;
    }
    metadata.insert(SPLIT_KEY.to_owned(), Value::from(splits));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn an_example_is_always_in_a_split() {
        let made = merge_metadata(None, None, None).unwrap();
        assert_eq!(Value::from(made), json!({"dataset_split": ["base"]}));
        let made = merge_metadata(None, Some(map(&json!({"a": 1, "dataset_split": "test"}))), None).unwrap();
        assert_eq!(Value::from(made), json!({"a": 1, "dataset_split": ["test"]}));
        let stored = map(&json!({"a": 1, "dataset_split": ["test"]}));
        let changed = merge_metadata(Some(stored.clone()), Some(map(&json!({"b": 2}))), None).unwrap();
        assert_eq!(Value::from(changed), json!({"b": 2, "dataset_split": ["test"]}));
        let changed = merge_metadata(Some(stored), None, Some(vec!["train".to_owned()])).unwrap();
        assert_eq!(Value::from(changed), json!({"a": 1, "dataset_split": ["train"]}));
    }

    #[test]
    fn times_and_types_have_bounds() {
        for time in [MIN_TIME, MAX_TIME] {
            check_time("created_at", time).unwrap();
        }
        assert_eq!(MIN_TIME.to_string(), "0001-01-01T00:00:00.000000Z");
        assert_eq!(MAX_TIME.to_string(), "9999-12-31T23:59:59.999999Z");
        for time in ["-0044-03-15", "+12026-01-01"] {
            let time = Timestamp::parse(time).unwrap();
            assert_eq!(check_time("created_at", time).unwrap_err().field, "created_at");
        }
        check_mime_type("text/plain").unwrap();
        for wrong in ["text/\0", &"x".repeat(MAX_MIME_TYPE_LENGTH + 1)] {
            assert_eq!(check_mime_type(wrong).unwrap_err().field, "attachments");
        }
    }

    #[test]
    fn names_have_bounds() {
        for wrong in ["", "a\0b", &"x".repeat(MAX_NAME_LENGTH + 1)] {
            assert_eq!(check_name(wrong).unwrap_err().field, "name");
        }
        check_name(&"é".repeat(MAX_NAME_LENGTH)).unwrap();
    }
}
