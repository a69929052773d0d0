//! How messages of any form become typed ones, and how they merge.

use serde_json::{Value, json};

use crate::arrange::{arrange, of};

async fn kept(messages: Value) -> Result<Value, String> {
    let thread = arrange(json!({"kind": "script", "steps": []}));
    let run = thread.execution(Some(json!({"messages": messages})));
    let finish = thread.try_run(&run).await.map_err(|error| error.to_string())?;
    Ok(finish.values["messages"].clone())
}

#[tokio::test]
async fn every_form_becomes_the_one_langchain_has() {
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
    let kept = kept(json!([
        {"role": "user", "content": "hi", "id": "a"},
        {"role": "assistant", "content": "x", "id": "b", "tool_calls": [call]},
        ["system", "s"],
        "plain",
        {"role": "tool", "content": "r", "tool_call_id": "1", "name": "f", "id": "c"},
        {"type": "human", "content": [{"type": "text", "text": "x"}], "id": "d", "custom": 1},
        {"role": "developer", "content": "d", "id": "e"},
        {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "AIMessageChunk"],
         "kwargs": {"content": "k", "id": "f"}},
    ]))
    .await
    .unwrap();
    let base = |sort: &str, id: &str, content: Value| json!({"content": content, "additional_kwargs": {}, "response_metadata": {}, "type": sort, "name": null, "id": id});
    let with = |mut message: Value, more: Value| {
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        message
    };
    let (third, fourth) = (kept[2]["id"].as_str().unwrap(), kept[3]["id"].as_str().unwrap());
    assert_eq!(third.len(), 36);
    assert_ne!(third, fourth);
    let no_calls = json!({"tool_calls": [], "invalid_tool_calls": [], "usage_metadata": null});
    let calls = json!({"tool_calls": [{"name": "f", "args": {"a": 1}, "id": "1", "type": "tool_call"}]});
    let tool = json!({"name": "f", "tool_call_id": "1", "artifact": null, "status": "success"});
    let expected = json!([
        base("human", "a", json!("hi")),
        with(with(base("ai", "b", json!("x")), no_calls.clone()), calls),
        base("system", third, json!("s")),
        base("human", fourth, json!("plain")),
        with(base("tool", "c", json!("r")), tool),
        with(
            base("human", "d", json!([{"type": "text", "text": "x"}])),
            json!({"additional_kwargs": {"custom": 1}})
        ),
        with(
            base("system", "e", json!("d")),
            json!({"additional_kwargs": {"__openai_role__": "developer"}})
        ),
        with(base("ai", "f", json!("k")), no_calls),
    ]);
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn a_single_message_is_a_list_of_one() {
    for form in [
        json!("hi"),
        json!({"role": "user", "content": "hi"}),
        json!(["user", "hi"]),
    ] {
        let kept = kept(form.clone()).await.unwrap();
        assert_eq!(
            (kept.as_array().unwrap().len(), &kept[0]["content"]),
            (1, &json!("hi")),
            "{form}"
        );
    }
}

#[tokio::test]
async fn what_is_no_message_is_refused_in_langchains_words() {
    for (form, class, text) in [
        (
            json!([{"content": "x"}]),
            "ValueError",
            "Message dict must contain 'role' and 'content' keys, got",
        ),
        (
            json!([{"role": "zzz", "content": "x"}]),
            "ValueError",
            "Unexpected message type: 'zzz'. Use one of 'human'",
        ),
        (json!([1]), "NotImplementedError", "Unsupported message type: int"),
        (json!([{"role": "tool", "content": "x"}]), "KeyError", "'tool_call_id'"),
        (
            json!([{"type": "remove", "id": "zz", "content": ""}]),
            "ValueError",
            "Attempting to delete a message with an ID that doesn't exist ('zz')",
        ),
    ] {
        let error = kept(form.clone()).await.unwrap_err();
        assert!(error.starts_with(&format!("{class}: {text}")), "{form}: {error}");
    }
}

#[tokio::test]
async fn messages_merge_by_id() {
    let thread = arrange(json!({"kind": "script", "steps": []}));
    let run = async |messages: Value| {
        let finish = thread.run(&thread.execution(Some(json!({"messages": messages})))).await;
        let list = finish.values["messages"].as_array().unwrap().clone();
        list.iter()
            .map(|message| message["content"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let message = |id: &str, text: &str| json!({"role": "user", "content": text, "id": id});
    assert_eq!(run(json!([message("1", "a"), message("2", "b")])).await, ["a", "b"]);
    assert_eq!(
        run(json!([message("1", "A"), message("3", "c")])).await,
        ["A", "b", "c"]
    );
    assert_eq!(
        run(json!([{"type": "remove", "id": "2", "content": ""}, message("4", "d")])).await,
        ["A", "c", "d"]
    );
    let all = json!([{"type": "remove", "id": "__remove_all__", "content": ""}, message("9", "z")]);
    assert_eq!(run(all).await, ["z"]);
    assert_eq!(run(json!({"__overwrite__": [message("7", "y")]})).await, ["y"]);
    let long: Vec<Value> = (10..40).map(|id| message(&id.to_string(), "m")).collect();
    assert_eq!(run(json!(long)).await.len(), 31);
    assert_eq!(run(json!([message("12", "changed")])).await[3], "changed");
}

#[tokio::test]
async fn the_update_that_is_told_and_the_state_have_the_same_ids() {
    let thread = arrange(json!({"kind": "script", "steps": [{"append": {"messages": ["x"]}}]}));
    let told = thread
        .stream(
            thread.execution(Some(json!({}))),
            &[
                towpath_runtime::StreamMode::Updates,
                towpath_runtime::StreamMode::Values,
            ],
        )
        .await;
    let update = of(&told, "updates")[0]["script"]["messages"][0].clone();
    assert!(update["id"].is_string());
    assert_eq!(of(&told, "values").last().unwrap()["messages"][0], update);
}
