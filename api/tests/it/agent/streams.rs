//! Readers of runs and threads: each gets what the log says, once and in order, and is told when something was lost.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use towpath_api::agent::Settings;
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::{RunId, ThreadId};
use towpath_store::query::Query;
use towpath_store::{run_events, threads};
use towpath_workflows::run_agent;

use crate::world::{Call, call};

use super::{Agent, OpenResponse, end, frame, on_both_databases, values};

on_both_databases!(
    a_thread_reader_misses_nothing_that_is_logged_late,
    a_thread_reader_comes_back_to_what_was_logged_late,
    a_reader_that_resumes_has_a_page_of_the_log_at_a_time,
    a_stream_that_lost_events_says_so,
    the_stream_of_a_thread_that_lost_events_says_so_and_goes_on,
    an_error_is_streamed_whatever_clock_its_id_is_from,
    a_reader_that_comes_back_gets_an_error_that_another_process_logged,
    frames_that_are_not_logged_yet_are_waited_for,
    the_stream_of_a_thread_ends_with_the_thread,
    the_stream_of_a_thread_ends_when_nobody_says_that_it_is_gone,
    events_are_kept_as_long_as_the_settings_say,
);

fn error() -> Value {
    json!({"error": "RuntimeError", "message": "given up"})
}

/// The error of a run that another process gave up.
fn given_up(run: RunId, ms: i64) -> String {
    frame(run, 0, ms, "error", &error())
}

/// The end of such a run.
fn ended(run: RunId, ms: i64) -> String {
    let ended = RunEnd {
        status: None,
        attempt: 0,
        last: 0,
        values: None,
        error: None,
    };
    end(run, ms, &ended)
}

/// Two runs: one is at work, and its worker's clock is behind; the other one ends meanwhile.
async fn two_runs(agent: &Agent) -> (String, ThreadId, RunId, RunId) {
    let thread = agent.thread().await;
    let one = agent.record(thread, &json!({})).await;
    let two = agent.record(thread, &json!({})).await;
    (format!("/threads/{thread}/stream"), thread, one, two)
}

async fn a_thread_reader_misses_nothing_that_is_logged_late(agent: Agent) {
    let (path, thread, one, two) = two_runs(&agent).await;
    agent.log(thread, &[values(one, 1, 1000), values(one, 2, 1001)]).await;
    agent.log(thread, &[given_up(two, 1045), ended(two, 1046)]).await;
    let mut stream = OpenResponse::stream(&agent.router, &path, Some("-")).await;
    stream.expect_values([1, 2]).await;
    stream.expect("error", &error()).await;
    let done = json!({"status": "run_done", "run_id": two});
    stream.expect("metadata", &done).await;
    agent.log(thread, &[values(one, 3, 1002), values(one, 4, 1003)]).await;
    stream.expect_values([3, 4]).await;
    agent.log(thread, &[values(one, 5, 1044), values(one, 6, 1060)]).await;
    stream.expect_values([5, 6]).await;
}

async fn a_thread_reader_comes_back_to_what_was_logged_late(agent: Agent) {
    let (path, thread, one, two) = two_runs(&agent).await;
    agent.log(thread, &[values(one, 1, 1000), values(one, 2, 1001)]).await;
    agent.log(thread, &[given_up(two, 1045), ended(two, 1046)]).await;
    agent.log(thread, &[values(one, 3, 1002), values(one, 4, 1003)]).await;
    let mut stream = OpenResponse::stream(&agent.router, &path, Some("1045-0")).await;
    let done = json!({"status": "run_done", "run_id": two});
    stream.expect("metadata", &done).await;
    stream.expect_values([3, 4]).await;
    let mut stream = OpenResponse::stream(&agent.router, &path, Some("1001-0")).await;
    stream.expect("error", &error()).await;
    stream.expect("metadata", &done).await;
    stream.expect_values([3, 4]).await;
    // What is published and logged comes once, also when the log is behind.
    agent.publish(thread, &[values(one, 5, 1004)]);
    stream.expect_values([5]).await;
    agent.log(thread, &[values(one, 5, 1004), values(one, 6, 1005)]).await;
    agent.publish(thread, &[values(one, 7, 1006)]);
    stream.expect_values([6, 7]).await;
}

/// What it has not handed out yet it does not hold: it is told when that is deleted meanwhile.
async fn a_reader_that_resumes_has_a_page_of_the_log_at_a_time(agent: Agent) {
    const BATCHES: i64 = 16;
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    // Three of them are a page.
    let long = json!({"text": "x".repeat(300 << 10)});
    for number in 1..=BATCHES {
        let batch = frame(run, number, 1000 + number, "values", &long);
        agent.log(thread, &[batch]).await;
    }
    let path = format!("/threads/{thread}/runs/{run}/stream");
    // One that is not disturbed has all of it.
    let mut whole = OpenResponse::stream(&agent.router, &path, Some("-1")).await;
    for _ in 1..=BATCHES {
        whole.expect("values", &long).await;
    }
    let mut stream = OpenResponse::stream(&agent.router, &path, Some("-1")).await;
    stream.expect("values", &long).await;
    // Its end is kept, and says how far the log went.
    let cancel = format!("/threads/{thread}/runs/{run}/cancel");
    assert_eq!(agent.post(&cancel, &json!({})).await.status, 202);
    agent
        .store
        .write(async |tx| {
            Query::new(tx, "DELETE FROM run_event WHERE first > 3")
                .execute(tx)
                .await
        })
        .await
        .unwrap();
    for _ in 2..=3 {
        stream.expect("values", &long).await;
    }
    stream.expect_cut().await;
    assert_eq!(stream.next().await, None);
    assert_eq!(whole.next().await, None, "an end without an error");
}

async fn a_stream_that_lost_events_says_so(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({})).await;
    let path = format!("/threads/{thread}/runs/{run}/stream");
    let mut stream = OpenResponse::stream(&agent.router, &path, None).await;
    agent.publish(
        thread,
        &[values(run, 1, 1001), values(run, 2, 1002), values(run, 4, 1004)],
    );
    stream.expect_values([1, 2]).await;
    stream.expect_cut().await;
    assert_eq!(stream.next().await, None, "it has ended");
    // Also when it is the end that shows it.
    let mut stream = OpenResponse::stream(&agent.router, &path, None).await;
    let all = RunEnd {
        status: None,
        attempt: 1,
        last: 7,
        values: None,
        error: None,
    };
    agent.publish(thread, &[values(run, 5, 1005), end(run, 1008, &all)]);
    stream.expect_values([5]).await;
    stream.expect_cut().await;
    assert_eq!(stream.next().await, None);
}

async fn the_stream_of_a_thread_that_lost_events_says_so_and_goes_on(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({})).await;
    let mut stream = OpenResponse::stream(&agent.router, &format!("/threads/{thread}/stream"), None).await;
    agent.publish(thread, &[values(run, 1, 1001), values(run, 3, 1003)]);
    stream.expect_values([1]).await;
    stream.expect_cut().await;
    stream.expect_values([3]).await;
    agent.publish(thread, &[values(run, 4, 1004)]);
    stream.expect_values([4]).await;
}

/// The worker's clock is hours ahead of that of the process that gives its run up.
async fn an_error_is_streamed_whatever_clock_its_id_is_from(agent: Agent) {
    const AHEAD: i64 = 9_000_000_000_000;
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({})).await;
    for path in [
        format!("/threads/{thread}/runs/{run}/stream"),
        format!("/threads/{thread}/stream"),
    ] {
        let mut stream = OpenResponse::stream(&agent.router, &path, None).await;
        agent.publish(thread, &[values(run, 1, AHEAD), given_up(run, 1045), ended(run, 1046)]);
        stream.expect_values([1]).await;
        stream.expect("error", &error()).await;
    }
}

async fn a_reader_that_comes_back_gets_an_error_that_another_process_logged(agent: Agent) {
    const AHEAD: i64 = 9_000_000_000_000;
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    agent
        .log(thread, &[values(run, 1, AHEAD), values(run, 2, AHEAD + 1)])
        .await;
    agent.log(thread, &[given_up(run, 1045), ended(run, 1046)]).await;
    let path = format!("/threads/{thread}/runs/{run}/stream");
    // The last one was published, and lost with its worker before it was logged.
    for (seen, rest) in [(AHEAD, vec![2]), (AHEAD + 1, vec![]), (AHEAD + 2, vec![])] {
        let mut stream = OpenResponse::stream(&agent.router, &path, Some(&format!("{seen}-0"))).await;
        stream.expect_values(rest).await;
        stream.expect("error", &error()).await;
        assert_eq!(stream.next().await, None, "after {seen}");
    }
}

async fn frames_that_are_not_logged_yet_are_waited_for(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    let path = format!("/threads/{thread}/runs/{run}/stream");
    // The second was published before this reader came, and is logged after it came.
    agent.log(thread, &[values(run, 1, 1001)]).await;
    let mut stream = OpenResponse::stream(&agent.router, &path, Some("1001-0")).await;
    agent.publish(thread, &[values(run, 3, 1003)]);
    let log = async {
        // The reader is at work on the gap by then, or comes to it later: both must do.
        tokio::task::yield_now().await;
        agent.log(thread, &[values(run, 2, 1002), values(run, 3, 1003)]).await;
    };
    tokio::join!(stream.expect_values([2, 3]), log);
    agent.publish(thread, &[values(run, 4, 1004)]);
    stream.expect_values([4]).await;
}

async fn the_stream_of_a_thread_ends_with_the_thread(agent: Agent) {
    let thread = agent.thread().await;
    let path = format!("/threads/{thread}");
    let mut stream = OpenResponse::stream(&agent.router, &format!("{path}/stream"), None).await;
    assert_eq!(agent.delete(&path).await.status, 204);
    assert_eq!(stream.next().await, None);
}

async fn the_stream_of_a_thread_ends_when_nobody_says_that_it_is_gone(agent: Agent) {
    let thread = agent.thread().await;
    let mut stream = OpenResponse::stream(&agent.router, &format!("/threads/{thread}/stream"), None).await;
    agent
        .store
        .write(async |tx| threads::delete(tx, agent.tenant, thread).await)
        .await
        .unwrap();
    assert_eq!(stream.next().await, None);
}

async fn events_are_kept_as_long_as_the_settings_say(agent: Agent) {
    let router = agent.beside_with(Settings {
        event_retention: Duration::ZERO,
        ..Settings::default()
    });
    let path = format!("/threads/{}/runs", agent.thread().await);
    let body = json!({"assistant_id": "steps", "input": {"log": []}, "stream_resumable": true});
    call(&router, Call::new(Method::POST, &path).json(&body))
        .await
        .expect(200);
    agent.perform(run_agent::POOL).await;
    let pruned = agent.store.write(async |tx| run_events::prune(tx, 100).await).await;
    assert!(pruned.unwrap() > 0, "events of a run that is over are not kept");
}
