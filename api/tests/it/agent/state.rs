//! What is read of a thread's state, and what it takes in the database.

use serde_json::{Value, json};
use towpath_workflows::run_agent;

use super::{Agent, on_both_databases};

on_both_databases!(
    selected_fields_of_a_state_are_returned,
    an_unknown_field_of_a_state_is_refused,
    storage_counts_rows_and_bytes_of_each_kind,
    a_graph_is_named_in_place_of_its_assistant,
);

/// The path of a thread on which a run of two steps has ended.
async fn thread_with_history(agent: &Agent) -> String {
    let thread = agent.thread().await;
    agent.record(thread, &json!({"input": {"log": ["in"]}})).await;
    agent.perform(run_agent::POOL).await;
    format!("/threads/{thread}")
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

async fn selected_fields_of_a_state_are_returned(agent: Agent) {
    let path = thread_with_history(&agent).await;
    let whole = agent.get(&format!("{path}/state")).await.expect(200);
    let id = whole["checkpoint"]["checkpoint_id"].as_str().unwrap();
    let values = json!({"log": ["in", "one", "two"]});
    for query in [
        "select=next&select=values.log",
        "select=%5B%22next%22,%22values.log%22%5D",
    ] {
        for place in ["state".to_owned(), format!("state/{id}")] {
            let state = agent.get(&format!("{path}/{place}?{query}")).await.expect(200);
            assert_eq!(state, json!({"values": values, "next": []}), "{place}?{query}");
        }
    }
    let none = agent
        .get(&format!("{path}/state?select=values.other"))
        .await
        .expect(200);
    assert_eq!(none, json!({"values": {}}));
    let body = json!({"checkpoint": {"checkpoint_id": id}, "select": ["checkpoint"]});
    let named = agent.post(&format!("{path}/state/checkpoint"), &body).await.expect(200);
    assert_eq!(named, json!({"checkpoint": whole["checkpoint"]}));

    let past = agent
        .get(&format!("{path}/history?limit=100&select=created_at"))
        .await
        .expect(200);
    let past = past.as_array().unwrap();
    assert!(
        past.len() > 2 && past.iter().all(|state| keys(state) == ["created_at"]),
        "{past:?}"
    );
    let body = json!({"limit": 2, "select": ["values.log", "metadata"]});
    let latest = agent.post(&format!("{path}/history"), &body).await.expect(200);
    let latest = latest.as_array().unwrap();
    assert_eq!(latest.len(), 2);
    assert_eq!(
        (&latest[0]["values"], &latest[0]["metadata"]),
        (&values, &whole["metadata"])
    );
    assert_eq!(latest[0].as_object().unwrap().len(), 2, "{latest:?}");
    // An empty selection is none.
    let body = json!({"limit": 1, "select": []});
    let all = agent.post(&format!("{path}/history"), &body).await.expect(200);
    assert_eq!(keys(&all[0]), keys(&whole));
}

async fn an_unknown_field_of_a_state_is_refused(agent: Agent) {
    let path = thread_with_history(&agent).await;
    let body = json!({"checkpoint": {}, "limit": 1, "select": ["values", "colour"]});
    for refused in [
        agent.get(&format!("{path}/state?select=colour")).await.expect(422),
        agent.get(&format!("{path}/history?select=values.")).await.expect(422),
        agent.post(&format!("{path}/state/checkpoint"), &body).await.expect(422),
        agent.post(&format!("{path}/history"), &body).await.expect(422),
    ] {
        assert!(refused["detail"].as_str().unwrap().starts_with("select: "), "{refused}");
    }
}

async fn storage_counts_rows_and_bytes_of_each_kind(agent: Agent) {
    let empty = agent.thread().await;
    let none = json!({"count": 0, "bytes": 0});
    let stored = agent.get(&format!("/threads/{empty}/storage")).await.expect(200);
    assert_eq!(
        stored,
        json!({"thread_id": empty, "total_bytes": 0, "checkpoints": none, "pending_writes": none,
               "channel_values": {"count": 0, "bytes": 0, "by_channel": {}}})
    );
    let path = thread_with_history(&agent).await;
    let stored = agent.get(&format!("{path}/storage")).await.expect(200);
    let history = agent.get(&format!("{path}/history?limit=100")).await.expect(200);
    assert_eq!(stored["checkpoints"]["count"], history.as_array().unwrap().len());
    let bytes = |part: &str| stored[part]["bytes"].as_i64().unwrap();
    assert!(bytes("checkpoints") > 0 && bytes("channel_values") > 0, "{stored}");
    let total = bytes("checkpoints") + bytes("channel_values") + bytes("pending_writes");
    assert_eq!(stored["total_bytes"], total);
    let channels = stored["channel_values"]["by_channel"].as_object().unwrap();
    assert!(channels["log"]["versions"].as_i64().unwrap() > 1, "{stored}");
    let sum = |field: &str| channels.values().map(|one| one[field].as_i64().unwrap()).sum::<i64>();
    assert_eq!(stored["channel_values"]["count"], sum("versions"));
    assert_eq!(stored["channel_values"]["bytes"], sum("bytes"));
}

async fn a_graph_is_named_in_place_of_its_assistant(agent: Agent) {
    let by_name = agent.get("/assistants/steps").await.expect(200);
    let id = by_name["assistant_id"].as_str().unwrap();
    assert_eq!(agent.get(&format!("/assistants/{id}")).await.expect(200), by_name);
    for rest in ["graph", "schemas", "subgraphs", "subgraphs/one"] {
        let expected = agent.get(&format!("/assistants/{id}/{rest}")).await;
        let named = agent.get(&format!("/assistants/steps/{rest}")).await;
        assert_eq!(
            (named.status, named.json()),
            (expected.status, expected.json()),
            "{rest}"
        );
    }
    let changed = agent
        .patch("/assistants/steps", &json!({"metadata": {"a": 1}}))
        .await
        .expect(200);
    assert_eq!((&changed["assistant_id"], &changed["version"]), (&json!(id), &json!(2)));
    let versions = agent.post("/assistants/steps/versions", &json!({})).await.expect(200);
    assert_eq!(versions.as_array().unwrap().len(), 2);
    let back = agent
        .post("/assistants/steps/latest", &json!({"version": 1}))
        .await
        .expect(200);
    assert_eq!((&back["assistant_id"], &back["version"]), (&json!(id), &json!(1)));

    let thread = agent.thread().await;
    let run = agent.record(thread, &json!({})).await;
    for (named, count) in [("steps", 1), (id, 1), ("echo", 0)] {
        let found = agent
            .post("/runs/search", &json!({"assistant_id": named}))
            .await
            .expect(200);
        assert_eq!(found.as_array().unwrap().len(), count, "{named}");
        assert!(count == 0 || found[0]["run_id"] == json!(run));
    }
    let cron = json!({"assistant_id": "steps", "schedule": "0 0 1 1 *", "enabled": false});
    agent.post("/runs/crons", &cron).await.expect(200);
    let count = agent
        .post("/runs/crons/count", &json!({"assistant_id": "steps"}))
        .await
        .expect(200);
    assert_eq!(count, 1);
    for refused in [
        agent.get("/assistants/nobody").await.expect(422),
        agent
            .post("/runs/search", &json!({"assistant_id": "nobody"}))
            .await
            .expect(422),
        agent
            .post("/runs/crons/search", &json!({"assistant_id": "nobody"}))
            .await
            .expect(422),
    ] {
        assert!(
            refused["detail"].as_str().unwrap().starts_with("Invalid assistant"),
            "{refused}"
        );
    }
    assert_eq!(agent.delete("/assistants/steps").await.status, 204);
    agent.get("/assistants/steps").await.expect(404);
}
