//! What one setting is: its names, its default, and what it must look like.

use super::Mode;
use super::kind::Kind;

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Dotted, as in the configuration file. A number carries its unit in its name.
    pub name: &'static str,
    /// Names in the environment that are fixed by use, most important first. [`Key::derived_environment_name`], which
    /// each key is read from, comes before them.
    pub environment: &'static [&'static str],
    /// Where nobody says anything.
    pub default: Fallback,
    /// What it must look like.
    pub kind: Kind,
    /// A sentence for people.
    pub about: &'static str,
}

/// A default.
#[derive(Debug)]
pub enum Fallback {
    /// The setting may be absent.
    Absent,
    /// Always the same.
    Text(&'static str),
    /// Depends on the command.
    ByMode(fn(Mode) -> &'static str),
    /// A place below the data folder that depends on the command.
    BelowDataByMode {
        /// Before the absolute path of the data folder.
        scheme: &'static str,
        /// After it.
        file: fn(Mode) -> &'static str,
    },
    /// A place below the data folder.
    BelowData {
        /// Before the absolute path of the data folder.
        scheme: &'static str,
        /// After it.
        file: &'static str,
    },
}

impl Key {
    /// `exports.file_root` is also `TOWPATH_EXPORTS_FILE_ROOT`.
    pub fn derived_environment_name(&self) -> String {
        format!("TOWPATH_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// Every name the environment may use for it, most important first. The derived name is made for this program;
    /// `DATABASE_URI` may be there for another one.
    pub fn environment_names(&self) -> impl Iterator<Item = String> {
        let derived = self.derived_environment_name();
        let fixed = self.environment.iter().map(|name| (*name).to_owned());
        let mut names = vec![derived];
        for name in fixed {
            // Some keys have their derived name as a fixed one, too.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.into_iter()
    }
}
