//! Questions to children end: answered, taken back, or out of time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use towpath_runtime::StateRef;
use towpath_runtime::hosted::Options;
use towpath_runtime::memory::MemoryHost;
use uuid::Uuid;

use super::{TestPool, quick};

/// How many questions the child got, and how many were taken back.
async fn questions(set: &TestPool) -> Value {
    set.run(json!({"do": "questions"}))
        .await
        .unwrap()
        .values
        .value()
        .clone()
}

async fn until_questions(set: &TestPool, expected: &Value) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let counts = questions(set).await;
        if counts == *expected {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "waited for {expected} questions, there are {counts}"
        );
    }
}

#[tokio::test]
async fn a_question_that_nobody_waits_for_is_taken_back() {
    let set = TestPool::start(quick()).await;
    let graph = set.graphs.get("agent").unwrap();
    let asked = tokio::spawn(async move {
        let at = StateRef::latest(Uuid::from_u128(1));
        graph.state(&at, &MemoryHost::new()).await
    });
    until_questions(&set, &json!([1, 0])).await;
    asked.abort();
    until_questions(&set, &json!([1, 1])).await;
}

#[tokio::test]
async fn a_question_has_a_time_limit() {
    let set = TestPool::start(Options {
        question_limit: Duration::from_millis(50),
        ..quick()
    })
    .await;
    let graph = set.graphs.get("agent").unwrap();
    let at = StateRef::latest(Uuid::from_u128(1));
    let error = graph.state(&at, &MemoryHost::new()).await.unwrap_err();
    assert!(
        error.retry && error.message.contains("did not answer within"),
        "{error}"
    );
    until_questions(&set, &json!([1, 1])).await;
}
