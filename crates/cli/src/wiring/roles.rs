//! What a process does.

use std::fmt;

/// The roles of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Answers HTTP.
    pub api: bool,
    /// Performs jobs.
    pub worker: bool,
    /// Keeps the clock.
    pub scheduler: bool,
}

impl Roles {
    /// Everything.
    pub const ALL: Self = Self {
        api: true,
        worker: true,
        scheduler: true,
    };
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.api, "api"),
            (self.worker, "worker"),
            (self.scheduler, "scheduler"),
        ];
        let names: Vec<_> = names
            .into_iter()
            .filter(|(has, _)| *has)
            .map(|(_, name)| name)
            .collect();
        f.write_str(&names.join(","))
    }
}
