//! Pools that other workers serve too.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use towpath_domain::WorkerId;
use towpath_store::workers::Worker;

/// Pools that other workers claim from, as of the last heartbeat.
#[derive(Default)]
pub(crate) struct PoolPeers(Mutex<Option<BTreeSet<String>>>);

impl PoolPeers {
    pub(crate) fn update(&self, own: WorkerId, alive: &[Worker]) {
        let others = alive.iter().filter(|worker| worker.id != own && !worker.draining);
        let pools = others.flat_map(|worker| worker.slots().into_keys()).collect();
        *self.0.lock() = Some(pools);
    }

    /// Whether another worker claims from this pool, or may do so because no heartbeat was read yet.
    pub(crate) fn share_pool(&self, pool: &str) -> bool {
        let pools = self.0.lock();
        pools.as_ref().is_none_or(|pools| pools.contains(pool))
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::Timestamp;

    use super::*;

    fn worker(pools: &str, draining: bool) -> Worker {
        Worker {
            id: WorkerId::new(),
            host: String::new(),
            pid: 0,
            pools: pools.to_owned(),
            version: String::new(),
            draining,
            started_at: Timestamp::from_micros(0),
            seen_at: Timestamp::from_micros(0),
            finished: "{}".to_owned(),
            drain_at: None,
        }
    }

    #[test]
    fn a_pool_is_shared_with_others_that_claim_from_it() {
        let peers = PoolPeers::default();
        assert!(peers.share_pool("exports"), "nobody has looked yet");
        let own = worker(r#"{"exports": 4, "runs": 8}"#, false);
        let others = [
            own.clone(),
            worker(r#"{"runs": 2, "crons": 1}"#, false),
            worker(r#"{"exports": 2}"#, true),
        ];
        peers.update(own.id, &others);
        assert_eq!(
            ["exports", "runs", "crons"].map(|pool| peers.share_pool(pool)),
            [false, true, true]
        );
        peers.update(own.id, &others[..1]);
        assert!(!peers.share_pool("runs"));
    }
}
