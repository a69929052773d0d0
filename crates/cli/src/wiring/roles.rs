//! What a process does.

use std::fmt;

/// Roles of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Serves HTTP.
    pub api: bool,
    /// Performs jobs.
    pub worker: bool,
    /// Runs the scheduler.
    pub scheduler: bool,
}

impl Roles {
    /// All roles.
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
