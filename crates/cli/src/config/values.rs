//! Layers of values and their precedence.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use url::Url;

use super::key::{Fallback, Key};
use super::keys;
use super::mode::{Flag, Mode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// The configuration file.
    File {
        /// As named by the caller.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment(String),
    /// The command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Value {
    /// As text, whatever its kind.
    pub text: String,
    pub origin: Origin,
}

/// The values of one source, by key.
pub type Layer = BTreeMap<&'static str, Value>;

#[derive(Clone, Debug)]
pub struct ResolvedSetting {
    pub key: &'static Key,
    /// `None` if it has no value and needs none.
    pub text: Option<String>,
    pub origin: Origin,
}

impl ResolvedSetting {
    /// The value without its secret parts.
    pub fn redacted(&self) -> Option<String> {
        self.text.as_deref().map(|text| self.key.kind.redacted(text))
    }

    /// The problem of the value, if any: the key, what was expected and the origin.
    pub fn problem(&self) -> Option<String> {
        let text = self.text.as_deref()?;
        let expected = self.key.kind.validation_error(text)?;
        let shown = self.key.kind.redacted(text);
        Some(format!(
            "{}: expected {expected}, got \"{shown}\" ({})",
            self.key.name, self.origin
        ))
    }
}

/// One value for each key: flag, else environment, else file, else default.
pub fn resolve(mode: Mode, flags: &[Flag], environment: &Layer, file: &Layer) -> Vec<ResolvedSetting> {
    let mut resolved: Vec<ResolvedSetting> = Vec::new();
    let mut data_dir = PathBuf::new();
    for key in keys::all() {
        let flag = flags.iter().rev().find(|flag| flag.key == key.name);
        let given = flag
            .map(|flag| Value {
                text: flag.value.clone(),
                origin: Origin::Flag(flag.name),
            })
            .or_else(|| environment.get(key.name).cloned())
            .or_else(|| file.get(key.name).cloned());
        let (text, origin) = match given {
            Some(value) => (Some(value.text), value.origin),
            None => (fallback(key, mode, &data_dir), Origin::Default),
        };
        if key.name == "data_dir" {
            // It must be the first key, because later defaults depend on it.
            data_dir = absolute(Path::new(text.as_deref().unwrap_or_default()));
        }
        resolved.push(ResolvedSetting { key, text, origin });
    }
    resolved
}

fn fallback(key: &Key, mode: Mode, data_dir: &Path) -> Option<String> {
    match key.default {
        Fallback::Absent => None,
        Fallback::Text(text) => Some(text.to_owned()),
        Fallback::ByMode(choose) => Some(choose(mode).to_owned()),
        // A folder name may contain characters with another meaning in a URL.
        Fallback::BelowData {
            scheme: "file://",
            file,
        } => Url::from_file_path(data_dir.join(file)).ok().map(Into::into),
        Fallback::BelowDataByMode { scheme, file } => Some(format!("{scheme}{}", data_dir.join(file(mode)).display())),
        Fallback::BelowData { scheme, file } => Some(format!("{scheme}{}", data_dir.join(file).display())),
    }
}

/// Absolute without touching the disk, so that messages name a complete path.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
