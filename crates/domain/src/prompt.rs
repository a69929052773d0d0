//! Rules for prompts: names, tags, texts, and what their manifests say.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Rejection;

/// Limit in characters, also for the name of a commit's tag.
pub const MAX_NAME_LENGTH: usize = 256;
/// Limit of a prompt's description, in characters.
pub const MAX_DESCRIPTION_LENGTH: usize = 10_000;
/// Limit in characters.
pub const MAX_README_LENGTH: usize = 100_000;
/// Limit of a commit's description, in characters.
pub const MAX_COMMIT_DESCRIPTION_LENGTH: usize = 1_000;
/// Labels of one prompt.
pub const MAX_LABELS: usize = 100;
pub const MAX_MANIFEST_BYTES: usize = 1024 * 1024;
/// The name that always means the newest commit.
pub const LATEST: &str = "latest";
/// The owner of every prompt of a workspace, as clients write it.
pub const OWNER: &str = "-";
/// A shorter text names a tag only.
pub const MIN_HASH_PREFIX: usize = 8;
/// Hexadecimal digits of a commit's hash.
const HASH_LENGTH: usize = 64;

/// Checks the name of a prompt.
///
/// # Errors
/// `Invalid` naming `repo_handle`.
pub fn check_name(name: &str) -> Result<(), Rejection> {
    check_handle("repo_handle", name)
}

/// Checks the name of a commit's tag.
///
/// # Errors
/// `Invalid` naming `tag_name`.
pub fn check_tag(name: &str) -> Result<(), Rejection> {
    if name == LATEST {
        let text = "`latest` is reserved for the newest commit; choose another tag";
        return Err(Rejection::invalid("tag_name", text));
    }
    check_handle("tag_name", name)
}

/// Names are parts of paths.
fn check_handle(field: &str, name: &str) -> Result<(), Rejection> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if starts && name.len() <= MAX_NAME_LENGTH && name.chars().all(is_plain) {
        return Ok(());
    }
    let text = format!(
        "expected 1 to {MAX_NAME_LENGTH} letters, digits, dashes, underscores and dots, with a letter or a digit first"
    );
    Err(Rejection::invalid(field, text))
}

/// Checks a text for people.
///
/// # Errors
/// `Invalid` naming `field`.
pub fn check_text(field: &str, text: &str, longest: usize) -> Result<(), Rejection> {
    if text.chars().count() > longest {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {longest} characters"),
        ));
    }
    if text.contains('\0') {
        return Err(Rejection::invalid(field, "expected text without NUL characters"));
    }
    Ok(())
}

/// Checks the labels of a prompt.
///
/// # Errors
/// `Invalid` naming `tags`.
pub fn check_labels(labels: &[String]) -> Result<(), Rejection> {
    if labels.len() > MAX_LABELS {
        return Err(Rejection::invalid(
            "tags",
            format!("expected at most {MAX_LABELS} tags"),
        ));
    }
    labels.iter().try_for_each(|label| {
        if label.is_empty() {
            return Err(Rejection::invalid("tags", "expected tags that are not empty"));
        }
        check_text("tags", label, MAX_NAME_LENGTH)
    })
}

/// Whether a text may be the beginning of a commit's hash.
#[must_use]
pub fn is_hash_prefix(text: &str) -> bool {
    (MIN_HASH_PREFIX..=HASH_LENGTH).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A prompt that is followed by a model, as LangChain writes it.
#[derive(Deserialize)]
struct Sequence {
    id: Vec<String>,
    kwargs: Steps,
}

#[derive(Deserialize)]
struct Steps {
    first: Box<RawValue>,
}

/// The prompt of a manifest that also has a model; `None` if the manifest is the prompt itself. Clients load the model
/// only when they ask for it, and refuse a manifest that has one otherwise.
#[must_use]
pub fn without_model(manifest: &str) -> Option<Box<RawValue>> {
    let sequence: Sequence = serde_json::from_str(manifest).ok()?;
    let kind = sequence.id.last().map(String::as_str);
    let is_sequence = matches!(kind, Some("RunnableSequence" | "PromptPlayground"));
    let first = sequence.kwargs.first;
    (is_sequence && first.get().starts_with('{')).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_paths() {
        for name in ["a", "Lock-keeper_2.v1", "7", &"x".repeat(MAX_NAME_LENGTH)] {
            check_name(name).unwrap();
            check_tag(name).unwrap();
        }
        for wrong in [
            "",
            "-",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "é",
            "a\0",
            &"x".repeat(MAX_NAME_LENGTH + 1),
        ] {
            assert_eq!(check_name(wrong).unwrap_err().field, "repo_handle", "{wrong}");
            assert_eq!(check_tag(wrong).unwrap_err().field, "tag_name", "{wrong}");
        }
        assert_eq!(check_tag(LATEST).unwrap_err().field, "tag_name");
        check_name(LATEST).unwrap();
    }

    #[test]
    fn texts_and_labels_have_bounds() {
        check_text("readme", &"é".repeat(5), 5).unwrap();
        for wrong in ["abcdef", "a\0"] {
            assert_eq!(check_text("readme", wrong, 5).unwrap_err().field, "readme");
        }
        check_labels(&["a".to_owned()]).unwrap();
        for wrong in [vec![String::new()], vec!["a".to_owned(); MAX_LABELS + 1]] {
            assert_eq!(check_labels(&wrong).unwrap_err().field, "tags");
        }
    }

    #[test]
    fn a_hash_is_known_by_its_beginning() {
        for hash in ["01234567", &"f".repeat(64)] {
            assert!(is_hash_prefix(hash), "{hash}");
        }
        for other in ["0123456", "production", "ABCDEF01", &"f".repeat(65)] {
            assert!(!is_hash_prefix(other), "{other}");
        }
    }

    #[test]
    fn the_model_is_left_out() {
        let chain = r#"{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "runnable", "RunnableSequence"],
                        "kwargs": {"first": {"lc": 1, "n": 1e400}, "last": {"lc": 1}}}"#;
        assert_eq!(without_model(chain).unwrap().get(), r#"{"lc": 1, "n": 1e400}"#);
        for prompt in [
            "{}",
            r#"{"id": ["langchain", "prompts", "ChatPromptTemplate"], "kwargs": {"first": {}}}"#,
            r#"{"id": ["RunnableSequence"], "kwargs": {"first": 1}}"#,
            r#"{"id": ["RunnableSequence"], "kwargs": {}}"#,
        ] {
            assert!(without_model(prompt).is_none(), "{prompt}");
        }
    }
}
