//! The thread-centric streaming protocol: commands, and events that are the same for every reader.

mod gaps;
mod threads;

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use towpath_api::agent::Settings;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::{RunId, ThreadId};
use towpath_workflows::run_agent;

use crate::world::{Call, call};

use super::{Agent, OpenResponse, PATIENCE, end, frame, on_both_databases, values};

on_both_databases!(
    a_run_is_started_and_its_events_come_in_order,
    a_reader_that_comes_back_elsewhere_gets_the_rest,
    a_slow_reader_misses_nothing_that_was_dropped_meanwhile,
    messages_and_subgraphs_are_made_of_frames,
    commands_are_answered_as_clients_know_them,
    a_stream_without_a_channel_is_refused,
    the_streams_of_a_process_that_drains_end,
);

const ALL: [&str; 9] = [
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "tasks",
    "checkpoints",
    "custom",
];

/// What clients read of an event: its number, its method, where it is from, its data.
#[derive(Clone, Debug, PartialEq)]
struct ReceivedEvent {
    seq: i64,
    id: String,
    method: String,
    namespace: Value,
    data: Value,
}

/// Opens a stream behind a number.
async fn open(router: &axum::Router, thread: ThreadId, channels: &[&str], since: Option<i64>) -> OpenResponse {
    let mut body = json!({ "channels": channels });
    if let Some(since) = since {
        body["since"] = json!(since);
    }
    let path = format!("/threads/{thread}/stream/events");
    OpenResponse::new(router, Method::POST, &path, None, &body).await
}

async fn next(stream: &mut OpenResponse) -> ReceivedEvent {
    let (method, event) = stream.next().await.expect("an event");
    assert_eq!((&event["type"], &event["method"]), (&json!("event"), &json!(method)));
    ReceivedEvent {
        seq: event["seq"].as_i64().unwrap(),
        id: event["event_id"].as_str().unwrap().to_owned(),
        method,
        namespace: event["params"]["namespace"].clone(),
        data: event["params"]["data"].clone(),
    }
}

/// Reads up to the end of a run.
async fn whole(stream: &mut OpenResponse) -> Vec<ReceivedEvent> {
    let mut events = Vec::new();
    loop {
        let event = next(stream).await;
        let root = event.method == "lifecycle" && event.namespace == json!([]);
        let over = root && event.data["event"] != "running";
        events.push(event);
        if over {
            return events;
        }
    }
}

async fn command(agent: &Agent, thread: ThreadId, method: &str, params: &Value) -> Value {
    let body = json!({"id": 7, "method": method, "params": params});
    let path = format!("/threads/{thread}/commands");
    agent.post(&path, &body).await.expect(200)
}

fn methods(events: &[ReceivedEvent]) -> Vec<&str> {
    events.iter().map(|event| event.method.as_str()).collect()
}

fn ended(run: RunId, ms: i64, last: i64, status: RunStatus) -> String {
    let ended = RunEnd {
        status: Some(status),
        attempt: 1,
        last,
        values: None,
        error: None,
    };
    end(run, ms, &ended)
}

async fn a_run_is_started_and_its_events_come_in_order(agent: Agent) {
    let thread = ThreadId::new();
    // Before there is a thread.
    let mut stream = open(&agent.router, thread, &ALL, None).await;
    let params = json!({"assistant_id": "steps", "input": {"log": ["in"]}});
    let answer = command(&agent, thread, "run.start", &params).await;
    assert_eq!((&answer["type"], &answer["id"]), (&json!("success"), &json!(7)));
    assert!(answer["result"]["run_id"].is_string() && answer["meta"]["applied_through_seq"] == 0);
    agent.perform(run_agent::POOL).await;
    let events = whole(&mut stream).await;
    assert!(events.is_sorted_by(|one, other| one.seq < other.seq), "{events:?}");
    assert_eq!(events[0].data, json!({"event": "running", "graph_name": "steps"}));
    let values: Vec<&Value> = events
        .iter()
        .filter(|event| event.method == "values")
        .map(|event| &event.data)
        .collect();
    assert_eq!(values.last(), Some(&&json!({"log": ["in", "one", "two"]})));
    let updates: Vec<&Value> = events
        .iter()
        .filter(|event| event.method == "updates")
        .map(|event| &event.data)
        .collect();
    assert_eq!(
        updates,
        [&json!({"one": {"log": ["one"]}}), &json!({"two": {"log": ["two"]}})]
    );
    for method in ["tasks", "checkpoints"] {
        assert!(methods(&events).contains(&method), "{method}: {events:?}");
    }
    let last = events.last().unwrap();
    assert_eq!(last.data, json!({"event": "completed", "graph_name": "steps"}));
    // The thread keeps nothing of how this run streamed.
    let kept = agent.get(&format!("/threads/{thread}")).await.expect(200);
    assert!(
        kept["config"]["configurable"].get("__event_streaming_v2").is_none(),
        "{kept}"
    );
}

async fn a_reader_that_comes_back_elsewhere_gets_the_rest(agent: Agent) {
    let thread = agent.thread().await;
    let params = json!({"assistant_id": "steps", "input": {"log": ["in"]}});
    command(&agent, thread, "run.start", &params).await;
    let mut live = open(&agent.router, thread, &ALL, None).await;
    agent.perform(run_agent::POOL).await;
    let events = whole(&mut live).await;
    // Another process derives the same events from the log.
    let elsewhere = agent.beside();
    let mut again = open(&elsewhere, thread, &ALL, Some(0)).await;
    assert_eq!(whole(&mut again).await, events);
    for at in [0, events.len() / 2, events.len() - 2] {
        let mut rest = open(&agent.beside(), thread, &ALL, Some(events[at].seq)).await;
        assert_eq!(whole(&mut rest).await, events[at + 1..]);
    }
    let mut some = open(&elsewhere, thread, &["lifecycle"], Some(events[0].seq)).await;
    assert_eq!(whole(&mut some).await, [events.last().unwrap().clone()]);
}

/// More than a tape holds.
async fn a_slow_reader_misses_nothing_that_was_dropped_meanwhile(agent: Agent) {
    const FRAMES: i64 = 24;
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    let mut slow = open(&agent.router, thread, &["values", "lifecycle"], None).await;
    let mut fast = open(&agent.router, thread, &["values", "lifecycle"], None).await;
    let text = "x".repeat(300 << 10);
    for number in 1..=FRAMES {
        let long = json!({"at": number, "text": text});
        agent
            .log(thread, &[frame(run, number, 1000 + number, "values", &long)])
            .await;
    }
    agent.log(thread, &[ended(run, 2000, FRAMES, RunStatus::Success)]).await;
    let expected = whole(&mut fast).await;
    let numbers: Vec<i64> = expected.iter().filter_map(|event| event.data["at"].as_i64()).collect();
    assert_eq!(numbers, (1..=FRAMES).collect::<Vec<_>>());
    assert_eq!(whole(&mut slow).await, expected);
    let mut late = open(&agent.router, thread, &["values", "lifecycle"], None).await;
    assert_eq!(whole(&mut late).await, expected);
}

async fn messages_and_subgraphs_are_made_of_frames(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    let piece = |text: &str, last: Value| {
        let message = json!({"type": "AIMessageChunk", "id": "m1", "content": text, "chunk_position": last,
                             "tool_call_chunks": [], "usage_metadata": null});
        json!([message, {"langgraph_node": "inner"}])
    };
    let call = json!({"type": "ai", "id": "m2", "content": "",
                      "tool_calls": [{"id": "c1", "name": "weather", "args": {"city": "Ulm"}}]});
    let task = json!({"id": "t1", "name": "sub", "input": {"tool_call": {"id": "c1"}}, "triggers": []});
    let inner =
        json!({"id": "t2", "name": "inner", "input": {}, "triggers": [], "metadata": {"lc_agent_name": "helper"}});
    let done = json!({"id": "t1", "name": "sub", "error": null, "result": {}, "interrupts": []});
    let tool = json!({"event": "tool-finished", "tool_call_id": "c1", "output": {"content": "sunny", "id": "m3"}});
    let frames = [
        ("tasks", task),
        ("tasks|sub:t1", inner),
        ("messages|sub:t1", piece("hello ", Value::Null)),
        ("messages|sub:t1", piece("world", json!("last"))),
        ("messages", json!([call, {"langgraph_node": "plan"}])),
        ("tools", tool),
        ("custom:mine", json!({"a": 1})),
        ("custom", json!({"b": 2})),
        ("tasks", done),
    ];
    let all: Vec<String> = (1..)
        .zip(&frames)
        .map(|(at, (name, data))| frame(run, at, 1000 + at, name, data))
        .collect();
    agent.log(thread, &all).await;
    agent.log(thread, &[ended(run, 2000, 9, RunStatus::Success)]).await;
    let events = whole(&mut open(&agent.router, thread, &ALL, None).await).await;
    let below = json!(["sub:t1"]);
    let lifecycle: Vec<_> = events
        .iter()
        .filter(|event| event.method == "lifecycle" && event.namespace == below)
        .collect();
    assert_eq!(lifecycle.len(), 2, "{events:?}");
    assert_eq!(
        lifecycle[0].data["cause"],
        json!({"type": "toolCall", "tool_call_id": "c1"})
    );
    assert_eq!(
        (&lifecycle[0].data["graph_name"], &lifecycle[1].data["event"]),
        (&json!("helper"), &json!("completed"))
    );
    let said: Vec<&Value> = events
        .iter()
        .filter(|event| event.method == "messages" && event.namespace == below)
        .map(|event| &event.data)
        .collect();
    let kinds: Vec<&str> = said.iter().map(|data| data["event"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "message-start",
            "content-block-start",
            "content-block-delta",
            "content-block-delta",
            "content-block-finish",
            "message-finish"
        ]
    );
    assert_eq!(said[4]["content"], json!({"type": "text", "text": "hello world"}));
    let planned = events
        .iter()
        .find(|event| event.data["content"]["type"] == "tool_call")
        .unwrap();
    assert_eq!(planned.data["content"]["args"], json!({"city": "Ulm"}));
    let answered = events
        .iter()
        .find(|event| event.namespace == json!(["tools:c1"]))
        .unwrap();
    assert_eq!(
        (&answered.data["role"], &answered.data["id"]),
        (&json!("tool"), &json!("m3"))
    );
    let named = whole(&mut open(&agent.router, thread, &["custom:mine", "lifecycle"], None).await).await;
    let custom: Vec<_> = named.iter().filter(|event| event.method == "custom").collect();
    assert_eq!(custom.len(), 1);
    assert_eq!(custom[0].data, json!({"name": "mine", "payload": {"a": 1}}));
    let tree = command(&agent, thread, "agent.getTree", &json!({})).await;
    let child = &tree["result"]["tree"]["children"][0];
    assert_eq!(
        (&child["graph_name"], &child["status"]),
        (&json!("helper"), &json!("completed"))
    );
}

async fn commands_are_answered_as_clients_know_them(agent: Agent) {
    let thread = agent.thread().await;
    let path = format!("/threads/{thread}/commands");
    for body in [
        json!({"method": "run.start"}),
        json!({"id": "1", "method": "run.start"}),
        json!({"id": 1}),
    ] {
        let refused = agent.post(&path, &body).await.expect(400);
        assert_eq!(
            (&refused["type"], &refused["error"]),
            (&json!("error"), &json!("invalid_argument")),
            "{body}"
        );
    }
    for (method, params, code) in [
        ("state.fork", json!({}), "unknown_command"),
        (
            "subscription.subscribe",
            json!({"channels": ["values"]}),
            "not_supported",
        ),
        ("run.start", json!({}), "invalid_argument"),
        ("run.start", json!({"assistant_id": "nobody"}), "invalid_argument"),
        (
            "run.start",
            json!({"assistant_id": "steps", "config": {"configurable": {"checkpoint_id": 1}}}),
            "invalid_argument",
        ),
        (
            "input.respond",
            json!({"interrupt_id": "i".repeat(257), "response": 1}),
            "invalid_argument",
        ),
        ("state.get", json!({"namespace": ["n".repeat(257)]}), "invalid_argument"),
        (
            "run.start",
            json!({"assistant_id": "steps", "langsmith_tracer": 1}),
            "invalid_argument",
        ),
        ("input.respond", json!({}), "invalid_argument"),
        ("input.respond", json!({"responses": []}), "invalid_argument"),
        (
            "input.respond",
            json!({"interrupt_id": "i", "response": 1}),
            "no_such_interrupt",
        ),
        ("agent.getTree", json!({}), "no_such_run"),
        ("state.get", json!({"namespace": "a"}), "invalid_argument"),
    ] {
        let refused = command(&agent, thread, method, &params).await;
        assert_eq!(
            (&refused["type"], &refused["error"]),
            (&json!("error"), &json!(code)),
            "{method} {params}: {refused}"
        );
        assert_eq!(refused["id"], 7);
    }
    let state = command(&agent, thread, "state.get", &json!({"namespace": []})).await;
    assert_eq!(state["result"]["values"], json!({}));
    // A strategy that is not known counts as none; one that refuses the run has a code of its own.
    for (strategy, outcome) in [("sometime", json!(null)), ("reject", json!("conflict"))] {
        let params = json!({"assistant_id": "steps", "multitaskStrategy": strategy});
        assert_eq!(
            command(&agent, thread, "run.start", &params).await["error"],
            outcome,
            "{strategy}"
        );
    }
    let missing = command(
        &agent,
        ThreadId::new(),
        "input.respond",
        &json!({"interrupt_id": "i", "response": 1}),
    )
    .await;
    assert_eq!(missing["error"], "no_such_run");
}

async fn a_stream_without_a_channel_is_refused(agent: Agent) {
    let path = format!("/threads/{}/stream/events", ThreadId::new());
    for (body, field) in [
        (json!({}), "channels"),
        (json!({"channels": ["debug"]}), "debug"),
        (json!({"channels": ["values"], "since": -1}), "since"),
        (json!({"channels": ["values"], "namespaces": [1]}), "namespaces"),
    ] {
        let refused = agent.post(&path, &body).await.expect(400);
        assert!(refused["detail"].as_str().unwrap().contains(field), "{refused}");
    }
    // Without a WebSocket.
    assert_eq!(agent.get(&path).await.status, 426);
    let off = agent.beside_with(Settings {
        disabled: vec!["event_streaming".to_owned()],
        ..Settings::default()
    });
    let channels = json!({"channels": ["values"]});
    assert_eq!(
        call(&off, Call::new(Method::POST, &path).json(&channels)).await.status,
        404
    );
}

async fn the_streams_of_a_process_that_drains_end(agent: Agent) {
    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({"stream_resumable": true})).await;
    let kept: Vec<_> = (1..=3).map(|number| values(run, number, 1000 + number)).collect();
    agent.log(thread, &kept).await;
    let mut stream = open(&agent.router, thread, &["values"], None).await;
    assert_eq!(next(&mut stream).await.data, json!({"log": [1]}));
    // Whatever else there is to read.
    agent.draining.cancel();
    // As if it had broken off: clients take an end for the end of everything.
    let broken = tokio::time::timeout(PATIENCE, stream.body.frame()).await.unwrap();
    assert!(broken.is_some_and(|piece| piece.is_err()));
}
