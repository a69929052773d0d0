//! The Agent2Agent protocol in both its versions, its runs performed by hand.

mod compatibility;
mod edge_cases;
mod subscriptions;
mod task_states;

use http::Method;
use serde_json::{Value, json};
use towpath_workflows::run_agent::POOL;

use super::{Agent, OpenResponse, on_both_databases};

on_both_databases!(
    a_message_is_answered_with_its_task_in_both_versions,
    a_stream_tells_of_a_task_from_its_beginning_to_its_end,
    a_question_is_answered_by_a_message_to_its_task,
    a_task_that_failed_says_why,
    tasks_are_canceled_while_they_are_not_over,
    a_task_is_listed_until_its_thread_goes,
    a_client_that_was_cut_off_subscribes_again,
);

fn rpc(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params})
}

fn text(text: &str) -> Value {
    json!({"message": {"messageId": format!("m-{text}"), "role": "ROLE_USER", "parts": [{"text": text}]}})
}

fn data(data: &Value) -> Value {
    json!({"message": {"messageId": "m-data", "role": "user", "parts": [{"kind": "data", "data": data}]}})
}

/// A call whose answer does not wait for a run.
async fn ask(agent: &Agent, graph: &str, method: &str, params: &Value) -> Value {
    let answer = agent
        .post(&format!("/a2a/{graph}"), &rpc(method, params))
        .await
        .expect(200);
    assert_eq!(answer["id"], "c-1", "{answer}");
    answer
}

async fn result(agent: &Agent, graph: &str, method: &str, params: &Value) -> Value {
    let answer = ask(agent, graph, method, params).await;
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

async fn code(agent: &Agent, graph: &str, method: &str, params: &Value) -> i64 {
    let answer = ask(agent, graph, method, params).await;
    answer["error"]["code"]
        .as_i64()
        .unwrap_or_else(|| panic!("no error: {answer}"))
}

/// A call whose answer waits, or streams.
async fn open(agent: &Agent, graph: &str, method: &str, params: &Value) -> OpenResponse {
    OpenResponse::new(
        &agent.router,
        Method::POST,
        &format!("/a2a/{graph}"),
        None,
        &rpc(method, params),
    )
    .await
}

/// Sends a message and performs its run.
async fn done(agent: &Agent, graph: &str, params: &Value) -> Value {
    let waiting = open(agent, graph, "SendMessage", params).await;
    agent.perform(POOL).await;
    waiting.json().await["result"]["task"].clone()
}

/// The results of all events of a stream.
async fn events(mut stream: OpenResponse) -> Vec<Value> {
    let mut all = Vec::new();
    while let Some((name, data)) = stream.next().await {
        assert_eq!(name, "message");
        assert!(data.get("error").is_none(), "{data}");
        all.push(data["result"].clone());
    }
    all
}

async fn a_message_is_answered_with_its_task_in_both_versions(agent: Agent) {
    let task = done(&agent, "echo", &text("hello there")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(task["artifacts"][0]["parts"], json!([{"text": "hello there"}]));
    let roles: Vec<&str> = task["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["ROLE_USER", "ROLE_AGENT"]);
    assert_eq!(task["history"][0]["messageId"], "m-hello there");
    let context = task["contextId"].as_str().unwrap();
    assert_eq!(task["id"].as_str().unwrap().split(':').next(), Some(context));

    // Another task of the same context, in the older version.
    let mut next = text("again");
    next["message"]["contextId"] = json!(context);
    let waiting = open(&agent, "echo", "message/send", &next).await;
    agent.perform(POOL).await;
    let next = waiting.json().await["result"].clone();
    assert_eq!((&next["kind"], &next["contextId"]), (&json!("task"), &json!(context)));
    assert_eq!(next["status"]["state"], "completed");
    assert_eq!(
        next["artifacts"][0]["parts"],
        json!([{"kind": "text", "text": "again"}])
    );
    assert_eq!(
        next["history"].as_array().unwrap().len(),
        2,
        "the history of this task alone"
    );
    // The first one is as it was, though the thread went on.
    let first = result(&agent, "echo", "GetTask", &json!({"id": task["id"]})).await;
    assert_eq!(first, task);
    let short = result(
        &agent,
        "echo",
        "tasks/get",
        &json!({"id": task["id"], "historyLength": 1}),
    )
    .await;
    assert_eq!(short["history"].as_array().unwrap().len(), 1);
    let bare = result(
        &agent,
        "echo",
        "tasks/get",
        &json!({"id": task["id"], "historyLength": 0}),
    )
    .await;
    assert_eq!(bare.get("history"), None);
}

async fn a_stream_tells_of_a_task_from_its_beginning_to_its_end(agent: Agent) {
    let stream = open(&agent, "echo", "SendStreamingMessage", &text("one two")).await;
    agent.perform(POOL).await;
    let told = events(stream).await;
    assert_eq!(told[0]["task"]["status"]["state"], "TASK_STATE_SUBMITTED");
    assert_eq!(told[0]["task"]["history"][0]["messageId"], "m-one two");
    assert_eq!(told[1]["statusUpdate"]["status"]["state"], "TASK_STATE_WORKING");
    let said = &told[told.len() - 3]["statusUpdate"]["status"];
    assert_eq!(said["message"]["parts"], json!([{"text": "one two"}]));
    let artifact = &told[told.len() - 2]["artifactUpdate"];
    assert_eq!(artifact["artifact"]["parts"], json!([{"text": "one two"}]));
    assert_eq!(artifact["lastChunk"], true);
    let last = &told[told.len() - 1]["statusUpdate"];
    assert_eq!(last["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(last["taskId"], told[0]["task"]["id"]);

    let stream = open(&agent, "echo", "message/stream", &text("three")).await;
    agent.perform(POOL).await;
    let told = events(stream).await;
    let kinds: Vec<&str> = told.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds[0], "task");
    assert_eq!(kinds[kinds.len() - 2..], ["artifact-update", "status-update"]);
    let finals: Vec<bool> = told.iter().filter_map(|one| one["final"].as_bool()).collect();
    assert_eq!(finals.iter().filter(|is_final| **is_final).count(), 1);
    assert_eq!(finals.last(), Some(&true));
    assert_eq!(told[told.len() - 1]["status"]["state"], "completed");
}

async fn a_question_is_answered_by_a_message_to_its_task(agent: Agent) {
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    assert_eq!(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{asked}");
    let question = json!({"question": "go on?"});
    assert_eq!(asked["status"]["message"]["parts"], json!([{"data": question}]));
    assert_eq!(asked["artifacts"][0]["name"], "Interrupt");
    assert_eq!(asked["artifacts"][0]["parts"][0]["data"]["value"], question);

    let mut answer = text("yes");
    answer["message"]["taskId"] = asked["id"].clone();
    let ended = done(&agent, "human", &answer).await;
    assert_eq!(ended["id"], asked["id"], "it is the same task");
    assert_eq!(ended["status"]["state"], "TASK_STATE_COMPLETED", "{ended}");
    assert_eq!(
        ended["artifacts"][0]["parts"][0]["data"],
        json!({"log": ["asked"], "answer": "yes"})
    );
    assert_eq!(
        code(&agent, "human", "SendMessage", &answer).await,
        -32004,
        "it is over"
    );
    // The context that a message names must be that of its task.
    let mut elsewhere = answer.clone();
    elsewhere["message"]["contextId"] = json!(agent.thread().await);
    assert_eq!(code(&agent, "human", "SendMessage", &elsewhere).await, -32602);
    assert_eq!(
        code(&agent, "echo", "SendMessage", &answer).await,
        -32001,
        "of another assistant"
    );
}

async fn a_task_that_failed_says_why(agent: Agent) {
    let task = done(&agent, "broken", &data(&json!({"log": []}))).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_FAILED", "{task}");
    let why = task["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    assert!(why.contains("it broke"), "{why}");
    assert_eq!(task.get("artifacts"), None);
}

async fn tasks_are_canceled_while_they_are_not_over(agent: Agent) {
    // One that nobody performs yet.
    let mut message = data(&json!({"log": []}));
    message["configuration"] = json!({"returnImmediately": true});
    let begun = result(&agent, "slow", "SendMessage", &message).await["task"].clone();
    assert_eq!(begun["status"]["state"], "TASK_STATE_SUBMITTED");
    let id = json!({"id": begun["id"]});
    let canceled = result(&agent, "slow", "CancelTask", &id).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(code(&agent, "slow", "CancelTask", &id).await, -32002);
    assert_eq!(code(&agent, "slow", "tasks/cancel", &id).await, -32002);
    // One that waits for an answer.
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    let id = json!({"id": asked["id"]});
    let canceled = result(&agent, "human", "tasks/cancel", &id).await;
    assert_eq!(canceled["status"]["state"], "canceled");
    assert_eq!(
        result(&agent, "human", "tasks/get", &id).await["status"]["state"],
        "canceled"
    );
    let mut answer = text("yes");
    answer["message"]["taskId"] = asked["id"].clone();
    assert_eq!(code(&agent, "human", "SendMessage", &answer).await, -32004);
    // One that somebody is at work on.
    message["configuration"] = json!({"blocking": false});
    let begun = result(&agent, "slow", "message/send", &message).await;
    let thread = begun["contextId"].as_str().unwrap().parse().unwrap();
    let mut told = agent.queue.subscribe(thread).await;
    let mut canceling = None;
    agent
        .perform_until(&mut told, "metadata", async || {
            canceling = Some(open(&agent, "slow", "tasks/cancel", &json!({"id": begun["id"]})).await);
        })
        .await;
    let canceled = canceling.unwrap().json().await;
    assert_eq!(canceled["result"]["status"]["state"], "canceled", "{canceled}");
}

async fn a_task_is_listed_until_its_thread_goes(agent: Agent) {
    let mut ids = Vec::new();
    for word in ["one", "two", "three"] {
        ids.push(done(&agent, "echo", &text(word)).await["id"].clone());
    }
    let asked = done(&agent, "human", &data(&json!({"log": []}))).await;
    let first = result(&agent, "echo", "ListTasks", &json!({"pageSize": 2})).await;
    assert_eq!((&first["totalSize"], &first["pageSize"]), (&json!(3), &json!(2)));
    let listed = |page: &Value| -> Vec<Value> {
        let tasks = page["tasks"].as_array().unwrap().iter();
        tasks.map(|task| task["id"].clone()).collect()
    };
    assert_eq!(listed(&first), [ids[2].clone(), ids[1].clone()]);
    assert_eq!(first["tasks"][0].get("artifacts"), None);
    let more =
        json!({"pageSize": 2, "pageToken": first["nextPageToken"], "includeArtifacts": true, "historyLength": 1});
    let second = result(&agent, "echo", "ListTasks", &more).await;
    assert_eq!(listed(&second), [ids[0].clone()]);
    assert_eq!(second["nextPageToken"], "");
    assert_eq!(second["tasks"][0]["artifacts"][0]["parts"], json!([{"text": "one"}]));
    assert_eq!(second["tasks"][0]["history"].as_array().unwrap().len(), 1);
    let waiting = json!({"status": "input-required"});
    assert_eq!(
        listed(&result(&agent, "human", "ListTasks", &waiting).await),
        [asked["id"].clone()]
    );
    let waiting = json!({"status": "TASK_STATE_COMPLETED", "contextId": asked["contextId"]});
    assert_eq!(
        listed(&result(&agent, "human", "ListTasks", &waiting).await),
        Vec::<Value>::new()
    );
    for state in [
        "submitted",
        "working",
        "failed",
        "canceled",
        "rejected",
        "auth-required",
    ] {
        let none = result(&agent, "human", "ListTasks", &json!({"status": state})).await;
        assert_eq!(none["totalSize"], 0, "{state}");
    }
    let context = asked["contextId"].as_str().unwrap();
    assert_eq!(agent.delete(&format!("/threads/{context}")).await.status, 204);
    assert_eq!(
        code(&agent, "human", "GetTask", &json!({"id": asked["id"]})).await,
        -32001
    );
    assert_eq!(result(&agent, "human", "ListTasks", &json!({})).await["totalSize"], 0);
}

async fn a_client_that_was_cut_off_subscribes_again(agent: Agent) {
    let mut stream = open(&agent, "echo", "SendStreamingMessage", &text("one two")).await;
    let (_, first) = stream.next().await.unwrap();
    let id = json!({"id": first["result"]["task"]["id"]});
    drop(stream);
    let again = open(&agent, "echo", "SubscribeToTask", &id).await;
    agent.perform(POOL).await;
    let told = events(again).await;
    assert_eq!(told[0]["task"]["id"], id["id"]);
    assert_eq!(
        told[told.len() - 1]["statusUpdate"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    assert!(told.iter().any(|one| one.get("artifactUpdate").is_some()));
    // Over is over, and the only event says so.
    let over = open(&agent, "echo", "tasks/resubscribe", &id).await;
    let answer = over.json_event().await;
    assert_eq!(answer["error"]["code"], -32004);
    // One who says what it had last gets the rest all the same.
    let path = "/a2a/echo";
    let body = rpc("SubscribeToTask", &id);
    let late = events(OpenResponse::new(&agent.router, Method::POST, path, Some("1-0"), &body).await).await;
    assert_eq!(
        late[late.len() - 1]["statusUpdate"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
}
