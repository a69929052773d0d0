//! Payloads of the graph host protocol. For the meaning of the fields see `docs/internals/graph-host-protocol.md`.

mod call;
mod health;
mod question;
mod run;
mod start;
mod value;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::frame::FrameError;

pub use call::*;
pub use health::*;
pub use question::*;
pub use run::*;
pub use start::*;
pub use value::*;

/// The versions of the protocol this host speaks.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// A payload that is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Not the map it should be.
    #[error("a payload cannot be read: {0}")]
    Payload(String),
    /// Not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads a payload.
pub fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, WireError> {
    rmp_serde::from_slice(payload).map_err(|error| WireError::Payload(error.to_string()))
}

/// # Panics
/// Never: payloads have text keys and known lengths.
#[must_use]
pub fn write(payload: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(payload).expect("maps with text keys are MessagePack")
}

/// A JSON value as its text; null is none.
pub(super) fn json_or_none(value: Option<&Value>) -> Option<Json> {
    let value = value.filter(|value| !value.is_null())?;
    Some(Json(value.to_string()))
}
