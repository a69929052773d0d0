//! The three things a PATCH can say about a field.

use serde::{Deserialize, Deserializer};

/// Absent, null, or a value. Use with `#[serde(default)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// The field was not sent: leave it.
    #[default]
    Absent,
    /// The field was null: clear it.
    Null,
    /// The field was sent.
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<T>::deserialize(from)?.map_or(Self::Null, Self::Value))
    }
}
