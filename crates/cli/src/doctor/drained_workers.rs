//! Pools whose workers were all drained by operators.

use towpath_store::{Store, workers};

use super::findings::{Findings, Verdict};
use crate::wiring::drained_message;

const CHECK: &str = "workers";

pub(super) async fn check(store: &Store, findings: &mut Findings) {
    let drained = store.read(async |tx| workers::drained_pools(tx, workers::HEARTBEAT_WINDOW).await);
    match drained.await {
        Ok(pools) if pools.is_empty() => findings.add(CHECK, Verdict::Ok, "no pool has only drained workers"),
        Ok(pools) => findings.add(CHECK, Verdict::Warning, drained_message(&pools)),
        Err(error) => findings.add(CHECK, Verdict::Failed, error.to_string()),
    }
}
