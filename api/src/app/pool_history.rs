//! Recent depth and rate of each pool. Samples are kept in memory and taken only while the dashboard is in use. The
//! number of finished jobs comes from the workers' rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use towpath_domain::WorkerId;
use towpath_store::{Store, pools, workers};

/// Interval between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of samples: ten minutes.
const SAMPLES: usize = 120;
/// Period over which a rate is computed.
const WINDOW: Duration = Duration::from_secs(30);
/// Sampling stops after this time without a page view.
const IDLE_STOP: Duration = Duration::from_secs(900);

/// Samples of this process; clones share them.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<HistoryState>>);

#[derive(Default)]
struct HistoryState {
    samples: VecDeque<Sample>,
    last_viewed: Option<Instant>,
    sampling: bool,
}

struct Sample {
    at: Instant,
    ready: BTreeMap<String, i64>,
    finished: BTreeMap<(WorkerId, String), i64>,
}

/// History of one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PoolHistory {
    /// Ready jobs, oldest sample first.
    pub(crate) ready: Vec<i64>,
    /// Recently finished jobs per second; `None` with fewer than two samples.
    pub(crate) rate: Option<f64>,
}

impl History {
    /// History of `pool`.
    pub(crate) fn pool_history(&self, pool: &str) -> PoolHistory {
        let kept = self.0.lock();
        PoolHistory {
            ready: kept
                .samples
                .iter()
                .map(|sample| sample.ready.get(pool).copied().unwrap_or(0))
                .collect(),
            rate: rate(&kept.samples, pool),
        }
    }

    /// Records a page view and makes sure that samples are taken.
    pub(crate) async fn record_view(&self, store: &Store) {
        let begins = {
            let mut kept = self.0.lock();
            kept.last_viewed = Some(Instant::now());
            !std::mem::replace(&mut kept.sampling, true)
        };
        if !begins {
            return;
        }
        // The first sample is taken at once, so that this page can show it.
        sample(self, store).await;
        let (history, store) = (self.clone(), store.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SAMPLE_INTERVAL).await;
                {
                    let mut kept = history.0.lock();
                    if kept.last_viewed.is_none_or(|at| at.elapsed() > IDLE_STOP) {
                        *kept = HistoryState::default();
                        return;
                    }
                }
                sample(&history, &store).await;
            }
        });
    }
}

async fn sample(history: &History, store: &Store) {
    let seen = store
        .read(async |tx| Ok((pools::depths(tx).await?, workers::alive(tx, 3 * SAMPLE_INTERVAL).await?)))
        .await;
    let (depths, alive) = match seen {
        Ok(seen) => seen,
        Err(error) => {
            tracing::debug!(%error, "cannot sample the queues");
            return;
        }
    };
    let ready = depths
        .into_iter()
        .filter(|depth| depth.state == "ready")
        .map(|depth| (depth.pool, depth.jobs))
        .collect();
    let finished = alive
        .into_iter()
        .flat_map(|worker| {
            let counts: BTreeMap<String, i64> = serde_json::from_str(&worker.finished).unwrap_or_default();
            counts.into_iter().map(move |(pool, jobs)| ((worker.id, pool), jobs))
        })
        .collect();
    let mut kept = history.0.lock();
    kept.samples.push_back(Sample {
        at: Instant::now(),
        ready,
        finished,
    });
    if kept.samples.len() > SAMPLES {
        kept.samples.pop_front();
    }
}

/// Only workers in both samples count; others are counted from the next sample on.
fn rate(samples: &VecDeque<Sample>, pool: &str) -> Option<f64> {
    let last = samples.back()?;
    let first = samples
        .iter()
        .find(|sample| last.at.duration_since(sample.at) <= WINDOW)
        .filter(|sample| sample.at < last.at)?;
    let finished: i64 = last
        .finished
        .iter()
        .filter(|((_, of), _)| of == pool)
        .filter_map(|(key, now)| Some((now - first.finished.get(key)?).max(0)))
        .sum();
    Some(finished as f64 / last.at.duration_since(first.at).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_workers_that_were_there_all_the_time() {
        let (one, two) = (WorkerId::new(), WorkerId::new());
        let start = Instant::now();
        let sample = |seconds: u64, counts: &[(WorkerId, i64)]| Sample {
            at: start + Duration::from_secs(seconds),
            ready: BTreeMap::new(),
            finished: counts
                .iter()
                .map(|&(worker, jobs)| ((worker, "flushes".to_owned()), jobs))
                .collect(),
        };
        let mut samples = VecDeque::from([sample(0, &[(one, 1000)])]);
        assert_eq!(rate(&samples, "flushes"), None);
        samples.push_back(sample(60, &[(one, 1100)]));
        assert_eq!(rate(&samples, "flushes"), None, "too long ago to compare");
        samples.push_back(sample(70, &[(one, 1150), (two, 7)]));
        assert_eq!(rate(&samples, "flushes"), Some(5.0));
        assert_eq!(rate(&samples, "others"), Some(0.0));
    }
}
