//! The Agent Protocol: agents, and bodies with `agent_id`.

use http::Method;
use serde_json::{Value, json};
use towpath_domain::AssistantId;
use towpath_workflows::run_agent;

use super::{Agent, OpenResponse, on_both_databases};

on_both_databases!(
    agents_are_assistants,
    runs_of_an_agent_are_found_by_its_id,
    waits_answer_the_run_apart_from_its_values,
    other_bodies_are_answered_as_before,
);

async fn agents_are_assistants(agent: Agent) {
    let id = AssistantId::of_graph("steps").to_string();
    let expected = json!({
        "agent_id": id, "name": "steps", "metadata": {},
        "capabilities": {"ap.io.messages": false, "ap.io.streaming": true},
    });
    let found = agent
        .post("/agents/search", &json!({"name": "STEPS", "limit": 1}))
        .await;
    assert_eq!(found.expect(200), json!([expected]));
    for name in ["steps", &id] {
        assert_eq!(agent.get(&format!("/agents/{name}")).await.expect(200), expected);
    }
    let echo = agent.get("/agents/echo").await.expect(200);
    assert_eq!(echo["capabilities"]["ap.io.messages"], true);
    let schemas = agent.get("/agents/steps/schemas").await.expect(200);
    assert_eq!(schemas["agent_id"], id);
    for name in ["input_schema", "output_schema", "state_schema", "config_schema"] {
        assert!(schemas[name].is_object(), "{name}: {schemas}");
    }
    agent
        .get(&format!("/agents/{}", AssistantId::random()))
        .await
        .expect(404);
    agent.post("/agents/search", &json!({"limit": 0})).await.expect(422);
}

async fn runs_of_an_agent_are_found_by_its_id(agent: Agent) {
    let thread = agent.thread().await;
    let body = json!({"agent_id": "steps", "thread_id": thread, "input": {"log": []}});
    let run = agent.post("/runs", &body).await.expect(200);
    assert_eq!(
        (&run["thread_id"], &run["agent_id"]),
        (&json!(thread), &run["assistant_id"])
    );
    let id = run["run_id"].as_str().unwrap();
    assert_eq!(
        agent.get(&format!("/runs/{id}")).await.expect(200)["agent_id"],
        run["agent_id"]
    );
    let search = json!({"agent_id": "steps", "thread_id": thread, "select": ["run_id", "agent_id"]});
    assert_eq!(
        agent.post("/runs/search", &search).await.expect(200),
        json!([{"run_id": id, "agent_id": run["agent_id"]}])
    );
    let other = agent.post("/runs/search", &json!({"agent_id": "echo"})).await;
    assert_eq!(other.expect(200), json!([]));

    agent.perform(run_agent::POOL).await;
    let result = agent.get(&format!("/runs/{id}/wait")).await.expect(200);
    assert_eq!(
        (&result["run"]["run_id"], &result["run"]["status"], &result["values"]),
        (&json!(id), &json!("success"), &json!({"log": ["one", "two"]}))
    );
    assert!(result.get("messages").is_none(), "{result}");
    assert_eq!(agent.delete(&format!("/runs/{id}")).await.status, 204);
    agent.get(&format!("/runs/{id}")).await.expect(404);
    agent.get(&format!("/threads/{thread}")).await.expect(200);
}

async fn waits_answer_the_run_apart_from_its_values(agent: Agent) {
    let wait = async |body: Value| {
        let waiting = OpenResponse::new(&agent.router, Method::POST, "/runs/wait", None, &body).await;
        agent.perform(run_agent::POOL).await;
        waiting.json().await
    };
    // The run was deleted with its thread, and the answer still has it.
    let messages = json!([{"type": "human", "content": "hello there"}]);
    let result = wait(json!({"agent_id": "echo", "messages": messages})).await;
    assert_eq!(
        (&result["run"]["status"], &result["run"]["agent_id"]),
        (&json!("success"), &json!(AssistantId::of_graph("echo")))
    );
    assert!(result["values"].get("messages").is_none(), "{result}");
    let messages = result["messages"].as_array().unwrap();
    let said: Vec<(&Value, &Value)> = messages.iter().map(|one| (&one["role"], &one["content"])).collect();
    assert_eq!(
        said,
        [
            (&json!("user"), &json!("hello there")),
            (&json!("assistant"), &json!("hello there"))
        ]
    );
    let failed = wait(json!({"agent_id": "broken", "input": {"log": []}})).await;
    assert_eq!(failed["run"]["status"], "error");
    assert_eq!(failed["values"]["__error__"]["message"], "it broke");

    let wrong = json!({"agent_id": "echo", "messages": {}});
    let refused = agent.post("/runs/wait", &wrong).await.expect(422);
    assert_eq!(refused["detail"], "messages: expected a list");
}

async fn other_bodies_are_answered_as_before(agent: Agent) {
    let thread = agent.thread().await;
    // Unknown fields of this API.
    let body = json!({"assistant_id": "steps", "agent_id": "echo", "thread_id": thread, "input": {"log": []}});
    let run = agent.post("/runs", &body).await.expect(200);
    assert_ne!(run["thread_id"], json!(thread));
    assert_eq!(run["assistant_id"], json!(AssistantId::of_graph("steps")));
    assert!(run.get("agent_id").is_none(), "{run}");
    let refused = agent.post("/runs", &json!({"thread_id": thread})).await.expect(422);
    assert_eq!(refused["detail"], "assistant_id: field required");
}
