//! Field types beyond plain MessagePack: JSON text, and bytes.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// JSON text, as MessagePack bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Json(pub String);

impl Json {
    /// The text of a value.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(Self)
    }

    /// The value of the text.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON as bytes")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Json, E> {
                Ok(Json(text.to_owned()))
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Json, E> {
                let text = str::from_utf8(bytes).map_err(|_| E::custom("JSON is UTF-8"))?;
                Ok(Json(text.to_owned()))
            }
        }
        from.deserialize_bytes(TextVisitor)
    }
}

/// Bytes in MessagePack. A string is read as its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bin(pub Bytes);

impl Serialize for Bin {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct BinVisitor;
        impl<'de> Visitor<'de> for BinVisitor {
            type Value = Bin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bin, E> {
                Ok(Bin(Bytes::copy_from_slice(bytes)))
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Bin, E> {
                Ok(Bin(bytes.into()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bin, E> {
                Ok(Bin(Bytes::copy_from_slice(text.as_bytes())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Bin, A::Error> {
                Err(A::Error::custom("bytes stand as bin, not as an array"))
            }
        }
        from.deserialize_bytes(BinVisitor)
    }
}
