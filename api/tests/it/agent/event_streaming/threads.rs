//! Threads that end, begin again, wait for answers and show what their latest run is at.

use serde_json::{Value, json};
use towpath_domain::ThreadId;
use towpath_domain::agent::RunStatus;
use towpath_store::threads;
use towpath_workflows::run_agent;

use super::super::{Agent, frame, on_both_databases, values};
use super::{ALL, command, ended, methods, next, open, whole};

on_both_databases!(
    a_thread_that_is_made_again_begins_with_nothing,
    a_stream_ends_with_its_thread_when_nobody_says_that_it_is_gone,
    interrupts_are_requests_for_input,
    an_interrupt_is_answered_once,
    the_tree_is_that_of_the_latest_run,
);

async fn a_thread_that_is_made_again_begins_with_nothing(agent: Agent) {
    let thread = ThreadId::new();
    let params = |input: &str| json!({"assistant_id": "steps", "input": {"log": [input]}});
    command(&agent, thread, "run.start", &params("old")).await;
    agent.perform(run_agent::POOL).await;
    let path = format!("/threads/{thread}");
    assert_eq!(agent.delete(&path).await.status, 204);
    // One who is there before the thread is, and one who comes later.
    let mut early = open(&agent.router, thread, &ALL, None).await;
    command(&agent, thread, "run.start", &params("new")).await;
    agent.perform(run_agent::POOL).await;
    let mut late = open(&agent.beside(), thread, &ALL, None).await;
    for stream in [&mut early, &mut late] {
        let events = whole(stream).await;
        let values = events.iter().filter(|event| event.method == "values");
        let logs: Vec<&Value> = values.map(|event| &event.data["log"]).collect();
        assert!(logs.iter().all(|log| log[0] == "new"), "{events:?}");
        assert_eq!(logs.last(), Some(&&json!(["new", "one", "two"])), "{events:?}");
    }
}

async fn a_stream_ends_with_its_thread_when_nobody_says_that_it_is_gone(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    agent.log(thread, &[values(run, 1, 1001)]).await;
    let mut stream = open(&agent.router, thread, &["values"], None).await;
    assert_eq!(next(&mut stream).await.data, json!({"log": [1]}));
    agent
        .store
        .write(async |tx| threads::delete(tx, agent.tenant, thread).await)
        .await
        .unwrap();
    assert_eq!(stream.next().await, None);
}

async fn interrupts_are_requests_for_input(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    let asked = json!([{"id": "i1", "value": {"question": "sure?"}}]);
    let frames = [
        frame(run, 1, 1001, "updates", &json!({ "__interrupt__": asked })),
        frame(run, 2, 1002, "values", &json!({"log": [], "__interrupt__": asked})),
    ];
    agent.log(thread, &frames).await;
    agent.log(thread, &[ended(run, 1003, 2, RunStatus::Success)]).await;
    let events = whole(&mut open(&agent.router, thread, &ALL, None).await).await;
    assert_eq!(
        methods(&events),
        ["lifecycle", "input.requested", "values", "lifecycle"]
    );
    let question = json!({"question": "sure?"});
    let request = json!({"interrupt_id": "i1", "payload": question, "value": question});
    assert_eq!(events[1].data, request);
    assert_eq!(events[2].data, json!({"log": []}));
    assert_eq!(events[3].data["event"], "interrupted");
    let answer = json!({"interrupt_id": "i1", "response": "yes", "namespace": []});
    // No state of the thread keeps it: it was streamed by hand.
    agent.delete(&format!("/threads/{thread}/runs/{run}")).await;
    let refused = command(&agent, thread, "input.respond", &answer).await;
    assert_eq!(
        (&refused["type"], &refused["error"]),
        (&json!("error"), &json!("no_such_interrupt"))
    );
}

async fn an_interrupt_is_answered_once(agent: Agent) {
    let thread = ThreadId::new();
    let params = json!({"assistant_id": "human", "input": {"log": []}});
    command(&agent, thread, "run.start", &params).await;
    agent.perform(run_agent::POOL).await;
    let row = agent.get(&format!("/threads/{thread}")).await.expect(200);
    let interrupts = row["interrupts"].as_object().unwrap().values().next().unwrap();
    let answer = json!({"interrupt_id": interrupts[0]["id"], "response": "yes"});
    let (one, two) = tokio::join!(
        command(&agent, thread, "input.respond", &answer),
        command(&agent, thread, "input.respond", &answer)
    );
    let mut outcomes = [&one, &two].map(|answer| answer["error"].as_str().unwrap_or("none"));
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["no_such_interrupt", "none"], "{one} {two}");
    agent.perform(run_agent::POOL).await;
    let state = command(&agent, thread, "state.get", &json!({})).await;
    assert_eq!(state["result"]["values"], json!({"log": ["asked"], "answer": "yes"}));
    assert_eq!(
        command(&agent, thread, "input.respond", &answer).await["error"],
        "no_such_interrupt"
    );
}

async fn the_tree_is_that_of_the_latest_run(agent: Agent) {
    let thread = agent.thread().await;
    let mut runs = Vec::new();
    for (name, ms) in [("one", 1000), ("two", 2000)] {
        let run = agent.record(thread, &json!({"stream_resumable": true})).await;
        let task = json!({"id": "t", "name": "inner", "input": {}, "metadata": {"lc_agent_name": name}});
        let path = format!("tasks|sub:{name}");
        agent.log(thread, &[frame(run, 1, ms + 1, &path, &task)]).await;
        runs.push(run);
    }
    // The end of the first one is logged late.
    agent.log(thread, &[ended(runs[0], 2002, 1, RunStatus::Success)]).await;
    let tree = command(&agent, thread, "agent.getTree", &json!({})).await;
    let children = tree["result"]["tree"]["children"].as_array().unwrap();
    assert_eq!(
        (children.len(), &children[0]["graph_name"]),
        (1, &json!("two")),
        "{tree}"
    );
}
