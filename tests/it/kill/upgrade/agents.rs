//! A walk through the API of agent servers, and runs that are at work while processes change.

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::Api;

use super::client::{ask, delete, get, operate, patch, post};
use crate::kill::graphs::{LONG, SHORT, log, slow_walk, steps, text};

/// Runs that are at work while their worker loses its sessions, and leaves.
const WALKING: usize = 4;
/// Far away.
const YEARLY: &str = "0 0 1 1 *";

/// Everything that is there to be asked for, once.
pub async fn walk(api: &Api, number: u64) {
    let assistant = assistants(api, number).await;
    let thread = threads(api, number).await;
    runs(api, &assistant, &thread).await;
    state(api, &thread).await;
    stateless(api, &assistant).await;
    crons(api, &assistant, &thread).await;
    items(api, number).await;
    operate(api, "agent", "run_agent").await;
    for action in ["pause", "resume"] {
        post(api, &format!("/internal/queues/webhooks/{action}"), &json!({})).await;
    }
    delete(api, &thread).await;
    delete(api, &format!("/assistants/{assistant}")).await;
}

/// A run at work.
pub struct SlowRun {
    thread: String,
    run: String,
}

/// Begins runs that take a while.
pub async fn begin(api: &Api) -> Vec<SlowRun> {
    let mut walking = Vec::new();
    for _ in 0..WALKING {
        let thread = new_thread(api, &json!({})).await;
        let run = post(api, &format!("{thread}/runs"), &slow_walk()).await;
        walking.push(SlowRun {
            run: text(&run, "run_id"),
            thread,
        });
    }
    walking
}

/// Each has ended well, and no superstep counted twice.
pub async fn end(api: &Api, walking: &[SlowRun]) {
    for SlowRun { thread, run } in walking {
        get(api, &format!("{thread}/runs/{run}/join")).await;
        let run = get(api, &format!("{thread}/runs/{run}")).await;
        assert_eq!(run["status"], "success", "{run}");
        let state = get(api, &format!("{thread}/state")).await;
        assert_eq!(state["values"]["log"], log(LONG, 1), "{run}");
    }
}

/// The id of an assistant.
async fn assistants(api: &Api, number: u64) -> String {
    let metadata = json!({"walk": number});
    let body = json!({"graph_id": "steps", "name": format!("walk {number}"), "metadata": metadata});
    let id = text(&post(api, "/assistants", &body).await, "assistant_id");
    let path = format!("/assistants/{id}");
    get(api, &path).await;
    let change = json!({"metadata": {"more": 1}, "config": {"tags": ["walked"]}});
    let changed = patch(api, &path, &change).await;
    assert_eq!(changed["version"], 2, "{changed}");
    post(api, &format!("{path}/versions"), &json!({})).await;
    post(api, &format!("{path}/latest"), &json!({"version": 1})).await;
    let found = post(api, "/assistants/search", &json!({"metadata": metadata})).await;
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    post(api, "/assistants/count", &json!({"graph_id": "steps"})).await;
    get(api, &format!("{path}/graph")).await;
    get(api, &format!("{path}/schemas")).await;
    id
}

/// The path of a thread.
async fn threads(api: &Api, number: u64) -> String {
    let metadata = json!({"walk": number});
    let path = new_thread(api, &metadata).await;
    get(api, &path).await;
    patch(api, &path, &json!({"metadata": {"more": 1}})).await;
    let found = post(api, "/threads/search", &json!({"metadata": metadata})).await;
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    post(api, "/threads/count", &json!({"metadata": metadata})).await;
    path
}

async fn new_thread(api: &Api, metadata: &Value) -> String {
    let thread = post(api, "/threads", &json!({"metadata": metadata})).await;
    format!("/threads/{}", text(&thread, "thread_id"))
}

async fn runs(api: &Api, assistant: &str, thread: &str) {
    let path = format!("{thread}/runs");
    let body = of_assistant(assistant, steps());
    let run = text(&post(api, &path, &body).await, "run_id");
    let values = get(api, &format!("{path}/{run}/join")).await;
    assert_eq!(values["log"], log(SHORT, 1), "{values}");
    let found = get(api, &format!("{path}/{run}")).await;
    assert_eq!(found["status"], "success", "{found}");
    get(api, &format!("{path}?limit=5")).await;
    post(api, "/runs/search", &json!({"assistant_id": assistant, "limit": 5})).await;
    // By the id of the run.
    get(api, &format!("/internal/jobs/{run}")).await;

    let mut streamed = body.clone();
    streamed["stream_resumable"] = json!(true);
    streamed["stream_mode"] = json!(["values", "updates"]);
    post(api, &format!("{path}/stream"), &streamed).await;
    post(api, &format!("{path}/wait"), &body).await;

    let mut later = body;
    later["after_seconds"] = json!(3600);
    let later = text(&post(api, &path, &later).await, "run_id");
    ask(api, Method::POST, &format!("{path}/{later}/cancel"), None, 202).await;
    delete(api, &format!("{path}/{later}")).await;
}

async fn state(api: &Api, thread: &str) {
    let path = format!("{thread}/state");
    let state = get(api, &path).await;
    let checkpoint = text(&state["checkpoint"], "checkpoint_id");
    get(api, &format!("{path}/{checkpoint}")).await;
    post(api, &path, &json!({"values": {"log": ["told"]}, "as_node": "s2"})).await;
    get(api, &format!("{thread}/history?limit=5")).await;
    post(api, &format!("{thread}/history"), &json!({"limit": 2})).await;
    get(api, &format!("{thread}/storage")).await;
    let copy = post(api, &format!("{thread}/copy"), &json!({})).await;
    delete(api, &format!("/threads/{}", text(&copy, "thread_id"))).await;
}

async fn stateless(api: &Api, assistant: &str) {
    let body = of_assistant(assistant, steps());
    let values = post(api, "/runs/wait", &body).await;
    assert_eq!(values["log"], log(SHORT, 1), "{values}");
    let two = post(api, "/runs/batch", &json!([body, body])).await;
    assert_eq!(two.as_array().map(Vec::len), Some(2), "{two}");
    let mut kept = body;
    kept["on_completion"] = json!("keep");
    let run = post(api, "/runs", &kept).await;
    let path = format!("/runs/{}", text(&run, "run_id"));
    get(api, &format!("{path}/join")).await;
    let found = get(api, &path).await;
    assert_eq!(found["status"], "success", "{found}");
    delete(api, &format!("/threads/{}", text(&run, "thread_id"))).await;
}

async fn crons(api: &Api, assistant: &str, thread: &str) {
    let mut body = of_assistant(assistant, steps());
    body["schedule"] = json!(YEARLY);
    let alone = text(&post(api, "/runs/crons", &body).await, "cron_id");
    let on_thread = text(&post(api, &format!("{thread}/runs/crons"), &body).await, "cron_id");
    patch(api, &format!("/runs/crons/{alone}"), &json!({"enabled": false})).await;
    post(api, "/runs/crons/search", &json!({"assistant_id": assistant})).await;
    post(api, "/runs/crons/count", &json!({"assistant_id": assistant})).await;
    for cron in [alone, on_thread] {
        let path = format!("/runs/crons/{cron}");
        get(api, &path).await;
        delete(api, &path).await;
    }
}

async fn items(api: &Api, number: u64) {
    let place = json!({"namespace": ["walks", format!("walk-{number}")], "key": "last"});
    let mut item = place.clone();
    item["value"] = json!({"walk": number});
    ask(api, Method::PUT, "/store/items", Some(&item), 204).await;
    let found = get(api, &format!("/store/items?namespace=walks.walk-{number}&key=last")).await;
    assert_eq!(found["value"], item["value"], "{found}");
    post(
        api,
        "/store/items/search",
        &json!({"namespace_prefix": ["walks"], "limit": 5}),
    )
    .await;
    post(api, "/store/namespaces", &json!({"prefix": ["walks"]})).await;
    ask(api, Method::DELETE, "/store/items", Some(&place), 204).await;
}

/// The request for another assistant.
fn of_assistant(assistant: &str, mut request: Value) -> Value {
    request["assistant_id"] = json!(assistant);
    request
}
