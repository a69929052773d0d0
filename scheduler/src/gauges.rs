//! Gauges about the queues, counted once for all roles.

use towpath_store::{self as store, Store, pools};

/// Counts open jobs by pool and state, and the age of the oldest ready one of each pool.
pub(crate) async fn record(store: &Store) -> store::Result<()> {
    let depths = store.read(async |tx| pools::depths(tx).await).await?;
    for depth in depths {
        metrics::gauge!("towpath_jobs", "pool" => depth.pool, "state" => depth.state).set(depth.jobs as f64);
    }
    let now = store.clock().now();
    for oldest in store.read(async |tx| pools::oldest_ready(tx).await).await? {
        metrics::gauge!("towpath_queue_oldest_ready_age_seconds", "pool" => oldest.pool)
            .set(now.since(oldest.run_at).as_secs_f64());
    }
    Ok(())
}
