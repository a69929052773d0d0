//! How runs end for those who wait, and what ends without them.

use http::Method;
use serde_json::json;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::{RunId, ThreadId};
use towpath_store::threads;

use super::{Agent, OpenResponse, PATIENCE, end, on_both_databases, values};

on_both_databases!(
    who_waits_for_a_run_that_is_cancelled_gets_its_state,
    who_waits_for_a_run_whose_thread_is_gone_gets_what_it_streamed,
    a_state_that_was_lost_on_its_way_is_no_empty_one,
    a_process_that_drains_cancels_nothing,
    a_cancelled_run_that_never_began_leaves_the_thread_as_it_was,
);

async fn who_waits_for_a_run_that_is_cancelled_gets_its_state(agent: Agent) {
    let body = json!({"assistant_id": "slow", "input": {"log": []}});
    let waiting = OpenResponse::new(&agent.router, Method::POST, "/runs/wait", None, &body).await;
    let (thread, run) = waiting.place();
    let mut events = agent.queue.subscribe(thread).await;
    let mut cancelling = None;
    agent
        .perform_until(&mut events, r#"["one"]"#, async || {
            // It comes after the state was streamed.
            let cancel = format!("/runs/{run}/cancel?wait=true");
            cancelling = Some(OpenResponse::new(&agent.router, Method::POST, &cancel, None, &json!({})).await);
        })
        .await;
    let state = json!({"log": ["one"]});
    assert_eq!(waiting.json().await, state);
    assert_eq!(cancelling.unwrap().json().await, state);
    assert_eq!(
        agent.get(&format!("/runs/{run}")).await.status,
        404,
        "it was a stateless one"
    );
}

/// A stateless run that nobody performs, its reader, and the way it ends: with its thread.
async fn stateless(agent: &Agent) -> (OpenResponse, ThreadId, RunId) {
    let body = json!({"assistant_id": "steps", "input": {"log": []}});
    let waiting = OpenResponse::new(&agent.router, Method::POST, "/runs/wait", None, &body).await;
    let (thread, run) = waiting.place();
    (waiting, thread, run)
}

async fn gone(agent: &Agent, thread: ThreadId, run: RunId, status: RunStatus, last: i64) {
    agent
        .store
        .write(async |tx| threads::delete_bare(tx, agent.tenant, thread).await)
        .await
        .unwrap();
    let ended = RunEnd {
        status: Some(status),
        attempt: 1,
        last,
        values: None,
        error: None,
    };
    agent.publish(thread, &[end(run, 2000, &ended)]);
}

async fn who_waits_for_a_run_whose_thread_is_gone_gets_what_it_streamed(agent: Agent) {
    for status in [RunStatus::Interrupted, RunStatus::Success] {
        let (waiting, thread, run) = stateless(&agent).await;
        agent.publish(thread, &[values(run, 1, 1001), values(run, 2, 1002)]);
        gone(&agent, thread, run, status, 2).await;
        assert_eq!(waiting.json().await, json!({"log": [2]}), "{status:?}");
    }
}

async fn a_state_that_was_lost_on_its_way_is_no_empty_one(agent: Agent) {
    // Nothing, or an earlier state, is all that came.
    for came in [vec![], vec![1]] {
        let (waiting, thread, run) = stateless(&agent).await;
        let frames: Vec<String> = came.iter().map(|number| values(run, *number, 1000)).collect();
        agent.publish(thread, &frames);
        gone(&agent, thread, run, RunStatus::Success, 3).await;
        let answer = waiting.json().await;
        assert_eq!(answer["__error__"]["error"], "StreamCut", "{came:?}: {answer}");
    }
    // What came after the loss is whole.
    let (waiting, thread, run) = stateless(&agent).await;
    agent.publish(thread, &[values(run, 1, 1001), values(run, 3, 1003)]);
    gone(&agent, thread, run, RunStatus::Success, 3).await;
    assert_eq!(waiting.json().await, json!({"log": [3]}));
}

async fn a_process_that_drains_cancels_nothing(agent: Agent) {
    let staying = agent.beside();
    let mut begun = Vec::new();
    for router in [&agent.router, &staying] {
        for way in ["wait", "stream", "join"] {
            let thread = agent.thread().await;
            let opened = if way == "join" {
                let run = agent.record(thread, &json!({})).await;
                let join = format!("/threads/{thread}/runs/{run}/join?cancel_on_disconnect=1");
                OpenResponse::stream(router, &join, None).await
            } else {
                let body = json!({"assistant_id": "steps", "input": {"log": []}, "on_disconnect": "cancel"});
                OpenResponse::new(
                    router,
                    Method::POST,
                    &format!("/threads/{thread}/runs/{way}"),
                    None,
                    &body,
                )
                .await
            };
            let (thread, run) = opened.place();
            begun.push((format!("/threads/{thread}/runs/{run}"), way, opened));
        }
    }
    agent.draining.cancel();
    // The process cuts its connections, those of the one that drains first.
    let begun: Vec<_> = begun.into_iter().map(|(path, way, _)| (path, way)).collect();
    let status = async |path: &str| agent.get(path).await.expect(200)["status"].clone();
    let (cut, left) = begun.split_at(3);
    for (path, way) in left {
        let cancelled = async {
            while status(path).await != "interrupted" {
                tokio::task::yield_now().await;
            }
        };
        let cancelled = tokio::time::timeout(PATIENCE, cancelled).await;
        assert!(
            cancelled.is_ok(),
            "waited {PATIENCE:?} for the run of a reader that left to be cancelled: {way}"
        );
    }
    for (path, way) in cut {
        assert_eq!(status(path).await, "pending", "the run goes on elsewhere: {way}");
    }
}

async fn a_cancelled_run_that_never_began_leaves_the_thread_as_it_was(agent: Agent) {
    let thread = agent.thread().await;
    // It stops before a node, so nobody is asked anything.
    agent.record(thread, &json!({"interrupt_before": ["two"]})).await;
    agent.perform(towpath_workflows::run_agent::POOL).await;
    let read = async || agent.get(&format!("/threads/{thread}")).await.expect(200);
    let before = read().await;
    assert_eq!(before["status"], "interrupted");
    for action in ["interrupt", "rollback"] {
        let run = agent.record(thread, &json!({"after_seconds": 3600})).await;
        assert_eq!(read().await["status"], "busy");
        let path = format!("/threads/{thread}/runs/{run}/cancel?action={action}");
        assert_eq!(agent.post(&path, &json!({})).await.status, 202);
        let after = read().await;
        for field in ["status", "values", "interrupts", "error"] {
            assert_eq!(after[field], before[field], "{field}, {action}");
        }
    }
}
