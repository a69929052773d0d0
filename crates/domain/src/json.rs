//! JSON as trace ingest accepts it, and the one reader of such text.
//!
//! Ingest keeps `inputs`, `outputs`, feedback and the like as the client wrote them, once [`check`] has passed them.
//! That is the grammar of RFC 8259, which is more than `serde_json` can put into its values:
//!
//! - Halves of surrogate pairs that stand alone (`"\ud83d"`). JavaScript writes them for a text that was cut inside an
//!   emoji. They read as U+FFFD.
//! - Numbers of any size and precision (`1e999`, integers of 40 digits). A [`Number`] keeps its text; comparisons take
//!   what is beyond a double as infinite.
//! - Names that an object has twice. The last one counts.
//!
//! Every reader of accepted text uses this module: [`Value::parse`] for all of a text, [`members`] for a few members of
//! an object, [`items`] for the items of a list, [`Object`] to change members and keep the others as they were sent. An answer to a client embeds the text
//! as it was sent, which is JSON by the same grammar.

mod items;
mod number;
mod object;
mod scan;
mod string;
mod value;

use std::borrow::Cow;

pub use items::items;
pub use number::Number;
pub use object::{Object, members};
pub use value::Value;

use scan::Scan;

/// Levels of nesting that are accepted: what `serde_json` reads, so that other programs can read what was accepted.
pub const MAX_DEPTH: usize = 127;

/// Where and why a text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Invalid {
    /// Offset of the first byte that does not fit.
    pub at: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// The text that [`check`] has passed before, and that a checksum has kept since.
///
/// # Errors
/// It is no text at all.
pub fn known(text: &[u8]) -> Result<&str, Invalid> {
    std::str::from_utf8(text).map_err(|error| Invalid {
        at: error.valid_up_to(),
        what: "text that is not UTF-8",
    })
}

/// Checks that `text` is exactly one JSON value, surrounded by white space at most. Builds nothing: one pass, no
/// allocation, no recursion.
///
/// # Errors
/// Where it stops being one.
pub fn check(text: &[u8]) -> Result<&str, Invalid> {
    let valid = known(text)?;
    let mut scan = Scan::new(valid);
    scan.value()?;
    scan.end()?;
    Ok(valid)
}

/// What a JSON string says; borrowed unless it has escapes. `None` if `text` is no JSON string.
#[must_use]
pub fn decode(text: &str) -> Option<Cow<'_, str>> {
    let mut scan = Scan::new(text);
    scan.blank();
    if scan.peek() != Some(b'"') {
        return None;
    }
    let quoted = scan.string().ok()?;
    scan.end().ok()?;
    Some(quoted.decode())
}

/// JSON text in which halves of surrogate pairs that stand alone are written as U+FFFD: for typed readers of
/// `serde_json`. Numbers stay as they are.
#[must_use]
pub fn mend(text: &str) -> Cow<'_, str> {
    string::mend(text)
}

#[cfg(test)]
mod tests;
