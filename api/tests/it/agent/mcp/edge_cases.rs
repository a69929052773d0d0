//! Messages that are refused, pages that may not call, and paths beside the one.

use http::Method;
use serde_json::{Value, json};
use towpath_api::agent::Settings;

use super::{STATELESS, open, rpc, send, stateless, tool, with_meta};
use crate::agent::{Agent, on_both_databases};
use crate::world::{Call, call};

on_both_databases!(
    wrong_messages_are_refused_as_the_protocol_says,
    without_a_handshake_statuses_say_what_is_wrong,
    only_post_leads_somewhere,
    pages_of_elsewhere_may_not_call,
    the_protocol_can_be_turned_off,
);

async fn wrong_messages_are_refused_as_the_protocol_says(agent: Agent) {
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("[]", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#, -32600),
        (r#"{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}"#, -32600),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}"#, -32602),
    ] {
        let refused = call(&agent.router, Call::new(Method::POST, "/mcp").body(body.to_owned())).await;
        assert_eq!(refused.expect(400)["error"]["code"], code, "{body}");
    }
    for (body, code) in [
        (rpc("resources/list", &json!({})), -32601),
        (rpc("server/discover", &json!({})), -32601),
        (rpc("tools/call", &json!({})), -32602),
        (tool("nothing", &json!({})), -32602),
        (tool("steps", &json!([])), -32602),
        (
            rpc("tools/call", &json!({"name": "steps", "arguments": {}, "context": 5})),
            -32602,
        ),
    ] {
        let refused = send(&agent.router, &[], &body).await.expect(200);
        assert_eq!(refused["error"]["code"], code, "{body}");
        assert_eq!(refused["id"], "c-1");
    }
    let taken = send(&agent.router, &[], &json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await;
    assert_eq!(
        taken.status, 202,
        "an answer to a request of ours, which there are none of"
    );
    let html = [("accept", "text/html")];
    assert_eq!(send(&agent.router, &html, &rpc("ping", &json!({}))).await.status, 400);
    let session = [("mcp-session-id", "x")];
    assert_eq!(
        send(&agent.router, &session, &rpc("ping", &json!({}))).await.status,
        404
    );
}

async fn without_a_handshake_statuses_say_what_is_wrong(agent: Agent) {
    for (method, params, status, code) in [
        ("ping", json!({}), 404, -32601),
        ("initialize", json!({}), 404, -32601),
        ("tools/call", json!({"name": "nothing"}), 400, -32602),
        ("tools/list", json!({"cursor": 1}), 400, -32602),
    ] {
        let refused = stateless(&agent.router, method, params).await.expect(status);
        assert_eq!(refused["error"]["code"], code, "{method}");
    }
    let version = ("mcp-protocol-version", STATELESS);
    let later = ("mcp-protocol-version", "2030-01-01");
    let list = rpc("tools/list", &json!({}));
    let other = send(&agent.router, &[later], &list).await.expect(400);
    assert_eq!(other["error"]["code"], -32022);
    assert_eq!(other["error"]["data"]["requested"], "2030-01-01");
    let supported = other["error"]["data"]["supported"].as_array().unwrap();
    assert!(supported.contains(&json!(STATELESS)) && supported.contains(&json!("2025-11-25")));
    let silent = send(&agent.router, &[version], &list).await.expect(400);
    assert_eq!(silent["error"]["code"], -32602);
    let meta = with_meta(json!({}));
    let mismatch = [version, ("mcp-method", "tools/call")];
    let refused = send(&agent.router, &mismatch, &rpc("tools/list", &meta))
        .await
        .expect(400);
    assert_eq!(refused["error"]["code"], -32020);
    // The body alone says that it is of this revision.
    for headers in [&[][..], &[("mcp-protocol-version", "2025-11-25")][..]] {
        let refused = send(&agent.router, headers, &rpc("tools/list", &meta))
            .await
            .expect(400);
        assert_eq!(refused["error"]["code"], -32020, "{headers:?}");
    }
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(send(&agent.router, &[version], &notice).await.status, 202);
    assert_eq!(send(&agent.router, &[later], &notice).await.status, 400);

    let called = json!({"name": "steps", "arguments": {"log": []}, "_meta": meta["_meta"]});
    let headers = [version, ("mcp-method", "tools/call"), ("mcp-name", "steps")];
    let waiting = open(&agent.router, &headers, &rpc("tools/call", &called)).await;
    agent.perform(towpath_workflows::run_agent::POOL).await;
    let result = waiting.json().await["result"].clone();
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["structuredContent"], json!({"log": ["one", "two"]}));
}

async fn only_post_leads_somewhere(agent: Agent) {
    let got = agent.get("/mcp").await;
    assert_eq!(got.status, 405);
    assert!(got.headers["allow"].to_str().unwrap().contains("POST"));
    assert_eq!(agent.delete("/mcp").await.status, 404);
    let session = uuid::Uuid::now_v7().to_string();
    let end = Call::new(Method::DELETE, "/mcp").header("mcp-session-id", &session);
    assert_eq!(call(&agent.router, end).await.status, 405);
    let slash = Call::new(Method::POST, "/mcp/?a=1").header("x-forwarded-prefix", "/d/one");
    let sent_on = call(&agent.router, slash).await;
    assert_eq!(sent_on.status, 307);
    assert_eq!(sent_on.headers["location"], "/d/one/mcp?a=1");
}

async fn pages_of_elsewhere_may_not_call(agent: Agent) {
    let ping: Value = rpc("ping", &json!({}));
    for (origin, status) in [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost:6274", 200),
        ("http://[::1]:1", 200),
    ] {
        let answer = send(&agent.router, &[("origin", origin)], &ping).await;
        assert_eq!(answer.status, status, "{origin}: {}", answer.text);
    }
    // A page that leads its own name here has no key.
    let answer = send(&agent.with_keys(), &[("origin", "http://evil.example")], &ping).await;
    assert_eq!(answer.status, 401);
}

async fn the_protocol_can_be_turned_off(agent: Agent) {
    let without = agent.beside_with(Settings {
        disabled: vec!["mcp".to_owned()],
        ..Settings::default()
    });
    assert_eq!(send(&without, &[], &rpc("ping", &json!({}))).await.status, 404);
    // The author may have a server there that takes it.
    assert_eq!(call(&without, Call::new(Method::GET, "/mcp")).await.status, 404);
    assert_eq!(call(&without, Call::new(Method::POST, "/mcp/")).await.status, 404);
}
