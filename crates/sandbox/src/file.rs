//! Files in a box, as its user sees them.

use serde::{Deserialize, Serialize};

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// Absolute path.
    pub path: String,
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// When it was changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// An entity tag without quotes: changes whenever the content may have changed.
    pub tag: String,
}

/// Bytes of a file, as a `Range` header names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ByteRange {
    /// An inclusive byte range, or one to the end of the file. An end beyond the file is clamped.
    From(u64, Option<u64>),
    /// So many bytes at the end.
    Last(u64),
}

/// First byte and the one after the last. None: there are none.
pub(crate) fn byte_bounds(range: Option<ByteRange>, size: u64) -> Option<(u64, u64)> {
    match range {
        None => Some((0, size)),
        Some(ByteRange::From(start, last)) => {
            let end = last.map_or(size, |last| last.saturating_add(1).min(size));
            (start < size && start < end).then_some((start, end))
        }
        Some(ByteRange::Last(count)) => (count > 0 && size > 0).then(|| (size.saturating_sub(count), size)),
    }
}

/// A file or directory that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Absolute path.
    pub path: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    pub size_bytes: u64,
    /// When it was changed, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// Results, as many as were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The results.
    pub matches: Vec<T>,
    /// Whether there are more.
    pub truncated: bool,
}

/// Files by a pattern: `*.py` matches names at any depth; a pattern with `/` or `**` matches paths below `path`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobRequest {
    /// The pattern: `*`, `**`, `?`, `[…]`, `{a,b}`.
    pub pattern: String,
    /// Where to look.
    pub path: String,
    /// At most so many results; 10,000 at most.
    pub limit: usize,
}

/// Lines that contain a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepRequest {
    /// The text itself, no expression.
    pub pattern: String,
    /// A file, or a directory to look below.
    pub path: String,
    /// Only in files that match, as in [`GlobRequest`].
    pub glob: Option<String>,
    /// At most so many results; 10,000 at most.
    pub limit: usize,
}

/// A line that contains the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepMatch {
    /// Absolute path.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// The line, cut at 2,000 characters.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_file() {
        for (range, expected) in [
            (None, Some((0, 10))),
            (Some(ByteRange::From(0, None)), Some((0, 10))),
            (Some(ByteRange::From(2, Some(3))), Some((2, 4))),
            (Some(ByteRange::From(2, Some(u64::MAX))), Some((2, 10))),
            (Some(ByteRange::From(9, Some(9))), Some((9, 10))),
            (Some(ByteRange::From(10, None)), None),
            (Some(ByteRange::From(4, Some(3))), None),
            (Some(ByteRange::Last(3)), Some((7, 10))),
            (Some(ByteRange::Last(30)), Some((0, 10))),
            (Some(ByteRange::Last(0)), None),
        ] {
            assert_eq!(byte_bounds(range, 10), expected, "{range:?}");
        }
        assert_eq!(byte_bounds(None, 0), Some((0, 0)));
    }
}
