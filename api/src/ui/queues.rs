//! Queues: depth and state of each pool.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use towpath_domain::Timestamp;
use towpath_store::{jobs, pools, workers};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::{App, PoolHistory};
use crate::errors::ApiError;
use crate::internal::model::{PoolStatus, Queue};

const PATH: &str = "/ui/queues";
/// Age from which a ready job is highlighted.
const LATE_SECONDS: f64 = 60.0;

#[derive(Template)]
#[template(path = "ui/queues.html")]
struct Queues {
    ready: String,
    running: String,
    rate: String,
    workers: String,
    dead: String,
    pools: Vec<Pool>,
}

struct Pool {
    name: String,
    state: &'static str,
    tone: &'static str,
    paused: bool,
    ready: String,
    oldest: String,
    late: bool,
    running: String,
    slots: String,
    meter: i64,
    meter_max: i64,
    scheduled: String,
    blocked: String,
    waiting: String,
    rate: String,
    line: Option<(String, String)>,
    most: i64,
}

pub(super) async fn page(State(app): State<App>, asked: PageRequest) -> PageResult {
    app.history.record_view(&app.store).await;
    let found = app.store.read(async |tx| {
        Ok((
            pools::list(tx, workers::HEARTBEAT_WINDOW).await?,
            workers::alive(tx, workers::HEARTBEAT_WINDOW).await?.len(),
            jobs::count_dead(tx).await?,
            jobs::db_now(tx).await?,
        ))
    });
    let (found, alive, dead, now) = found.await?;
    let sum = |of: fn(&pools::Overview) -> i64| found.iter().map(of).sum::<i64>();
    let (ready, running) = (sum(|pool| pool.ready), sum(|pool| pool.running));
    let pools: Vec<(Option<f64>, Pool)> = found
        .into_iter()
        .map(|pool| {
            let past = app.history.pool_history(&pool.pool);
            (past.rate, self::pool(pool, &past, now))
        })
        .collect();
    let rates: Vec<f64> = pools.iter().filter_map(|(rate, _)| *rate).collect();
    let rate = (!rates.is_empty()).then(|| rates.iter().sum());
    let page = Queues {
        ready: formatting::count(ready),
        running: formatting::count(running),
        rate: per_minute(rate),
        workers: alive.to_string(),
        dead: formatting::count(dead),
        pools: pools.into_iter().map(|(_, pool)| pool).collect(),
    };
    Ok(asked.page("Queues", PATH, &page))
}

fn pool(pool: pools::Overview, past: &PoolHistory, now: Timestamp) -> Pool {
    let queue = Queue::of(pool, now);
    let paused = !matches!(queue.status, PoolStatus::Active);
    let (state, tone) = match queue.status {
        PoolStatus::Active if queue.workers == 0 => ("no worker", if queue.ready > 0 { "bad" } else { "" }),
        PoolStatus::Active => ("active", "good"),
        _ => (queue.status.as_str(), "wait"),
    };
    Pool {
        name: queue.pool,
        state,
        tone,
        paused,
        ready: formatting::count(queue.ready),
        oldest: match queue.oldest_ready {
            Some(due) => formatting::span(now.since(due)),
            None => "–".to_owned(),
        },
        late: queue.oldest_ready_age_seconds > LATE_SECONDS,
        running: formatting::count(queue.running),
        slots: formatting::count(queue.slots),
        meter: queue.running.min(queue.slots.max(1)),
        meter_max: queue.slots.max(1),
        scheduled: formatting::count(queue.scheduled),
        blocked: formatting::count(queue.blocked),
        waiting: formatting::count(queue.waiting),
        rate: per_minute(past.rate),
        line: formatting::line(&past.ready),
        most: past.ready.iter().copied().max().unwrap_or(0),
    }
}

/// Jobs per minute; few are shown with a decimal.
fn per_minute(per_second: Option<f64>) -> String {
    match per_second.map(|rate| rate * 60.0) {
        None => "–".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => formatting::count(rate.round() as i64),
    }
}

pub(super) async fn act(
    State(app): State<App>,
    Path((pool, action)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("pool"));
    let paused = match action.as_str() {
        "pause" => true,
        "resume" => false,
        _ => return Err(missing()),
    };
    let known = app.store.write(async |tx| {
        if pools::overview(tx, &pool, workers::HEARTBEAT_WINDOW).await?.is_none() {
            return Ok(false);
        }
        if paused {
            pools::pause(tx, &pool).await?;
        } else {
            pools::resume(tx, &pool).await?;
        }
        Ok(true)
    });
    if !known.await? {
        return Err(missing());
    }
    tracing::info!(pool, paused, "paused or resumed a pool from the dashboard");
    Ok(back(PATH))
}
