//! What the technology compatibility kit asks for besides tasks and streams.

use http::Method;
use serde_json::{Value, json};
use towpath_api::agent::Settings;
use towpath_workflows::run_agent::POOL;
use towpath_workflows::send_webhook::WebhookRules;

use super::{ask, code, data, done, events, open, result, rpc, text};
use crate::agent::{Agent, on_both_databases};
use crate::world::{Answer, Call, call};

on_both_databases!(
    a_slash_behind_the_path_leads_to_the_same_agent,
    fields_may_have_the_names_of_the_protocol_buffer,
    a_context_may_have_a_name_of_its_client,
    media_types_that_an_agent_does_not_name_are_refused,
    an_agent_may_have_one_version,
    push_notifications_that_are_off_are_not_supported,
    bodies_that_are_not_json_by_their_type_are_refused,
    a_call_without_an_id_is_performed_and_not_answered,
    errors_of_streams_are_plain_in_the_newer_version,
);

/// An assistant of a graph, with these metadata under `a2a`.
async fn assistant(agent: &Agent, graph: &str, options: &Value) -> String {
    let new = json!({"graph_id": graph, "metadata": {"a2a": options}});
    let made = agent.post("/assistants", &new).await.expect(200);
    made["assistant_id"].as_str().unwrap().to_owned()
}

async fn post(agent: &Agent, path: &str, content_type: &str, body: &Value) -> Answer {
    let asked = Call::new(Method::POST, path).header("content-type", content_type);
    call(&agent.router, asked.body(body.to_string())).await
}

async fn a_slash_behind_the_path_leads_to_the_same_agent(agent: Agent) {
    let task = done(&agent, "echo", &text("hello")).await;
    let read = rpc("GetTask", &json!({"id": task["id"]}));
    let answer = agent.post("/a2a/echo/", &read).await.expect(200);
    assert_eq!(answer["result"], task);
    let guarded = agent.with_keys();
    assert_eq!(call(&guarded, Call::new(Method::POST, "/a2a/echo/")).await.status, 401);
}

async fn fields_may_have_the_names_of_the_protocol_buffer(agent: Agent) {
    let message = json!({
        "message": {"message_id": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]},
        "configuration": {"return_immediately": true},
    });
    let begun = result(&agent, "echo", "SendMessage", &message).await["task"].clone();
    assert_eq!(begun["status"]["state"], "TASK_STATE_SUBMITTED");
    agent.perform(POOL).await;
    let short = json!({"id": begun["id"], "history_length": 1});
    let read = result(&agent, "echo", "GetTask", &short).await;
    assert_eq!(read["history"].as_array().unwrap().len(), 1);
    let listed = json!({"context_id": begun["contextId"], "page_size": 1, "include_artifacts": true});
    let page = result(&agent, "echo", "ListTasks", &listed).await;
    assert_eq!((&page["pageSize"], &page["totalSize"]), (&json!(1), &json!(1)));
    assert!(page["tasks"][0]["artifacts"].is_array(), "{page}");
    let config = json!({"task_id": begun["id"], "id": "mine", "url": "https://example.com/hook"});
    let made = result(&agent, "echo", "CreateTaskPushNotificationConfig", &config).await;
    assert_eq!((&made["taskId"], &made["id"]), (&begun["id"], &json!("mine")));
}

async fn a_context_may_have_a_name_of_its_client(agent: Agent) {
    let named = |context: &str| {
        let mut message = data(&json!({"log": []}));
        message["message"]["contextId"] = json!(context);
        message
    };
    let first = done(&agent, "human", &named("a conversation")).await;
    assert_eq!(first["contextId"], "a conversation");
    assert_eq!(first["status"]["message"]["contextId"], "a conversation");
    let mut answer = named("a conversation");
    answer["message"]["taskId"] = first["id"].clone();
    assert_eq!(
        done(&agent, "human", &answer).await["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    // The next task of the name is on the same thread, another name is another thread.
    let second = done(&agent, "human", &named("a conversation")).await;
    let other = done(&agent, "human", &named("another")).await;
    let thread = |task: &Value| task["id"].as_str().unwrap().split(':').next().unwrap().to_owned();
    assert_eq!(thread(&second), thread(&first));
    assert_ne!(thread(&other), thread(&first));
    for context in ["a conversation", &thread(&first)] {
        let page = result(&agent, "human", "ListTasks", &json!({"contextId": context})).await;
        assert_eq!(page["totalSize"], 2, "{context}");
        assert_eq!(page["tasks"][0]["contextId"], "a conversation");
    }
    let mut elsewhere = named("another");
    elsewhere["message"]["taskId"] = second["id"].clone();
    assert_eq!(code(&agent, "human", "SendMessage", &elsewhere).await, -32602);
    assert_eq!(
        code(&agent, "human", "SendMessage", &named(&"x".repeat(257))).await,
        -32602
    );
    let id = json!({"id": second["id"]});
    let canceled = result(&agent, "human", "tasks/cancel", &id).await;
    assert_eq!(canceled["contextId"], "a conversation");
    let streamed = open(&agent, "human", "message/stream", &named("another")).await;
    agent.perform(POOL).await;
    assert!(
        events(streamed)
            .await
            .iter()
            .all(|event| event["contextId"] == "another")
    );
}

async fn media_types_that_an_agent_does_not_name_are_refused(agent: Agent) {
    let narrow = assistant(&agent, "echo", &json!({"input_modes": ["text/plain", "image/*"]})).await;
    let file = |media_type: &str| {
        let part = json!({"raw": "dGNr", "mediaType": media_type});
        json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "see"}, part]}})
    };
    for method in ["SendMessage", "SendStreamingMessage", "message/send"] {
        let refused = ask(&agent, &narrow, method, &file("application/x-other")).await;
        assert_eq!(refused["error"]["code"], -32005, "{method}: {refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("message.parts.1") && message.contains("image/*"),
            "{message}"
        );
    }
    let task = done(&agent, &narrow, &file("image/png")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    // An agent that names none takes all.
    let task = done(&agent, "echo", &file("application/x-other")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
}

async fn an_agent_may_have_one_version(agent: Agent) {
    let newer = assistant(&agent, "echo", &json!({"versions": ["1.0"]})).await;
    let card = agent
        .get(&format!("/a2a/{newer}/.well-known/agent-card.json"))
        .await
        .expect(200);
    // These are all fields that the card of version 1.0 has.
    let mut fields: Vec<&str> = card.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "capabilities",
            "defaultInputModes",
            "defaultOutputModes",
            "description",
            "name",
            "skills",
            "supportedInterfaces",
            "version"
        ]
    );
    assert_eq!(card["supportedInterfaces"].as_array().unwrap().len(), 1);
    assert_eq!(card["capabilities"].get("stateTransitionHistory"), None);
    assert_eq!(
        done(&agent, &newer, &text("hello")).await["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    assert_eq!(code(&agent, &newer, "message/send", &text("hello")).await, -32009);

    let older = assistant(&agent, "echo", &json!({"versions": ["0.3"]})).await;
    let card = agent
        .get(&format!("/a2a/{older}/.well-known/agent-card.json"))
        .await
        .expect(200);
    assert_eq!(card["supportedInterfaces"][0]["protocolVersion"], "0.3");
    assert_eq!(card["protocolVersion"], "0.3.0");
    assert_eq!(code(&agent, &older, "SendMessage", &text("hello")).await, -32009);
}

async fn push_notifications_that_are_off_are_not_supported(agent: Agent) {
    let without = agent.beside_with(Settings {
        webhooks: WebhookRules {
            off: true,
            ..WebhookRules::default()
        },
        ..Settings::default()
    });
    let card = Call::new(Method::GET, "/a2a/echo/.well-known/agent-card.json");
    let card = call(&without, card).await.expect(200);
    assert_eq!(card["capabilities"]["pushNotifications"], false);
    let params = json!({"taskId": "t", "id": "mine", "url": "https://example.com"});
    for method in [
        "CreateTaskPushNotificationConfig",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig",
    ] {
        let asked = Call::new(Method::POST, "/a2a/echo").json(&rpc(method, &params));
        let refused = call(&without, asked).await.expect(200);
        assert_eq!(refused["error"]["code"], -32003, "{method}");
    }
}

async fn bodies_that_are_not_json_by_their_type_are_refused(agent: Agent) {
    let body = rpc("ListTasks", &json!({}));
    for content_type in ["text/plain", "application/x-www-form-urlencoded"] {
        let refused = post(&agent, "/a2a/echo", content_type, &body).await.expect(200);
        assert_eq!(refused["error"]["code"], -32005, "{content_type}");
    }
    for content_type in ["application/json; charset=utf-8", "application/a2a+json"] {
        let listed = post(&agent, "/a2a/echo", content_type, &body).await.expect(200);
        assert_eq!(listed["result"]["totalSize"], 0, "{content_type}");
    }
}

async fn a_call_without_an_id_is_performed_and_not_answered(agent: Agent) {
    let without_id = |method: &str, params: &Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    let mut message = data(&json!({"log": []}));
    message["configuration"] = json!({"returnImmediately": true});
    for (method, params) in [
        ("SendMessage", message),
        ("SendMessage", json!({})),
        ("GetTask", json!([])),
        ("tasks/none", json!({})),
    ] {
        let told = agent.post("/a2a/slow", &without_id(method, &params)).await;
        assert_eq!(
            (told.status.as_u16(), told.text.as_str()),
            (204, ""),
            "{method} {params}"
        );
    }
    assert_eq!(result(&agent, "slow", "ListTasks", &json!({})).await["totalSize"], 1);
    // What is no request of JSON-RPC is answered all the same.
    let wrong = agent
        .post("/a2a/slow", &json!({"jsonrpc": "2.0", "method": 5}))
        .await
        .expect(200);
    assert_eq!((&wrong["error"]["code"], &wrong["id"]), (&json!(-32600), &Value::Null));
    let batch = agent
        .post("/a2a/slow", &json!([rpc("ListTasks", &json!({}))]))
        .await
        .expect(200);
    assert_eq!(batch["error"]["code"], -32600);
}

async fn errors_of_streams_are_plain_in_the_newer_version(agent: Agent) {
    let unknown = json!({"id": "no-task"});
    let plain = open(&agent, "echo", "SubscribeToTask", &unknown).await;
    assert_eq!(plain.headers["content-type"], "application/json");
    assert_eq!(plain.json().await["error"]["code"], -32001);
    assert_eq!(code(&agent, "echo", "SendStreamingMessage", &json!({})).await, -32602);
    let event = open(&agent, "echo", "tasks/resubscribe", &unknown).await;
    assert!(
        event.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/event-stream")
    );
    assert_eq!(event.json_event().await["error"]["code"], -32001);
}
