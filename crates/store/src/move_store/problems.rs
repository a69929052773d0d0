//! What keeps the rows of a source from being copied.

use std::fmt;

use super::catalog::Table;
use super::values::{self, Cell, Misfit};
use super::{MoveError, MoveResult};

/// Problems that an error lists.
pub(super) const LISTED: usize = 20;

/// The key of a row, and its column with the value.
pub(super) type KeyedMisfit = (Vec<Cell>, String, Misfit);

/// A value of the source, or a row, that PostgreSQL cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub table: String,
    /// Absent for a row that refers to a missing one.
    pub column: Option<String>,
    /// Absent as well.
    pub key: Option<String>,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.column, &self.key) {
            (Some(column), Some(key)) => write!(f, "{}.{column} of ({key}) {}", self.table, self.reason),
            _ => write!(f, "{}: {}", self.table, self.reason),
        }
    }
}

/// The first problems of a source, and how many there are.
#[derive(Default)]
pub(super) struct Problems {
    found: Vec<Unfit>,
    count: u64,
}

impl Problems {
    pub(super) fn add(&mut self, unfit: Unfit) {
        self.count += 1;
        if self.found.len() < LISTED {
            self.found.push(unfit);
        }
    }

    pub(super) fn extend(&mut self, table: &Table, misfits: Vec<KeyedMisfit>) {
        let kinds = table.key_kinds();
        for (key, column, misfit) in misfits {
            self.add(Unfit {
                table: table.name.clone(),
                column: Some(column),
                key: Some(values::shown_key(&key, &kinds)),
                reason: misfit.message(),
            });
        }
    }

    pub(super) fn into_result(self) -> MoveResult<()> {
        if self.count == 0 {
            return Ok(());
        }
        Err(MoveError::Unfit {
            found: self.found,
            count: self.count,
        })
    }
}

pub(super) fn lines(found: &[Unfit]) -> String {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
