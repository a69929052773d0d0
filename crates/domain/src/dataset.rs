//! Datasets: the rules about their names, their sorts, and the splits of their examples.

mod filter;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Rejection;

pub use filter::{ExampleFilter, ExampleFilterError};

/// The most characters a dataset's name may have.
pub const LONGEST_NAME: usize = 512;
/// The most characters the name of a tag, a split or a file may have.
pub const LONGEST_LABEL: usize = 512;
/// Examples of one request.
pub const MOST_EXAMPLES: usize = 10_000;
/// Splits of one example.
pub const MOST_SPLITS: usize = 100;
/// The key of an example's metadata that names its splits.
pub const SPLIT_KEY: &str = "dataset_split";
/// The split of an example whose maker names none.
pub const BASE_SPLIT: &str = "base";

/// What the inputs and outputs of a dataset's examples look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    /// Any keys and values.
    #[default]
    Kv,
    /// A text in, a text out.
    Llm,
    /// Messages in, a message out.
    Chat,
}

impl DataType {
    /// Its name, as clients and the database write it.
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
    check_text("name", name, LONGEST_NAME)
}

/// Checks the name of a tag, a split or a file.
///
/// # Errors
/// `Invalid` naming `field`.
pub fn check_label(field: &str, label: &str) -> Result<(), Rejection> {
    check_text(field, label, LONGEST_LABEL)
}

fn check_text(field: &str, text: &str, longest: usize) -> Result<(), Rejection> {
    if text.is_empty() || text.chars().count() > longest {
        return Err(Rejection::invalid(field, format!("expected 1 to {longest} characters")));
    }
    if text.contains('\0') {
        return Err(Rejection::invalid(field, "expected a text without NUL"));
    }
    Ok(())
}

/// The splits that an example's metadata names.
#[must_use]
pub fn splits(metadata: &Map<String, Value>) -> Vec<String> {
    match metadata.get(SPLIT_KEY) {
        Some(Value::String(split)) => vec![split.clone()],
        Some(Value::Array(splits)) => splits.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// The metadata of an example that is written: what was sent in the place of what is stored, and splits in any case. Splits
/// that are sent beside the metadata win over those in it, and stored ones stay where neither says any.
///
/// # Errors
/// `Invalid` naming `split`.
pub fn metadata(
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

/// Puts an example into these splits and no others.
///
/// # Errors
/// `Invalid` naming `split`.
pub fn set_splits(metadata: &mut Map<String, Value>, splits: Vec<String>) -> Result<(), Rejection> {
    if splits.len() > MOST_SPLITS {
        return Err(Rejection::invalid(
            "split",
            format!("expected at most {MOST_SPLITS} splits"),
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
        let made = metadata(None, None, None).unwrap();
        assert_eq!(Value::from(made), json!({"dataset_split": ["base"]}));
        let made = metadata(None, Some(map(&json!({"a": 1, "dataset_split": "test"}))), None).unwrap();
        assert_eq!(Value::from(made), json!({"a": 1, "dataset_split": ["test"]}));
        let stored = map(&json!({"a": 1, "dataset_split": ["test"]}));
        let changed = metadata(Some(stored.clone()), Some(map(&json!({"b": 2}))), None).unwrap();
        assert_eq!(Value::from(changed), json!({"b": 2, "dataset_split": ["test"]}));
        let changed = metadata(Some(stored), None, Some(vec!["train".to_owned()])).unwrap();
        assert_eq!(Value::from(changed), json!({"a": 1, "dataset_split": ["train"]}));
    }

    #[test]
    fn names_have_bounds() {
        for wrong in ["", "a\0b", &"x".repeat(LONGEST_NAME + 1)] {
            assert_eq!(check_name(wrong).unwrap_err().field, "name");
        }
        check_name(&"é".repeat(LONGEST_NAME)).unwrap();
    }
}
