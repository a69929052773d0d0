//! The agent surface, called in-process on both databases; its runs are performed, or streamed, by hand.

mod a2a;
mod agent_protocol;
mod ends;
mod event_streaming;
mod identity;
mod items;
mod mcp;
mod state;
mod stream_model;
mod streams;
mod system;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use towpath_api::agent::{AgentApp, Parts, Settings, agent_router};
use towpath_api::{Health, Ops};
use towpath_domain::agent::frame::{self, END, RunEnd};
use towpath_domain::agent::{EventId, Frame};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId, WorkerId};
use towpath_durable::{Engine, Registry, Signal};
use towpath_outbound::{Guard, Policy};
use towpath_queue::{Event, Events, Queue};
use towpath_runtime::{GraphServices, GraphSet, Graphs};
use towpath_store::assistants::{self, AssistantContent};
use towpath_store::run_events::{self, NewBatch};
use towpath_store::{Options, Store, jobs};
use towpath_testing::Database;
use towpath_workflows::agent::{self, AgentServices};
use towpath_workflows::item_index::ItemIndex;
use towpath_workflows::run_agent;

use crate::world::{Answer, Call, call, migrate, recorder};

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

const GRAPHS: &str = r#"{"graphs": {
    "steps": {"native": {"kind": "workflow", "channels": {"log": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"append": {"log": "two"}}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "slow": {"native": {"kind": "workflow", "channels": {"log": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"sleep_ms": 60000}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "echo": {"native": "echo"},
    "human": {"native": {"kind": "script", "channels": {"log": "append", "answer": "last-value"},
        "steps": [{"interrupt": {"question": "go on?"}, "into": "answer"}, {"append": {"log": "asked"}}]}},
    "broken": {"native": {"kind": "script", "channels": {"log": "append"},
        "steps": [{"fail": {"type": "ValueError", "message": "it broke"}}]}}
}}"#;

/// Runs each test on both databases.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::agent::Agent::sqlite().await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(agent) = $crate::agent::Agent::postgres().await {
                    super::$name(agent).await;
                }
            })*
        }
    };
}
pub(crate) use on_both_databases;

/// An agent server without workers.
pub struct Agent {
    pub store: Store,
    pub queue: Queue,
    pub tenant: TenantId,
    /// Cancelled: the process drains.
    pub draining: CancellationToken,
    pub router: Router,
    engine: Engine,
    registry: Registry<AgentServices>,
    world: AgentServices,
    _folder: tempfile::TempDir,
    _database: Database,
}

impl Agent {
    pub async fn sqlite() -> Self {
        Self::on(Database::sqlite(migrate).await).await
    }

    /// In the server that `TOWPATH_TEST_POSTGRES` names.
    pub async fn postgres() -> Option<Self> {
        Some(Self::on(Database::postgres(migrate).await?).await)
    }

    async fn on(database: Database) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&database.uri, Options::default()).await.unwrap();
        let queue = Queue::local();
        agent::connect(&store, &queue);
        let mut registry = agent::registry();
        registry.attach(&store);
        let tenant = TenantId::new();
        let graphs = Graphs::from_config(GRAPHS, folder.path()).unwrap();
        let graphs = graphs.with_services(&GraphServices::new(store.clock().clone()));
        for graph in graphs.ids() {
            let content = content(graph, &json!({}), &json!({}));
            store
                .write(async |tx| assistants::create(tx, tenant, AssistantId::of_graph(graph), &content).await)
                .await
                .unwrap();
        }
        let graphs = GraphSet::new(graphs);
        let guard = Guard::new(Policy::development());
        let world = AgentServices {
            runs: run_agent::RunLoader::new(store.clone()),
            store: store.clone(),
            queue: queue.clone(),
            items: ItemIndex::new(store.clone(), graphs.clone(), guard.clone()),
            graphs,
            guard,
            tracer: None,
            settings: agent::Settings::default(),
        };
        let draining = CancellationToken::new();
        Self {
            router: surface(&world, tenant, &draining),
            engine: Engine::new(store.clone(), towpath_durable::Settings::default()),
            store,
            queue,
            tenant,
            draining,
            registry,
            world,
            _folder: folder,
            _database: database,
        }
    }

    /// Another process of the same server with settings of its own, as a router.
    pub fn beside_with(&self, settings: Settings) -> Router {
        surface_with(
            &self.world,
            &self.queue,
            self.tenant,
            &CancellationToken::new(),
            settings,
        )
    }

    /// Another process of the same server with hints of its own, as a router: nobody tells it anything but what is published
    /// there.
    pub fn beside_on(&self, queue: &Queue) -> Router {
        let draining = CancellationToken::new();
        surface_with(&self.world, queue, self.tenant, &draining, Settings::default())
    }

    /// Another process of the same server, as a router.
    pub fn beside(&self) -> Router {
        surface(&self.world, self.tenant, &CancellationToken::new())
    }

    /// The same server, asking for keys that lie in its own database.
    pub fn with_keys(&self) -> Router {
        let parts = Parts {
            keys: Some(self.store.clone()),
            ..parts(
                &self.world,
                &self.world.queue,
                self.tenant,
                &CancellationToken::new(),
                Settings::default(),
            )
        };
        agent_router(AgentApp::new(parts))
    }

    pub async fn get(&self, path: &str) -> Answer {
        call(&self.router, Call::new(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        call(&self.router, Call::new(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        call(&self.router, Call::new(Method::POST, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        call(&self.router, Call::new(Method::PATCH, path).json(body)).await
    }

    /// A new thread.
    pub async fn thread(&self) -> ThreadId {
        let made = self.post("/threads", &json!({})).await.expect(200);
        made["thread_id"].as_str().unwrap().parse().unwrap()
    }

    /// Records a run on a thread; nobody performs it.
    pub async fn record(&self, thread: ThreadId, more: &Value) -> RunId {
        let mut body = json!({"assistant_id": "steps", "input": {"log": []}});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let made = self.post(&format!("/threads/{thread}/runs"), &body).await.expect(200);
        made["run_id"].as_str().unwrap().parse().unwrap()
    }

    /// Performs the next job of a pool.
    pub async fn perform(&self, pool: &str) {
        let (_tell, told) = watch::channel(Signal::Run);
        self.work(pool, told).await;
    }

    /// Performs the next run. Once it has streamed this text, `then` is awaited, and its worker is told to stop it.
    pub async fn perform_until(&self, events: &mut Events, text: &str, then: impl AsyncFnOnce()) {
        let (tell, told) = watch::channel(Signal::Run);
        let stop = async {
            while !matches!(events.next().await, Event::Frame(frame) if frame.contains(text)) {}
            then().await;
            tell.send_replace(Signal::Cancel);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.work(run_agent::POOL, told) => {}
            () = stop => {}
        }
    }

    async fn work(&self, pool: &str, told: watch::Receiver<Signal>) {
        let claimer = jobs::ClaimRequest::new(pool, WorkerId::new(), 1);
        let claimed = self.store.write(async |tx| jobs::claim(tx, &claimer).await).await;
        let job = claimed.unwrap().pop().expect("a job is ready");
        towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told).await;
    }

    /// Publishes frames, as a worker does.
    pub fn publish(&self, thread: ThreadId, frames: &[String]) {
        for frame in frames {
            self.queue.publish(thread, frame.clone());
        }
    }

    /// Logs frames as one batch, as a worker or another process does.
    pub async fn log(&self, thread: ThreadId, frames: &[String]) {
        let (first, last) = (&frames[0], &frames[frames.len() - 1]);
        let (first, last) = (Frame::decode(first).unwrap(), Frame::decode(last).unwrap());
        let mut text = String::new();
        frames.iter().for_each(|one| frame::append(&mut text, one));
        let batch = NewBatch {
            run: first.run,
            attempt: first.attempt,
            first: first.number,
            last: last.number,
            last_id: last.id,
            frames: &text,
            expires_at: None,
        };
        self.store
            .write(async |tx| run_events::append(tx, self.tenant, thread, &batch).await)
            .await
            .unwrap();
    }
}

fn surface(world: &AgentServices, tenant: TenantId, draining: &CancellationToken) -> Router {
    surface_with(world, &world.queue, tenant, draining, Settings::default())
}

fn surface_with(
    world: &AgentServices,
    queue: &Queue,
    tenant: TenantId,
    draining: &CancellationToken,
    settings: Settings,
) -> Router {
    agent_router(AgentApp::new(parts(world, queue, tenant, draining, settings)))
}

fn parts(
    world: &AgentServices,
    queue: &Queue,
    tenant: TenantId,
    draining: &CancellationToken,
    settings: Settings,
) -> Parts {
    Parts {
        store: world.store.clone(),
        engine: None,
        queue: queue.clone(),
        graphs: world.graphs.clone(),
        items: world.items.clone(),
        tenant,
        keys: None,
        clock: world.store.clock().clone(),
        draining: draining.clone(),
        ops: Ops::new(Health::new(CancellationToken::new()), recorder().handle()),
        settings,
    }
}

/// An assistant of a graph.
pub fn content(graph: &str, config: &Value, context: &Value) -> AssistantContent {
    AssistantContent {
        graph_id: graph.to_owned(),
        name: graph.to_owned(),
        description: None,
        config: config.to_string(),
        context: context.to_string(),
        metadata: "{}".to_owned(),
    }
}

/// The frame of a first attempt with this number, whose id has these milliseconds.
pub fn frame(run: RunId, number: i64, ms: i64, event: &str, data: &Value) -> String {
    Frame {
        run: Some(run),
        attempt: i64::from(number > 0),
        number,
        id: EventId { ms, seq: 0 },
        event,
        data: &data.to_string(),
    }
    .encode()
}

/// A state whose log has one entry: the number of its frame.
pub fn values(run: RunId, number: i64, ms: i64) -> String {
    frame(run, number, ms, "values", &json!({"log": [number]}))
}

/// The frame that ends a run.
pub fn end(run: RunId, ms: i64, end: &RunEnd) -> String {
    frame(run, 0, ms, END, &json!(end))
}

/// An answer whose body is read piece by piece.
pub struct OpenResponse {
    pub headers: HeaderMap,
    body: Body,
    read: String,
}

impl OpenResponse {
    /// Sends a request and reads the head of its answer.
    pub async fn new(router: &Router, method: Method, path: &str, last_event_id: Option<&str>, body: &Value) -> Self {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let request = request.body(Body::from(body.to_string())).unwrap();
        let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
        assert_eq!(head.status, StatusCode::OK, "{path}");
        Self {
            headers: head.headers,
            body,
            read: String::new(),
        }
    }

    /// A stream that is read.
    pub async fn stream(router: &Router, path: &str, last_event_id: Option<&str>) -> Self {
        Self::new(router, Method::GET, path, last_event_id, &json!({})).await
    }

    /// Thread and run, as the head names them.
    pub fn place(&self) -> (ThreadId, RunId) {
        let place = self.headers["content-location"].to_str().unwrap();
        let parts: Vec<&str> = place.split('/').collect();
        let ["", "threads", thread, "runs", run] = parts[..] else {
            panic!("{place} names no run of a thread");
        };
        (thread.parse().unwrap(), run.parse().unwrap())
    }

    /// The next event: its name and its data. `None` at the end of the body.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        let next = tokio::time::timeout(PATIENCE, self.event()).await;
        next.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain for the next event, or the end"))
    }

    async fn event(&mut self) -> Option<(String, Value)> {
        loop {
            while let Some((event, rest)) = self.read.split_once("\r\n\r\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                // Not a heartbeat.
                if let Some((name, data)) = field("event: ").zip(field("data: ")) {
                    return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
                }
            }
            if !self.read_on().await {
                assert_eq!(self.read, "", "half an event");
                return None;
            }
        }
    }

    /// The next event, which has to be this one.
    pub async fn expect(&mut self, event: &str, data: &Value) {
        let next = self.next().await;
        assert_eq!(next, Some((event.to_owned(), data.clone())));
    }

    /// The next events, which have to be the states of these frames.
    pub async fn expect_values(&mut self, numbers: impl IntoIterator<Item = i64>) {
        for number in numbers {
            self.expect("values", &json!({"log": [number]})).await;
        }
    }

    /// The next event, which has to say that something was lost.
    pub async fn expect_cut(&mut self) {
        let next = self.next().await;
        let cut = next
            .as_ref()
            .is_some_and(|(event, data)| event == "error" && data["error"] == "StreamCut");
        assert!(cut, "expected an error StreamCut, and came {next:?}");
    }

    /// All of a body that is JSON.
    pub async fn json(mut self) -> Value {
        let all = async { while self.read_on().await {} };
        let all = tokio::time::timeout(PATIENCE, all).await;
        assert!(all.is_ok(), "waited {PATIENCE:?} in vain for the end of the body");
        serde_json::from_str(&self.read).unwrap_or_else(|_| panic!("not JSON: {:?}", self.read))
    }

    /// The only event of a stream.
    pub async fn json_event(mut self) -> Value {
        let (_, data) = self.next().await.expect("an event");
        assert_eq!(self.next().await, None);
        data
    }

    /// Reads one piece; false at the end.
    async fn read_on(&mut self) -> bool {
        let Some(piece) = self.body.frame().await else {
            return false;
        };
        let bytes = piece.unwrap().into_data().unwrap();
        self.read.push_str(str::from_utf8(&bytes).unwrap());
        true
    }
}
