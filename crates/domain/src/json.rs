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
//! an object, [`items`] for the items of a list, [`Object`] to change members and keep the others as they were sent. An
//! answer to a client embeds the text as it was sent, which is JSON by the same grammar.

mod items;
mod number;
mod object;
mod scan;
mod string;
mod value;

use std::borrow::Cow;

pub use items::items;
pub use number::Number;
pub use object::{Object, members, pairs};
pub use value::Value;

use scan::Scanner;

/// Levels of nesting that are accepted: what `serde_json` reads, so that other programs can read what was accepted.
pub const MAX_DEPTH: usize = 127;

/// Where and why a text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct InvalidJson {
    pub at: usize,
    pub what: &'static str,
}

/// Text that [`check`] has already accepted and that a checksum has protected since.
pub fn checked_text(text: &[u8]) -> Result<&str, InvalidJson> {
    std::str::from_utf8(text).map_err(|error| InvalidJson {
        at: error.valid_up_to(),
        what: "text that is not UTF-8",
    })
}

/// Checks that `text` is exactly one JSON value, with optional white space around it. One pass, no allocation, no
/// recursion.
pub fn check(text: &[u8]) -> Result<&str, InvalidJson> {
    let valid = checked_text(text)?;
    let mut scan = Scanner::new(valid);
    scan.value()?;
    scan.end()?;
    Ok(valid)
}

/// The content of a JSON string; borrowed unless it has escapes. `None` if `text` is not a JSON string.
#[must_use]
pub fn decode(text: &str) -> Option<Cow<'_, str>> {
    let mut scan = Scanner::new(text);
    scan.skip_whitespace();
    if scan.peek() != Some(b'"') {
        return None;
    }
    let quoted = scan.string().ok()?;
    scan.end().ok()?;
    Some(quoted.decode())
}

/// Replaces lone halves of surrogate pairs with U+FFFD, for typed readers of `serde_json`. Numbers stay as they are.
#[must_use]
pub fn replace_lone_surrogates(text: &str) -> Cow<'_, str> {
    string::replace_lone_surrogates(text)
}

#[cfg(test)]
mod tests;
