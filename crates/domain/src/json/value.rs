//! Parsed JSON values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::scan::Scanner;
use super::{InvalidJson, MAX_DEPTH, Number};

/// Depth limit: that of accepted texts, plus what may wrap them.
const DEEPEST: usize = MAX_DEPTH + 32;

/// A JSON value. Strings without escapes borrow the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number of any size.
    Number(Number<'a>),
    String(Cow<'a, str>),
    Array(Vec<Value<'a>>),
    /// For duplicate names, the last one counts.
    Object(BTreeMap<Cow<'a, str>, Value<'a>>),
}

impl<'a> Value<'a> {
    /// Parses every text that [`check`](super::check) accepts.
    pub fn parse(text: &'a str) -> Result<Self, InvalidJson> {
        let mut scan = Scanner::new(text);
        let value = read(&mut scan, 0)?;
        scan.end()?;
        Ok(value)
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    #[must_use]
    pub const fn as_object(&self) -> Option<&BTreeMap<Cow<'a, str>, Self>> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    #[must_use]
    pub const fn as_number(&self) -> Option<&Number<'a>> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Whether it is a list or an object.
    #[must_use]
    pub const fn has_parts(&self) -> bool {
        matches!(self, Self::Array(_) | Self::Object(_))
    }

    /// The nesting depth; 0 for a scalar.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Array(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Object(members) => 1 + members.values().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    #[must_use]
    pub fn into_owned(self) -> Value<'static> {
        let owned = |text: Cow<'a, str>| -> Cow<'static, str> { Cow::Owned(text.into_owned()) };
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Number(number) => Value::Number(number.into_owned()),
            Self::String(text) => Value::String(owned(text)),
            Self::Array(items) => Value::Array(items.into_iter().map(Self::into_owned).collect()),
            Self::Object(members) => {
                let members = members.into_iter();
                Value::Object(members.map(|(name, value)| (owned(name), value.into_owned())).collect())
            }
        }
    }
}

fn read<'a>(scan: &mut Scanner<'a>, depth: usize) -> Result<Value<'a>, InvalidJson> {
    scan.skip_whitespace();
    match scan.peek() {
        Some(b'{' | b'[') if depth == DEEPEST => Err(scan.invalid("nesting too deep")),
        Some(b'{') => {
            let mut members = BTreeMap::new();
            let mut more = scan.open(b'}');
            while more {
                let (name, _) = scan.name()?;
                members.insert(name.decode(), read(scan, depth + 1)?);
                more = scan.next(b'}')?;
            }
            Ok(Value::Object(members))
        }
        Some(b'[') => {
            let mut items = Vec::new();
            let mut more = scan.open(b']');
            while more {
                items.push(read(scan, depth + 1)?);
                more = scan.next(b']')?;
            }
            Ok(Value::Array(items))
        }
        Some(b'"') => Ok(Value::String(scan.string()?.decode())),
        Some(b'-' | b'0'..=b'9') => Ok(Value::Number(Number::scanned(scan.number()?))),
        Some(b't') => scan.word("true").map(|()| Value::Bool(true)),
        Some(b'f') => scan.word("false").map(|()| Value::Bool(false)),
        Some(b'n') => scan.word("null").map(|()| Value::Null),
        Some(_) => Err(scan.invalid("expected a value")),
        None => Err(scan.invalid("unexpected end of text")),
    }
}

/// Numbers are written as in the source.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::String(text) => quoted(f, text),
            Self::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "[" } else { "," })?;
                }
                f.write_str(if items.is_empty() { "[]" } else { "]" })
            }
            Self::Object(members) => {
                for (at, (name, value)) in members.iter().enumerate() {
                    f.write_str(if at == 0 { "{" } else { "," })?;
                    quoted(f, name)?;
                    write!(f, ":{value}")?;
                }
                f.write_str(if members.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(f, "{}", serde_json::Value::from(text))
}

/// Numbers become the nearest values that `serde_json` supports.
impl From<Value<'_>> for serde_json::Value {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => {
                let text = number.text();
                let whole = text.parse::<i64>().map(Self::from);
                whole
                    .or_else(|_| text.parse::<u64>().map(Self::from))
                    .unwrap_or_else(|_| number.to_finite().into())
            }
            Value::String(text) => Self::String(text.into_owned()),
            Value::Array(items) => items.into_iter().map(Self::from).collect(),
            Value::Object(members) => {
                let members = members.into_iter();
                members
                    .map(|(name, value)| (name.into_owned(), Self::from(value)))
                    .collect()
            }
        }
    }
}
