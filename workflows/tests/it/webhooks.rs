//! Calls to users' addresses happen at least once, each with the token of its job.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use towpath_domain::ThreadId;
use towpath_domain::agent::RunStatus;
use towpath_durable::Signal;
use towpath_workflows::run_agent::Target;
use towpath_workflows::send_webhook;

use crate::server::Server;

const POOL: &str = "webhooks";

/// Receives calls: the first one gets no response, the second is refused, the others are accepted.
struct Receiver {
    url: String,
    /// The token of each call.
    calls: mpsc::UnboundedReceiver<String>,
}

type CallRecorder = (mpsc::UnboundedSender<String>, Arc<AtomicUsize>);

async fn take(State((told, count)): State<CallRecorder>, headers: HeaderMap) -> StatusCode {
    let token = headers["x-towpath-delivery"].to_str().unwrap();
    told.send(token.to_owned()).unwrap();
    match count.fetch_add(1, Ordering::SeqCst) {
        0 => pending().await,
        1 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    }
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/told", listener.local_addr().unwrap());
        let (told, calls) = mpsc::unbounded_channel();
        let router = Router::new()
            .route("/told", post(take))
            .with_state((told, Arc::default()));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, calls }
    }
}

impl Server {
    async fn call(&self, url: &str) -> String {
        let body = to_raw_value(&json!({"run_id": "one"})).unwrap();
        self.store()
            .write(async |tx| send_webhook::start(tx, self.tenant, url, body.clone()).await)
            .await
            .unwrap();
        let job = self.claim_of(POOL).await.expect("the call is ready");
        let token = format!("{}/webhook", job.id);
        // As in a worker that is killed at once: the next process returns the job.
        drop(job);
        towpath_durable::release_earlier_boots(self.store()).await.unwrap();
        token
    }
}

#[tokio::test]
async fn every_attempt_of_a_call_carries_the_same_token() {
    let server = Server::new().await;
    let mut receiver = Receiver::start().await;
    let token = server.call(&receiver.url).await;

    // Killed after the effect and before its record: the receiver has the call, the platform does not know.
    let job = server.claim_of(POOL).await.expect("the call is ready");
    let (_tell, told) = watch::channel(Signal::Run);
    let first = tokio::select! {
        () = towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told) => {
            panic!("an answer came that nobody gave")
        }
        first = receiver.calls.recv() => first.unwrap(),
    };
    towpath_durable::release_earlier_boots(server.store()).await.unwrap();
    // Refused, and retried.
    server.perform_of(POOL).await;
    server.hurry().await;
    server.perform_of(POOL).await;
    let (second, third) = (
        receiver.calls.recv().await.unwrap(),
        receiver.calls.recv().await.unwrap(),
    );
    assert_eq!(
        [&first, &second, &third],
        [&token; 3],
        "the receiver can tell that it is one call"
    );
    let done = "SELECT count(*) FROM job WHERE kind = 'send_webhook' AND state = 'succeeded'";
    assert_eq!(server.count(done).await, 1);

    // Another call has another token, even with the same content.
    let other = server.call(&receiver.url).await;
    server.perform_of(POOL).await;
    assert_eq!(receiver.calls.recv().await.unwrap(), other);
    assert_ne!(other, token);
}

async fn hear(State(told): State<mpsc::UnboundedSender<Bytes>>, body: Bytes) -> StatusCode {
    told.send(body).unwrap();
    StatusCode::OK
}

/// A run's input is nested deeper in the body, and is parsed there again.
#[tokio::test]
async fn a_run_with_an_input_as_deep_as_may_be_is_told() {
    let server = Server::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/told", listener.local_addr().unwrap());
    let (told, mut bodies) = mpsc::unbounded_channel();
    let router = Router::new().route("/told", post(hear)).with_state(told);
    tokio::spawn(async move { axum::serve(listener, router).await });
    // With the two objects around it, the arguments of the run are one level below the maximum depth.
    let deep = (0..123).fold(json!([]), |inner, _| Value::Array(vec![inner]));
    let asked = json!({"input": {"log": deep}, "webhook": url});
    let (run, _events) = server.start(Target::Existing(ThreadId::new()), "steps", asked).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Success);
    server.perform_of(POOL).await;
    let body = bodies.recv().await.unwrap();
    let body: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&body).unwrap();
    let deep = deep.to_string();
    assert!(body["kwargs"].get().contains(&deep), "{}", body["kwargs"]);
    assert!(
        body["values"].get().contains(&deep[1..deep.len() - 1]),
        "{}",
        body["values"]
    );
    assert_eq!(body["status"].get(), r#""success""#);
    assert!(body.contains_key("webhook_sent_at"));
}
