//! A walk through the API of the platform, and exports that are at work while processes change.

use reqwest::Method;
use serde_json::{Value, json};
use towpath_tests::{Api, GeneratedProject, World, generate};
use uuid::Uuid;

use super::client::{ask, delete, get, operate, patch, post};
use crate::kill::graphs::text;
use crate::load;

const TREES: usize = 32;
const DAYS: i64 = 3;
const PREFIX: &str = "upgrade";
const EXPORTS: &str = "/api/v1/bulk-exports";
const DESTINATIONS: &str = "/api/v1/bulk-exports/destinations";

/// Everything that is there to be asked for, once.
pub async fn walk(api: &Api, number: u64) {
    let (project, name) = projects(api, number).await;
    let run = trace_runs(api, &project, &name).await;
    feedback(api, &run).await;
    exports(api, &project, number).await;
    access(api).await;
    deployments(api, number).await;
    operate(api, "exports", "run_export").await;
    for action in ["pause", "resume"] {
        post(api, &format!("/internal/queues/compactions/{action}"), &json!({})).await;
    }
    get(api, "/internal/quarantine").await;
    get(api, "/internal/quarantine/usage").await;
    delete(api, &format!("/sessions/{project}")).await;
}

/// What was sent, and an export of it.
pub struct PendingExport {
    generated: GeneratedProject,
    project: String,
    destination: String,
    export: String,
}

/// Sends a project and begins to export it.
pub async fn begin(world: &World, seed: u64) -> PendingExport {
    let api = &world.api;
    let generated = generate(seed, TREES, DAYS);
    load::send(api, &generated.bodies).await;
    let project = load::project(api, &generated.project).await;
    let destination = api.file_destination(PREFIX).await;
    let export = load::export(api, &destination, &project, &generated).await;
    PendingExport {
        generated,
        project,
        destination,
        export,
    }
}

/// The export holds everything once, and so does one that begins now.
pub async fn end(world: &World, begun: &PendingExport) {
    let PendingExport {
        generated,
        project,
        destination,
        export,
    } = begun;
    let again = load::export(&world.api, destination, project, generated).await;
    let folder = world.exports().join(PREFIX);
    let tenant = world.tenant.to_string();
    for export in [export, &again] {
        let record = world.api.export_ended(export, load::PATIENCE).await;
        assert_eq!(record["status"], "COMPLETED", "{record}");
        if let Err(wrong) = load::compare(&folder, export, &tenant, project, generated) {
            panic!("export {export}:\n{wrong}");
        }
    }
}

/// The id of a project and its name.
async fn projects(api: &Api, number: u64) -> (String, String) {
    let name = format!("walk-{number}");
    let body = json!({"name": name, "extra": {"metadata": {"walk": number}}});
    let id = text(&post(api, "/sessions", &body).await, "id");
    let path = format!("/sessions/{id}");
    get(api, &path).await;
    let changed = patch(api, &path, &json!({"description": "walked"})).await;
    assert_eq!(changed["name"], json!(name), "{changed}");
    get(api, &format!("/sessions?name={name}")).await;
    get(api, "/sessions?name_contains=walk&limit=5").await;
    get(api, "/settings").await;
    (id, name)
}

/// The id of a trace run that was sent.
async fn trace_runs(api: &Api, project: &str, name: &str) -> String {
    let [first, second] = [Uuid::now_v7(), Uuid::now_v7()];
    ask(api, Method::POST, "/runs", Some(&root(first, name)), 202).await;
    let batch = json!({"post": [root(second, name)], "patch": []});
    ask(api, Method::POST, "/runs/batch", Some(&batch), 202).await;
    let mut change = place(first);
    change["outputs"] = json!({"answer": 42});
    change["end_time"] = json!("2026-02-01T10:00:01Z");
    ask(api, Method::PATCH, &format!("/runs/{first}"), Some(&change), 202).await;
    get(api, &format!("/runs/{first}")).await;
    let found = post(api, "/runs/query", &json!({"session": [project], "limit": 10})).await;
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(2), "{found}");
    post(api, "/runs/stats", &json!({"session": [project]})).await;
    get(api, &format!("/sessions/{project}?include_stats=true")).await;
    first.to_string()
}

fn root(id: Uuid, project: &str) -> Value {
    let mut run = place(id);
    run["id"] = json!(id);
    run["name"] = json!("root");
    run["run_type"] = json!("chain");
    run["session_name"] = json!(project);
    run["inputs"] = json!({});
    run["start_time"] = json!("2026-02-01T10:00:00Z");
    run
}

/// Where a trace run is.
fn place(id: Uuid) -> Value {
    json!({"trace_id": id, "dotted_order": format!("20260201T100000000000Z{id}")})
}

async fn feedback(api: &Api, run: &str) {
    let id = Uuid::now_v7();
    let body = json!({"id": id, "run_id": run, "key": "score", "score": 1});
    ask(api, Method::POST, "/feedback", Some(&body), 202).await;
    let path = format!("/feedback/{id}");
    get(api, &path).await;
    let changed = patch(api, &path, &json!({"score": 0.5})).await;
    assert_eq!(changed["score"], json!(0.5), "{changed}");
    let link = post(
        api,
        "/feedback/tokens",
        &json!({"run_id": run, "feedback_key": "thumb"}),
    )
    .await;
    get(api, &format!("/feedback/tokens?run_id={run}")).await;
    post(
        api,
        &format!("/feedback/tokens/{}", text(&link, "id")),
        &json!({"score": 1}),
    )
    .await;
    get(api, &format!("/feedback?run={run}")).await;
    get(api, "/feedback?limit=5").await;
    ask(api, Method::DELETE, &path, None, 200).await;
}

async fn exports(api: &Api, project: &str, number: u64) {
    let destination = api.file_destination("walks").await;
    let of_destination = format!("{DESTINATIONS}/{destination}");
    get(api, &of_destination).await;
    patch(api, &of_destination, &json!({"display_name": "walked"})).await;
    get(api, &format!("{DESTINATIONS}?limit=5")).await;

    let mut body = json!({
        "bulk_export_destination_id": destination, "session_id": project,
        "start_time": "2026-02-01T00:00:00Z", "end_time": "2026-02-02T00:00:00Z",
    });
    let export = once(api, &body, &format!("walk {number}")).await;
    assert_eq!(
        export,
        once(api, &body, &format!("walk {number}")).await,
        "one key, two exports"
    );
    let id = text(&export, "id");
    let record = api.export_ended(&id, load::PATIENCE).await;
    assert_eq!(record["status"], "COMPLETED", "{record}");
    let runs = get(api, &format!("{EXPORTS}/{id}/runs")).await;
    get(api, &format!("{EXPORTS}/{id}/runs/{}", text(&runs[0], "id"))).await;
    get(api, &format!("{EXPORTS}?limit=5")).await;

    body["start_time"] = json!("2040-01-01T00:00:00Z");
    body["end_time"] = Value::Null;
    body["interval_hours"] = json!(24);
    let schedule = text(&post(api, EXPORTS, &body).await, "id");
    get(api, &format!("{EXPORTS}/runs?source_bulk_export_id={schedule}")).await;
    get(api, "/internal/schedules?limit=5").await;
    patch(api, &format!("{EXPORTS}/{schedule}"), &json!({"status": "Cancelled"})).await;
    delete(api, &of_destination).await;
}

/// Asks for an export under a key.
async fn once(api: &Api, body: &Value, key: &str) -> Value {
    let headers = [("content-type", "application/json"), ("idempotency-key", key)];
    let reply = api.send(EXPORTS, &headers, body.to_string().into()).await;
    reply
        .unwrap_or_else(|error| panic!("POST {EXPORTS}: {error:?}"))
        .expect(200)
}

async fn access(api: &Api) {
    let made = ask(
        api,
        Method::POST,
        "/internal/keys",
        Some(&json!({"name": "walker"})),
        201,
    )
    .await;
    get(api, "/internal/keys?limit=5").await;
    post(api, &format!("/internal/keys/{}/revoke", text(&made, "id")), &json!({})).await;
}

/// What deployments need; none is made, for no one here runs them.
async fn deployments(api: &Api, number: u64) {
    let config = json!({"k8s_namespaces": ["walks"]});
    let listener = json!({"compute_type": "k8s", "compute_id": format!("walk-{number}"), "compute_config": config});
    let made = ask(api, Method::POST, "/v2/listeners", Some(&listener), 201).await;
    let path = format!("/v2/listeners/{}", text(&made, "id"));
    get(api, &path).await;
    patch(api, &path, &json!({"compute_config": config})).await;
    get(api, "/v2/listeners?limit=5").await;
    delete(api, &path).await;

    let secret = json!({"registry": "registry.example.com", "username": "walker", "password": "walked"});
    let path = format!("/v2/image-pull-secrets/walk-{number}");
    for status in [201, 200] {
        ask(api, Method::PUT, &path, Some(&secret), status).await;
    }
    get(api, "/v2/image-pull-secrets").await;
    delete(api, &path).await;

    let made = ask(
        api,
        Method::POST,
        "/v1/integrations/github",
        Some(&json!({"name": "walk"})),
        201,
    )
    .await;
    get(api, "/v1/integrations/github/install").await;
    delete(api, &format!("/v1/integrations/github/{}", text(&made, "id"))).await;
    get(api, "/v2/deployments?limit=5").await;
}
