//! Gauges about the whole system; one scheduler reads them for all roles.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use towpath_store::{self as store, Store, gauges, jobs, pools, workers};

use crate::metric;

/// A worker not seen for this long counts as stopped.
const WORKER_SEEN: Duration = Duration::from_secs(15);

/// Values of the previous scrape: a pool that became empty has no row any more, and its gauge must be reset.
#[derive(Default)]
pub(crate) struct Gauges {
    jobs: Mutex<BTreeSet<(String, String)>>,
    /// Whether the quarantine ever had entries.
    quarantine: AtomicBool,
}

impl Gauges {
    pub(crate) async fn record(&self, store: &Store) -> store::Result<()> {
        let (lanes, schedules, units, quarantine, paused, alive, now) = store
            .read(async |tx| {
                Ok((
                    gauges::lanes(tx).await?,
                    gauges::schedules(tx).await?,
                    gauges::open_wal_segments(tx).await?,
                    gauges::quarantine(tx).await?,
                    gauges::pools(tx).await?,
                    workers::alive(tx, WORKER_SEEN).await?,
                    jobs::db_now(tx).await?,
                ))
            })
            .await?;
        metrics::gauge!(metric::LANES, "state" => "open").set(lanes.open as f64);
        metrics::gauge!(metric::LANES, "state" => "full").set(lanes.full_lanes as f64);
        metrics::gauge!(metric::SCHEDULES, "state" => "active").set(schedules.active as f64);
        metrics::gauge!(metric::SCHEDULES, "state" => "paused").set(schedules.paused as f64);
        let since = |time: Option<towpath_domain::Timestamp>| time.map_or(0.0, |time| now.since(time).as_secs_f64());
        metrics::gauge!(metric::SCHEDULE_LAG).set(since(schedules.next_at));
        metrics::gauge!(metric::OPEN_UNITS).set(units.units as f64);
        metrics::gauge!(metric::OPEN_UNITS_AGE).set(since(units.oldest_at));
        self.quarantine(quarantine);
        // A pool with a worker has a depth even before its first job.
        self.queues(store, alive.iter().flat_map(|worker| worker.slots().into_keys()))
            .await?;
        for pool in paused {
            metrics::gauge!(metric::PAUSED, "pool" => pool.name).set(f64::from(u8::from(pool.paused)));
        }
        let draining = alive.iter().filter(|worker| worker.draining).count();
        metrics::gauge!(metric::WORKERS, "state" => "working").set((alive.len() - draining) as f64);
        metrics::gauge!(metric::WORKERS, "state" => "draining").set(draining as f64);
        Ok(())
    }

    /// A scheduler that never saw an entry sets no gauge: the zero of an agent server would overwrite the platform's
    /// value in the same process.
    fn quarantine(&self, found: gauges::Quarantine) {
        let is_there = found.entries > 0;
        let was_there = self.quarantine.swap(is_there, Ordering::Relaxed);
        if is_there || was_there {
            metrics::gauge!(metric::QUARANTINE_ENTRIES).set(found.entries as f64);
            metrics::gauge!(metric::QUARANTINE_ITEMS).set(found.items as f64);
            metrics::gauge!(metric::QUARANTINE_BYTES).set(found.bytes as f64);
        }
    }

    async fn queues(&self, store: &Store, served: impl Iterator<Item = String>) -> store::Result<()> {
        let (depths, oldest, now) = store
            .read(async |tx| {
                Ok((
                    pools::depths(tx).await?,
                    pools::oldest_ready(tx).await?,
                    jobs::db_now(tx).await?,
                ))
            })
            .await?;
        let mut seen: BTreeSet<_> = served
            .flat_map(|pool| ["ready", "running"].map(|state| (pool.clone(), state.to_owned())))
            .collect();
        for (pool, state) in &seen {
            if !depths.iter().any(|depth| &depth.pool == pool && &depth.state == state) {
                Self::set(pool, state, 0.0);
            }
        }
        seen.extend(depths.iter().map(|depth| (depth.pool.clone(), depth.state.clone())));
        let known = std::mem::replace(&mut *self.jobs.lock(), seen.clone());
        for (pool, state) in known.difference(&seen) {
            Self::set(pool, state, 0.0);
        }
        for depth in &depths {
            Self::set(&depth.pool, &depth.state, depth.jobs as f64);
        }
        let pools: BTreeSet<&String> = known.iter().chain(&seen).map(|(pool, _)| pool).collect();
        for pool in pools {
            let oldest = oldest.iter().find(|oldest| &oldest.pool == pool);
            let age = oldest.map_or(0.0, |oldest| now.since(oldest.run_at).as_secs_f64());
            metrics::gauge!(metric::OLDEST, "pool" => pool.clone()).set(age);
            if !seen.contains(&(pool.clone(), "ready".to_owned())) {
                metrics::gauge!(metric::DEPTH, "pool" => pool.clone()).set(0.0);
            }
        }
        Ok(())
    }

    fn set(pool: &str, state: &str, jobs: f64) {
        metrics::gauge!(metric::JOBS, "pool" => pool.to_owned(), "state" => state.to_owned()).set(jobs);
        if state == "ready" {
            metrics::gauge!(metric::DEPTH, "pool" => pool.to_owned()).set(jobs);
        }
    }
}
