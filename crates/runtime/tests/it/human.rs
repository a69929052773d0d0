//! Interrupts, and every way to continue.

use serde_json::{Value, json};
use towpath_runtime::Nodes;
use towpath_runtime::StreamMode::{Updates, Values};

use crate::arrange::{TestThread, arrange, of};

/// Two workers; the second one asks.
fn fan() -> Value {
    json!({
        "kind": "workflow",
        "channels": {"items": "append"},
        "nodes": {
            "j": {"kind": "script", "steps": [{"append": {"items": "j"}}]},
            "s": {"kind": "script", "steps": []},
            "w": {"kind": "script", "steps": [
                {"if": {"at": "/item", "equals": 1},
                 "then": [{"interrupt": {"q": {"$": "/item"}}, "into": "items"}],
                 "else": [{"append": {"items": "auto"}}]},
            ]},
        },
        "edges": [
            ["__start__", "s"], {"from": "s", "fanout": {"over": [0, 1], "to": "w", "as": "item"}}, ["w", "j"],
        ],
    })
}

#[tokio::test]
async fn an_interrupt_stops_one_task_and_a_resume_answers_it() {
    let thread = arrange(fan());
    let told = thread
        .stream(thread.execution(Some(json!({"items": ["in"]}))), &[Values, Updates])
        .await;
    let values = of(&told, "values");
    let interrupt = &values[1]["__interrupt__"][0];
    let id = interrupt["id"].as_str().unwrap();
    assert_eq!(id.len(), 32);
    assert_eq!(
        *interrupt,
        json!({"value": {"q": 1}, "id": id, "response_schema": null})
    );
    assert_eq!(
        of(&told, "updates").last(),
        Some(&&json!({"__interrupt__": [interrupt]}))
    );
    // The last one has what the other worker wrote.
    assert_eq!(
        told.last(),
        Some(&("values".to_owned(), json!({"items": ["in", "auto"]})))
    );

    let state = thread.state().await;
    assert_eq!(state.values, json!({"items": ["in", "auto"]}));
    assert_eq!(state.next, ["w"]);
    assert_eq!(state.interrupts, [json!({"value": {"q": 1}, "id": id})]);
    assert_eq!(state.tasks[0].result, Some(json!({"items": ["auto"]})));
    assert_eq!(state.tasks[0].path, [json!("__pregel_push"), json!(0), json!(false)]);
    assert_eq!(state.tasks[1].result, None);

    let told = thread
        .stream(thread.command(json!({"resume": "yes"})), &[Values, Updates])
        .await;
    let expected = [
        ("values", json!({"items": ["in"]})),
        (
            "updates",
            json!({"w": {"items": ["auto"]}, "__metadata__": {"cached": true}}),
        ),
        ("updates", json!({"w": {"items": ["yes"]}})),
        ("values", json!({"items": ["in", "auto", "yes"]})),
        ("updates", json!({"j": {"items": ["j"]}})),
        ("values", json!({"items": ["in", "auto", "yes", "j"]})),
    ];
    let expected: Vec<(String, Value)> = expected
        .into_iter()
        .map(|(name, data)| (name.to_owned(), data))
        .collect();
    assert_eq!(told, expected);
    assert_eq!(thread.state().await.next, Vec::<String>::new());
}

#[tokio::test]
async fn a_finish_names_who_waits() {
    let thread = arrange(fan());
    let finish = thread.run(&thread.execution(Some(json!({})))).await;
    assert_eq!(finish.next, ["w"]);
    let (task, waiting) = finish.interrupts.iter().next().unwrap();
    let state = thread.state().await;
    assert_eq!(*task, state.tasks[1].id);
    assert_eq!(waiting[0]["value"], json!({"q": 1}));
    assert_eq!(finish.checkpoint.unwrap().checkpoint_id, state.checkpoint_id);
    assert_eq!(finish.values, state.values);
}

/// Two tasks that both ask.
fn both() -> TestThread {
    arrange(json!({
        "kind": "workflow",
        "channels": {"a": "last-value", "b": "last-value"},
        "nodes": {
            "one": {"kind": "script", "steps": [{"interrupt": "a?", "into": "a"}]},
            "two": {"kind": "script", "steps": [{"interrupt": "b?", "into": "b"}]},
        },
        "edges": [["__start__", "one"], ["__start__", "two"]],
    }))
}

#[tokio::test]
async fn several_interrupts_are_answered_by_id_together_or_one_by_one() {
    let thread = both();
    thread.run(&thread.execution(Some(json!({})))).await;
    let ids: Vec<String> = thread
        .state()
        .await
        .interrupts
        .iter()
        .map(|one| one["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 2);

    let refused = thread
        .try_run(&thread.command(json!({"resume": "x"})))
        .await
        .unwrap_err();
    assert_eq!(refused.class, "RuntimeError");
    assert!(
        refused
            .message
            .starts_with("When there are multiple pending interrupts"),
        "{refused}"
    );

    let finish = thread
        .run(&thread.command(json!({"resume": {ids[1].clone(): "B"}})))
        .await;
    assert_eq!(finish.next, ["one"]);
    assert_eq!(finish.values, json!({"b": "B"}));
    let finish = thread
        .run(&thread.command(json!({"resume": {ids[0].clone(): "A"}})))
        .await;
    assert_eq!(finish.values, json!({"a": "A", "b": "B"}));
    assert!(finish.next.is_empty());

    let thread = both();
    thread.run(&thread.execution(Some(json!({})))).await;
    let ids: Vec<Value> = thread
        .state()
        .await
        .interrupts
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    let map = json!({ids[0].as_str().unwrap(): 1, ids[1].as_str().unwrap(): 2});
    let finish = thread.run(&thread.command(json!({"resume": map}))).await;
    assert_eq!(finish.values, json!({"a": 1, "b": 2}));
}

#[tokio::test]
async fn a_node_may_ask_twice() {
    let thread = arrange(
        json!({"kind": "script", "channels": {"a": "last-value", "b": "last-value"}, "steps": [
            {"interrupt": "first", "into": "a"}, {"interrupt": "second, after ${/a}", "into": "b"},
        ]}),
    );
    let first = thread.run(&thread.execution(Some(json!({})))).await;
    let second = thread.run(&thread.command(json!({"resume": 1}))).await;
    let id = |finish: &towpath_runtime::Finish| finish.interrupts.values().next().unwrap()[0]["id"].clone();
    assert_eq!(
        second.interrupts.values().next().unwrap()[0]["value"],
        json!("second, after 1")
    );
    assert_ne!(id(&first), id(&second));
    let done = thread.run(&thread.command(json!({"resume": 2}))).await;
    assert_eq!(done.values, json!({"a": 1, "b": 2}));
}

#[tokio::test]
async fn an_interrupt_inside_of_a_subgraph_goes_on_inside() {
    let thread = arrange(json!({
        "kind": "workflow",
        "channels": {"items": "append"},
        "nodes": {
            "sub": {"kind": "workflow", "channels": {"items": "append"}, "nodes": {
                "inner": {"kind": "script", "steps": [{"interrupt": "ask", "into": "items"}]},
                "pre": {"kind": "script", "steps": [{"emit": "pre ran"}]},
            }, "edges": [["__start__", "pre"], ["pre", "inner"]]},
            "z": {"kind": "script", "steps": [{"append": {"items": "z"}}]},
        },
        "edges": [["__start__", "sub"], ["sub", "z"]],
    }));
    let mut execution = thread.execution(Some(json!({"items": ["in"]})));
    execution.subgraphs = true;
    let told = thread
        .stream(execution, &[Updates, towpath_runtime::StreamMode::Custom])
        .await;
    assert_eq!(
        told.iter().filter(|(name, _)| name.starts_with("custom|sub:")).count(),
        1
    );
    let state = thread.state().await;
    assert_eq!(state.next, ["sub"]);
    let place = state.tasks[0].checkpoint.clone().unwrap();
    assert!(place.checkpoint_ns.starts_with("sub:"));
    let at = towpath_runtime::StateRef {
        thread_id: place.thread_id,
        ns: place.checkpoint_ns,
        id: None,
    };
    let inside = thread.graph().state(&at, &*thread.host).await.unwrap().unwrap();
    assert_eq!(inside.next, ["inner"]);
    assert_eq!(inside.values, json!({"items": ["in"]}));
    assert_eq!(
        inside.checkpoint.checkpoint_map.unwrap()[""],
        state.checkpoint_id.unwrap()
    );
    let full = thread
        .graph()
        .state_with_subgraphs(&towpath_runtime::StateRef::latest(place.thread_id), &*thread.host)
        .await;
    assert_eq!(full.unwrap().unwrap().tasks[0].state.as_ref().unwrap().next, ["inner"]);

    let mut resume = thread.command(json!({"resume": "ok"}));
    resume.subgraphs = true;
    let told = thread
        .stream(resume, &[Updates, towpath_runtime::StreamMode::Custom])
        .await;
    assert_eq!(
        told.iter().filter(|(name, _)| name.starts_with("custom")).count(),
        0,
        "`pre` does not run again"
    );
    assert_eq!(thread.state().await.values, json!({"items": ["in", "in", "ok", "z"]}));
}

#[tokio::test]
async fn a_run_stops_before_and_after_nodes() {
    let native = json!({
        "kind": "workflow", "channels": {"items": "append"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"append": {"items": "a"}}]},
            "b": {"kind": "script", "steps": [{"append": {"items": "b"}}]},
        },
        "edges": [["__start__", "a"], ["a", "b"]],
    });
    let thread = arrange(native.clone());
    let mut execution = thread.execution(Some(json!({})));
    execution.interrupt_before = Nodes::Some(vec!["b".to_owned()]);
    let told = thread.stream(execution, &[Updates]).await;
    assert_eq!(told.last(), Some(&("updates".to_owned(), json!({"__interrupt__": []}))));
    let state = thread.state().await;
    assert_eq!((state.next, state.interrupts), (vec!["b".to_owned()], vec![]));
    let mut on = thread.execution(None);
    on.interrupt_before = Nodes::All;
    let finish = thread.run(&on).await;
    assert_eq!(
        finish.values,
        json!({"items": ["a", "b"]}),
        "what it stopped before runs now"
    );

    let thread = arrange(native);
    let mut execution = thread.execution(Some(json!({})));
    execution.interrupt_after = Nodes::Some(vec!["a".to_owned()]);
    let finish = thread.run(&execution).await;
    assert_eq!(
        (finish.next, finish.values.into_value()),
        (vec!["b".to_owned()], json!({"items": ["a"]}))
    );
    let finish = thread.run(&thread.execution(None)).await;
    assert_eq!(finish.values, json!({"items": ["a", "b"]}));
}

#[tokio::test]
async fn a_command_updates_and_goes_where_it_says() {
    let thread = arrange(json!({
        "kind": "workflow", "channels": {"items": "append", "item": "last-value"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"append": {"items": "a"}}]},
            "w": {"kind": "script", "steps": [{"append": {"items": "w${/item}"}}]},
        },
        "edges": [["__start__", "a"]],
    }));
    thread.run(&thread.execution(Some(json!({})))).await;
    let command = json!({"update": [["items", ["x"]], ["items", ["y"]]], "goto": "w"});
    let finish = thread.run(&thread.command(command)).await;
    assert_eq!(finish.values, json!({"items": ["a", "x", "y", "w"]}));
    let command = json!({"goto": [{"node": "w", "input": {"item": 1}}, {"node": "w", "input": {"item": 2}}]});
    let finish = thread.run(&thread.command(command)).await;
    assert_eq!(finish.values["items"], json!(["a", "x", "y", "w", "w1", "w2"]));
    let wrong = thread
        .try_run(&thread.command(json!({"goto": "nowhere"})))
        .await
        .unwrap_err();
    assert_eq!(wrong.class, "InvalidUpdateError");
    let empty = thread.try_run(&thread.command(json!({}))).await.unwrap_err();
    assert_eq!(empty.class, "EmptyInputError");
}
