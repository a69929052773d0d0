//! Calls to addresses of users happen at least once, and every one of them carries the token of its job.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use towpath_durable::Signal;
use towpath_workflows::send_webhook;

use crate::server::Server;

const POOL: &str = "webhooks";

/// Takes calls: the first one is never answered, the second refused, the others are taken.
struct Receiver {
    url: String,
    /// The token of each call.
    calls: mpsc::UnboundedReceiver<String>,
}

type Told = (mpsc::UnboundedSender<String>, Arc<AtomicUsize>);

async fn take(State((told, count)): State<Told>, headers: HeaderMap) -> StatusCode {
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
        self.store()
            .write(async |tx| send_webhook::start(tx, self.tenant, url, json!({"run_id": "one"})).await)
            .await
            .unwrap();
        let job = self.claim_of(POOL).await.expect("the call is ready");
        let token = format!("{}/webhook", job.id);
        // As a worker has it that is killed at once: the row is given back by whoever starts next.
        drop(job);
        towpath_durable::ready_earlier_boots(self.store()).await.unwrap();
        token
    }
}

#[tokio::test]
async fn every_attempt_of_a_call_carries_the_same_token() {
    let server = Server::new().await;
    let mut receiver = Receiver::start().await;
    let token = server.call(&receiver.url).await;

    // Killed after the effect and before its record: the receiver has it, we do not know.
    let job = server.claim_of(POOL).await.expect("the call is ready");
    let (_tell, told) = watch::channel(Signal::Run);
    let first = tokio::select! {
        () = towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told) => {
            panic!("an answer came that nobody gave")
        }
        first = receiver.calls.recv() => first.unwrap(),
    };
    towpath_durable::ready_earlier_boots(server.store()).await.unwrap();
    // Refused, and tried again.
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

    // Another call is another one, whatever it says.
    let other = server.call(&receiver.url).await;
    server.perform_of(POOL).await;
    assert_eq!(receiver.calls.recv().await.unwrap(), other);
    assert_ne!(other, token);
}
