//! A reader of JSON for what clients may send and servers have to return: numbers of any size, halves of surrogate
//! pairs, names that an object has twice, deep nesting. It shares no code with the product.

use std::collections::BTreeMap;
use std::fmt;

/// A JSON value. Numbers are kept as they were written. Halves of surrogate pairs read as U+FFFD. Of a name that an
/// object has twice the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

static NULL: Json = Json::Null;

impl Json {
    /// Reads exactly one value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value()?;
        reader.blank();
        if reader.at < text.len() {
            return Err(reader.wrong("text after the value"));
        }
        Ok(value)
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn number(number: impl fmt::Display) -> Self {
        Self::Number(number.to_string())
    }

    /// An object of these members.
    pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::Object(
            members
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    /// The member of that name; null if there is none.
    pub fn at(&self, name: &str) -> &Self {
        self.members().and_then(|members| members.get(name)).unwrap_or(&NULL)
    }

    pub fn members(&self) -> Option<&BTreeMap<String, Self>> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    pub fn items(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<&str> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Whether both say the same, numbers by their value.
    pub fn says(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) => {
                let value = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
                one == two || (value(one) - value(two)).abs() <= 1e-9 * value(one).abs().max(1.0)
            }
            (Self::List(one), Self::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.says(two))
            }
            (Self::Object(one), Self::Object(two)) => {
                one.len() == two.len()
                    && one
                        .iter()
                        .all(|(name, value)| two.get(name).is_some_and(|other| value.says(other)))
            }
            (one, two) => one == two,
        }
    }
}

/// As JSON.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => f.write_str(number),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (at, (name, value)) in members.iter().enumerate() {
                    write!(f, "{}{}:{value}", if at == 0 { "" } else { "," }, quoted(name))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// A text as a JSON string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(control))),
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Result<Json, String> {
        self.blank();
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.list(),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            _ => Err(self.wrong("no value")),
        }
    }

    fn object(&mut self) -> Result<Json, String> {
        let mut members = BTreeMap::new();
        self.at += 1;
        self.blank();
        if self.take(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.blank();
            if self.peek() != Some(b'"') {
                return Err(self.wrong("no name"));
            }
            let name = self.string()?;
            self.blank();
            if !self.take(b':') {
                return Err(self.wrong("no colon"));
            }
            members.insert(name, self.value()?);
            self.blank();
            if self.take(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.take(b',') {
                return Err(self.wrong("an object that does not go on"));
            }
        }
    }

    fn list(&mut self) -> Result<Json, String> {
        let mut items = Vec::new();
        self.at += 1;
        self.blank();
        if self.take(b']') {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value()?);
            self.blank();
            if self.take(b']') {
                return Ok(Json::List(items));
            }
            if !self.take(b',') {
                return Err(self.wrong("a list that does not go on"));
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut said = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
            let plain = plain.ok_or_else(|| self.wrong("a string without an end"))?;
            said.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(said);
                }
                Some(b'\\') => said.push(self.escape()?),
                _ => return Err(self.wrong("a control character")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        let char = match self.text.as_bytes().get(self.at + 1) {
            Some(b'u') => return self.unicode(),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(itself @ (b'"' | b'\\' | b'/')) => char::from(*itself),
            _ => return Err(self.wrong("an unknown escape")),
        };
        self.at += 2;
        Ok(char)
    }

    fn unicode(&mut self) -> Result<char, String> {
        let unit = |at: usize| {
            let digits = self.text.get(at..at + 6)?.strip_prefix("\\u")?;
            u32::from_str_radix(digits, 16).ok()
        };
        let first = unit(self.at).ok_or_else(|| self.wrong("an unfinished escape"))?;
        let pair = match (first, unit(self.at + 6)) {
            (0xd800..=0xdbff, Some(second @ 0xdc00..=0xdfff)) => {
                char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
            }
            _ => None,
        };
        self.at += if pair.is_some() { 12 } else { 6 };
        // Half of a pair is not a character.
        Ok(pair
            .or_else(|| char::from_u32(first))
            .unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn number(&mut self) -> Result<Json, String> {
        let rest = &self.text.as_bytes()[self.at..];
        let written = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let length = rest.iter().position(|byte| !written(byte)).unwrap_or(rest.len());
        let number = &self.text[self.at..self.at + length];
        if number.parse::<f64>().is_err() {
            return Err(self.wrong("no number"));
        }
        self.at += length;
        Ok(Json::Number(number.to_owned()))
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, String> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.wrong("no value"))
        }
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn wrong(&self, what: &str) -> String {
        let around = self.text.get(self.at..).unwrap_or_default();
        let around: String = around.chars().take(40).collect();
        format!("{what} at byte {}: {around}", self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_clients_may_send() {
        let read = Json::parse(r#" {"a":[1e999, -0, {}],"\ud83d":"\ud83d\ude00\udc00x","a":[true ,null]} "#).unwrap();
        let members = [
            ("a", Json::List(vec![Json::Bool(true), Json::Null])),
            ("\u{fffd}", Json::text("\u{1f600}\u{fffd}x")),
        ];
        assert_eq!(read, Json::object(members));
        assert_eq!(Json::parse(&read.to_string()), Ok(read));
        for text in ["", "{", "[1,]", "\"", "nul", "1 2", "{\"a\" 1}", "\"\\x\"", "\"\\ud8\""] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        assert!(Json::parse(&deep).is_ok());
    }

    #[test]
    fn numbers_say_the_same_by_their_value() {
        let [one, two, other] = ["1.50", "15e-1", "1.6"].map(Json::number);
        assert!(one.says(&two) && one != two);
        assert!(!one.says(&other));
        assert_eq!(quoted("a\"\\\n\u{0}é"), "\"a\\\"\\\\\\u000a\\u0000é\"");
    }
}
