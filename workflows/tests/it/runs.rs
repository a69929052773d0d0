//! Runs of the agent server: performed, interrupted, cancelled and repeated.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use towpath_domain::agent::{CancelAction, Frame, RunStatus, ThreadStatus};
use towpath_domain::{Clock, ThreadId};
use towpath_durable::Signal;
use towpath_queue::{Event, Events};
use towpath_store::query::Query;
use towpath_store::run_events;
use towpath_store::threads::Thread;
use towpath_workflows::run_agent::{self, Target};
use towpath_workflows::sweep_agent;

use crate::server::Server;

fn values(thread: &Thread) -> Value {
    thread
        .current_values
        .as_deref()
        .map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// Names of the events so far, and whether the end was among them.
fn seen(events: &mut Events) -> (Vec<String>, bool) {
    let (mut names, mut ended) = (Vec::new(), false);
    while let Some(event) = events.try_next() {
        let Event::Frame(text) = event else { continue };
        let frame = Frame::decode(&text).unwrap();
        ended |= frame.is_end();
        if !frame.is_end() {
            names.push(frame.event.to_owned());
        }
    }
    (names, ended)
}

#[tokio::test]
async fn a_run_leaves_its_state_on_its_thread() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::Existing(thread), "steps", json!({})).await;
    assert_eq!(
        server.thread(thread).await.status,
        ThreadStatus::Busy,
        "from the moment it is recorded"
    );
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Success);
    let row = server.thread(thread).await;
    assert_eq!(
        (row.status, values(&row)),
        (ThreadStatus::Idle, json!({"log": ["one", "two"]}))
    );
    let (names, ended) = seen(&mut events);
    assert_eq!((names[0].as_str(), ended), ("metadata", true));
    assert!(names[1..].iter().all(|name| name == "values"), "{names:?}");
    assert_eq!(
        server.count("SELECT count(*) FROM run_event").await,
        0,
        "nobody asked to keep them"
    );
    assert!(server.count("SELECT count(*) FROM checkpoints").await >= 3);
}

#[tokio::test]
async fn a_stateless_run_leaves_nothing() {
    let server = Server::new().await;
    let (run, mut events) = server.start(Target::New(ThreadId::new()), "steps", json!({})).await;
    server.perform().await;
    assert!(seen(&mut events).1);
    assert!(server.run(run.id).await.is_none());
    for table in [
        "thread",
        "run",
        "checkpoints",
        "checkpoint_blobs",
        "checkpoint_writes",
        "lane",
    ] {
        let text = format!("SELECT count(*) FROM {table}");
        assert_eq!(server.count(&text).await, 0, "{table}");
    }
}

#[tokio::test]
async fn a_lost_attempt_goes_on_where_it_was_and_its_events_keep_their_order() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let asked = json!({"durability": "sync", "stream_resumable": true, "stream_mode": ["values", "updates"]});
    let (run, _events) = server.start(Target::Existing(thread), "shaky", asked).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Pending);
    server.hurry().await;
    server.perform().await;
    let done = server.run(run.id).await.unwrap();
    assert_eq!(done.status, RunStatus::Success);
    assert_eq!(
        values(&server.thread(thread).await),
        json!({"log": ["one", "two"]}),
        "no step was done twice"
    );
    let logged = server
        .store()
        .read(async |tx| run_events::read(tx, server.tenant, thread, Some(run.id), 0, i64::MAX).await)
        .await
        .unwrap();
    assert!(!logged.more);
    let frames: Vec<String> = logged
        .batches
        .iter()
        .flat_map(|batch| towpath_domain::agent::frame::split(&batch.frames))
        .map(str::to_owned)
        .collect();
    let frames: Vec<Frame<'_>> = frames.iter().map(|text| Frame::decode(text).unwrap()).collect();
    assert!(
        frames.windows(2).all(|pair| pair[0].id < pair[1].id),
        "ids rise, also from attempt to attempt"
    );
    let attempts = frames.iter().filter(|frame| frame.event == "metadata").count();
    assert_eq!(attempts, 2);
    let ones = frames
        .iter()
        .filter(|frame| frame.event == "updates" && frame.data.starts_with(r#"{"one""#))
        .count();
    assert_eq!(ones, 1, "the first step ran in the first attempt only");
    assert!(frames.last().unwrap().is_end());
}

#[tokio::test]
async fn a_run_that_only_loses_its_workers_ends_as_an_error() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::Existing(thread), "gone", json!({})).await;
    for _ in 0..3 {
        server.perform().await;
        server.hurry().await;
    }
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Pending);
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    let row = server.thread(thread).await;
    assert_eq!(row.status, ThreadStatus::Error);
    assert!(row.error.unwrap().contains("exceeded max attempts"));
    let (names, ended) = seen(&mut events);
    assert!(ended && names.last().is_some_and(|name| name == "error"), "{names:?}");
}

#[tokio::test]
async fn what_a_graph_raises_is_final() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::Existing(thread), "broken", json!({})).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    let row = server.thread(thread).await;
    let error: Value = serde_json::from_str(row.error.as_deref().unwrap()).unwrap();
    assert_eq!(error, json!({"error": "ValueError", "message": "it broke"}));
    assert_eq!(seen(&mut events).0.last().map(String::as_str), Some("error"));
    // The next run clears it.
    server.start(Target::Existing(thread), "steps", json!({})).await;
    server.perform().await;
    let row = server.thread(thread).await;
    assert_eq!((row.status, row.error), (ThreadStatus::Idle, None));
}

#[tokio::test]
async fn a_run_at_work_is_interrupted_and_keeps_what_it_did() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::Existing(thread), "slow", json!({})).await;
    server
        .cancel_at_work(&run, &mut events, r#"["one"]"#, CancelAction::Interrupt)
        .await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Interrupted);
    let row = server.thread(thread).await;
    assert_eq!(row.status, ThreadStatus::Interrupted, "a step is left");
    assert_eq!(values(&row), json!({"log": ["one"]}));
    let (names, ended) = seen(&mut events);
    assert!(ended && !names.iter().any(|name| name == "error"));
}

#[tokio::test]
async fn a_run_that_is_rolled_back_was_never_there() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    server.start(Target::Existing(thread), "steps", json!({})).await;
    server.perform().await;
    let before = server.count("SELECT count(*) FROM checkpoints").await;
    let (run, mut events) = server
        .start(Target::Existing(thread), "slow", json!({"durability": "sync"}))
        .await;
    server
        .cancel_at_work(&run, &mut events, r#""two","one"]"#, CancelAction::Rollback)
        .await;
    assert!(server.run(run.id).await.is_none());
    assert_eq!(server.count("SELECT count(*) FROM checkpoints").await, before);
    let row = server.thread(thread).await;
    assert_eq!(
        (row.status, values(&row)),
        (ThreadStatus::Idle, json!({"log": ["one", "two"]}))
    );
}

/// A rolled-back run also loses its writes to the checkpoint it started from: here the answer to its question.
#[tokio::test]
async fn an_answer_that_is_rolled_back_was_never_given() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    server.start(Target::Existing(thread), "asks", json!({})).await;
    server.perform().await;
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Interrupted);
    let written = async || server.count("SELECT count(*) FROM checkpoint_writes").await;
    let before = written().await;
    let answer = |text: &str| json!({"input": null, "command": {"resume": text}, "durability": "sync"});
    let (run, mut events) = server.start(Target::Existing(thread), "asks", answer("no")).await;
    server
        .cancel_at_work(&run, &mut events, r#"["asked"]"#, CancelAction::Rollback)
        .await;
    assert!(server.run(run.id).await.is_none());
    assert_eq!(written().await, before);
    // The question is open again, and another answer counts.
    let (run, mut events) = server.start(Target::Existing(thread), "asks", answer("yes")).await;
    server
        .cancel_at_work(&run, &mut events, r#"["asked"]"#, CancelAction::Interrupt)
        .await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Interrupted);
    let row = server.thread(thread).await;
    assert_eq!(values(&row), json!({"answer": "yes", "log": ["asked"]}));
}

/// A second answer replaces the first one on the same checkpoint; rolled back, it restores the first one.
#[tokio::test]
async fn an_answer_that_another_one_replaced_comes_back() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let answer = |text: &str| json!({"input": null, "command": {"resume": text}, "durability": "sync"});
    server.start(Target::Existing(thread), "asks twice", json!({})).await;
    server.perform().await;
    server.start(Target::Existing(thread), "asks twice", answer("1")).await;
    server.perform().await;
    let before = server.thread(thread).await;
    assert!(before.interrupts.contains("other?"), "{}", before.interrupts);
    let (run, mut events) = server.start(Target::Existing(thread), "asks twice", answer("no")).await;
    server
        .cancel_at_work(&run, &mut events, r#"["asked"]"#, CancelAction::Rollback)
        .await;
    let after = server.thread(thread).await;
    assert_eq!(
        (after.status, after.interrupts, after.current_values),
        (ThreadStatus::Interrupted, before.interrupts, before.current_values),
        "it waits for the second answer, as before"
    );
    let (run, mut events) = server.start(Target::Existing(thread), "asks twice", answer("2")).await;
    server
        .cancel_at_work(&run, &mut events, r#"["asked"]"#, CancelAction::Interrupt)
        .await;
    let row = server.thread(thread).await;
    assert_eq!(values(&row), json!({"one": "1", "other": "2", "log": ["asked"]}));
}

/// Refused before any work: the question stays open.
#[tokio::test]
async fn a_strict_resume_that_answers_nobody_fails_and_changes_nothing() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    server.start(Target::Existing(thread), "asks twice", json!({})).await;
    server.perform().await;
    let before = server.thread(thread).await;
    let saved = server.count("SELECT count(*) FROM checkpoint_writes").await;
    for (resume, message) in [
        (
            json!({"0".repeat(32): "x"}),
            "Unknown or already-consumed interrupt: 0000",
        ),
        (json!({}), "The resume map names no interrupt"),
    ] {
        let asked = json!({"input": null, "command": {"resume": resume}, "strict_resume": true});
        let (run, _events) = server.start(Target::Existing(thread), "asks twice", asked).await;
        server.perform().await;
        assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
        let row = server.thread(thread).await;
        let error: Value = serde_json::from_str(row.error.as_deref().unwrap()).unwrap();
        assert_eq!(error["error"], "UnknownInterruptError");
        assert!(error["message"].as_str().unwrap().starts_with(message), "{error}");
        assert_eq!(
            (row.status, row.interrupts, row.current_values),
            (before.status, before.interrupts.clone(), before.current_values.clone())
        );
    }
    assert_eq!(server.count("SELECT count(*) FROM checkpoint_writes").await, saved);
    // A run with the answer continues, to the next question.
    let interrupts: Value = serde_json::from_str(&before.interrupts).unwrap();
    let waiting = interrupts.as_object().unwrap().values().next().unwrap();
    let id = waiting[0]["id"].as_str().unwrap();
    let asked = json!({"input": null, "command": {"resume": {id: "1"}}, "strict_resume": true});
    server
        .start(Target::Existing(thread), "asks twice", asked.clone())
        .await;
    server.perform().await;
    assert!(server.thread(thread).await.interrupts.contains("other?"));
    // Repeating the answer answers nothing.
    let (run, _events) = server.start(Target::Existing(thread), "asks twice", asked).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    assert!(server.thread(thread).await.interrupts.contains("other?"));
}

#[tokio::test]
async fn runs_that_wait_end_at_once_when_cancelled() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (first, _) = server.start(Target::Existing(thread), "steps", json!({})).await;
    let (second, mut events) = server.start(Target::Existing(thread), "steps", json!({})).await;
    let (third, _) = server.start(Target::Existing(thread), "steps", json!({})).await;
    server.cancel(&second, CancelAction::Interrupt).await;
    server.cancel(&third, CancelAction::Rollback).await;
    assert_eq!(server.run(second.id).await.unwrap().status, RunStatus::Interrupted);
    assert!(server.run(third.id).await.is_none());
    assert!(seen(&mut events).1, "its readers are told");
    assert_eq!(
        server.thread(thread).await.status,
        ThreadStatus::Busy,
        "the first is still to come"
    );
    server.perform().await;
    assert_eq!(server.run(first.id).await.unwrap().status, RunStatus::Success);
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Idle);
    assert!(server.claim().await.is_none());
}

/// The thread waits for an answer before the run, and again after a run that never started.
#[tokio::test]
async fn a_thread_stands_where_it_stood_when_a_run_is_cancelled_before_it_began() {
    let server = Server::new().await;
    for (graph, status) in [
        ("steps", ThreadStatus::Idle),
        ("asks", ThreadStatus::Interrupted),
        ("stops", ThreadStatus::Interrupted),
        ("broken", ThreadStatus::Error),
    ] {
        let thread = ThreadId::new();
        server.start(Target::Existing(thread), graph, json!({})).await;
        server.perform().await;
        let before = server.thread(thread).await;
        assert_eq!(before.status, status, "{graph}");
        for action in [CancelAction::Interrupt, CancelAction::Rollback] {
            let delayed = json!({"after_seconds": 3600});
            let (one, _) = server.start(Target::Existing(thread), graph, delayed.clone()).await;
            let (two, _) = server.start(Target::Existing(thread), graph, delayed).await;
            for run in [one, two] {
                assert_eq!(server.thread(thread).await.status, ThreadStatus::Busy, "{graph}");
                server.cancel(&run, action).await;
            }
            let after = server.thread(thread).await;
            assert_eq!(
                (after.status, &after.interrupts, &after.error, &after.current_values),
                (status, &before.interrupts, &before.error, &before.current_values),
                "{graph}, {action:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_worker_that_dies_in_a_step_costs_that_step_only() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let asked = json!({"durability": "sync"});
    let (run, mut events) = server.start(Target::Existing(thread), "slow", asked).await;
    server
        .perform_until(thread, &mut events, r#"["one"]"#, 1, Signal::Lost)
        .await;
    towpath_durable::release_earlier_boots(server.store()).await.unwrap();
    // The next attempt begins with the second step: the first one is not repeated.
    let _ = seen(&mut events);
    let job = server.claim().await.unwrap();
    let (tell, told) = watch::channel(Signal::Run);
    let work = towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told);
    let stop = async {
        while !matches!(events.next().await, Event::Frame(frame) if frame.contains("metadata")) {}
        server.cancel(&run, CancelAction::Interrupt).await;
        tell.send_replace(Signal::Cancel);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = work => {}
        () = stop => {}
    }
    assert_eq!(values(&server.thread(thread).await), json!({"log": ["one"]}));
}

#[tokio::test]
async fn a_thread_is_deleted_under_its_run() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let asked = json!({"stream_resumable": true});
    let (run, mut events) = server.start(Target::Existing(thread), "slow", asked).await;
    let job = server.claim().await.unwrap();
    let (tell, told) = watch::channel(Signal::Run);
    let work = towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told);
    let delete = async {
        while !matches!(events.next().await, Event::Frame(frame) if frame.contains(r#"["one"]"#)) {}
        server
            .store()
            .write(async |tx| run_agent::delete_thread(tx, server.tenant, thread).await)
            .await
            .unwrap();
        tell.send_replace(Signal::Cancel);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = work => {}
        () = delete => {}
    }
    assert!(server.run(run.id).await.is_none());
    for table in [
        "thread",
        "run",
        "run_event",
        "checkpoints",
        "checkpoint_blobs",
        "checkpoint_writes",
    ] {
        let text = format!("SELECT count(*) FROM {table}");
        assert_eq!(server.count(&text).await, 0, "{table}");
    }
}

#[tokio::test]
async fn histories_are_cut_by_number_and_by_age_but_for_the_latest_state() {
    const DAY: Duration = Duration::from_secs(86_400);
    // Not before today: ids of checkpoints only grow within a process, whatever its clock.
    let clock = Clock::stopped(Clock::system().now());
    let mut server = Server::at(clock.clone()).await;
    server.world.settings.keep_checkpoints = 5;
    server.world.settings.checkpoint_retention = DAY * 90;
    let tenant = server.tenant;
    sweep_agent::ensure(server.store(), tenant).await.unwrap();
    let sweep = async || {
        clock.advance(Duration::from_secs(61));
        towpath_durable::ready_due(server.store()).await.unwrap();
        server.perform_of("sweeps").await;
    };
    let (busy, resting) = (ThreadId::new(), ThreadId::new());
    for thread in [busy, resting] {
        for _ in 0..2 {
            drop(server.start(Target::Existing(thread), "steps", json!({})).await);
            server.perform().await;
        }
    }
    assert_eq!(
        server.checkpoints(busy).await.len(),
        8,
        "an input and three supersteps a run"
    );
    sweep().await;
    assert_eq!(server.checkpoints(busy).await.len(), 5);

    clock.advance(DAY * 60);
    drop(server.start(Target::Existing(busy), "steps", json!({})).await);
    server.perform().await;
    let latest = server.checkpoints(resting).await.remove(0);
    sweep().await;
    // The last sweep was longer ago than a sweep looks back by itself: the first one afterwards covers that.
    clock.advance(DAY * 60);
    sweep().await;
    assert_eq!(server.checkpoints(resting).await, [latest], "120 days at rest");
    assert_eq!(server.checkpoints(busy).await.len(), 4, "its last run is 60 days old");
}

#[tokio::test]
async fn the_end_of_a_run_without_a_job_is_kept_as_long_as_events_are() {
    let clock = Clock::stopped(Clock::system().now());
    let mut server = Server::at(clock.clone()).await;
    server.world.settings.event_retention = Duration::from_secs(30);
    sweep_agent::ensure(server.store(), server.tenant).await.unwrap();
    let asked = json!({"stream_resumable": true});
    let (run, _events) = server.start(Target::Existing(ThreadId::new()), "steps", asked).await;
    let text = "DELETE FROM job WHERE kind = 'run_agent'";
    let deleted = server
        .store()
        .write(async |tx| Query::new(tx, text).execute(tx).await)
        .await;
    assert_eq!(deleted.unwrap(), 1);
    let sweep = async || {
        clock.advance(Duration::from_secs(61));
        towpath_durable::ready_due(server.store()).await.unwrap();
        server.perform_of("sweeps").await;
        server.count("SELECT count(*) FROM run_event").await
    };
    assert_eq!(sweep().await, 1, "its end is logged");
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    assert_eq!(sweep().await, 0, "a minute later");
}
