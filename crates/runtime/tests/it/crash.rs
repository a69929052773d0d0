//! Crashes after each acknowledged save, durability, cancelling, limits.

use std::time::Duration;

use serde_json::{Value, json};
use towpath_runtime::{Durability, Execution, GraphError, Save, StreamMode};

use crate::arrange::{TestThread, arrange};

/// Three workers at once, then one that counts.
fn parallel() -> Value {
    json!({
        "kind": "workflow",
        "channels": {"items": "append"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"emit": "a"}, {"append": {"items": "a"}}]},
            "b": {"kind": "script", "steps": [{"emit": "b"}, {"append": {"items": "b"}}]},
            "c": {"kind": "script", "steps": [{"emit": "c"}, {"append": {"items": "c"}}]},
            "end": {"kind": "script", "steps": [{"emit": "end"}, {"append": {"items": "end"}}]},
        },
        "edges": [["__start__", "a"], ["__start__", "b"], ["__start__", "c"], {"from": ["a", "b", "c"], "to": "end"}],
    })
}

fn retried(execution: &Execution) -> Execution {
    Execution {
        attempt: execution.attempt + 1,
        is_retry: true,
        ..execution.clone()
    }
}

#[tokio::test]
async fn a_run_that_lost_its_host_goes_on_without_running_finished_tasks_again() {
    // Input, start, 3 workers, end: 3 puts and 5 tasks; crash after each number of saves that can be acknowledged.
    for durability in [Durability::Sync, Durability::Async] {
        for survived in 0..8 {
            let thread = arrange(parallel());
            let mut execution = thread.execution(Some(json!({"items": ["in"]})));
            execution.modes = vec![StreamMode::Custom];
            execution.durability = durability;
            thread.host.crash_after(Some(survived));
            let lost = thread.try_run(&execution).await.unwrap_err();
            assert!(lost.retry, "{lost}");
            let finished: Vec<String> = thread
                .host
                .take_saves()
                .into_iter()
                .filter_map(|save| match save {
                    Save::Writes(put) => put.path.strip_prefix("~__pregel_pull, ").map(str::to_owned),
                    _ => None,
                })
                .collect();
            thread.host.crash_after(None);
            let _ = thread.told();
            let finish = thread.run(&retried(&execution)).await;
            assert_eq!(
                finish.values,
                json!({"items": ["in", "a", "b", "c", "end"]}),
                "after {survived} saves"
            );
            let again: Vec<String> = thread
                .told()
                .iter()
                .map(|(_, data)| data.as_str().unwrap().to_owned())
                .collect();
            for node in &finished {
                assert!(
                    !again.contains(node),
                    "{node} ran again after {survived} saves: {again:?}"
                );
            }
            let steps: Vec<i64> = thread
                .history()
                .await
                .iter()
                .map(|state| state.metadata.as_ref().unwrap()["step"].as_i64().unwrap())
                .collect();
            assert_eq!(
                steps,
                [2, 1, 0, -1],
                "one checkpoint per superstep after {survived} saves"
            );
        }
    }
}

#[tokio::test]
async fn a_subgraph_goes_on_inside_after_a_crash() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {"sub": {"kind": "workflow", "channels": {"items": "append"}, "nodes": {
            "one": {"kind": "script", "steps": [{"emit": "one"}, {"append": {"items": "1"}}]},
            "two": {"kind": "script", "steps": [{"emit": "two"}, {"append": {"items": "2"}}]},
        }, "edges": [["__start__", "one"], ["one", "two"]]}},
        "edges": [["__start__", "sub"]],
    }));
    let mut execution = thread.execution(Some(json!({})));
    execution.modes = vec![StreamMode::Custom];
    execution.subgraphs = true;
    execution.durability = Durability::Sync;
    // Outside: input, start, loop. Inside: input, start, loop, one.
    thread.host.crash_after(Some(7));
    assert!(thread.try_run(&execution).await.unwrap_err().retry);
    thread.host.crash_after(None);
    let _ = thread.told();
    let finish = thread.run(&retried(&execution)).await;
    assert_eq!(finish.values, json!({"items": ["1", "2"]}));
    let told: Vec<Value> = thread.told().into_iter().map(|(_, data)| data).collect();
    assert_eq!(told, [json!("two")]);
}

#[tokio::test]
async fn a_command_is_not_applied_twice_by_a_second_attempt() {
    let native = json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {
            "ask": {"kind": "script", "steps": [{"interrupt": "?", "into": "items"}]},
            "then": {"kind": "script", "steps": [{"append": {"items": "then"}}]},
        },
        "edges": [["__start__", "ask"], ["ask", "then"]],
    });
    for survived in 0..5 {
        let thread = arrange(native.clone());
        thread.run(&thread.execution(Some(json!({})))).await;
        let mut resume = thread.command(json!({"resume": "yes", "update": {"items": ["u"]}}));
        resume.durability = Durability::Sync;
        thread.host.crash_after(Some(survived));
        let first = thread.try_run(&resume).await;
        thread.host.crash_after(None);
        let finish = match first {
            Ok(finish) => finish,
            Err(error) => {
                assert!(error.retry);
                let command_saved = survived > 0;
                thread
                    .run(&Execution {
                        command_saved,
                        ..retried(&resume)
                    })
                    .await
            }
        };
        assert_eq!(
            finish.values,
            json!({"items": ["u", "yes", "then"]}),
            "after {survived} saves"
        );
    }
}

#[tokio::test]
async fn a_command_counts_though_a_run_before_it_left_one_behind() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {"ask": {"kind": "script", "steps": [{"interrupt": "?", "into": "items"}]}},
        "edges": [["__start__", "ask"]],
    }));
    thread.run(&thread.execution(Some(json!({})))).await;
    // It saves what it was told, and is never heard of again.
    let mut stopped = thread.command(json!({"update": {"items": ["left"]}}));
    stopped.durability = Durability::Sync;
    thread.host.crash_after(Some(1));
    assert!(thread.try_run(&stopped).await.unwrap_err().retry);
    // The first attempt of another one saves nothing.
    let mut next = thread.command(json!({"resume": "yes", "update": {"items": ["u"]}}));
    next.durability = Durability::Sync;
    thread.host.crash_after(Some(0));
    assert!(thread.try_run(&next).await.unwrap_err().retry);
    thread.host.crash_after(None);
    let finish = thread.run(&retried(&next)).await;
    assert_eq!(finish.values, json!({"items": ["left", "u", "yes"]}));
}

#[tokio::test]
async fn durability_decides_when_checkpoints_are_written() {
    let count = async |durability| {
        let thread = arrange(parallel());
        let mut execution = thread.execution(Some(json!({})));
        execution.durability = durability;
        thread.run(&execution).await;
        let saves = thread.host.take_saves();
        (
            saves.iter().filter(|save| matches!(save, Save::Checkpoint(_))).count(),
            saves.len(),
        )
    };
    assert_eq!(count(Durability::Sync).await, (4, 9));
    assert_eq!(count(Durability::Async).await, (4, 9));
    assert_eq!(count(Durability::Exit).await, (1, 1));
}

#[tokio::test]
async fn exit_durability_saves_at_a_stop_and_at_an_error_too() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"append": {"items": "a"}}]},
            "ask": {"kind": "script", "steps": [{"interrupt": "?", "into": "items"}]},
        },
        "edges": [["__start__", "a"], ["a", "ask"]],
    }));
    let mut execution = thread.execution(Some(json!({})));
    execution.durability = Durability::Exit;
    thread.run(&execution).await;
    let state = thread.state().await;
    assert_eq!((state.next, state.interrupts.len()), (vec!["ask".to_owned()], 1));
    let mut resume = thread.command(json!({"resume": "x"}));
    resume.durability = Durability::Exit;
    let finish = thread.run(&resume).await;
    assert_eq!(finish.values, json!({"items": ["a", "x"]}));
    assert_eq!(thread.history().await.len(), 2);

    let thread = arrange(json!({"kind": "script", "steps": [{"fail": {"message": "boom"}}]}));
    let mut execution = thread.execution(Some(json!({})));
    execution.durability = Durability::Exit;
    thread.try_run(&execution).await.unwrap_err();
    assert_eq!(
        thread.state().await.tasks[0].error.as_deref(),
        Some("ValueError('boom')")
    );
}

#[tokio::test]
async fn a_failing_node_fails_the_run_and_keeps_what_its_sibling_wrote() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"x": "last-value"},
        "nodes": {
            "bad": {"kind": "script", "steps": [{"sleep_ms": 1}, {"fail": {"type": "ZeroDivisionError", "message": "boom"}}]},
            "ok": {"kind": "script", "steps": [{"set": {"x": 5}}]},
        },
        "edges": [["__start__", "bad"], ["__start__", "ok"]],
    }));
    let mut execution = thread.execution(Some(json!({})));
    execution.modes = vec![StreamMode::Tasks];
    let error = thread.try_run(&execution).await.unwrap_err();
    assert_eq!(error, GraphError::new("ZeroDivisionError", "boom"));
    let told = thread.told();
    let (_, last) = told.last().unwrap();
    assert_eq!(last["error"], json!({"error": "ZeroDivisionError", "message": "boom"}));
    let state = thread.state().await;
    assert_eq!(state.values, json!({"x": 5}));
    assert_eq!(state.next, ["bad"]);
    assert_eq!(state.tasks[0].error.as_deref(), Some("ZeroDivisionError('boom')"));
    assert_eq!(state.tasks[1].result, Some(json!({"x": 5})));
}

#[tokio::test]
async fn a_node_is_tried_as_often_as_its_policy_says() {
    let native = |attempts: u32| {
        json!({
            "kind": "workflow", "channels": {"x": "last-value"},
            "nodes": {"n": {
                "kind": "script", "steps": [{"fail": {"message": "flaky", "times": 2}}, {"set": {"x": 1}}],
                "retry": {"max_attempts": attempts, "initial_interval_ms": 1},
            }},
        })
    };
    let thread = arrange(native(3));
    assert_eq!(
        thread.run(&thread.execution(Some(json!({})))).await.values,
        json!({"x": 1})
    );
    let thread = arrange(native(2));
    let error = thread.try_run(&thread.execution(Some(json!({})))).await.unwrap_err();
    assert_eq!((error.class.as_str(), error.retry), ("ValueError", false));
}

#[tokio::test]
async fn a_lost_host_can_be_played_and_is_no_failure_of_the_task() {
    let thread = arrange(json!({"kind": "script", "channels": {"x": "last-value"}, "steps": [
        {"fail": {"type": "HostLost", "message": "gone", "retry": true, "times": 1}}, {"set": {"x": 1}},
    ]}));
    let execution = thread.execution(Some(json!({})));
    assert!(thread.try_run(&execution).await.unwrap_err().retry);
    assert_eq!(thread.state().await.tasks[0].error, None);
    assert_eq!(thread.run(&retried(&execution)).await.values, json!({"x": 1}));
}

#[tokio::test]
async fn the_recursion_limit_ends_a_loop() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {"a": {"kind": "script", "steps": [{"append": {"items": 1}}]}},
        "edges": [["__start__", "a"], ["a", "a"]],
    }));
    let mut execution = thread.execution(Some(json!({})));
    execution.config.insert("recursion_limit".to_owned(), json!(3));
    let error = thread.try_run(&execution).await.unwrap_err();
    assert_eq!(error.class, "GraphRecursionError");
    assert!(
        error
            .message
            .starts_with("Recursion limit of 3 reached without hitting a stop condition."),
        "{error}"
    );
    assert_eq!(thread.state().await.values, json!({"items": [1, 1, 1]}));
    execution.config.insert("recursion_limit".to_owned(), json!(0));
    assert_eq!(
        thread.try_run(&execution).await.unwrap_err().message,
        "recursion_limit must be at least 1"
    );
}

async fn cancelled(thread: &TestThread, execution: &Execution) -> GraphError {
    let host = thread.host.clone();
    let stop = async {
        tokio::task::yield_now().await;
        host.cancel();
    };
    let (ended, ()) = tokio::join!(thread.try_run(execution), stop);
    ended.unwrap_err()
}

#[tokio::test]
async fn a_cancel_ends_a_wait_at_once_and_keeps_what_is_done() {
    for durability in [Durability::Async, Durability::Exit] {
        let thread = arrange(json!({
            "kind": "workflow", "channels": {"items": "append"},
            "nodes": {
                "fast": {"kind": "script", "steps": [{"append": {"items": "fast"}}]},
                "slow": {"kind": "script", "steps": [{"sleep_ms": 600_000}]},
            },
            "edges": [["__start__", "fast"], ["__start__", "slow"]],
        }));
        let mut execution = thread.execution(Some(json!({})));
        execution.durability = durability;
        let error = tokio::time::timeout(Duration::from_secs(180), cancelled(&thread, &execution))
            .await
            .unwrap();
        assert!(error.is_cancelled(), "{error}");
        let state = thread.state().await;
        assert_eq!(state.next, ["slow"]);
        assert_eq!(state.tasks[0].result, Some(json!({"items": ["fast"]})));
    }
}

#[tokio::test]
async fn a_cancelled_run_starts_no_further_superstep() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {"a": {"kind": "script", "steps": [{"append": {"items": 1}}]}},
        "edges": [["__start__", "a"], ["a", "a"]],
    }));
    let error = cancelled(&thread, &thread.execution(Some(json!({})))).await;
    assert!(error.is_cancelled(), "{error}");
}
