//! Batches of messages, which one revision has.

use http::Method;
use serde_json::{Value, json};
use towpath_workflows::run_agent::POOL;

use super::{STATELESS, open, open_runs, rpc, send, tool, with_meta};
use crate::agent::{Agent, on_both_databases};
use crate::world::{Call, call};

on_both_databases!(
    a_batch_is_answered_with_a_list,
    a_batch_tells_how_far_its_calls_have_come,
    a_batch_cancels_a_call_of_its_own,
    wrong_messages_of_a_batch_are_refused_each,
    batches_are_refused_where_there_are_none,
);

/// A message with another id.
fn named(mut message: Value, id: impl Into<Value>) -> Value {
    message["id"] = id.into();
    message
}

/// The answer to a request.
fn find(answers: &Value, id: impl Into<Value>) -> Value {
    let id = id.into();
    let mut found = answers.as_array().unwrap().iter().filter(|answer| answer["id"] == id);
    let answer = found.next().unwrap_or_else(|| panic!("no answer to {id}: {answers}"));
    assert!(found.next().is_none(), "two answers to {id}: {answers}");
    answer.clone()
}

fn initialized() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
}

async fn a_batch_is_answered_with_a_list(agent: Agent) {
    let body = json!([
        initialized(),
        named(tool("steps", &json!({"log": ["a"]})), "a"),
        named(rpc("ping", &json!({})), 0),
        named(tool("steps", &json!({"log": ["b"]})), "b"),
        named(tool("nothing", &json!({})), 7),
        {"jsonrpc": "2.0", "id": 9, "result": {}},
    ]);
    for headers in [&[][..], &[("mcp-protocol-version", "2025-03-26")][..]] {
        let waiting = open(&agent.router, headers, &body).await;
        assert_eq!(waiting.headers["content-type"], "application/json");
        agent.perform(POOL).await;
        agent.perform(POOL).await;
        let answers = waiting.json().await;
        assert_eq!(answers.as_array().unwrap().len(), 4, "{answers}");
        assert_eq!(find(&answers, 0)["result"], json!({}));
        assert_eq!(find(&answers, 7)["error"]["code"], -32602);
        for id in ["a", "b"] {
            let state = json!({"log": [id, "one", "two"]});
            assert_eq!(find(&answers, id)["result"]["structuredContent"], state, "{answers}");
        }
    }
    // Nothing is answered where nothing was asked.
    let told = send(
        &agent.router,
        &[],
        &json!([initialized(), {"jsonrpc": "2.0", "id": 9, "result": {}}]),
    )
    .await;
    assert_eq!((told.status.as_u16(), told.text.as_str()), (202, ""));
    let session = [("mcp-session-id", "x")];
    let unknown = send(&agent.router, &session, &json!([rpc("ping", &json!({}))])).await;
    assert_eq!(unknown.status, 404);
}

async fn a_batch_tells_how_far_its_calls_have_come(agent: Agent) {
    let mut called = named(tool("steps", &json!({"log": []})), "a");
    called["params"]["_meta"] = json!({"progressToken": "t"});
    let body = json!([called, named(rpc("ping", &json!({})), "b"), 5]);
    let both = [("accept", "application/json, text/event-stream")];
    let mut stream = open(&agent.router, &both, &body).await;
    agent.perform(POOL).await;
    let (mut told, mut answers) = (Vec::new(), Vec::new());
    while let Some((name, message)) = stream.next().await {
        assert_eq!(name, "message");
        match message.get("method") {
            Some(_) => told.push(message["params"].clone()),
            None => answers.push(message),
        }
    }
    let progress =
        |progress: u64, message: &str| json!({"progressToken": "t", "progress": progress, "message": message});
    assert_eq!(told, [progress(1, "one"), progress(2, "two")]);
    let answers = Value::Array(answers);
    assert_eq!(answers.as_array().unwrap().len(), 3, "{answers}");
    assert_eq!(
        find(&answers, "a")["result"]["structuredContent"],
        json!({"log": ["one", "two"]})
    );
    assert_eq!(find(&answers, "b")["result"], json!({}));
    assert_eq!(find(&answers, Value::Null)["error"]["code"], -32600);
}

async fn a_batch_cancels_a_call_of_its_own(agent: Agent) {
    let session = uuid::Uuid::now_v7().to_string();
    let own = [("mcp-session-id", session.as_str())];
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}});
    let body = json!([named(tool("slow", &json!({"log": []})), "a"), cancel]);
    let answers = send(&agent.router, &own, &body).await.expect(200);
    assert_eq!(find(&answers, "a")["error"]["code"], -32800);
    assert_eq!(open_runs(&agent).await.len(), 0);
}

async fn wrong_messages_of_a_batch_are_refused_each(agent: Agent) {
    let ping = named(rpc("ping", &json!({})), "a");
    let begin = named(rpc("initialize", &json!({"protocolVersion": "2025-03-26"})), "b");
    let stateless = named(rpc("ping", &with_meta(json!({}))), "c");
    let unknown = named(rpc("resources/list", &json!({})), "d");
    let no_params = json!({"jsonrpc": "2.0", "id": "e", "method": "ping", "params": []});
    let no_id = json!({"jsonrpc": "2.0", "id": {}, "method": "ping"});
    let body = json!([ping, begin, stateless, unknown, no_params, no_id]);
    let answers = send(&agent.router, &[], &body).await.expect(200);
    assert_eq!(answers.as_array().unwrap().len(), 6, "{answers}");
    assert_eq!(find(&answers, "a")["result"], json!({}));
    for (id, code) in [
        (json!("b"), -32600),
        (json!("c"), -32020),
        (json!("d"), -32601),
        (json!("e"), -32602),
        (Value::Null, -32600),
    ] {
        assert_eq!(find(&answers, id.clone())["error"]["code"], code, "{id}");
    }
    // Without a request the status says it.
    let wrong = send(&agent.router, &[], &json!([1, initialized()])).await.expect(400);
    assert_eq!(wrong[0]["error"]["code"], -32600);
    assert_eq!(wrong.as_array().unwrap().len(), 1);
    for (body, code) in [(json!([]), -32600), (json!(vec![rpc("ping", &json!({})); 51]), -32600)] {
        let refused = send(&agent.router, &[], &body).await.expect(400);
        assert_eq!(
            (&refused["error"]["code"], &refused["id"]),
            (&json!(code), &Value::Null)
        );
    }
    let broken = Call::new(Method::POST, "/mcp").body(r#"[{"jsonrpc": "2.0", "id": 1, "method""#.to_owned());
    assert_eq!(call(&agent.router, broken).await.expect(400)["error"]["code"], -32700);
}

async fn batches_are_refused_where_there_are_none(agent: Agent) {
    let body = json!([tool("slow", &json!({"log": []}))]);
    for (version, code) in [
        ("2024-11-05", -32600),
        ("2025-06-18", -32600),
        ("2025-11-25", -32600),
        (STATELESS, -32600),
        ("2030-01-01", -32022),
    ] {
        let refused = send(&agent.router, &[("mcp-protocol-version", version)], &body).await;
        assert_eq!(refused.expect(400)["error"]["code"], code, "{version}");
    }
    assert_eq!(open_runs(&agent).await.len(), 0, "nothing of it was performed");
}
