//! What the queues did lately: depth and rate of each pool, for the pages. Kept in this process, sampled only while
//! somebody looks; how many jobs each worker finished stands in its row.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use towpath_domain::WorkerId;
use towpath_store::{pools, workers};

use crate::app::App;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Ten minutes of them.
const SAMPLES: usize = 120;
/// A rate is taken over this long.
const WINDOW: Duration = Duration::from_secs(30);
/// Nobody has looked for this long: sampling stops, until somebody does.
const FORGOTTEN: Duration = Duration::from_secs(900);

/// The samples of one process.
#[derive(Default)]
pub(crate) struct History(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    samples: VecDeque<Sample>,
    looked_at: Option<Instant>,
    sampling: bool,
}

struct Sample {
    at: Instant,
    ready: BTreeMap<String, i64>,
    finished: BTreeMap<(WorkerId, String), i64>,
}

/// What is known about one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Past {
    /// Ready jobs, oldest sample first.
    pub(crate) ready: Vec<i64>,
    /// Jobs finished per second lately; `None` before there are two samples to compare.
    pub(crate) rate: Option<f64>,
}

impl History {
    /// What is known about `pool`.
    pub(crate) fn of(&self, pool: &str) -> Past {
        let kept = self.lock();
        Past {
            ready: kept
                .samples
                .iter()
                .map(|sample| sample.ready.get(pool).copied().unwrap_or(0))
                .collect(),
            rate: rate(&kept.samples, pool),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing here panics while holding it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that somebody looks, and sees to it that there are samples.
pub(crate) async fn looked(app: &App) {
    let begins = {
        let mut kept = app.history.lock();
        kept.looked_at = Some(Instant::now());
        !std::mem::replace(&mut kept.sampling, true)
    };
    if !begins {
        return;
    }
    // The first one at once, so that the page that asks has it.
    sample(app).await;
    let app = app.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            {
                let mut kept = app.history.lock();
                if kept.looked_at.is_none_or(|at| at.elapsed() > FORGOTTEN) {
                    *kept = Kept::default();
                    return;
                }
            }
            sample(&app).await;
        }
    });
}

async fn sample(app: &App) {
    let seen = app
        .store
        .read(async |tx| Ok((pools::depths(tx).await?, workers::alive(tx, 3 * EVERY).await?)))
        .await;
    let (depths, alive) = match seen {
        Ok(seen) => seen,
        Err(error) => {
            tracing::debug!(%error, "a sample of the queues is missing");
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
    let mut kept = app.history.lock();
    kept.samples.push_back(Sample {
        at: Instant::now(),
        ready,
        finished,
    });
    if kept.samples.len() > SAMPLES {
        kept.samples.pop_front();
    }
}

/// Workers that are in both samples count; one that came or left meanwhile is seen in the next.
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

/// A line over the samples, as the points of an SVG of 100 by 24, and the same closed to an area. `None` when there is
/// nothing to see yet.
pub(crate) fn line(values: &[i64]) -> Option<(String, String)> {
    if values.len() < 2 {
        return None;
    }
    let most = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let step = 100.0 / (values.len() - 1) as f64;
    let points: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(at, value)| format!("{:.1},{:.1}", at as f64 * step, 23.0 - 22.0 * *value as f64 / most))
        .collect();
    let line = points.join(" ");
    let area = format!("0,24 {line} 100,24");
    Some((line, area))
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
                .map(|&(worker, jobs)| ((worker, "folds".to_owned()), jobs))
                .collect(),
        };
        let mut samples = VecDeque::from([sample(0, &[(one, 1000)])]);
        assert_eq!(rate(&samples, "folds"), None);
        samples.push_back(sample(60, &[(one, 1100)]));
        assert_eq!(rate(&samples, "folds"), None, "too long ago to compare");
        samples.push_back(sample(70, &[(one, 1150), (two, 7)]));
        assert_eq!(rate(&samples, "folds"), Some(5.0));
        assert_eq!(rate(&samples, "others"), Some(0.0));
    }

    #[test]
    fn a_line_stays_in_its_box() {
        assert_eq!(line(&[3]), None);
        let (points, area) = line(&[0, 10, 5]).unwrap();
        assert_eq!(points, "0.0,23.0 50.0,1.0 100.0,12.0");
        assert!(area.starts_with("0,24 ") && area.ends_with(" 100,24"));
        assert_eq!(line(&[0, 0]).unwrap().0, "0.0,23.0 100.0,23.0");
    }
}
