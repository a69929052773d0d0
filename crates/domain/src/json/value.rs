//! All of a text as a value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::scan::Scan;
use super::{Invalid, MAX_DEPTH, Number};

/// Levels that are read: accepted texts, and what is put around them.
const DEEPEST: usize = MAX_DEPTH + 32;

/// A JSON value. It borrows what the text has without escapes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number of any size.
    Number(Number<'a>),
    /// A string.
    String(Cow<'a, str>),
    /// A list.
    Array(Vec<Value<'a>>),
    /// An object. Of a name that it has twice the last one counts.
    Object(BTreeMap<Cow<'a, str>, Value<'a>>),
}

impl<'a> Value<'a> {
    /// Reads every text that [`check`](super::check) passes.
    ///
    /// # Errors
    /// Where the text stops being JSON.
    pub fn parse(text: &'a str) -> Result<Self, Invalid> {
        let mut scan = Scan::new(text);
        let value = read(&mut scan, 0)?;
        scan.end()?;
        Ok(value)
    }

    /// The member of that name, if this is an object that has one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    /// What it says, if it is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// Its items, if it is a list.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Its members, if it is an object.
    #[must_use]
    pub const fn as_object(&self) -> Option<&BTreeMap<Cow<'a, str>, Self>> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// The number, if it is one.
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

    /// How many levels of lists and objects it has; a scalar has none.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Array(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Object(members) => 1 + members.values().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// That owns its text.
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

fn read<'a>(scan: &mut Scan<'a>, depth: usize) -> Result<Value<'a>, Invalid> {
    scan.blank();
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
        None => Err(scan.invalid("the text ends early")),
    }
}

/// As JSON, numbers as they were written.
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

/// Numbers become the nearest ones that `serde_json` has.
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
