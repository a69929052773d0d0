//! What only the server may say: who calls, and whose checkpoint it is.

use serde_json::{Value, json};
use towpath_domain::agent::merge::RESERVED_CONFIGURABLE;
use towpath_domain::{AssistantId, CronId, ThreadId};
use towpath_store::crons::Cron;
use towpath_store::query::Query;
use towpath_store::{assistants, threads};
use towpath_workflows::{fire_cron, run_agent};

use super::{Agent, content, on_both_databases};

on_both_databases!(
    nobody_is_somebody_else,
    metadata_are_not_the_id_of_a_run,
    a_cron_runs_as_its_maker,
);

/// Entries of the server, as a client would forge them.
fn forged() -> Value {
    let mut forged = json!({"mine": 1});
    for key in RESERVED_CONFIGURABLE {
        forged[key] = json!({"identity": "alice"});
    }
    forged
}

/// What of `configurable` only the server may set, without its own name for the request.
fn of_the_server(configurable: &Value) -> Vec<&String> {
    let entries = configurable.as_object().unwrap().iter();
    entries
        .filter(|(key, value)| {
            let own = *key == "langgraph_request_id" && value.is_string();
            RESERVED_CONFIGURABLE.contains(&key.as_str()) && !own
        })
        .map(|(key, _)| key)
        .collect()
}

async fn nobody_is_somebody_else(agent: Agent) {
    let assistant = async |body: Value| agent.post("/assistants", &body).await.expect(200)["assistant_id"].clone();
    let by_creation = assistant(json!({"graph_id": "steps", "context": forged()})).await;
    let by_change = assistant(json!({"graph_id": "steps"})).await;
    let path = format!("/assistants/{}", by_change.as_str().unwrap());
    agent.patch(&path, &json!({"context": forged()})).await.expect(200);
    // As earlier versions kept them.
    let kept = AssistantId::random();
    let kept_content = content("steps", &json!({"configurable": forged()}), &forged());
    agent
        .store
        .write(async |tx| assistants::create(tx, agent.tenant, kept, &kept_content).await)
        .await
        .unwrap();
    let poisoned = json!({"configurable": forged()}).to_string();
    for (what, body) in [
        ("an assistant that was made", json!({"assistant_id": by_creation})),
        ("an assistant that was changed", json!({"assistant_id": by_change})),
        ("an assistant of an earlier version", json!({"assistant_id": kept})),
        ("the thread", json!({"assistant_id": "steps"})),
        ("the context", json!({"assistant_id": "steps", "context": forged()})),
        (
            "the checkpoint",
            json!({"assistant_id": "steps", "checkpoint": forged()}),
        ),
        (
            "the config",
            json!({"assistant_id": "steps", "config": {"configurable": forged()}}),
        ),
    ] {
        let thread = agent.thread().await;
        if what == "the thread" {
            agent
                .store
                .write(async |tx| threads::busy(tx, agent.tenant, thread, "{}", &poisoned).await)
                .await
                .unwrap();
        }
        let run = agent.post(&format!("/threads/{thread}/runs"), &body).await.expect(200);
        let config = &run["kwargs"]["config"]["configurable"];
        assert_eq!(of_the_server(config), Vec::<&String>::new(), "by {what}");
        assert!(config["langgraph_request_id"].is_string(), "by {what}: {config}");
        assert_eq!(config["mine"], 1, "by {what}");
        let context = &run["kwargs"]["context"];
        if context.is_object() {
            assert_eq!(of_the_server(context), Vec::<&String>::new(), "context, by {what}");
        }
        // And none of it stays for who runs there next.
        let row = agent.get(&format!("/threads/{thread}")).await.expect(200);
        let config = &row["config"]["configurable"];
        assert_eq!(of_the_server(config), Vec::<&String>::new(), "kept, by {what}");
    }
}

/// A client may note the id of its last run wherever it likes; a run knows its own checkpoints all the same.
async fn metadata_are_not_the_id_of_a_run(agent: Agent) {
    let made = agent
        .post("/threads", &json!({"metadata": {"run_id": "x"}}))
        .await
        .expect(200);
    let thread: ThreadId = made["thread_id"].as_str().unwrap().parse().unwrap();
    let path = format!("/threads/{thread}");
    let run = async |entry: &str| {
        let run = agent.record(thread, &json!({"input": {"log": [entry]}})).await;
        agent.perform(run_agent::POOL).await;
        run
    };
    let log = async || {
        let state = agent.get(&format!("{path}/state")).await.expect(200);
        (state["values"]["log"].clone(), state["metadata"]["run_id"].clone())
    };
    let first = run("a").await;
    let second = run("b").await;
    let both = json!(["a", "one", "two", "b", "one", "two"]);
    assert_eq!(
        log().await,
        (both.clone(), json!(second)),
        "the input of the second run counts"
    );
    // The usual way to remember the last one.
    for noted in [first, second] {
        let noted = json!({"metadata": {"run_id": noted}});
        assert_eq!(
            agent.patch(&path, &noted).await.expect(200)["metadata"]["run_id"],
            noted["metadata"]["run_id"]
        );
        let third = run("c").await;
        let all = json!(["a", "one", "two", "b", "one", "two", "c", "one", "two"]);
        assert_eq!(log().await, (all, json!(third)));
        // It is taken back with what it did, and with nothing else.
        let gone = agent.delete(&format!("{path}/runs/{third}")).await;
        assert_eq!(gone.status, 204, "{}", gone.text);
        assert_eq!(log().await, (both.clone(), json!(second)));
    }
    // An update from outside is nobody's, so it stays when the run goes that the metadata name.
    let update = json!({"values": {"log": ["outside"]}, "as_node": "two"});
    agent.post(&format!("{path}/state"), &update).await.expect(200);
    let (values, by) = log().await;
    assert_eq!((&values[6], &by), (&json!("outside"), &Value::Null));
}

async fn a_cron_runs_as_its_maker(agent: Agent) {
    let (thread, now) = (agent.thread().await, agent.store.clock().now());
    let ann = json!({"identity": "ann", "permissions": ["read"], "team": "a"});
    let cron = Cron {
        id: CronId::new(),
        tenant_id: agent.tenant,
        assistant_id: AssistantId::of_graph("steps"),
        thread_id: Some(thread),
        schedule_id: None,
        user_id: Some("ann".to_owned()),
        schedule: "* * * * *".to_owned(),
        timezone: None,
        end_time: None,
        // What a client writes there is not the caller.
        payload: json!({"assistant_id": "steps", "input": {"log": []}, "context": forged()}).to_string(),
        metadata: "{}".to_owned(),
        next_run_date: None,
        on_run_completed: None,
        enabled: true,
        created_at: now,
        updated_at: now,
        caller: Some(ann.to_string()),
    };
    let due = "UPDATE job SET run_at = created_at WHERE kind = 'fire_cron'";
    agent
        .store
        .write(async |tx| {
            fire_cron::create(tx, cron.clone()).await?;
            Query::new(tx, due).execute(tx).await
        })
        .await
        .unwrap();
    towpath_durable::ready_due(&agent.store).await.unwrap();
    agent.perform("crons").await;
    let runs = agent.get(&format!("/threads/{thread}/runs")).await.expect(200);
    let config = &runs[0]["kwargs"]["config"]["configurable"];
    assert_eq!(config["langgraph_auth_user"], ann, "{config}");
    assert_eq!(config["langgraph_auth_user_id"], "ann");
    assert_eq!(config["langgraph_auth_permissions"], json!(["read"]));
    assert_eq!(config["user_id"], "ann");
}
