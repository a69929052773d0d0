//! Files in a box, as its user sees them.

use serde::{Deserialize, Serialize};

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// Absolute path.
    pub path: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// When it was changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Differs whenever the content may differ: an entity tag without its quotes.
    pub tag: String,
}

/// Bytes of a file, as a `Range` header names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ByteRange {
    /// From a byte to another one, which belongs to it, or to the end of the file. An end behind it is clamped.
    From(u64, Option<u64>),
    /// So many bytes at the end.
    Last(u64),
}

/// A file or directory that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Absolute path.
    pub path: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Bytes.
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
