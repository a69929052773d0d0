//! Paths to the texts of an item's value, as `store.index.fields` and the `index` of an item name them: `$` for the
//! whole value, `a.b`, `a[0]`, `a[-1]`, `a[*].b`, `a.*`, `a.{b,c.d}`.

use serde_json::Value;

/// The maximum number of bytes of a path.
const LONGEST: usize = 1000;
/// The maximum number of paths of one setting or item.
pub const MAX_PATHS: usize = 100;
/// The maximum number of texts of one item; more are not embedded.
pub const MAX_TEXTS: usize = 100;

/// Checks paths. The text says what is wrong with which one.
pub fn check(paths: &[String]) -> Result<(), String> {
    if paths.len() > MAX_PATHS {
        return Err(format!("expected at most {MAX_PATHS} paths, not {}", paths.len()));
    }
    let wrong = |path: &String| path.is_empty() || path.len() > LONGEST || path.contains('\0');
    match paths.iter().find(|path| wrong(path)) {
        Some(path) => Err(format!(
            "{:?} is not a path: expected 1 to {LONGEST} bytes, such as \"$\", \"text\" or \"notes[*].text\"",
            path.chars().take(100).collect::<String>()
        )),
        None => Ok(()),
    }
}

/// The texts of `value` at `paths`, at most [`MAX_TEXTS`], without empty ones.
#[must_use]
pub fn texts(value: &Value, paths: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for path in paths {
        if path == "$" {
            found.push(json(value));
        } else {
            collect(value, &tokens(path), &mut found);
        }
    }
    found.retain(|text| !text.trim().is_empty());
    found.truncate(MAX_TEXTS);
    found
}

/// The parts of a path: names, `[…]` and `{…}`.
fn tokens(path: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut current = String::new();
    let mut chars = path.chars();
    while let Some(char) = chars.next() {
        let closing = match char {
            '[' => ']',
            '{' => '}',
            '.' => {
                tokens.extend((!current.is_empty()).then(|| std::mem::take(&mut current)));
                continue;
            }
            _ => {
                current.push(char);
                continue;
            }
        };
        tokens.extend((!current.is_empty()).then(|| std::mem::take(&mut current)));
        let mut inside = String::from(char);
        let mut open = 1;
        while open > 0
            && let Some(next) = chars.next()
        {
            open += i32::from(next == char) - i32::from(next == closing);
            inside.push(next);
        }
        tokens.push(inside);
    }
    tokens.extend((!current.is_empty()).then_some(current));
    tokens
}

fn collect(value: &Value, tokens: &[String], found: &mut Vec<String>) {
    if found.len() >= MAX_TEXTS {
        return;
    }
    let Some((token, rest)) = tokens.split_first() else {
        found.extend(leaf(value));
        return;
    };
    if let Some(index) = inner(token, '[', ']') {
        let Value::Array(entries) = value else { return };
        if index == "*" {
            entries.iter().for_each(|entry| collect(entry, rest, found));
        } else if let Some(entry) = position(index, entries.len()).and_then(|at| entries.get(at)) {
            collect(entry, rest, found);
        }
    } else if let Some(fields) = inner(token, '{', '}') {
        for field in fields.split(',') {
            let names = self::tokens(field.trim());
            let named = names
                .iter()
                .try_fold(value, |object, name| object.as_object()?.get(name.as_str()));
            found.extend(named.filter(|_| !names.is_empty()).and_then(leaf));
        }
    } else if token == "*" {
        match value {
            Value::Array(entries) => entries.iter().for_each(|entry| collect(entry, rest, found)),
            Value::Object(members) => members.values().for_each(|member| collect(member, rest, found)),
            _ => {}
        }
    } else if let Some(member) = value.as_object().and_then(|members| members.get(token.as_str())) {
        collect(member, rest, found);
    }
}

fn inner(token: &str, opening: char, closing: char) -> Option<&str> {
    token.strip_prefix(opening)?.strip_suffix(closing)
}

/// An index that may count from the end.
fn position(index: &str, length: usize) -> Option<usize> {
    let index: i64 = index.trim().parse().ok()?;
    if index >= 0 {
        return usize::try_from(index).ok();
    }
    length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)
}

/// The text of a value at the end of a path; none for null.
fn leaf(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Array(_) | Value::Object(_) => json(value),
    })
}

/// JSON with sorted keys and with the spaces that Python's encoder writes: a text that was embedded elsewhere has the
/// same vector here.
fn json(value: &Value) -> String {
    let mut text = String::new();
    write_json(value, &mut text);
    text
}

fn write_json(value: &Value, text: &mut String) {
    match value {
        Value::Array(entries) => {
            text.push('[');
            for (nth, entry) in entries.iter().enumerate() {
                text.push_str(if nth > 0 { ", " } else { "" });
                write_json(entry, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (nth, (name, member)) in sorted.into_iter().enumerate() {
                text.push_str(if nth > 0 { ", " } else { "" });
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push_str(": ");
                write_json(member, text);
            }
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(paths: &[&str]) -> Vec<String> {
        let value = json!({
            "text": "bread", "n": 1, "yes": true, "none": null, "blank": " ",
            "notes": [{"text": "one"}, {"text": "two"}, {"other": "x"}], "deep": {"a": {"c": "C"}, "b": "B"}
        });
        let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
        check(&paths).unwrap();
        texts(&value, &paths)
    }

    #[test]
    fn paths_find_what_langgraphs_do() {
        assert_eq!(
            at(&["text", "n", "yes", "none", "missing", "blank"]),
            ["bread", "1", "True"]
        );
        assert_eq!(
            at(&["notes[*].text", "notes[-1].other", "notes[7].text"]),
            ["one", "two", "x"]
        );
        assert_eq!(
            at(&["deep.{b, a.c,missing}", "deep.*"]),
            ["B", "C", "{\"c\": \"C\"}", "B"]
        );
        assert_eq!(at(&["deep"]), [r#"{"a": {"c": "C"}, "b": "B"}"#]);
        assert_eq!(
            texts(&json!({"b": [1, "ü"], "a": null}), &["$".to_owned()]),
            [r#"{"a": null, "b": [1, "ü"]}"#]
        );
    }

    #[test]
    fn an_item_has_so_many_texts() {
        let value = json!({"a": (0..500).collect::<Vec<_>>()});
        assert_eq!(texts(&value, &["a[*]".to_owned()]).len(), MAX_TEXTS);
    }

    #[test]
    fn paths_that_are_none_are_refused() {
        assert!(check(&[String::new()]).is_err());
        assert!(check(&["x".repeat(LONGEST + 1)]).is_err());
        assert!(check(&vec!["x".to_owned(); MAX_PATHS + 1]).is_err());
        assert!(check(&["{".to_owned(), "[".to_owned()]).is_ok(), "they find nothing");
    }
}
