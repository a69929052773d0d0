//! The filter language of examples, which looks at their metadata only.
//!
//! ```text
//! expr := and(expr, …) | or(expr, …) | not(expr) | has(metadata, "<JSON object>") | exists(metadata, "key")
//! ```
//!
//! Texts stand in single or double quotes; a backslash takes the meaning of the next character away.

use serde_json::{Map, Value};

/// Longest text of a filter, in bytes.
const MAX_BYTES: usize = 16 * 1024;
/// Deepest nesting.
const MAX_DEPTH: usize = 32;

/// A filter that was understood.
#[derive(Clone, Debug, PartialEq)]
pub enum ExampleFilter {
    /// All of them hold.
    And(Vec<ExampleFilter>),
    /// At least one of them holds.
    Or(Vec<ExampleFilter>),
    /// It does not hold.
    Not(Box<ExampleFilter>),
    /// The metadata has everything that this object has.
    Has(Map<String, Value>),
    /// The metadata has this key.
    Exists(String),
}

/// Why a filter was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {message}")]
pub struct ExampleFilterError {
    /// The character it is about, from 1.
    pub position: usize,
    /// What was expected there.
    pub message: &'static str,
}

impl ExampleFilter {
    /// Understands a filter.
    ///
    /// # Errors
    /// Where the text stops making sense.
    pub fn parse(text: &str) -> Result<Self, ExampleFilterError> {
        if text.len() > MAX_BYTES {
            return Err(ExampleFilterError {
                position: 1,
                message: "the filter is longer than 16 KiB",
            });
        }
        let mut reader = Reader {
            chars: text.chars().collect(),
            at: 0,
        };
        let filter = reader.expression(0)?;
        reader.blanks();
        if reader.at < reader.chars.len() {
            return Err(reader.error("expected the end of the filter"));
        }
        Ok(filter)
    }

    /// Whether it holds for an example's metadata.
    #[must_use]
    pub fn holds(&self, metadata: &Map<String, Value>) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.holds(metadata)),
            Self::Or(parts) => parts.iter().any(|part| part.holds(metadata)),
            Self::Not(part) => !part.holds(metadata),
            Self::Has(wanted) => has(metadata, wanted),
            Self::Exists(key) => metadata.contains_key(key),
        }
    }
}

fn has(object: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    wanted
        .iter()
        .all(|(key, wanted)| object.get(key).is_some_and(|value| contains(value, wanted)))
}

fn contains(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Object(object), Value::Object(wanted)) => has(object, wanted),
        (Value::Array(items), Value::Array(wanted)) => wanted
            .iter()
            .all(|wanted| items.iter().any(|item| contains(item, wanted))),
        (value, wanted) => value == wanted,
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn error(&self, message: &'static str) -> ExampleFilterError {
        ExampleFilterError {
            position: self.at + 1,
            message,
        }
    }

    fn blanks(&mut self) {
        while self.chars.get(self.at).is_some_and(|char| char.is_whitespace()) {
            self.at += 1;
        }
    }

    fn word(&mut self) -> String {
        self.blanks();
        let rest = self.chars[self.at..].iter();
        let word: String = rest.take_while(|char| char.is_ascii_alphabetic()).collect();
        self.at += word.len();
        word
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.blanks();
        let taken = self.chars.get(self.at) == Some(&wanted);
        self.at += usize::from(taken);
        taken
    }

    fn expect(&mut self, wanted: char, message: &'static str) -> Result<(), ExampleFilterError> {
        if self.takes(wanted) {
            Ok(())
        } else {
            Err(self.error(message))
        }
    }

    fn expression(&mut self, depth: usize) -> Result<ExampleFilter, ExampleFilterError> {
        if depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        self.blanks();
        let start = self.at;
        let name = self.word();
        self.expect('(', "expected an opening bracket")?;
        let filter = match name.as_str() {
            "and" => ExampleFilter::And(self.expressions(depth)?),
            "or" => ExampleFilter::Or(self.expressions(depth)?),
            "not" => ExampleFilter::Not(Box::new(self.expression(depth + 1)?)),
            "has" => {
                self.metadata()?;
                self.blanks();
                let begin = self.at;
                let text = self.text()?;
                match serde_json::from_str(&text) {
                    Ok(Value::Object(wanted)) => ExampleFilter::Has(wanted),
                    _ => {
                        self.at = begin;
                        return Err(self.error("expected a text that is a JSON object"));
                    }
                }
            }
            "exists" => {
                self.metadata()?;
                ExampleFilter::Exists(self.text()?)
            }
            _ => {
                self.at = start;
                return Err(self.error("expected and, or, not, has or exists"));
            }
        };
        self.expect(')', "expected a closing bracket")?;
        Ok(filter)
    }

    fn expressions(&mut self, depth: usize) -> Result<Vec<ExampleFilter>, ExampleFilterError> {
        let mut all = vec![self.expression(depth + 1)?];
        while self.takes(',') {
            all.push(self.expression(depth + 1)?);
        }
        Ok(all)
    }

    fn metadata(&mut self) -> Result<(), ExampleFilterError> {
        self.blanks();
        let start = self.at;
        if self.word() != "metadata" {
            self.at = start;
            return Err(self.error("expected metadata, the only field that examples are filtered by"));
        }
        self.expect(',', "expected a comma")
    }

    fn text(&mut self) -> Result<String, ExampleFilterError> {
        self.blanks();
        let quote = match self.chars.get(self.at) {
            Some(quote @ ('"' | '\'')) => *quote,
            _ => return Err(self.error("expected a text in quotes")),
        };
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.chars.get(self.at).copied() {
                None => return Err(self.error("expected the closing quote")),
                Some(char) if char == quote => break,
                Some('\\') => {
                    let next = self.chars.get(self.at + 1).copied();
                    // Other escapes are those of the JSON inside.
                    match next {
                        Some(next) if next == quote => text.push(next),
                        Some(next) => text.extend(['\\', next]),
                        None => return Err(self.error("expected the closing quote")),
                    }
                    self.at += 2;
                }
                Some(char) => {
                    text.push(char);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(filter: &str, metadata: &Value) -> bool {
        let metadata = metadata.as_object().unwrap();
        ExampleFilter::parse(filter).unwrap().holds(metadata)
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
