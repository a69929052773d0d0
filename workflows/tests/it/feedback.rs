//! Runs that request feedback links get them from the platform that they are traced to.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use towpath_domain::agent::{Frame, RunStatus};
use towpath_domain::{Secret, ThreadId};
use towpath_outbound::{Guard, Policy};
use towpath_queue::{Event, Events};
use towpath_workflows::run_agent::Target;
use towpath_workflows::tracer::{Platform, Tracer};

use crate::server::Server;

/// A fake platform: issues links, unless a key is `refused`, and accepts traces.
struct PlatformStub {
    endpoint: String,
    asked: mpsc::UnboundedReceiver<Value>,
    traced: mpsc::UnboundedReceiver<Value>,
}

type RequestSender = mpsc::UnboundedSender<Value>;

async fn links(
    State((told, _)): State<(RequestSender, RequestSender)>,
    Json(asked): Json<Value>,
) -> Result<Json<Value>, StatusCode> {
    told.send(asked.clone()).unwrap();
    let asked = asked.as_array().unwrap();
    if asked.iter().any(|one| one["feedback_key"] == "refused") {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let url = |one: &Value| format!("https://towpath.example/{}", one["feedback_key"].as_str().unwrap());
    Ok(Json(asked.iter().map(|one| json!({"url": url(one)})).collect()))
}

impl PlatformStub {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        let (tell_asked, asked) = mpsc::unbounded_channel();
        let (tell_traced, traced) = mpsc::unbounded_channel();
        let take = async |State((_, told)): State<(RequestSender, RequestSender)>, Json(traces): Json<Value>| {
            told.send(traces).unwrap();
            StatusCode::ACCEPTED
        };
        let router = Router::new()
            .route("/feedback/tokens", post(links))
            .route("/runs/batch", post(take))
            .with_state((tell_asked, tell_traced));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            endpoint,
            asked,
            traced,
        }
    }

    async fn server(&self) -> Server {
        let mut server = Server::new().await;
        let platform = Platform {
            endpoint: self.endpoint.clone(),
            key: Secret::new("a key"),
            workspace: None,
            project: "default".to_owned(),
        };
        server.world.tracer = Tracer::start(&platform, Guard::new(Policy::development()));
        server
    }
}

/// The events so far: their names and their data.
fn seen(events: &mut Events) -> Vec<(String, Value)> {
    let mut seen = Vec::new();
    while let Some(event) = events.try_next() {
        let Event::Frame(text) = event else { continue };
        let frame = Frame::decode(&text).unwrap();
        if !frame.is_end() {
            seen.push((frame.event.to_owned(), serde_json::from_str(frame.data).unwrap()));
        }
    }
    seen
}

#[tokio::test]
async fn a_run_that_did_well_says_where_it_may_be_judged() {
    let mut stand = PlatformStub::start().await;
    let server = stand.server().await;
    let keys = json!({"feedback_keys": ["liked", "disliked", "liked"], "stream_mode": "updates"});
    let (run, mut events) = server.start(Target::Existing(ThreadId::new()), "steps", keys).await;
    server.perform().await;
    let urls = json!({"liked": "https://towpath.example/liked", "disliked": "https://towpath.example/disliked"});
    assert_eq!(seen(&mut events).pop(), Some(("feedback".to_owned(), urls)));
    let asked = stand.asked.recv().await.unwrap();
    assert_eq!(asked.as_array().unwrap().len(), 2);
    assert!(
        asked
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["run_id"] == json!(run.id))
    );
    assert_eq!(stand.traced.recv().await.unwrap()["post"][0]["id"], json!(run.id));
}

#[tokio::test]
async fn a_later_attempt_is_judged_by_the_trace_it_left() {
    let mut stand = PlatformStub::start().await;
    let server = stand.server().await;
    let keys = json!({"feedback_keys": ["liked"]});
    let (run, mut events) = server.start(Target::Existing(ThreadId::new()), "shaky", keys).await;
    server.perform().await;
    assert!(
        seen(&mut events).iter().all(|(name, _)| name != "feedback"),
        "it failed and is tried again"
    );
    server.hurry().await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Success);
    assert_eq!(seen(&mut events).pop().unwrap().0, "feedback");
    let asked = stand.asked.recv().await.unwrap();
    let traced = stand.traced.recv().await.unwrap();
    assert_eq!(asked[0]["run_id"], traced["post"][0]["id"]);
    assert_ne!(asked[0]["run_id"], json!(run.id));
}

#[tokio::test]
async fn nobody_judges_what_failed_or_is_traced_nowhere() {
    let mut stand = PlatformStub::start().await;
    let server = stand.server().await;
    for (graph, keys) in [
        ("broken", json!({"feedback_keys": ["liked"]})),
        ("steps", json!({"feedback_keys": []})),
        ("steps", json!({})),
    ] {
        let (_, mut events) = server.start(Target::Existing(ThreadId::new()), graph, keys).await;
        server.perform().await;
        assert!(seen(&mut events).iter().all(|(name, _)| name != "feedback"), "{graph}");
    }
    assert!(stand.asked.try_recv().is_err());
    // The platform issues no links: the run succeeds without them.
    let refused = json!({"feedback_keys": ["refused"]});
    let (run, mut events) = server.start(Target::Existing(ThreadId::new()), "steps", refused).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Success);
    assert!(seen(&mut events).iter().all(|(name, _)| name != "feedback"));
    stand.asked.recv().await.unwrap();

    let alone = Server::new().await;
    let keys = json!({"feedback_keys": ["liked"]});
    let (run, mut events) = alone.start(Target::Existing(ThreadId::new()), "steps", keys).await;
    alone.perform().await;
    assert_eq!(alone.run(run.id).await.unwrap().status, RunStatus::Success);
    assert!(seen(&mut events).iter().all(|(name, _)| name != "feedback"));
}
