//! Requests of clients that take no excuse.

use reqwest::Method;
use serde_json::Value;
use towpath_tests::Api;

/// The body of the answer, which has `status`. No request is lost, and none is refused.
pub async fn ask(api: &Api, method: Method, path: &str, body: Option<&Value>, status: u16) -> Value {
    let reply = api.request(method.clone(), path, body).await;
    let reply = reply.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
    assert_eq!(reply.status.as_u16(), status, "{method} {path}: {}", reply.body);
    reply.body
}

pub async fn get(api: &Api, path: &str) -> Value {
    ask(api, Method::GET, path, None, 200).await
}

pub async fn post(api: &Api, path: &str, body: &Value) -> Value {
    ask(api, Method::POST, path, Some(body), 200).await
}

pub async fn patch(api: &Api, path: &str, body: &Value) -> Value {
    ask(api, Method::PATCH, path, Some(body), 200).await
}

pub async fn delete(api: &Api, path: &str) {
    ask(api, Method::DELETE, path, None, 204).await;
}

/// What operators read of jobs, pools, workers and schedules; `pool` is one with jobs of `kind`.
pub async fn operate(api: &Api, pool: &str, kind: &str) {
    let jobs = get(api, &format!("/internal/jobs?kind={kind}&limit=5")).await;
    let job = jobs["items"][0]["id"].as_str();
    let job = job.unwrap_or_else(|| panic!("no job of the kind {kind}: {jobs}"));
    get(api, &format!("/internal/jobs/{job}?input=true")).await;
    for path in [
        "/internal/jobs?state=succeeded&limit=5",
        "/internal/jobs?state=running",
        "/internal/dead",
        "/internal/queues",
        "/internal/workers",
        "/internal/schedules",
    ] {
        get(api, path).await;
    }
    get(api, &format!("/internal/jobs?pool={pool}&limit=5")).await;
    get(api, &format!("/internal/queues/{pool}")).await;
    get(api, &format!("/internal/scaling/{pool}")).await;
}
