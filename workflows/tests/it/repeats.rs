//! Repeated attempts of runs: finished work is not repeated, and no run waits for ever.

use serde_json::json;
use towpath_domain::agent::{CancelAction, RunStatus, ThreadStatus};
use towpath_domain::{Clock, ThreadId};
use towpath_durable::Signal;
use towpath_store::on;
use towpath_workflows::run_agent::Target;
use towpath_workflows::sweep_agent;

use crate::server::Server;

/// A stopping worker returns the run, and no attempt is counted: the next one is the first again.
#[tokio::test]
async fn a_command_is_applied_once_though_its_run_was_handed_back() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    server.start(Target::Existing(thread), "asks slowly", json!({})).await;
    server.perform().await;
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Interrupted);
    let command = json!({"resume": "yes", "update": {"log": ["told"]}});
    let asked = json!({"input": null, "command": command, "durability": "sync"});
    let (run, mut events) = server.start(Target::Existing(thread), "asks slowly", asked).await;
    let saved = async || {
        let text = "SELECT count(*) FROM checkpoint_writes WHERE channel = 'log'
                    AND task_id = '00000000-0000-0000-0000-000000000000'";
        server.count(text).await
    };
    // The state with the update is shown before the end of the first node, and perhaps before the command is saved.
    server
        .perform_until_saved(
            &mut events,
            r#"["told"]"#,
            async || saved().await == 1,
            Signal::HandBack,
        )
        .await;
    assert_eq!(saved().await, 1);
    assert_eq!(server.run(run.id).await.unwrap().attempt, 0, "it was handed back");
    while events.try_next().is_some() {}
    server
        .cancel_at_work(&run, &mut events, r#""told""#, CancelAction::Interrupt)
        .await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Interrupted);
    assert_eq!(saved().await, 1, "the update is saved once");
}

#[tokio::test]
async fn a_run_that_is_read_twice_at_once_is_there_both_times() {
    let server = Server::new().await;
    let (run, _events) = server
        .start(Target::Existing(ThreadId::new()), "steps", json!({}))
        .await;
    // The first one is alone, the others share a statement.
    let get = || server.world.runs.get(server.tenant, run.id);
    let (first, second, third) = tokio::join!(get(), get(), get());
    for found in [first, second, third] {
        assert_eq!(found.expect("the run is there").id, run.id);
    }
}

#[tokio::test]
async fn a_run_that_outlived_its_job_is_ended_by_the_next_sweep() {
    let clock = Clock::stopped(Clock::system().now());
    let server = Server::at(clock.clone()).await;
    sweep_agent::ensure(server.store(), server.tenant).await.unwrap();
    let thread = ThreadId::new();
    let (run, _events) = server.start(Target::Existing(thread), "steps", json!({})).await;
    let (waits, _events) = server
        .start(
            Target::Existing(ThreadId::new()),
            "steps",
            json!({"after_seconds": 3600}),
        )
        .await;
    server
        .store()
        .write(async |tx| {
            Ok(on!(tx, |conn| sqlx::query("DELETE FROM job WHERE id = $1")
                .bind(run.job_id)
                .execute(conn)
                .await
                .map(drop))?)
        })
        .await
        .unwrap();
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Busy);
    clock.advance(std::time::Duration::from_secs(61));
    towpath_durable::ready_due(server.store()).await.unwrap();
    server.perform_of("sweeps").await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    let row = server.thread(thread).await;
    assert_eq!(row.status, ThreadStatus::Error);
    assert!(row.error.unwrap().contains("given up"), "its readers are told why");
    assert_eq!(
        server.run(waits.id).await.unwrap().status,
        RunStatus::Pending,
        "its job is to come"
    );
}
