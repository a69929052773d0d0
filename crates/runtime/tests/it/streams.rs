//! Each stream mode, in the order and with the payloads langgraph 1.2.22 gives for the same graph.

use serde_json::{Value, json};
use towpath_runtime::StreamMode::{
    Checkpoints, Custom, Debug, Events, Messages, MessagesTuple, Tasks, Updates, Values,
};

use crate::arrange::{arrange, names, of};

/// Two nodes in a row: `a` writes both channels, `b` one.
fn two() -> Value {
    json!({
        "kind": "workflow",
        "channels": {"x": "last-value", "items": "append"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"set": {"x": 1}}, {"append": {"items": "a"}}]},
            "b": {"kind": "script", "steps": [{"append": {"items": ["b"]}}]},
        },
        "edges": [["__start__", "a"], ["a", "b"]],
    })
}

#[tokio::test]
async fn values_and_updates() {
    let thread = arrange(two());
    let told = thread
        .stream(thread.execution(Some(json!({"items": ["in"]}))), &[Values, Updates])
        .await;
    let expected = [
        ("values", json!({"items": ["in"]})),
        ("updates", json!({"a": {"x": 1, "items": ["a"]}})),
        ("values", json!({"x": 1, "items": ["in", "a"]})),
        ("updates", json!({"b": {"items": ["b"]}})),
        ("values", json!({"x": 1, "items": ["in", "a", "b"]})),
    ];
    let expected: Vec<(String, Value)> = expected
        .into_iter()
        .map(|(name, data)| (name.to_owned(), data))
        .collect();
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_superstep_tells_in_langgraphs_order() {
    let thread = arrange(two());
    let execution = thread.execution(Some(json!({"items": ["in"]})));
    let told = thread
        .stream(execution, &[Values, Updates, Tasks, Checkpoints, Debug])
        .await;
    let step = [
        "checkpoints",
        "debug",
        "tasks",
        "debug",
        "updates",
        "tasks",
        "debug",
        "values",
    ];
    let mut expected = vec!["checkpoints", "debug", "values"];
    expected.extend(step);
    expected.extend(step);
    expected.extend(["checkpoints", "debug"]);
    assert_eq!(names(&told), expected);
}

#[tokio::test]
async fn tasks_and_checkpoints_carry_what_langgraphs_do() {
    let thread = arrange(two());
    let mut execution = thread.execution(Some(json!({"items": ["in"]})));
    execution.metadata.insert("user".to_owned(), json!("u"));
    execution
        .config
        .insert("configurable".to_owned(), json!({"foo": "bar"}));
    let run_id = execution.run_id.to_string();
    let told = thread.stream(execution, &[Tasks, Checkpoints, Debug]).await;
    let tasks = of(&told, "tasks");
    let id = &tasks[0]["id"];
    assert_eq!(
        *tasks[0],
        json!({
            "id": id, "name": "a", "input": {"items": ["in"]}, "triggers": ["branch:to:a"],
            "metadata": {"user": "u", "foo": "bar", "run_id": run_id},
        })
    );
    assert_eq!(
        *tasks[1],
        json!({"id": id, "name": "a", "error": null, "result": {"x": 1, "items": ["a"]}, "interrupts": []})
    );
    let checkpoints = of(&told, "checkpoints");
    let id = |at: usize| &checkpoints[at]["config"]["configurable"]["checkpoint_id"];
    let config = |at: usize| {
        json!({"configurable": {
            "checkpoint_ns": "", "thread_id": crate::arrange::THREAD, "foo": "bar", "checkpoint_id": id(at),
        }})
    };
    assert_eq!(
        *checkpoints[0],
        json!({
            "config": config(0), "parent_config": null, "values": {"items": []},
            "metadata": {"source": "input", "step": -1, "parents": {}}, "next": ["__start__"],
            "tasks": [{"id": checkpoints[0]["tasks"][0]["id"], "name": "__start__", "interrupts": [], "state": null}],
        })
    );
    assert_eq!(checkpoints.len(), 4);
    assert_eq!(
        checkpoints[1]["metadata"],
        json!({"source": "loop", "step": 0, "parents": {}})
    );
    assert_eq!(checkpoints[1]["parent_config"], config(0));
    assert_eq!(checkpoints[3]["next"], json!([]));
    let debug = of(&told, "debug");
    assert_eq!(debug[0]["step"], json!(-1));
    assert_eq!(debug[0]["type"], json!("checkpoint"));
    assert_eq!(debug[0]["payload"]["checkpoint"]["checkpoint_id"], *id(0));
    assert_eq!(debug[0]["payload"]["parent_checkpoint"], json!(null));
    assert_eq!(debug[2]["type"], json!("task"));
    assert_eq!(debug[2]["step"], json!(1));
    assert_eq!(debug[3]["type"], json!("task_result"));
    assert!(
        debug[3]["timestamp"].as_str().unwrap().ends_with("+00:00"),
        "{}",
        debug[3]
    );
}

#[tokio::test]
async fn custom_events_come_as_they_are_emitted() {
    let thread = arrange(json!({"kind": "script", "steps": [
        {"emit": {"n": 1}}, {"emit": "${/messages/0/content}!"}, {"say": "done"},
    ]}));
    let told = thread
        .stream(thread.execution(Some(json!({"messages": "hi"}))), &[Custom])
        .await;
    assert_eq!(
        told,
        [
            ("custom".to_owned(), json!({"n": 1})),
            ("custom".to_owned(), json!("hi!"))
        ]
    );
}

#[tokio::test]
async fn messages_tuple_streams_words_with_metadata() {
    let thread = arrange(json!("echo"));
    let mut execution = thread.execution(Some(json!({"messages": [{"role": "user", "content": "hello you"}]})));
    execution.metadata.insert("user".to_owned(), json!("u"));
    execution.config.insert("tags".to_owned(), json!(["tg"]));
    let run_id = execution.run_id.to_string();
    let told = thread.stream(execution, &[MessagesTuple, Values]).await;
    let chunks = of(&told, "messages");
    let id = chunks[0][0]["id"].as_str().unwrap();
    assert_eq!(
        chunks[0][0],
        json!({
            "content": "hello ", "additional_kwargs": {}, "response_metadata": {}, "type": "AIMessageChunk",
            "name": null, "id": id, "tool_calls": [], "invalid_tool_calls": [], "usage_metadata": null,
            "tool_call_chunks": [], "chunk_position": null,
        })
    );
    assert_eq!(chunks[1][0]["content"], json!("you"));
    assert_eq!(chunks[1][0]["chunk_position"], json!("last"));
    assert_eq!(chunks.len(), 2, "the finished message is not told once more");
    let metadata = &chunks[0][1];
    let ns = metadata["langgraph_checkpoint_ns"].as_str().unwrap();
    assert!(ns.starts_with("echo:"), "{ns}");
    assert_eq!(
        *metadata,
        json!({
            "user": "u", "run_id": run_id, "thread_id": crate::arrange::THREAD, "langgraph_step": 1,
            "langgraph_node": "echo", "graph_node": "echo", "langgraph_triggers": ["branch:to:echo"],
            "langgraph_path": ["__pregel_pull", "echo"], "langgraph_checkpoint_ns": ns, "checkpoint_ns": ns,
            "tags": ["tg"],
        })
    );
    let values = of(&told, "values");
    assert_eq!(values[1]["messages"][1]["id"].as_str(), Some(id));
    assert_eq!(values[1]["messages"][1]["content"], json!("hello you"));
}

#[tokio::test]
async fn messages_grow() {
    let thread = arrange(json!("echo"));
    let told = thread
        .stream(thread.execution(Some(json!({"messages": "one two"}))), &[Messages])
        .await;
    assert_eq!(
        names(&told),
        ["messages/metadata", "messages/partial", "messages/partial"]
    );
    let id = told[1].1[0]["id"].as_str().unwrap();
    assert_eq!(told[0].1[id]["metadata"]["langgraph_node"], json!("echo"));
    assert_eq!(told[1].1[0]["content"], json!("one "));
    assert_eq!(told[2].1[0]["content"], json!("one two"));
    assert_eq!(told[2].1[0]["type"], json!("ai"));
}

#[tokio::test]
async fn a_message_that_was_not_streamed_is_told_whole_and_once() {
    let thread = arrange(json!({"kind": "script", "steps": [
        {"append": {"messages": [{"role": "assistant", "content": "plain", "id": "m1"}]}},
    ]}));
    let told = thread
        .stream(
            thread.execution(Some(json!({"messages": "hi"}))),
            &[Messages, MessagesTuple],
        )
        .await;
    assert_eq!(names(&told), ["messages", "messages/metadata", "messages/complete"]);
    assert_eq!(told[0].1[0]["type"], json!("ai"));
    assert_eq!(told[2].1, json!([told[0].1[0]]));
}

#[tokio::test]
async fn events_tell_of_the_graph_and_its_nodes() {
    let thread = arrange(json!("echo"));
    let execution = thread.execution(Some(json!({"messages": "hi"})));
    let run_id = execution.run_id.to_string();
    let told = thread.stream(execution, &[Events]).await;
    let told: Vec<(&str, &str)> = told
        .iter()
        .map(|(_, event)| (event["event"].as_str().unwrap(), event["name"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("on_chain_start", "LangGraph"),
            ("on_chain_start", "echo"),
            ("on_chat_model_stream", "echo"),
            ("on_chain_stream", "echo"),
            ("on_chain_end", "echo"),
            ("on_chain_end", "LangGraph"),
        ]
    );
    let again = thread
        .stream(thread.execution(Some(json!({"messages": "hi"}))), &[Events])
        .await;
    assert_eq!(again[0].1["parent_ids"], json!([]));
    assert_ne!(again[0].1["run_id"], json!(run_id));
    assert_eq!(again[1].1["parent_ids"], json!([again[0].1["run_id"]]));
    assert_eq!(again[5].1["data"]["output"]["messages"][3]["content"], json!("hi"));
}

#[tokio::test]
async fn chunks_of_subgraphs_carry_their_namespace_and_come_only_when_asked_for() {
    let native = json!({
        "kind": "workflow",
        "channels": {"items": "append"},
        "nodes": {"sub": {
            "kind": "workflow",
            "channels": {"items": "append"},
            "nodes": {"inner": {"kind": "script", "steps": [{"emit": "e"}, {"append": {"items": "i"}}]}},
        }},
        "edges": [["__start__", "sub"]],
    });
    let thread = arrange(native.clone());
    let mut execution = thread.execution(Some(json!({"items": ["in"]})));
    execution.subgraphs = true;
    let told = thread.stream(execution, &[Updates, Custom]).await;
    let (event, _) = &told[0];
    let (_, ns) = event.split_once('|').unwrap();
    assert!(ns.starts_with("sub:") && ns.len() == 4 + 36, "{ns}");
    let expected = [
        (format!("custom|{ns}"), json!("e")),
        (format!("updates|{ns}"), json!({"inner": {"items": ["i"]}})),
        ("updates".to_owned(), json!({"sub": {"items": ["in", "i"]}})),
    ];
    assert_eq!(told, expected);
    let thread = arrange(native);
    let told = thread
        .stream(thread.execution(Some(json!({"items": ["in"]}))), &[Updates, Custom])
        .await;
    assert_eq!(told, [("updates".to_owned(), json!({"sub": {"items": ["in", "i"]}}))]);
}
