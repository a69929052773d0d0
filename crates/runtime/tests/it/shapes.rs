//! What is saved: the shapes langgraph 1.2.22 saves for the same graph.

use serde_json::{Value, json};
use towpath_runtime::Save;

use crate::arrange::arrange;

/// What was saved, with ids and versions by their order of appearance.
fn told(saves: Vec<Save>) -> Vec<Value> {
    saves
        .into_iter()
        .map(|save| match save {
            Save::Checkpoint(put) => {
                let mut checkpoint = serde_json::to_value(&put.checkpoint).unwrap();
                short(&mut checkpoint["channel_versions"]);
                for seen in checkpoint["versions_seen"].as_object_mut().unwrap().values_mut() {
                    short(seen);
                }
                let kept = checkpoint.as_object_mut().unwrap();
                assert_eq!(kept.remove("v"), Some(json!(4)));
                kept.remove("ts");
                let id = kept.remove("id").unwrap();
                let tail = id.as_str().unwrap()[19..23].to_owned();
                json!({
                    "seq": tail, "checkpoint": checkpoint, "source": put.metadata["source"],
                    "step": put.metadata["step"], "changed": put.changed,
                })
            }
            Save::Writes(put) => {
                let writes: Vec<Value> = put
                    .writes
                    .iter()
                    .map(|(idx, channel, value)| json!([idx, channel, value]))
                    .collect();
                json!({"path": put.path, "writes": writes})
            }
            Save::TypedCheckpoint(_) | Save::TypedWrites(_) => panic!("a native graph encodes nothing itself"),
        })
        .collect()
}

/// `0…02.0.123` → 2.
fn short(versions: &mut Value) {
    for version in versions.as_object_mut().unwrap().values_mut() {
        let text = version.as_str().unwrap();
        let (number, fraction) = text.split_once('.').unwrap();
        assert_eq!((number.len(), &fraction[..2]), (32, "0."), "{text}");
        *version = json!(number.parse::<u64>().unwrap());
    }
}

#[tokio::test]
async fn a_run_of_two_nodes_saves_four_checkpoints() {
    let thread = arrange(json!({
        "kind": "workflow",
        "channels": {"x": "last-value", "items": "append"},
        "nodes": {
            "a": {"kind": "script", "steps": [{"set": {"x": 1}}, {"append": {"items": "a"}}]},
            "b": {"kind": "script", "steps": [{"append": {"items": "b"}}]},
        },
        "edges": [["__start__", "a"], ["a", "b"]],
    }));
    thread.run(&thread.execution(Some(json!({"items": ["in"]})))).await;
    let expected = json!([
        {"seq": "bfff", "source": "input", "step": -1, "changed": ["__start__"], "checkpoint": {
            "channel_versions": {"__start__": 1}, "versions_seen": {"__input__": {}},
            "updated_channels": ["__start__"], "channel_values": {"__start__": {"items": ["in"]}}}},
        {"path": "~__pregel_pull, __start__", "writes": [[0, "items", ["in"]], [1, "branch:to:a", null]]},
        {"seq": "8000", "source": "loop", "step": 0, "changed": ["__start__", "branch:to:a", "items"], "checkpoint": {
            "channel_versions": {"__start__": 2, "items": 2, "branch:to:a": 2},
            "versions_seen": {"__input__": {}, "__start__": {"__start__": 1}},
            "updated_channels": ["branch:to:a", "items"],
            "channel_values": {"items": ["in"], "branch:to:a": null}}},
        {"path": "~__pregel_pull, a", "writes": [[0, "items", ["a"]], [1, "x", 1], [2, "branch:to:b", null]]},
        {"seq": "8001", "source": "loop", "step": 1, "changed": ["branch:to:a", "branch:to:b", "items", "x"], "checkpoint": {
            "channel_versions": {"__start__": 2, "items": 3, "branch:to:a": 3, "x": 3, "branch:to:b": 3},
            "versions_seen": {"__input__": {}, "__start__": {"__start__": 1}, "a": {"branch:to:a": 2}},
            "updated_channels": ["branch:to:b", "items", "x"],
            "channel_values": {"items": ["in", "a"], "x": 1, "branch:to:b": null}}},
        {"path": "~__pregel_pull, b", "writes": [[0, "items", ["b"]]]},
        {"seq": "8002", "source": "loop", "step": 2, "changed": ["branch:to:b", "items"], "checkpoint": {
            "channel_versions": {"__start__": 2, "items": 4, "branch:to:a": 3, "x": 3, "branch:to:b": 4},
            "versions_seen": {
                "__input__": {}, "__start__": {"__start__": 1}, "a": {"branch:to:a": 2}, "b": {"branch:to:b": 3}},
            "updated_channels": ["items"], "channel_values": {"items": ["in", "a", "b"], "x": 1}}},
    ]);
    let saved = told(thread.host.take_saves());
    for (at, (saved, expected)) in saved.iter().zip(expected.as_array().unwrap()).enumerate() {
        assert_eq!(saved, expected, "save {at}");
    }
    assert_eq!(saved.len(), 7);
}

#[tokio::test]
async fn packets_and_interrupts_are_saved_as_langgraph_revives_them() {
    let thread = arrange(json!({
        "kind": "workflow",
        "channels": {"items": "append"},
        "nodes": {
            "s": {"kind": "script", "steps": []},
            "w": {"kind": "script", "steps": [{"interrupt": {"q": {"$": "/item"}}, "into": "items"}]},
        },
        "edges": [["__start__", "s"], {"from": "s", "fanout": {"over": [5], "to": "w", "as": "item"}}],
    }));
    thread.run(&thread.execution(Some(json!({})))).await;
    let saved = told(thread.host.take_saves());
    let send = json!({
        "lc": 2, "type": "constructor", "id": ["langgraph", "types", "Send"],
        "kwargs": {"node": "w", "arg": {"item": 5}},
    });
    assert_eq!(saved[3]["writes"], json!([[0, "__pregel_tasks", send]]));
    assert_eq!(
        saved[4]["checkpoint"]["channel_values"]["__pregel_tasks"],
        json!([send])
    );
    let last = saved.last().unwrap();
    assert_eq!(last["path"], json!("~__pregel_push, 0000000000, 0000000000"));
    let interrupt = &last["writes"][0];
    assert_eq!(interrupt[0], json!(-3));
    assert_eq!(interrupt[2][0]["id"], json!(["langgraph", "types", "Interrupt"]));
    assert_eq!(interrupt[2][0]["kwargs"]["value"], json!({"q": 5}));
}
