//! The three states of a field in a PATCH.

use serde::{Deserialize, Deserializer};

/// Absent, null, or a value. Use with `#[serde(default)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Keep the stored value.
    #[default]
    Absent,
    /// Clear the stored value.
    Null,
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<T>::deserialize(from)?.map_or(Self::Null, Self::Value))
    }
}
