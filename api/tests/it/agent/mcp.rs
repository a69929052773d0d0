//! The Model Context Protocol, its calls performed by hand.

mod batches;
mod edge_cases;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;
use towpath_domain::AssistantId;
use towpath_store::assistants;
use towpath_workflows::run_agent::POOL;

use super::{Agent, OpenResponse, PATIENCE, content, on_both_databases};
use crate::world::{Answer, Call, call};

on_both_databases!(
    a_client_begins_with_a_handshake_or_without,
    every_assistant_is_a_tool_of_its_own_name,
    tools_come_in_pages,
    a_call_answers_the_state_that_its_run_left,
    a_call_tells_how_far_it_has_come,
    a_call_is_cancelled_by_its_own_session,
    a_client_that_goes_away_cancels_its_call_where_there_is_no_handshake,
);

/// The newest revision, which has no handshake.
const STATELESS: &str = "2026-07-28";

fn rpc(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params})
}

/// A call of a tool.
fn tool(name: &str, arguments: &Value) -> Value {
    rpc("tools/call", &json!({"name": name, "arguments": arguments}))
}

async fn send(router: &Router, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut sent = Call::new(Method::POST, "/mcp").json(body);
    for (name, value) in headers {
        sent = sent.header(name, value);
    }
    call(router, sent).await
}

/// What a method gives.
async fn result(agent: &Agent, method: &str, params: &Value) -> Value {
    let answer = send(&agent.router, &[], &rpc(method, params)).await.expect(200);
    assert_eq!(answer["id"], "c-1", "{answer}");
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

/// Parameters that stand in for a handshake.
fn with_meta(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

/// As a client without a handshake sends it.
async fn stateless(router: &Router, method: &str, params: Value) -> Answer {
    let params = with_meta(params);
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    let mut headers = vec![("mcp-protocol-version", STATELESS), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", &name));
    }
    send(router, &headers, &rpc(method, &params)).await
}

/// An answer that waits for a run: its head is there.
async fn open(router: &Router, headers: &[(&str, &str)], body: &Value) -> OpenResponse {
    let mut request = Request::builder().method(Method::POST).uri("/mcp");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_string())).unwrap();
    let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    assert_eq!(head.status, StatusCode::OK);
    OpenResponse {
        headers: head.headers,
        body,
        read: String::new(),
    }
}

async fn a_client_begins_with_a_handshake_or_without(agent: Agent) {
    let offer = |version: &str| rpc("initialize", &json!({"protocolVersion": version, "capabilities": {}}));
    for (offered, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-11-25", "2025-11-25"),
        (STATELESS, "2025-11-25"),
        ("x", "2025-11-25"),
    ] {
        let begun = send(&agent.router, &[], &offer(offered)).await;
        assert!(begun.headers.contains_key("mcp-session-id"), "{offered}");
        let result = begun.expect(200)["result"].clone();
        assert_eq!(result["protocolVersion"], agreed, "{offered}");
        assert_eq!(result["capabilities"], json!({"tools": {"listChanged": false}}));
        assert_eq!(result["serverInfo"]["name"], "towpath");
    }
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let taken = send(&agent.router, &[("mcp-protocol-version", "2025-11-25")], &ready).await;
    assert_eq!((taken.status.as_u16(), taken.text.as_str()), (202, ""));
    assert_eq!(result(&agent, "ping", &json!({})).await, json!({}));

    let found = stateless(&agent.router, "server/discover", json!({})).await.expect(200)["result"].clone();
    assert_eq!(found["supportedVersions"][0], STATELESS);
    assert_eq!(found["resultType"], "complete");
    assert_eq!((&found["ttlMs"], &found["cacheScope"]), (&json!(0), &json!("private")));
    let listed = stateless(&agent.router, "tools/list", json!({})).await.expect(200)["result"].clone();
    assert_eq!(listed["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "towpath");
}

async fn every_assistant_is_a_tool_of_its_own_name(agent: Agent) {
    let mut named = Vec::new();
    for description in ["", "Says it again."] {
        let new = json!({"graph_id": "echo", "name": "Say  it!", "description": description});
        let made = agent.post("/assistants", &new).await.expect(200);
        named.push(made["assistant_id"].as_str().unwrap().to_owned());
    }
    let listed = result(&agent, "tools/list", &json!({})).await;
    assert!(listed.get("nextCursor").is_none());
    let find = |name: &str| {
        let tools = listed["tools"].as_array().unwrap();
        let tool = tools.iter().find(|tool| tool["name"] == name);
        tool.unwrap_or_else(|| panic!("no tool {name}: {listed}")).clone()
    };
    let steps = find("steps");
    assert_eq!(
        (&steps["title"], &steps["description"]),
        (&json!("steps"), &json!("Runs the assistant steps."))
    );
    assert_eq!(steps["inputSchema"]["type"], "object");
    assert!(steps["inputSchema"]["properties"]["log"].is_object(), "{steps}");
    assert_eq!(steps["annotations"]["openWorldHint"], true);
    // The older of two keeps the name.
    let (older, newer) = (find("Say_it"), find(&format!("Say_it-{}", named[1])));
    assert_eq!(older["title"], "Say  it!");
    assert_eq!(newer["description"], "Says it again.");
    assert_eq!(older["inputSchema"]["properties"]["messages"]["type"], "string");
    assert!(older["inputSchema"].get("$defs").is_none(), "{older}");

    for name in [
        "Say_it",
        &format!("Say_it-{}", named[0]),
        &format!("Say_it-{}", named[1]),
    ] {
        let waiting = open(&agent.router, &[], &tool(name, &json!({"messages": "hello there"}))).await;
        agent.perform(POOL).await;
        let answer = waiting.json().await;
        let messages = &answer["result"]["structuredContent"]["messages"];
        assert_eq!(messages[0]["type"], "human", "{name}: {answer}");
        assert_eq!(messages[1]["content"], "hello there", "{name}: {answer}");
    }
}

async fn tools_come_in_pages(agent: Agent) {
    let content = content("echo", &json!({}), &json!({}));
    let made = agent.store.write(async |tx| {
        for _ in 0..200 {
            assistants::create(tx, agent.tenant, AssistantId::random(), &content).await?;
        }
        Ok(())
    });
    made.await.unwrap();
    let (mut names, mut sizes, mut cursor) = (Vec::new(), Vec::new(), json!({}));
    loop {
        let page = result(&agent, "tools/list", &cursor).await;
        let tools = page["tools"].as_array().unwrap();
        sizes.push(tools.len());
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        match page.get("nextCursor") {
            Some(next) => cursor = json!({"cursor": next}),
            None => break,
        }
    }
    assert_eq!(sizes, [100, 100, 5]);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 205, "no name is there twice");
    for wrong in [json!("x"), json!(1)] {
        let refused = send(&agent.router, &[], &rpc("tools/list", &json!({"cursor": wrong}))).await;
        assert_eq!(refused.expect(200)["error"]["code"], -32602);
    }
}

async fn a_call_answers_the_state_that_its_run_left(agent: Agent) {
    let state = json!({"log": ["in", "one", "two"]});
    let waiting = open(&agent.router, &[], &tool("steps", &json!({"log": ["in"]}))).await;
    assert_eq!(waiting.headers["content-type"], "application/json");
    agent.perform(POOL).await;
    let answer = waiting.json().await;
    assert_eq!(answer["id"], "c-1");
    assert_eq!(answer["result"]["structuredContent"], state);
    assert_eq!(answer["result"]["isError"], false);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), state);

    // One that takes nothing but events gets one.
    let events = [("accept", "text/event-stream")];
    let waiting = open(&agent.router, &events, &tool("steps", &json!({"log": []}))).await;
    agent.perform(POOL).await;
    assert_eq!(only_event(waiting).await["result"]["isError"], false);

    let waiting = open(&agent.router, &[], &tool("broken", &json!({"log": []}))).await;
    agent.perform(POOL).await;
    let failed = waiting.json().await["result"].clone();
    assert_eq!(failed["isError"], true, "{failed}");
    assert_eq!(failed["content"][0]["text"], "ValueError: it broke");
    assert!(failed.get("structuredContent").is_none());

    let waiting = open(&agent.router, &[], &tool("human", &json!({"log": []}))).await;
    agent.perform(POOL).await;
    let asks = waiting.json().await["result"].clone();
    assert_eq!(
        asks["structuredContent"]["__interrupt__"][0]["value"],
        json!({"question": "go on?"}),
        "{asks}"
    );
}

async fn only_event(mut stream: OpenResponse) -> Value {
    let (name, data) = stream.next().await.expect("an event");
    assert_eq!(name, "message");
    assert_eq!(stream.next().await, None);
    data
}

async fn a_call_tells_how_far_it_has_come(agent: Agent) {
    let mut body = tool("steps", &json!({"log": []}));
    body["params"]["_meta"] = json!({"progressToken": 7});
    let both = [("accept", "application/json, text/event-stream")];
    let mut stream = open(&agent.router, &both, &body).await;
    agent.perform(POOL).await;
    for (progress, message) in [(1, "one"), (2, "two")] {
        let told = json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 7, "progress": progress, "message": message},
        });
        stream.expect("message", &told).await;
    }
    let answer = only_event(stream).await;
    assert_eq!(answer["result"]["structuredContent"], json!({"log": ["one", "two"]}));

    // Who takes no events is told nothing on the way.
    let waiting = open(&agent.router, &[("accept", "application/json")], &body).await;
    agent.perform(POOL).await;
    assert_eq!(waiting.json().await["result"]["isError"], false);
}

/// The runs that are not over.
async fn open_runs(agent: &Agent) -> Vec<Value> {
    let found = agent
        .post("/runs/search", &json!({"status": "pending"}))
        .await
        .expect(200);
    found.as_array().unwrap().clone()
}

async fn a_call_is_cancelled_by_its_own_session(agent: Agent) {
    let begun = send(&agent.router, &[], &rpc("initialize", &json!({}))).await;
    let session = begun.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let other = uuid::Uuid::now_v7().to_string();
    let own = [("mcp-session-id", session.as_str())];
    let waiting = open(&agent.router, &own, &tool("slow", &json!({"log": []}))).await;
    let cancel = |id: &str| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}});
    for (session, id) in [(Some(&other), "c-1"), (None, "c-1"), (Some(&session), "c-2")] {
        let headers: Vec<_> = session.iter().map(|id| ("mcp-session-id", id.as_str())).collect();
        let taken = send(&agent.router, &headers, &cancel(id)).await;
        assert_eq!(taken.status, 202, "{}", taken.text);
        assert_eq!(open_runs(&agent).await.len(), 1, "{session:?} {id}");
    }
    // It may reach any process.
    let taken = send(&agent.beside(), &own, &cancel("c-1")).await;
    assert_eq!(taken.status, 202, "{}", taken.text);
    assert_eq!(open_runs(&agent).await.len(), 0);
    assert_eq!(waiting.json().await["error"]["code"], -32800);
}

async fn a_client_that_goes_away_cancels_its_call_where_there_is_no_handshake(agent: Agent) {
    let session = uuid::Uuid::now_v7().to_string();
    let own = [("mcp-session-id", session.as_str())];
    let begun = open(&agent.router, &own, &tool("slow", &json!({"log": []}))).await;
    let headers = [
        ("mcp-protocol-version", STATELESS),
        ("mcp-method", "tools/call"),
        ("mcp-name", "slow"),
        // There are no sessions: whatever stands here counts for nothing.
        ("mcp-session-id", "x"),
    ];
    let called = with_meta(json!({"name": "slow", "arguments": {"log": []}}));
    let stateless = open(&agent.router, &headers, &rpc("tools/call", &called)).await;
    assert_eq!(open_runs(&agent).await.len(), 2);
    drop((begun, stateless));
    let cancelled = async {
        while open_runs(&agent).await.len() > 1 {
            tokio::task::yield_now().await;
        }
    };
    let cancelled = tokio::time::timeout(PATIENCE, cancelled).await;
    assert!(cancelled.is_ok(), "waited {PATIENCE:?} for the run to be cancelled");
    let left = open_runs(&agent).await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["metadata"]["mcp_session_id"], session, "{left:?}");
}
