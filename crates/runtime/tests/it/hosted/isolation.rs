//! What the runs of one child do to each other: crashes, blocked loops, cancels that are not heard.

use std::time::Duration;

use serde_json::json;
use towpath_runtime::Execution;
use towpath_runtime::hosted::Options;
use towpath_runtime::memory::MemoryHost;
use uuid::Uuid;

use super::{TestPool, gone, pid, quick};

/// A child that a busy machine keeps from answering for a moment is not taken for a blocked one, which says a minute.
fn calm() -> Options {
    Options {
        blocked_after: Duration::from_secs(30),
        ..quick()
    }
}

#[tokio::test]
async fn a_run_that_does_not_stop_takes_no_other_along() {
    let set = TestPool::start(calm()).await;
    let stuck = set.begin(json!({"do": "hang"})).await;
    let other = set.begin(json!({"do": "wait"})).await;
    let child = set.pool().children()[0].0;
    stuck.host.cancel();
    assert!(stuck.run.await.unwrap().unwrap_err().is_cancelled());
    assert_ne!(
        pid(&set.run(json!({})).await.unwrap()),
        i64::from(child),
        "new runs go elsewhere"
    );
    assert!(!other.run.is_finished());
    other.host.cancel();
    assert!(other.run.await.unwrap().unwrap_err().is_cancelled());
    // Nothing but the run that does not stop is in it.
    gone(child).await;
}

#[tokio::test]
async fn a_cancel_that_a_blocked_child_cannot_hear_ends_none_of_its_runs() {
    let set = TestPool::start(Options {
        cancel_grace: Duration::from_secs(2),
        stuck_after: Duration::from_secs(3600),
        ..calm()
    })
    .await;
    let cancelled = set.begin(json!({"do": "hang"})).await;
    let blocked = set.begin(json!({"do": "block"})).await;
    let child = set.pool().children()[0].0;
    cancelled.host.cancel();
    assert!(cancelled.run.await.unwrap().unwrap_err().is_cancelled());
    assert_ne!(pid(&set.run(json!({})).await.unwrap()), i64::from(child));
    assert!(!blocked.run.is_finished());
    // Its loop turns again.
    blocked.host.cancel();
    assert_eq!(pid(&blocked.run.await.unwrap().unwrap()), i64::from(child));
    gone(child).await;
}

#[tokio::test]
async fn a_child_that_stays_blocked_with_a_cancelled_run_is_ended_at_no_cost_to_others() {
    let set = TestPool::start(Options {
        stuck_after: Duration::from_secs(30),
        ..calm()
    })
    .await;
    let cancelled = set.begin(json!({"do": "hang"})).await;
    let blocked = set.begin(json!({"do": "block"})).await;
    cancelled.host.cancel();
    assert!(cancelled.run.await.unwrap().unwrap_err().is_cancelled());
    let lost = blocked.run.await.unwrap().unwrap_err();
    assert!(lost.is_shared_crash(), "{lost}");
}

#[tokio::test]
async fn a_crash_is_held_against_a_run_that_was_alone_only() {
    let set = TestPool::start(calm()).await;
    let other = set.begin(json!({"do": "wait"})).await;
    let lost = set.run(json!({"do": "crash"})).await.unwrap_err();
    assert!(lost.is_shared_crash() && lost.message.contains("last words"), "{lost}");
    let lost = other.run.await.unwrap().unwrap_err();
    assert!(lost.is_shared_crash(), "{lost}");
    let lost = set.run(json!({"do": "crash"})).await.unwrap_err();
    assert!(lost.retry && !lost.is_shared_crash(), "{lost}");
}

#[tokio::test]
async fn runs_that_lost_a_process_together_are_beside_fewer_and_fewer_others() {
    let set = TestPool::start(Options {
        suspects: 4,
        cancel_grace: Duration::from_secs(60),
        ..calm()
    })
    .await;
    let wait = json!({"do": "wait"});
    let usual = set.begin(wait.clone()).await;
    // Eight and one of those that lost one process, and two that lost two.
    let mut begun = Vec::new();
    for shared_crashes in [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2] {
        begun.push(set.begin_after(shared_crashes, wait.clone()).await);
    }
    let mut runs: Vec<usize> = set.pool().children().iter().map(|(_, runs)| *runs).collect();
    runs.sort_unstable();
    assert_eq!(runs, [1, 1, 1, 1, 8]);
    // There are no more such children; once one of those is free, the next run has it for itself.
    let next = tokio::spawn({
        let graph = set.graphs.get("agent").unwrap();
        async move {
            let mut execution = Execution::new(Uuid::from_u128(1), Uuid::from_u128(2), Some(json!({})));
            execution.shared_crashes = 2;
            graph.run(&execution, &MemoryHost::new()).await
        }
    });
    let last = begun.pop().unwrap();
    last.host.cancel();
    assert!(last.run.await.unwrap().unwrap_err().is_cancelled());
    next.await.unwrap().unwrap();
    for one in begun {
        one.host.cancel();
        assert!(one.run.await.unwrap().unwrap_err().is_cancelled());
    }
    assert!(!usual.run.is_finished());
    usual.host.cancel();
    assert!(usual.run.await.unwrap().unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_child_whose_threads_work_for_nobody_is_replaced() {
    let set = TestPool::start(Options {
        max_stray_threads: 3,
        ..calm()
    })
    .await;
    let first = pid(&set.run(json!({"do": "stray", "threads": 2})).await.unwrap());
    assert_eq!(
        pid(&set.run(json!({"do": "stray", "threads": 3})).await.unwrap()),
        first
    );
    gone(i32::try_from(first).unwrap()).await;
    assert_ne!(pid(&set.run(json!({})).await.unwrap()), first);
}
