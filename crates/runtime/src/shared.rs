//! A JSON value that several places hold at once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON value that is cheap to clone. Its text is built once: a channel's value goes into a checkpoint, into streams
/// and into the thread's row, and a long conversation is expensive to serialize three times.
#[derive(Clone)]
pub struct Shared(Arc<SharedState>);

/// One of the two is there from the start.
struct SharedState {
    value: OnceLock<Value>,
    text: OnceLock<Box<RawValue>>,
}

impl Shared {
    #[must_use]
    pub fn value(&self) -> &Value {
        self.0.value.get_or_init(|| {
            let text = self.0.text.get().map_or("null", |text| text.get());
            // It is valid JSON; nested too deeply for a value, it stays a string.
            serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
        })
    }

    /// The value as JSON text, made at the first call.
    #[must_use]
    pub fn json(&self) -> &str {
        self.raw().get()
    }

    /// The value as JSON text that serializes as it is.
    #[must_use]
    pub fn raw(&self) -> &RawValue {
        self.0
            .text
            .get_or_init(|| serde_json::value::to_raw_value(self.value()).expect("a value with text keys is JSON"))
    }

    /// From JSON text, which is only parsed on demand.
    pub fn of_text(text: String) -> Result<Self, serde_json::Error> {
        let raw = RawValue::from_string(text)?;
        Ok(Self(Arc::new(SharedState {
            value: OnceLock::new(),
            text: OnceLock::from(raw),
        })))
    }

    /// Reads JSON text.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(|value: Value| value.into())
    }

    /// The value for modification: without a copy if it is not shared.
    #[must_use]
    pub fn into_value(self) -> Value {
        // Made before it is taken, if there is only a text.
        let _ = self.value();
        Arc::try_unwrap(self.0).map_or_else(
            |shared| shared.value.get().cloned().unwrap_or_default(),
            |inner| inner.value.into_inner().unwrap_or_default(),
        )
    }
}

impl From<Value> for Shared {
    fn from(value: Value) -> Self {
        Self(Arc::new(SharedState {
            value: OnceLock::from(value),
            text: OnceLock::new(),
        }))
    }
}

impl Deref for Shared {
    type Target = Value;

    fn deref(&self) -> &Value {
        self.value()
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.value() == other.value()
    }
}

impl PartialEq<Value> for Shared {
    fn eq(&self, other: &Value) -> bool {
        self.value() == other
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

impl Serialize for Shared {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if let Some(text) = self.0.text.get() {
            return text.serialize(to);
        }
        match self.value() {
            // Making and keeping a text pays for what is long.
            Value::Array(_) | Value::Object(_) => self.raw().serialize(to),
            value => value.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Shared {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::deserialize(from).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn serializes_like_its_value() {
        let shared = Shared::from(json!({"a": [1, "x"]}));
        assert_eq!(shared.json(), r#"{"a":[1,"x"]}"#);
        let holder = json!({"held": shared.clone()});
        assert_eq!(holder, json!({"held": {"a": [1, "x"]}}));
        assert_eq!(serde_json::to_string(&vec![shared]).unwrap(), r#"[{"a":[1,"x"]}]"#);
        assert_eq!(Shared::parse("[1]").unwrap().into_value(), json!([1]));
    }

    #[test]
    fn a_text_stays_as_it_is() {
        let shared = Shared::of_text(r#"{"a": 1.50}"#.to_owned()).unwrap();
        assert_eq!(shared.json(), r#"{"a": 1.50}"#);
        assert_eq!(shared["a"], json!(1.5));
        assert_eq!(shared.into_value(), json!({"a": 1.5}));
        assert!(Shared::of_text("{".to_owned()).is_err());
    }
}
