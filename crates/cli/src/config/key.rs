//! Definition of one setting: its names, its default and its kind.

use super::kind::Kind;
use super::mode::Mode;

#[derive(Debug)]
pub struct Key {
    /// Dotted, as in the configuration file. The name of a number includes its unit.
    pub name: &'static str,
    /// Fixed names in the environment, most important first. [`Key::derived_environment_name`] comes before them.
    pub environment: &'static [&'static str],
    pub default: Fallback,
    pub kind: Kind,
    /// A sentence for people.
    pub about: &'static str,
}

#[derive(Debug)]
pub enum Fallback {
    /// The setting may be absent.
    Absent,
    Text(&'static str),
    ByMode(fn(Mode) -> &'static str),
    /// A path below the data folder that depends on the command.
    BelowDataByMode {
        /// Before the absolute path of the data folder.
        scheme: &'static str,
        /// After it.
        file: fn(Mode) -> &'static str,
    },
    /// A path below the data folder.
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

    /// All names in the environment, most important first. The derived name comes first because it is specific to this
    /// program; `DATABASE_URI` may be set for another one.
    pub fn environment_names(&self) -> impl Iterator<Item = String> {
        let derived = self.derived_environment_name();
        let fixed = self.environment.iter().map(|name| (*name).to_owned());
        let mut names = vec![derived];
        for name in fixed {
            // The derived name of some keys is also a fixed one.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.into_iter()
    }
}
