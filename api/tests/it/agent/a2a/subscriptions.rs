//! Several streams of one task, and streams of a task that waits for input.

use serde_json::{Value, json};
use towpath_workflows::run_agent::POOL;

use super::{data, done, events, open, result, text};
use crate::agent::{Agent, on_both_databases};

on_both_databases!(
    all_streams_of_a_task_get_the_same_events,
    a_stream_of_a_question_goes_on_with_its_answer,
    a_stream_of_a_question_ends_when_the_task_is_canceled,
    a_stream_of_a_question_ends_when_it_is_superseded,
    a_stream_ends_with_a_question,
    a_client_of_the_older_version_is_told_of_the_question_again,
);

fn state(event: &Value) -> &Value {
    &event["statusUpdate"]["status"]["state"]
}

/// A message that answers the question of a task.
fn reply(task: &Value) -> Value {
    let mut message = text("yes");
    message["message"]["taskId"] = task["id"].clone();
    message
}

async fn all_streams_of_a_task_get_the_same_events(agent: Agent) {
    let mut message = text("one two");
    message["configuration"] = json!({"returnImmediately": true});
    let task = result(&agent, "echo", "SendMessage", &message).await["task"].clone();
    let id = json!({"id": task["id"]});
    let (first, second) = (
        open(&agent, "echo", "SubscribeToTask", &id).await,
        open(&agent, "echo", "SubscribeToTask", &id).await,
    );
    let mut left = open(&agent, "echo", "SubscribeToTask", &id).await;
    left.next().await.expect("the task");
    drop(left);
    agent.perform(POOL).await;
    let (first, second) = (events(first).await, events(second).await);
    assert_eq!(first, second);
    assert_eq!(state(first.last().unwrap()), "TASK_STATE_COMPLETED");
}

async fn a_stream_of_a_question_goes_on_with_its_answer(agent: Agent) {
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    let mut stream = open(&agent, "human", "SubscribeToTask", &json!({"id": asked["id"]})).await;
    let (_, first) = stream.next().await.expect("the task");
    assert_eq!(first["result"]["task"]["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let ended = done(&agent, "human", &reply(&asked)).await;
    assert_eq!(ended["status"]["state"], "TASK_STATE_COMPLETED", "{ended}");
    let told = events(stream).await;
    assert_eq!(state(&told[0]), "TASK_STATE_WORKING", "{told:?}");
    assert_eq!(
        told[told.len() - 2]["artifactUpdate"]["artifact"],
        ended["artifacts"][0]
    );
    assert_eq!(state(told.last().unwrap()), "TASK_STATE_COMPLETED");
}

async fn a_stream_of_a_question_ends_when_the_task_is_canceled(agent: Agent) {
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    let id = json!({"id": asked["id"]});
    let stream = open(&agent, "human", "SubscribeToTask", &id).await;
    let canceled = result(&agent, "human", "CancelTask", &id).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    let told = events(stream).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(state(&told[1]), "TASK_STATE_CANCELED");
}

async fn a_stream_of_a_question_ends_when_it_is_superseded(agent: Agent) {
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    let mut message = data(&json!({"log": []}));
    message["message"]["contextId"] = asked["contextId"].clone();
    let stream = open(&agent, "human", "SubscribeToTask", &json!({"id": asked["id"]})).await;
    // Another task of the context asks: nobody can answer the first question any more.
    let other = done(&agent, "human", &message).await;
    assert_eq!(other["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let told = events(stream).await;
    assert_eq!(state(told.last().unwrap()), "TASK_STATE_CANCELED");
}

async fn a_stream_ends_with_a_question(agent: Agent) {
    let streamed = open(&agent, "human", "SendStreamingMessage", &data(&json!({"log": []}))).await;
    agent.perform(POOL).await;
    let told = events(streamed).await;
    assert_eq!(state(told.last().unwrap()), "TASK_STATE_INPUT_REQUIRED");
}

async fn a_client_of_the_older_version_is_told_of_the_question_again(agent: Agent) {
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    let told = events(open(&agent, "human", "tasks/resubscribe", &json!({"id": asked["id"]})).await).await;
    let last = told.last().unwrap();
    assert_eq!(
        (&last["final"], &last["status"]["state"]),
        (&json!(true), &json!("input-required"))
    );
}
