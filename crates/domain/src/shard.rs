//! How workspaces are divided among the lanes that fold their traces.

use serde::{Deserialize, Serialize};

use crate::TenantId;

/// A sixteenth of all workspaces. The shards of accepted trace data are folded beside each other; within one, folds
/// follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, sqlx::Type)]
#[sqlx(transparent)]
#[serde(transparent)]
pub struct Shard(i16);

impl Shard {
    /// How many there are. Units are stored with their shard, so this never changes.
    const COUNT: i16 = 16;

    /// The shard of a workspace: the last four bits of its id, which are random in every version of UUID that we make.
    #[must_use]
    pub const fn of(tenant: TenantId) -> Self {
        // Widening, which `From` cannot do in a constant function.
        Self((tenant.0.as_bytes()[15] & 15) as i16)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its number, as lanes name it.
    #[must_use]
    pub const fn number(self) -> i16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_workspace_has_one_of_the_shards() {
        let all: Vec<Shard> = Shard::all().collect();
        assert_eq!(all.len(), 16);
        let met: BTreeSet<Shard> = (0..1000).map(|_| Shard::of(TenantId::new())).collect();
        assert_eq!(met.into_iter().collect::<Vec<_>>(), all);
        let tenant: TenantId = "00000000-0000-4000-8000-00000000001f".parse().unwrap();
        assert_eq!(Shard::of(tenant).number(), 15);
        assert_eq!(Shard::of(TenantId::nil()).number(), 0);
    }
}
