//! Edges, joins, decisions, fan-out, items, drawings and schemas.

use serde_json::{Value, json};
use towpath_runtime::{Durability, GraphError, Xray};

use crate::arrange::{arrange, graphs};

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `json!` gives reads better without a reference"
)]
fn steps(steps: Value) -> Value {
    json!({"kind": "script", "steps": steps})
}

#[tokio::test]
async fn a_join_waits_for_all() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {
            "a": steps(json!([{"append": {"items": "a"}}])),
            "a2": steps(json!([{"append": {"items": "a2"}}])),
            "b": steps(json!([{"append": {"items": "b"}}])),
            "c": steps(json!([{"append": {"items": "c"}}])),
        },
        "edges": [["__start__", "a"], ["__start__", "b"], ["a", "a2"], {"from": ["a2", "b"], "to": "c"}],
    }));
    let finish = thread.run(&thread.execution(Some(json!({})))).await;
    assert_eq!(finish.values, json!({"items": ["a", "b", "a2", "c"]}));
}

#[tokio::test]
async fn decisions_read_what_their_node_wrote() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"n": "last-value", "items": "append"},
        "nodes": {
            "count": steps(json!([{"append": {"items": 1}}, {"if": {"at": "/items/2"}, "then": [{"set": {"n": "three"}}]}])),
            "few": steps(json!([{"set": {"n": "few"}}])),
            "many": steps(json!([{"set": {"n": "many ${/n}"}}])),
        },
        "start": "count",
        "edges": [{"from": "count", "when": [
            {"if": {"at": "/n", "equals": "three"}, "to": "many"},
            {"if": {"at": "/items/1"}, "to": "count"},
        ], "else": "few"}, ["few", "count"]],
    }));
    let finish = thread.run(&thread.execution(Some(json!({})))).await;
    assert_eq!(finish.values, json!({"n": "many three", "items": [1, 1, 1]}));
}

#[tokio::test]
async fn two_writes_to_a_last_value_clash() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"x": "last-value"},
        "nodes": {"a": steps(json!([{"set": {"x": 1}}])), "b": steps(json!([{"set": {"x": 2}}]))},
        "edges": [["__start__", "a"], ["__start__", "b"]],
    }));
    let error = thread.try_run(&thread.execution(Some(json!({})))).await.unwrap_err();
    assert_eq!(error.class, "InvalidUpdateError");
    assert!(
        error
            .message
            .starts_with("At key 'x': Can receive only one value per step."),
        "{error}"
    );
}

#[tokio::test]
async fn steps_fan_out_go_and_run_graphs() {
    let thread = arrange(json!({
        "kind": "script", "channels": {"items": "append", "inner": "last-value"},
        "start": "plan",
        "nodes": {
            "plan": [{"fanout": {"over": {"$": "/items"}, "to": "work", "as": "n"}}],
            "work": [
                {"subgraph": {"kind": "script", "channels": {"n": "last-value", "out": "last-value"},
                              "steps": [{"set": {"out": "<${/n}>"}}]},
                 "input": {"n": {"$": "/n"}}, "into": "inner"},
                {"goto": {"node": "collect", "input": {"inner": {"$": "/inner"}}}},
                {"fail": {"message": "a goto ends the script"}},
            ],
            "collect": [{"append": {"items": {"$": "/inner/out"}}}],
        },
    }));
    let error = thread
        .try_run(&thread.execution(Some(json!({"items": [1, 2]}))))
        .await
        .unwrap_err();
    assert_eq!(error.class, "InvalidUpdateError", "both workers write `inner`: {error}");
    let finish = thread
        .run(&thread.execution(Some(json!({"items": {"__overwrite__": [7]}}))))
        .await;
    assert_eq!(
        finish.values,
        json!({"items": [7, "<7>"], "inner": {"n": 7, "out": "<7>"}})
    );
}

#[tokio::test]
async fn scripts_use_the_store_of_items() {
    let thread = arrange(
        json!({"kind": "script", "channels": {"name": "last-value", "got": "last-value", "all": "last-value"}, "steps": [
            {"item": {"put": {"namespace": ["users", "${/name}"], "key": "k", "value": {"n": 1}}}},
            {"item": {"get": {"namespace": ["users", "${/name}"], "key": "k"}}, "into": "got"},
            {"item": {"delete": {"namespace": ["users", "nobody"], "key": "k"}}},
            {"item": {"search": {"namespace": ["users"], "filter": {"n": 1}}}, "into": "all"},
        ]}),
    );
    let finish = thread.run(&thread.execution(Some(json!({"name": "ada"})))).await;
    assert_eq!(finish.values["got"]["value"], json!({"n": 1}));
    assert_eq!(finish.values["all"][0]["namespace"], json!(["users", "ada"]));
}

#[tokio::test]
async fn input_and_output_are_limited_to_what_is_declared() {
    let thread = arrange(json!({
        "kind": "script", "channels": {"q": "last-value", "secret": "last-value", "a": "last-value"},
        "input": ["q"], "output": ["a"], "steps": [{"set": {"secret": 1, "a": "re: ${/q}"}}],
    }));
    let finish = thread.run(&thread.execution(Some(json!({"q": "x"})))).await;
    assert_eq!(finish.values, json!({"a": "re: x"}));
    assert_eq!(
        thread.state().await.values,
        json!({"q": "x", "secret": 1, "a": "re: x"})
    );
    let schemas = thread.graph().schemas();
    assert_eq!(
        schemas.output_schema.unwrap()["properties"],
        json!({"a": {"title": "A"}})
    );
}

#[tokio::test]
async fn bench_does_the_work_it_is_given() {
    let thread = arrange(json!({"kind": "bench", "steps": 3, "payload_bytes": 10, "chunks": 4}));
    let told = thread
        .stream(
            thread.execution(Some(json!({}))),
            &[towpath_runtime::StreamMode::MessagesTuple],
        )
        .await;
    assert_eq!(told.len(), 12);
    assert_eq!(
        thread.state().await.values,
        json!({"count": 3, "messages": [], "payload": "xxxxxxxxxx"})
    );
}

#[tokio::test]
async fn a_drawing_is_langgraphs() {
    let native = json!({
        "kind": "workflow", "channels": {"x": "last-value"},
        "nodes": {
            "a": steps(json!([])), "b": steps(json!([])), "c": steps(json!([])),
            "sub": {"kind": "workflow", "channels": {"x": "last-value"},
                "nodes": {"a": steps(json!([])), "b": steps(json!([])), "c": steps(json!([]))},
                "edges": [["__start__", "a"], {"from": "a", "if": {"at": "/x"}, "to": "b", "else": "c"}]},
        },
        "edges": [["__start__", "a"], ["a", "sub"], ["__start__", "b"], {"from": ["a", "b"], "to": "c"}],
    });
    let graphs = graphs(&native).unwrap();
    let graph = graphs.get("agent").unwrap();
    let drawn = async |xray| {
        let drawing = serde_json::to_value(graph.drawing(xray).await.unwrap()).unwrap();
        let nodes: Vec<String> = drawing["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["id"].as_str().unwrap().to_owned())
            .collect();
        (nodes.join(" "), drawing)
    };
    let (nodes, drawing) = drawn(Xray::No).await;
    assert_eq!(nodes, "__start__ a b c sub __end__");
    let plain = json!({"id": ["langgraph", "_internal", "_runnable", "RunnableCallable"], "name": "a"});
    assert_eq!(
        drawing["nodes"][1],
        json!({"id": "a", "type": "runnable", "data": plain})
    );
    assert_eq!(
        drawing["nodes"][4]["data"]["id"],
        json!(["langgraph", "graph", "state", "CompiledStateGraph"])
    );
    assert_eq!(drawing["nodes"][5], json!({"id": "__end__"}));
    let edge = |source: &str, target: &str| json!({"source": source, "target": target});
    assert_eq!(
        drawing["edges"],
        json!([
            edge("__start__", "a"),
            edge("__start__", "b"),
            edge("a", "c"),
            edge("a", "sub"),
            edge("b", "c"),
            edge("c", "__end__"),
            edge("sub", "__end__"),
        ])
    );
    let (nodes, drawing) = drawn(Xray::All).await;
    assert_eq!(nodes, "__start__ a b c __end__ sub:a sub:b sub:c sub:__end__");
    let decided = |target: &str| json!({"source": "sub:a", "target": target, "conditional": true});
    assert_eq!(
        drawing["edges"],
        json!([
            edge("__start__", "a"),
            edge("__start__", "b"),
            edge("a", "c"),
            edge("a", "sub:a"),
            edge("b", "c"),
            edge("c", "__end__"),
            edge("sub:__end__", "__end__"),
            decided("sub:b"),
            decided("sub:c"),
            edge("sub:b", "sub:__end__"),
            edge("sub:c", "sub:__end__"),
        ])
    );
    assert_eq!(
        graph.subgraphs(None, false).await.unwrap().keys().collect::<Vec<_>>(),
        ["sub"]
    );
    assert_eq!(graph.subgraphs(Some("other"), true).await.unwrap().len(), 0);
    assert_eq!(graph.node_names(), ["a", "b", "c", "sub"]);
    assert_eq!("2".parse(), Ok(Xray::Levels(2)));
    assert!("0".parse::<Xray>().is_err());
}

#[test]
fn echo_has_schemas_and_an_id() {
    let graphs = towpath_runtime::Graphs::echo();
    assert_eq!(graphs.ids().collect::<Vec<_>>(), ["agent"]);
    let schemas = serde_json::to_value(graphs.get("agent").unwrap().schemas()).unwrap();
    assert_eq!(schemas["graph_id"], json!("agent"));
    assert_eq!(schemas["context_schema"], json!(null));
    let messages = &schemas["input_schema"]["properties"]["messages"];
    assert_eq!(*messages, json!({"$ref": "#/$defs/Messages", "title": "Messages"}));
    assert_eq!(schemas["input_schema"]["$defs"]["Messages"]["type"], json!("array"));
}

/// The server moves runs between threads.
#[test]
fn a_run_may_be_sent_between_threads() {
    fn sent<T: Send>(_: &T) {}
    let thread = arrange(json!("echo"));
    let execution = thread.execution(None);
    sent(&thread.graph().run(&execution, &*thread.host));
    assert_eq!(Durability::default(), Durability::Async);
    assert!(GraphError::cancelled().is_cancelled());
}
