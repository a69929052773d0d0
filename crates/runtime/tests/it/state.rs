//! State, history, updates from outside, forks.

use serde_json::{Map, Value, json};
use towpath_runtime::StreamMode::{Checkpoints, Updates};
use towpath_runtime::{HistoryQuery, StateRef, Update};

use crate::arrange::{THREAD, TestThread, arrange, of};

fn chain() -> TestThread {
    arrange(json!({
        "kind": "workflow", "channels": {"items": "append", "x": "last-value"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"append": {"items": "a"}}]},
            "b": {"kind": "script", "steps": [{"append": {"items": "b"}}]},
        },
        "edges": [["__start__", "a"], ["a", "b"]],
    }))
}

#[tokio::test]
async fn history_shows_each_superstep_with_its_results() {
    let thread = chain();
    let execution = thread.execution(Some(json!({"items": ["in"]})));
    thread.run(&execution).await;
    let history = thread.history().await;
    let told: Vec<Value> = history
        .iter()
        .map(|state| {
            json!([
                state.values,
                state.next,
                state.metadata.as_ref().unwrap()["source"],
                state.tasks.iter().map(|task| task.result.clone()).collect::<Vec<_>>()
            ])
        })
        .collect();
    assert_eq!(
        told,
        [
            json!([{"items": ["in", "a", "b"]}, [], "loop", []]),
            json!([{"items": ["in", "a"]}, ["b"], "loop", [{"items": ["b"]}]]),
            json!([{"items": ["in"]}, ["a"], "loop", [{"items": ["a"]}]]),
            json!([{"items": []}, ["__start__"], "input", [{"items": ["in"]}]]),
        ]
    );
    for (newer, older) in history.iter().zip(&history[1..]) {
        assert_eq!(newer.parent_checkpoint, Some(older.checkpoint.clone()));
        assert!(newer.checkpoint_id > older.checkpoint_id);
    }
    let metadata = history[0].metadata.clone().unwrap();
    assert_eq!(
        Value::Object(metadata),
        json!({"source": "loop", "step": 2, "parents": {}, "run_id": execution.run_id})
    );

    let query = HistoryQuery {
        limit: Some(1),
        before: history[1].checkpoint_id.clone(),
        ..HistoryQuery::default()
    };
    let page = thread
        .graph()
        .history(&StateRef::latest(THREAD), &query, &*thread.host)
        .await
        .unwrap();
    assert_eq!(page, [history[2].clone()]);
    let query = HistoryQuery {
        filter: Map::from_iter([("source".to_owned(), json!("input"))]),
        ..HistoryQuery::default()
    };
    let page = thread
        .graph()
        .history(&StateRef::latest(THREAD), &query, &*thread.host)
        .await
        .unwrap();
    assert_eq!(page, [history[3].clone()]);
}

#[tokio::test]
async fn a_state_serializes_as_the_api_shows_it() {
    let thread = chain();
    let execution = thread.execution(Some(json!({})));
    thread.run(&execution).await;
    let history = thread.history().await;
    let state = &history[1];
    let (id, parent) = (
        state.checkpoint_id.clone().unwrap(),
        state.parent_checkpoint_id.clone().unwrap(),
    );
    assert_eq!(
        serde_json::to_value(state).unwrap(),
        json!({
            "values": {"items": ["a"]}, "next": ["b"],
            "tasks": [{
                "id": state.tasks[0].id, "name": "b", "path": ["__pregel_pull", "b"], "error": null, "interrupts": [],
                "checkpoint": null, "state": null, "result": {"items": ["b"]},
            }],
            "metadata": {"source": "loop", "step": 1, "parents": {}, "run_id": execution.run_id},
            "created_at": state.created_at,
            "checkpoint": {"thread_id": THREAD, "checkpoint_ns": "", "checkpoint_id": id},
            "parent_checkpoint": {"thread_id": THREAD, "checkpoint_ns": "", "checkpoint_id": parent},
            "interrupts": [], "checkpoint_id": id, "parent_checkpoint_id": parent,
        })
    );
    assert_eq!(
        thread
            .graph()
            .state(&StateRef::latest(THREAD), &towpath_runtime::memory::MemoryHost::new())
            .await,
        Ok(None)
    );
}

#[tokio::test]
async fn a_second_input_goes_on_from_the_state() {
    let thread = chain();
    thread
        .run(&thread.execution(Some(json!({"items": ["1"], "x": 1}))))
        .await;
    let finish = thread.run(&thread.execution(Some(json!({"items": ["2"]})))).await;
    assert_eq!(finish.values, json!({"items": ["1", "a", "b", "2", "a", "b"], "x": 1}));
    let steps: Vec<Value> = thread
        .history()
        .await
        .iter()
        .map(|state| state.metadata.as_ref().unwrap()["step"].clone())
        .collect();
    assert_eq!(json!(steps), json!([6, 5, 4, 3, 2, 1, 0, -1]));
    let nothing = thread.run(&thread.execution(None)).await;
    assert_eq!(
        nothing.values["items"].as_array().unwrap().len(),
        6,
        "nothing is left to run"
    );
}

#[tokio::test]
async fn input_has_to_be_there_and_an_object() {
    let thread = chain();
    let error = thread.try_run(&thread.execution(None)).await.unwrap_err();
    assert_eq!(
        (error.class.as_str(), error.message.as_str()),
        ("EmptyInputError", "Received no input for __start__")
    );
    let error = thread
        .try_run(&thread.execution(Some(json!("text"))))
        .await
        .unwrap_err();
    assert_eq!(error.class, "InvalidUpdateError");
    assert!(error.message.starts_with("Expected dict, got str"), "{error}");
}

#[tokio::test]
async fn an_update_counts_as_a_node_and_wakes_what_follows_it() {
    let thread = chain();
    thread.run(&thread.execution(Some(json!({})))).await;
    thread.update(json!({"items": ["upd"]}), Some("a")).await.unwrap();
    let state = thread.state().await;
    assert_eq!(state.values, json!({"items": ["a", "b", "upd"]}));
    assert_eq!(state.next, ["b"]);
    let metadata = state.metadata.unwrap();
    assert_eq!((&metadata["source"], &metadata["step"]), (&json!("update"), &json!(3)));
    let finish = thread.run(&thread.execution(None)).await;
    assert_eq!(finish.values, json!({"items": ["a", "b", "upd", "b"]}));
    // The last node that ran.
    thread.update(json!({"items": ["last"]}), None).await.unwrap();
    assert_eq!(thread.state().await.next, Vec::<String>::new());

    let wrong = thread.update(json!({"items": []}), Some("nobody")).await.unwrap_err();
    assert_eq!(
        (wrong.class.as_str(), wrong.message.as_str()),
        ("InvalidUpdateError", "Node nobody does not exist")
    );
    let wrong = thread.update(json!([1]), Some("a")).await.unwrap_err();
    assert!(wrong.message.starts_with("Expected dict, got list"), "{wrong}");
}

#[tokio::test]
async fn updates_make_threads_copies_and_ends() {
    let thread = chain();
    thread
        .update(json!({"items": ["first"]}), Some("__start__"))
        .await
        .unwrap();
    assert_eq!(thread.state().await.next, ["a"]);
    thread.update(json!({"items": ["i"]}), Some("__input__")).await.unwrap();
    assert_eq!(thread.state().await.next, ["__start__", "a"]);
    let before = thread.state().await;
    thread.update(Value::Null, Some("__copy__")).await.unwrap();
    let copy = thread.state().await;
    assert_eq!(copy.metadata.unwrap()["source"], json!("fork"));
    assert_eq!((copy.values, copy.next), (before.values, before.next));
    assert_eq!(copy.parent_checkpoint, before.parent_checkpoint);
    thread.update(Value::Null, Some("__end__")).await.unwrap();
    assert_eq!(thread.state().await.next, Vec::<String>::new());
}

#[tokio::test]
async fn several_updates_are_one_superstep() {
    let thread = chain();
    let one = |values: Value, node: &str| Update {
        values,
        as_node: Some(node.to_owned()),
        command: None,
    };
    let supersteps = [
        vec![one(json!({"items": ["in"]}), "__start__")],
        vec![one(json!({"items": ["x"]}), "a"), one(json!({"items": ["y"]}), "b")],
    ];
    let metadata = Map::from_iter([("who".to_owned(), json!("me")), ("deep".to_owned(), json!({}))]);
    let made = thread
        .graph()
        .update_state(&StateRef::latest(THREAD), &supersteps, &metadata, &*thread.host)
        .await
        .unwrap();
    let history = thread.history().await;
    assert_eq!(history.len(), 2);
    assert_eq!(history[0].checkpoint_id, made.checkpoint_id);
    assert_eq!(history[0].values, json!({"items": ["in", "x", "y"]}));
    assert_eq!(history[0].next, ["b"]);
    let metadata = history[0].metadata.clone().unwrap();
    assert_eq!(metadata.get("who"), Some(&json!("me")));
    assert_eq!(metadata.get("deep"), None);
    assert_eq!(
        history[1].tasks[0].result,
        Some(json!({"items": ["x"]})),
        "the update is the task's result"
    );
}

#[tokio::test]
async fn a_run_from_an_earlier_checkpoint_makes_a_branch() {
    let thread = chain();
    thread.run(&thread.execution(Some(json!({"items": ["in"]})))).await;
    let history = thread.history().await;
    let old = history.iter().find(|state| state.next == ["b"]).unwrap();
    let mut again = thread.execution(None);
    again
        .config
        .insert("configurable".to_owned(), json!({"checkpoint_id": old.checkpoint_id}));
    let told = thread.stream(again, &[Updates, Checkpoints]).await;
    let checkpoints = of(&told, "checkpoints");
    assert_eq!(
        checkpoints[0]["metadata"],
        json!({"source": "fork", "step": 2, "parents": {}})
    );
    assert_eq!(
        checkpoints[0]["parent_config"]["configurable"]["checkpoint_id"],
        json!(old.checkpoint_id)
    );
    assert_eq!(
        of(&told, "updates"),
        [&json!({"b": {"items": ["b"]}})],
        "only what follows runs again"
    );
    let after = thread.history().await;
    assert_eq!(after.len(), 6);
    assert_eq!(after[0].values, json!({"items": ["in", "a", "b"]}));
    assert!(after[0].checkpoint_id > history[0].checkpoint_id);

    // A fork with another value.
    let at = StateRef {
        id: old.checkpoint_id.clone(),
        ..StateRef::latest(THREAD)
    };
    let update = Update {
        values: json!({"items": ["forked"]}),
        as_node: Some("a".to_owned()),
        command: None,
    };
    let made = thread
        .graph()
        .update_state(&at, &[vec![update]], &Map::new(), &*thread.host)
        .await
        .unwrap();
    let mut on = thread.execution(None);
    on.config
        .insert("configurable".to_owned(), json!({"checkpoint_id": made.checkpoint_id}));
    assert_eq!(
        thread.run(&on).await.values,
        json!({"items": ["in", "a", "forked", "b"]})
    );
    let mut gone = thread.execution(None);
    gone.config.insert(
        "configurable".to_owned(),
        json!({"checkpoint_id": "1f000000-0000-6000-8000-000000000000"}),
    );
    assert_eq!(thread.try_run(&gone).await.unwrap_err().class, "ValueError");
}
