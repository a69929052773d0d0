//! What surrounds the tasks of the protocol: addresses to call, cards, and calls that are wrong.

use http::Method;
use serde_json::{Value, json};
use towpath_api::agent::Settings;
use towpath_domain::AssistantId;

use super::{code, data, done, open, result, rpc, text};
use crate::agent::{Agent, on_both_databases};
use crate::world::{Call, call};

on_both_databases!(
    addresses_to_call_are_kept_and_their_secrets_are_not_shown,
    what_is_wrong_is_answered_with_the_code_of_the_protocol,
    cards_name_both_versions_and_the_way_in,
);

async fn addresses_to_call_are_kept_and_their_secrets_are_not_shown(agent: Agent) {
    let mut message = data(&json!({"log": []}));
    message["configuration"] =
        json!({"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/first", "token": "t0ken"}});
    let asked = done(&agent, "human", &message).await;
    let task = &asked["id"];
    // The call that tells of the question is recorded; its receiver is away.
    agent.perform("webhooks").await;
    let put = json!({"taskId": task, "id": "mine", "url": "https://example.com/hook",
                     "authentication": {"scheme": "Bearer", "credentials": "s3cret"}});
    let made = result(&agent, "human", "CreateTaskPushNotificationConfig", &put).await;
    assert_eq!(
        made,
        json!({"taskId": task, "id": "mine", "url": "https://example.com/hook",
                            "authentication": {"scheme": "Bearer"}})
    );
    let got = result(
        &agent,
        "human",
        "tasks/pushNotificationConfig/get",
        &json!({"id": task, "pushNotificationConfigId": "mine"}),
    )
    .await;
    assert_eq!(
        got["pushNotificationConfig"]["authentication"],
        json!({"schemes": ["Bearer"]})
    );
    let listed = result(
        &agent,
        "human",
        "ListTaskPushNotificationConfigs",
        &json!({"taskId": task}),
    )
    .await;
    assert_eq!(listed["configs"].as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains("s3cret") && !listed.to_string().contains("t0ken"));
    let gone = json!({"taskId": task, "id": "mine"});
    assert_eq!(
        result(&agent, "human", "DeleteTaskPushNotificationConfig", &gone).await,
        Value::Null
    );
    assert_eq!(
        code(&agent, "human", "GetTaskPushNotificationConfig", &gone).await,
        -32001
    );
    for url in ["", "ftp://example.com", "/relative"] {
        let wrong = json!({"taskId": task, "url": url});
        assert_eq!(
            code(&agent, "human", "CreateTaskPushNotificationConfig", &wrong).await,
            -32602,
            "{url}"
        );
    }
    for nth in 0..9 {
        let put = json!({"taskId": task, "id": format!("n{nth}"), "url": "https://example.com/hook"});
        result(&agent, "human", "CreateTaskPushNotificationConfig", &put).await;
    }
    let put = json!({"taskId": task, "id": "one too many", "url": "https://example.com/hook"});
    assert_eq!(
        code(&agent, "human", "CreateTaskPushNotificationConfig", &put).await,
        -32004
    );
    let elsewhere = json!({"taskId": format!("{task}x"), "url": "https://example.com/hook"});
    assert_eq!(
        code(&agent, "human", "CreateTaskPushNotificationConfig", &elsewhere).await,
        -32001
    );
}

async fn what_is_wrong_is_answered_with_the_code_of_the_protocol(agent: Agent) {
    let unknown = format!("{}:{}", agent.thread().await, agent.thread().await);
    for (method, params, expected) in [
        ("GetTask", json!({"id": unknown}), -32001),
        ("GetTask", json!({"id": "no-task"}), -32001),
        ("GetTask", json!({}), -32602),
        ("CancelTask", json!({"id": unknown}), -32001),
        ("tasks/cancel", json!({"id": 5}), -32602),
        ("ListTaskPushNotificationConfigs", json!({"taskId": unknown}), -32001),
        ("SendMessage", json!({}), -32602),
        (
            "SendMessage",
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}),
            -32602,
        ),
        (
            "SendMessage",
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"form": 1}]}}),
            -32005,
        ),
        ("SendMessage", data(&json!([1])), -32005),
        (
            "SendMessage",
            json!({"message": {"messageId": "m", "role": "ROLE_USER",
                               "parts": [{"text": "hi"}, {"data": {"messages": []}}]}}),
            -32602,
        ),
        ("ListTasks", json!({"pageSize": 0}), -32602),
        ("tasks/none", json!({}), -32601),
    ] {
        assert_eq!(
            code(&agent, "echo", method, &params).await,
            expected,
            "{method} {params}"
        );
    }
    // A graph without messages takes no text.
    assert_eq!(code(&agent, "steps", "SendMessage", &text("hi")).await, -32602);
    assert_eq!(code(&agent, "nobody", "GetTask", &json!({"id": unknown})).await, -32602);
    let streamed = open(&agent, "echo", "message/stream", &json!({})).await;
    assert_eq!(streamed.json_event().await["error"]["code"], -32602);
    let broken = call(&agent.router, Call::new(Method::POST, "/a2a/echo").body("{")).await;
    assert_eq!(broken.expect(200)["error"]["code"], -32700);
    let version = Call::new(Method::POST, "/a2a/echo").header("a2a-version", "9.0");
    let version = call(&agent.router, version.json(&rpc("GetTask", &json!({"id": unknown})))).await;
    assert_eq!(version.expect(200)["error"]["code"], -32009);
    let accept = Call::new(Method::POST, "/a2a/echo").header("accept", "text/html");
    assert_eq!(
        call(&agent.router, accept.json(&rpc("GetTask", &json!({}))))
            .await
            .status,
        400
    );
    assert_eq!(agent.get("/a2a/echo").await.status, 405);
    assert_eq!(agent.delete("/a2a/echo").await.status, 405);
    let without = agent.beside_with(Settings {
        disabled: vec!["a2a".to_owned()],
        ..Settings::default()
    });
    for (method, path) in [
        (Method::POST, "/a2a/echo"),
        (Method::GET, "/a2a/echo/.well-known/agent-card.json"),
        (Method::GET, "/.well-known/agent-card.json?assistant_id=echo"),
    ] {
        assert_eq!(call(&without, Call::new(method, path)).await.status, 404, "{path}");
    }
}

async fn cards_name_both_versions_and_the_way_in(agent: Agent) {
    let id = AssistantId::of_graph("echo");
    for path in [
        "/.well-known/agent-card.json?assistant_id=echo".to_owned(),
        format!("/.well-known/agent.json?assistant_id={id}"),
        "/a2a/echo/.well-known/agent-card.json".to_owned(),
        format!("/a2a/{id}/.well-known/agent.json"),
    ] {
        let asked = Call::new(Method::GET, &path).header("host", "agents.example:8123");
        let card = call(&agent.router, asked).await.expect(200);
        let url = format!("http://agents.example:8123/a2a/{id}");
        assert_eq!(card["url"], url, "{path}");
        let versions: Vec<&Value> = card["supportedInterfaces"].as_array().unwrap().iter().collect();
        assert_eq!(
            versions[0],
            &json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"})
        );
        assert_eq!(versions[1]["protocolVersion"], "0.3");
        assert_eq!(card["capabilities"]["streaming"], true);
        assert_eq!(card.get("securitySchemes"), None);
    }
    let forwarded = Call::new(Method::GET, "/a2a/echo/.well-known/agent-card.json")
        .header("x-forwarded-host", "platform.example")
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-prefix", "/d/one");
    let card = call(&agent.router, forwarded).await.expect(200);
    // No proxy that the operator named says so.
    assert_eq!(card["url"], format!("http://localhost/d/one/a2a/{id}"));
    let extended = result(&agent, "echo", "GetExtendedAgentCard", &json!({})).await;
    assert_eq!(extended["name"], "echo");
    assert_eq!(
        agent.get("/.well-known/agent-card.json").await.status,
        422,
        "which of several?"
    );
    assert_eq!(agent.get("/a2a/nobody/.well-known/agent-card.json").await.status, 422);
    // Where keys are asked for, nothing of this is open.
    let guarded = agent.with_keys();
    for (method, path) in [
        (Method::POST, "/a2a/echo"),
        (Method::GET, "/a2a/echo/.well-known/agent-card.json"),
    ] {
        assert_eq!(call(&guarded, Call::new(method, path)).await.status, 401, "{path}");
    }
}
