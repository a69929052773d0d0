//! Which process builds and runs deployments, where several could.

use towpath_store::{Store, keepers, pools, workers};

use super::{Findings, Verdict};

const CHECK: &str = "deployments";

/// Which process keeps deployments. Of a cluster none has to, and what waits for one waits for ever.
pub(super) async fn look(store: &Store, findings: &mut Findings) {
    let pool = towpath_workflows::hosting::POOL;
    let found = store.read(async |tx| {
        let keeper = keepers::current(tx).await?;
        Ok((keeper, pools::overview(tx, pool, workers::SEEN).await?))
    });
    let (keeper, queue) = match found.await {
        Ok((keeper, queue)) => (keeper, queue.unwrap_or_default()),
        Err(error) => return findings.add(CHECK, Verdict::Failed, error.to_string()),
    };
    let waiting = queue.ready;
    let (verdict, text) = match keeper {
        Some(keeper) if keeper.is_alive => (
            Verdict::Ok,
            format!("process {} on {} builds and runs them", keeper.pid, keeper.host),
        ),
        Some(keeper) => (
            Verdict::Warning,
            format!(
                "process {} on {} built and ran them, and does not any more; {waiting} jobs wait for it. Start it again, \
                 or another one with TOWPATH_DEPLOYMENTS_BACKEND=process or docker",
                keeper.pid, keeper.host
            ),
        ),
        None => (
            Verdict::Warning,
            format!(
                "no worker builds and runs them, and {waiting} jobs wait for one; set \
                 TOWPATH_DEPLOYMENTS_BACKEND=process or docker for one worker"
            ),
        ),
    };
    findings.add(CHECK, verdict, text);
}
