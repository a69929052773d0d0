//! The process that builds and runs deployments.

use towpath_store::{Store, deployment_keepers, pools, workers};

use super::findings::{Findings, Verdict};

const CHECK: &str = "deployments";

/// Which process runs deployments. In a cluster there may be none, and jobs for it would wait for ever.
pub(super) async fn check(store: &Store, findings: &mut Findings) {
    let pool = towpath_workflows::deployment_host::POOL;
    let found = store.read(async |tx| {
        let keeper = deployment_keepers::current(tx).await?;
        Ok((keeper, pools::overview(tx, pool, workers::HEARTBEAT_WINDOW).await?))
    });
    let (keeper, queue) = match found.await {
        Ok((keeper, queue)) => (keeper, queue.unwrap_or_default()),
        Err(error) => return findings.add(CHECK, Verdict::Failed, error.to_string()),
    };
    let waiting = queue.ready;
    let (verdict, text) = match keeper {
        Some(keeper) if keeper.is_alive => (
            Verdict::Ok,
            format!("process {} on {} builds and runs deployments", keeper.pid, keeper.host),
        ),
        Some(keeper) => (
            Verdict::Warning,
            format!(
                "process {} on {} ran deployments and has stopped; {waiting} jobs wait for it. Start it again, \
                 or start another one with TOWPATH_DEPLOYMENTS_BACKEND=process or docker",
                keeper.pid, keeper.host
            ),
        ),
        None => (
            Verdict::Warning,
            format!(
                "no worker builds and runs deployments, and {waiting} jobs wait for one; set \
                 TOWPATH_DEPLOYMENTS_BACKEND=process or docker on one worker"
            ),
        ),
    };
    findings.add(CHECK, verdict, text);
}
