//! Workers and the number of jobs that each runs.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use towpath_domain::{Timestamp, WorkerId};
use towpath_store::{jobs, workers};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal::model::Worker;

const PATH: &str = "/ui/workers";

#[derive(Template)]
#[template(path = "ui/workers.html")]
struct Workers {
    workers: Vec<Row>,
}

struct Row {
    id: String,
    short: String,
    host: String,
    pid: i64,
    version: String,
    state: &'static str,
    tone: &'static str,
    pools: Vec<Pool>,
    in_hand: i64,
    seen: String,
    up: String,
    can_drain: bool,
    can_resume: bool,
}

struct Pool {
    name: String,
    slots: i64,
    busy: i64,
}

pub(super) async fn page(State(app): State<App>, asked: PageRequest) -> PageResult {
    let found = app.store.read(async |tx| {
        Ok((
            workers::list(tx).await?,
            jobs::running_counts(tx).await?,
            jobs::db_now(tx).await?,
        ))
    });
    let (found, in_hand, now) = found.await?;
    let mut running: BTreeMap<WorkerId, BTreeMap<String, i64>> = BTreeMap::new();
    for held in in_hand {
        running.entry(held.worker_id).or_default().insert(held.pool, held.jobs);
    }
    let workers = found
        .into_iter()
        .map(|worker| {
            let running = running.remove(&worker.id).unwrap_or_default();
            row(Worker::of(worker, running, now), now)
        })
        .collect();
    Ok(asked.page("Workers", PATH, &Workers { workers }))
}

fn row(worker: Worker, now: Timestamp) -> Row {
    let busy = |pool: &String| worker.running.get(pool).copied().unwrap_or(0);
    Row {
        id: worker.id.to_string(),
        short: formatting::short(&worker.id),
        state: worker.status,
        tone: match worker.status {
            "active" => "good",
            "silent" => "bad",
            _ => "wait",
        },
        pools: worker
            .pools
            .iter()
            .map(|(name, &slots)| Pool {
                name: name.clone(),
                slots,
                busy: busy(name),
            })
            .collect(),
        in_hand: worker.running.values().sum(),
        seen: formatting::relative(worker.seen_at, now),
        up: formatting::span(now.since(worker.started_at)),
        can_drain: worker.status == "active",
        can_resume: matches!(worker.status, "draining" | "drained"),
        host: worker.host,
        pid: worker.pid,
        version: worker.version,
    }
}

/// Drains or resumes a worker.
pub(super) async fn act(
    State(app): State<App>,
    Path((worker, action)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("worker"));
    let id: WorkerId = worker.parse().map_err(|_| missing())?;
    let drains = match action.as_str() {
        "drain" => true,
        "resume" => false,
        _ => return Err(missing()),
    };
    let known = app.store.write(async |tx| {
        if drains {
            workers::drain(tx, id).await
        } else {
            workers::resume(tx, id).await
        }
    });
    if !known.await? {
        return Err(missing());
    }
    tracing::info!(worker.id = %id, drains, "drained or resumed a worker from the dashboard");
    Ok(back(PATH))
}
