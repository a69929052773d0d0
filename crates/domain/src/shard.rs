//! Shards: how workspaces are distributed over the lanes that flush traces.

use serde::{Deserialize, Serialize};

use crate::TenantId;

/// A sixteenth of all workspaces. Shards of accepted trace data are flushed in parallel; within a shard, flushes are
/// sequential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, sqlx::Type)]
#[sqlx(transparent)]
#[serde(transparent)]
pub struct Shard(i16);

impl Shard {
    /// WAL segments are stored with their shard, so the number never changes.
    const COUNT: i16 = 16;

    /// The shard of a workspace: the last four bits of its id, which are random in every UUID version in use.
    #[must_use]
    pub const fn of(tenant: TenantId) -> Self {
        // A widening cast; `From` is not available in a constant function.
        Self((tenant.0.as_bytes()[15] & 15) as i16)
    }

    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

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
