//! Accepted trace data is folded also when the fold it was recorded with is gone.

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Layout, World, until};

use crate::load::PATIENCE;

#[tokio::test]
async fn embedded_replaces_a_fold_that_was_cancelled() {
    a_cancelled_fold_is_replaced(Layout::Embedded).await;
}

#[tokio::test]
async fn a_cluster_replaces_a_fold_that_was_cancelled() {
    a_cancelled_fold_is_replaced(Layout::Cluster { workers: 1 }).await;
}

async fn a_cancelled_fold_is_replaced(layout: Layout) {
    let Some(world) = World::plan(layout).start().await else {
        return;
    };
    let folds = async |state: &str| {
        let path = format!("/internal/jobs?kind=flush_wal&state={state}");
        let listed = world.api.get(&path).await.expect(200);
        listed["items"].as_array().expect("a list").clone()
    };
    let operate = async |path: String| {
        let answer = world.api.request(Method::POST, &path, None).await;
        answer.expect("an answer").expect(200)
    };
    operate("/internal/queues/flushes/pause".to_owned()).await;
    let run = json!({
        "id": "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d", "name": "lock", "run_type": "chain", "session_name": "canal",
        "start_time": "2026-03-01T10:00:00Z",
    });
    world.api.post("/runs", &run).await.expect(202);
    let fold: Value = until("its fold to be due", PATIENCE, async || folds("ready").await.pop()).await;
    operate(format!("/internal/jobs/{}/cancel", fold["id"].as_str().expect("an id"))).await;
    operate("/internal/queues/flushes/resume".to_owned()).await;
    // Nothing more comes in.
    until("another fold to do it", PATIENCE, async || {
        folds("succeeded").await.pop()
    })
    .await;
    let read = world
        .api
        .get(&format!("/runs/{}", run["id"].as_str().expect("an id")))
        .await;
    assert_eq!(read.expect(200)["name"], "lock");
    world.stop().await;
}
