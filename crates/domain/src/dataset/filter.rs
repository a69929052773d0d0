//! The filter language of examples, which looks at their metadata only.
//!
//! ```text
//! expr := and(expr, …) | or(expr, …) | not(expr) | has(metadata, "<JSON object>") | exists(metadata, "key")
//! ```
//!
//! Texts stand in single or double quotes; a backslash takes the meaning of the next character away.

use serde_json::{Map, Value};

const MAX_BYTES: usize = 16 * 1024;
const MAX_DEPTH: usize = 32;

/// A parsed filter.
#[derive(Clone, Debug, PartialEq)]
pub enum ExampleFilter {
    And(Vec<ExampleFilter>),
    Or(Vec<ExampleFilter>),
    Not(Box<ExampleFilter>),
    /// The metadata contain this object.
    Has(Map<String, Value>),
    /// The metadata has this key.
    Exists(String),
}

/// Why a filter cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {message}")]
pub struct ExampleFilterError {
    /// The position of the error, in characters from 1.
    pub position: usize,
    pub message: &'static str,
}

impl ExampleFilter {
    pub fn parse(text: &str) -> Result<Self, ExampleFilterError> {
        if text.len() > MAX_BYTES {
            return Err(ExampleFilterError {
                position: 1,
                message: "the filter has more than 16 KiB",
            });
        }
        let mut reader = FilterParser {
            chars: text.chars().collect(),
            position: 0,
        };
        let filter = reader.expression(0)?;
        reader.skip_blanks();
        if reader.position < reader.chars.len() {
            return Err(reader.error("expected the end of the filter"));
        }
        Ok(filter)
    }

    #[must_use]
    pub fn matches(&self, metadata: &Map<String, Value>) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.matches(metadata)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(metadata)),
            Self::Not(part) => !part.matches(metadata),
            Self::Has(wanted) => has_entries(metadata, wanted),
            Self::Exists(key) => metadata.contains_key(key),
        }
    }
}

fn has_entries(object: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    wanted
        .iter()
        .all(|(key, wanted)| object.get(key).is_some_and(|value| contains(value, wanted)))
}

fn contains(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Object(object), Value::Object(wanted)) => has_entries(object, wanted),
        (Value::Array(items), Value::Array(wanted)) => wanted
            .iter()
            .all(|wanted| items.iter().any(|item| contains(item, wanted))),
        (value, wanted) => value == wanted,
    }
}

struct FilterParser {
    chars: Vec<char>,
    position: usize,
}

impl FilterParser {
    fn error(&self, message: &'static str) -> ExampleFilterError {
        ExampleFilterError {
            position: self.position + 1,
            message,
        }
    }

    fn skip_blanks(&mut self) {
        while self.chars.get(self.position).is_some_and(|char| char.is_whitespace()) {
            self.position += 1;
        }
    }

    fn read_word(&mut self) -> String {
        self.skip_blanks();
        let rest = self.chars[self.position..].iter();
        let word: String = rest.take_while(|char| char.is_ascii_alphabetic()).collect();
        self.position += word.len();
        word
    }

    fn consume(&mut self, wanted: char) -> bool {
        self.skip_blanks();
        let taken = self.chars.get(self.position) == Some(&wanted);
        self.position += usize::from(taken);
        taken
    }

    fn expect(&mut self, wanted: char, message: &'static str) -> Result<(), ExampleFilterError> {
        if self.consume(wanted) {
            Ok(())
        } else {
            Err(self.error(message))
        }
    }

    fn expression(&mut self, depth: usize) -> Result<ExampleFilter, ExampleFilterError> {
        if depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        self.skip_blanks();
        let start = self.position;
        let name = self.read_word();
        self.expect('(', "expected an opening bracket")?;
        let filter = match name.as_str() {
            "and" => ExampleFilter::And(self.expressions(depth)?),
            "or" => ExampleFilter::Or(self.expressions(depth)?),
            "not" => ExampleFilter::Not(Box::new(self.expression(depth + 1)?)),
            "has" => {
                self.metadata()?;
                self.skip_blanks();
                let begin = self.position;
                let text = self.read_text()?;
                match serde_json::from_str(&text) {
                    Ok(Value::Object(wanted)) => ExampleFilter::Has(wanted),
                    _ => {
                        self.position = begin;
                        return Err(self.error("expected a string that holds a JSON object"));
                    }
                }
            }
            "exists" => {
                self.metadata()?;
                ExampleFilter::Exists(self.read_text()?)
            }
            _ => {
                self.position = start;
                return Err(self.error("expected and, or, not, has or exists"));
            }
        };
        self.expect(')', "expected a closing bracket")?;
        Ok(filter)
    }

    fn expressions(&mut self, depth: usize) -> Result<Vec<ExampleFilter>, ExampleFilterError> {
        let mut all = vec![self.expression(depth + 1)?];
        while self.consume(',') {
            all.push(self.expression(depth + 1)?);
        }
        Ok(all)
    }

    fn metadata(&mut self) -> Result<(), ExampleFilterError> {
        self.skip_blanks();
        let start = self.position;
        if self.read_word() != "metadata" {
            self.position = start;
            return Err(self.error("expected metadata, the only field that filters of examples support"));
        }
        self.expect(',', "expected a comma")
    }

    fn read_text(&mut self) -> Result<String, ExampleFilterError> {
        self.skip_blanks();
        let quote = match self.chars.get(self.position) {
            Some(quote @ ('"' | '\'')) => *quote,
            _ => return Err(self.error("expected a quoted string")),
        };
        self.position += 1;
        let mut text = String::new();
        loop {
            match self.chars.get(self.position).copied() {
                None => return Err(self.error("expected the closing quote")),
                Some(char) if char == quote => break,
                Some('\\') => {
                    let next = self.chars.get(self.position + 1).copied();
                    // Other escapes are left to the JSON parser.
                    match next {
                        Some(next) if next == quote => text.push(next),
                        Some(next) => text.extend(['\\', next]),
                        None => return Err(self.error("expected the closing quote")),
                    }
                    self.position += 2;
                }
                Some(char) => {
                    text.push(char);
                    self.position += 1;
                }
            }
        }
        self.position += 1;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(filter: &str, metadata: &Value) -> bool {
        let metadata = metadata.as_object().unwrap();
        ExampleFilter::parse(filter).unwrap().matches(metadata)
    }

    #[test]
    fn filters_look_at_metadata() {
        let metadata = json!({"foo": "bar", "n": {"a": 1, "b": [1, 2]}});
        for (filter, expected) in [
            (r#"has(metadata, '{"foo": "bar"}')"#, true),
            (r#"has(metadata, "{\"n\": {\"b\": [2]}}")"#, true),
            (r#"has(metadata, '{"n": {"b": [3]}}')"#, false),
            (r#"exists(metadata, "n")"#, true),
            (
                r#"and(not(has(metadata, '{"foo": "bar"}')), exists(metadata, "n"))"#,
                false,
            ),
            (r#" or( exists(metadata,'x') , exists(metadata , 'foo') ) "#, true),
        ] {
            assert_eq!(holds(filter, &metadata), expected, "{filter}");
        }
    }

    #[test]
    fn mistakes_say_where_they_are() {
        for (filter, position) in [
            ("", 1),
            ("has(inputs, '{}')", 5),
            ("has(metadata, '[]')", 15),
            ("and(exists(metadata, 'a')", 26),
            ("exists(metadata, 'a') more", 23),
            ("nor(exists(metadata, 'a'))", 1),
        ] {
            assert_eq!(ExampleFilter::parse(filter).unwrap_err().position, position, "{filter}");
        }
        let deep = "not(".repeat(40);
        ExampleFilter::parse(&deep).unwrap_err();
    }
}
