//! The way to agent servers: who may take it, what passes, and what happens while there is none.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use towpath_api::Limits;
use towpath_api::limits::PerMinuteLimits;
use towpath_domain::deployment::{Source, SourceConfig};
use towpath_domain::{DeploymentId, RevisionId, Scope, Secret, TenantId};
use towpath_queue::Windows;
use towpath_store::access::{self, NewKey};
use towpath_store::deployments::{self, NewDeployment};
use towpath_store::{placements, projects};

use crate::world::{KEY, World, on_both_databases};

on_both_databases!(
    a_request_arrives_as_it_was_sent_but_for_its_key,
    one_that_does_not_start_says_why_to_its_owners,
);

/// What an agent server was asked.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    method: Method,
    path: String,
    pub headers: HeaderMap,
    body: Bytes,
}

/// A stand-in for an agent server: keeps what it is asked, and answers with what it got.
pub struct Upstream {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    stop: CancellationToken,
}

impl Upstream {
    pub async fn start() -> Self {
        Self::on("127.0.0.1:0".parse().unwrap()).await
    }

    async fn on(address: SocketAddr) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&asked);
        let handler = any(async move |request: Request| {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let answer = format!("{} bytes", body.len());
            to.lock().unwrap().push(ReceivedRequest {
                method: parts.method,
                path: parts.uri.to_string(),
                headers: parts.headers,
                body,
            });
            ([("set-cookie", "theirs=1"), ("x-of-agent", "yes")], answer)
        });
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let router = Router::new().fallback(handler);
        tokio::spawn(towpath_api::serve(listener, router, stop.clone(), Duration::ZERO));
        Self {
            address,
            received: asked,
            stop,
        }
    }

    pub fn asked(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }
}

pub async fn deployment(world: &World, tenant: TenantId, name: &str) -> DeploymentId {
    deployment_with(world, tenant, name, &SourceConfig::default()).await
}

pub async fn deployment_with(world: &World, tenant: TenantId, name: &str, config: &SourceConfig) -> DeploymentId {
    let id = DeploymentId::new();
    world
        .store
        .write(async |tx| {
            let project = projects::ensure(tx, tenant, name).await?;
            let new = NewDeployment {
                id,
                name,
                source: Source::Github,
                config,
                project,
            };
            deployments::insert(tx, tenant, &new).await
        })
        .await
        .unwrap();
    id
}

pub async fn place(world: &World, tenant: TenantId, deployment: DeploymentId, address: &str) {
    let put = world
        .store
        .write(async |tx| placements::put(tx, tenant, deployment, RevisionId::new(), "a", address, "database").await);
    put.await.unwrap();
}

pub async fn ask(
    world: &World,
    method: Method,
    path: &str,
    key: Option<&str>,
    body: &str,
) -> (StatusCode, HeaderMap, Bytes) {
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "platform");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let answer = world.router.clone().oneshot(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
}

fn detail(body: &Bytes) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["detail"].as_str().unwrap().to_owned()
}

async fn a_request_arrives_as_it_was_sent_but_for_its_key(world: World) {
    let upstream = Upstream::start().await;
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &upstream.address.to_string()).await;
    for way in ["one".to_owned(), id.to_string()] {
        let path = format!("/d/{way}/threads/a%2Fb?x=1&y=%20");
        let (status, headers, body) = ask(&world, Method::POST, &path, Some(KEY), "{\"a\": 1}").await;
        assert_eq!((status, &body[..]), (StatusCode::OK, &b"8 bytes"[..]));
        assert_eq!(headers["x-of-agent"], "yes");
        assert!(!headers.contains_key("set-cookie"));
        let asked = upstream.asked().pop().unwrap();
        assert_eq!(
            (asked.method, asked.path.as_str()),
            (Method::POST, "/threads/a%2Fb?x=1&y=%20")
        );
        assert_eq!(&asked.body[..], b"{\"a\": 1}");
        assert!(!asked.headers.contains_key("x-api-key"), "the key left the platform");
        assert_eq!(asked.headers["x-forwarded-prefix"], format!("/d/{way}"));
        let signed = asked.headers["x-towpath-gateway"].to_str().unwrap();
        let (seconds, mac) = signed.split_once('.').unwrap();
        assert!(seconds.parse::<i64>().is_ok() && mac.len() == 64, "{signed}");
        assert_eq!(asked.headers["x-forwarded-host"], "platform");
    }
}

#[tokio::test]
async fn the_operators_routes_of_an_agent_server_want_an_operators_key() {
    let world = World::new().await;
    let upstream = Upstream::start().await;
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &upstream.address.to_string()).await;
    let user = world.key(None).await;
    for (path, of_user) in [
        ("/internal/jobs?limit=1", StatusCode::FORBIDDEN),
        ("/internal/dead/x/retry", StatusCode::FORBIDDEN),
        // Routes of the graphs' author.
        ("/internal/mine", StatusCode::OK),
        ("/internals/jobs", StatusCode::OK),
    ] {
        let path = format!("/d/one{path}");
        let (status, ..) = ask(&world, Method::POST, &path, Some(user.reveal()), "").await;
        assert_eq!(status, of_user, "{path}");
        let (status, ..) = ask(&world, Method::POST, &path, Some(KEY), "").await;
        assert_eq!(status, StatusCode::OK, "{path}");
    }
}

/// A sibling that calls a deployment alike neither takes the name away nor gets what was meant for another.
#[tokio::test]
async fn a_name_is_that_of_the_callers_workspace() {
    let world = World::new().await;
    let (first, sibling) = (Upstream::start().await, Upstream::start().await);
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &first.address.to_string()).await;
    let second = world.second_workspace().await;
    let other = deployment(&world, second, "one").await;
    place(&world, second, other, &sibling.address.to_string()).await;
    for (workspace, upstream) in [(world.tenant, &first), (second, &sibling)] {
        let before = upstream.asked().len();
        let key = world.key(Some(workspace)).await;
        let (status, ..) = ask(&world, Method::GET, "/d/one/threads", Some(key.reveal()), "").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            upstream.asked().len(),
            before + 1,
            "the deployment of the caller's workspace answers"
        );
    }
    let (status, ..) = ask(&world, Method::GET, "/d/one/threads", Some(KEY), "").await;
    assert_eq!(
        status,
        StatusCode::NOT_FOUND,
        "a key of both workspaces has to give the id"
    );
}

#[tokio::test]
async fn a_scope_opens_one_deployment() {
    let world = World::new().await;
    let upstream = Upstream::start().await;
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        let id = deployment(&world, world.tenant, name).await;
        place(&world, world.tenant, id, &upstream.address.to_string()).await;
        ids.push(id);
    }
    let only = world.limited_key(&[Scope::AgentsInvokeOf(ids[0])]).await;
    let every = world.limited_key(&[Scope::AgentsInvoke]).await;
    let none = world.limited_key(&[Scope::TracesWrite]).await;
    for (key, statuses) in [(&only, [200, 403]), (&every, [200, 200]), (&none, [403, 403])] {
        for (id, status) in ids.iter().zip(statuses) {
            let path = format!("/d/{id}/threads");
            let (answered, _, body) = ask(&world, Method::GET, &path, Some(key.reveal()), "").await;
            assert_eq!(answered.as_u16(), status, "{path}");
            if status == 403 {
                assert_eq!(detail(&body), format!("the API key lacks the scope agents:invoke:{id}"));
            }
        }
    }
}

#[tokio::test]
async fn only_keys_of_the_owner_come_in() {
    let world = World::new().await;
    let upstream = Upstream::start().await;
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &upstream.address.to_string()).await;
    for path in ["/ok", "/info", "/docs", "/openapi.json"] {
        let (status, ..) = ask(&world, Method::GET, &format!("/d/{id}{path}"), None, "").await;
        assert_eq!(status, StatusCode::OK, "{path}");
        let (status, ..) = ask(&world, Method::GET, &format!("/d/one{path}"), None, "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}: a name needs a key");
    }
    let open = upstream.asked().len();
    for (method, path) in [
        (Method::GET, "/"),
        (Method::POST, "/ok"),
        (Method::GET, "/threads"),
        (Method::GET, "/metrics"),
    ] {
        for key in [None, Some("not a key of anybody's, but long")] {
            let (status, ..) = ask(&world, method.clone(), &format!("/d/one{path}"), key, "").await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        }
    }
    // Of another workspace of the organisation, and of another organisation.
    let second = world.second_workspace().await;
    let sibling = world.key(Some(second)).await;
    let (status, ..) = ask(&world, Method::GET, "/d/one/threads", Some(sibling.reveal()), "").await;
    assert_eq!(status, StatusCode::OK);
    let foreign: Secret = world
        .store
        .write(async |tx| {
            let organization = access::create_organization(tx, "other").await?;
            let new = NewKey {
                organization,
                workspace: None,
                name: "other",
                operator: true,
            };
            Ok(access::create_key(tx, new).await?.1)
        })
        .await
        .unwrap();
    for path in [
        "/d/one/threads".to_owned(),
        format!("/d/{id}/threads"),
        "/d/none/threads".to_owned(),
    ] {
        let (status, _, body) = ask(&world, Method::GET, &path, Some(foreign.reveal()), "").await;
        assert_eq!(
            (status, detail(&body).as_str()),
            (StatusCode::NOT_FOUND, "deployment not found")
        );
    }
    assert_eq!(upstream.asked().len(), open + 1);
}

#[tokio::test]
async fn a_request_waits_for_a_switch_and_not_for_ever() {
    let world = World::new().await;
    let upstream = Upstream::start().await;
    let id = deployment(&world, world.tenant, "one").await;
    let (status, headers, _) = ask(&world, Method::GET, "/d/one/threads", Some(KEY), "").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "nothing was deployed");
    assert!(headers.contains_key("retry-after"));

    let address = upstream.address.to_string();
    place(&world, world.tenant, id, &address).await;
    let switching = world
        .store
        .write(async |tx| placements::switching(tx, world.tenant, id).await);
    assert!(switching.await.unwrap());
    let held = ask(&world, Method::POST, "/d/one/runs", Some(KEY), "{}");
    let switch = async {
        // Long enough for the request to have looked.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(upstream.asked().is_empty());
        place(&world, world.tenant, id, &address).await;
    };
    let ((status, ..), ()) = tokio::join!(held, switch);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(upstream.asked().len(), 1);

    // Nobody listens where it was, as after a crash: the same.
    upstream.stop.cancel();
    while TcpStream::connect(upstream.address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Upstream::on(upstream.address).await
    };
    let held = ask(&world, Method::POST, "/d/one/runs", Some(KEY), "{}");
    let ((status, ..), again) = tokio::join!(held, again);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(again.asked().len(), 1);
}

/// An agent server that takes a request and goes away without an answer.
async fn leaver(heard: mpsc::UnboundedSender<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.unwrap();
            heard.send(String::from_utf8_lossy(&head[..read]).into_owned()).unwrap();
        }
    });
    address
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_again() {
    let world = World::new().await;
    let (tell, mut heard) = mpsc::unbounded_channel();
    let address = leaver(tell).await;
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &address.to_string()).await;
    let (status, _, body) = ask(&world, Method::POST, "/d/one/runs", Some(KEY), "{}").await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(detail(&body).contains("closed the connection"));
    assert!(heard.recv().await.unwrap().starts_with("POST /runs"));
    assert!(heard.try_recv().is_err(), "it was sent twice");

    // Reading is repeated, against what is there by then.
    let upstream = Upstream::start().await;
    let get = ask(&world, Method::GET, "/d/one/threads", Some(KEY), "");
    let moved = async {
        heard.recv().await.unwrap();
        place(&world, world.tenant, id, &upstream.address.to_string()).await;
    };
    let ((status, ..), ()) = tokio::join!(get, moved);
    assert_eq!(status, StatusCode::OK);
    assert_eq!(upstream.asked().len(), 1);
}

/// Nothing waits for the end of a body, in neither direction.
#[tokio::test]
async fn bodies_pass_as_they_come() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &listener.local_addr().unwrap().to_string()).await;
    let (send, receive) = mpsc::unbounded_channel::<Bytes>();
    let pieces = futures::stream::unfold(receive, async |mut receive| {
        let piece = receive.recv().await?;
        Some((Ok::<_, std::io::Error>(piece), receive))
    });
    let request = http::Request::post("/d/one/stream")
        .header("x-api-key", KEY)
        .body(Body::from_stream(pieces))
        .unwrap();
    let call = tokio::spawn(world.router.clone().oneshot(request));
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut seen = String::new();
    let mut buffer = vec![0; 4096];
    send.send(Bytes::from_static(b"first piece")).unwrap();
    while !seen.contains("first piece") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    // The request goes on, and its answer begins.
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = call.await.unwrap().unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut body = answer.into_body();
    for event in ["event: one\n\n", "event: two\n\n"] {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        stream.write_all(chunk.as_bytes()).await.unwrap();
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece, event);
    }
    // The reader leaves, and so does the connection to the agent server.
    drop(body);
    drop(send);
    loop {
        if matches!(stream.read(&mut buffer).await, Ok(0) | Err(_)) {
            break;
        }
    }
}

#[tokio::test]
async fn another_protocol_passes_through() {
    let world = World::new().await;
    let agent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, &agent.local_addr().unwrap().to_string()).await;
    tokio::spawn(async move {
        let (mut stream, _) = agent.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(
            head.contains("upgrade: websocket") && head.contains("sec-websocket-key: abc"),
            "{head}"
        );
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let served = tokio::spawn(towpath_api::serve(
        listener,
        world.router.clone(),
        stop.clone(),
        Duration::ZERO,
    ));
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /d/one/ws HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: abc\r\n\r\n"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    for said in [&b"ping"[..], b"pong"] {
        client.write_all(said).await.unwrap();
        let mut heard = vec![0; said.len()];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, said);
    }
    drop(client);
    stop.cancel();
    served.await.unwrap().unwrap();
}

async fn one_that_does_not_start_says_why_to_its_owners(world: World) {
    let id = deployment(&world, world.tenant, "one").await;
    place(&world, world.tenant, id, "127.0.0.1:1").await;
    let down = world.store.write(async |tx| {
        let placement = placements::get(tx, world.tenant, id).await?.unwrap();
        placements::down(tx, &placement, "its database is away\nand more").await
    });
    down.await.unwrap();
    let (status, _, body) = ask(&world, Method::GET, &format!("/d/{id}/threads"), Some(KEY), "").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(detail(&body).ends_with("its database is away"), "{body:?}");
    let (status, _, body) = ask(&world, Method::GET, &format!("/d/{id}/ok"), None, "").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!detail(&body).contains("database"), "{body:?}");

    let accept = |id| format!("/internal/deployments/{id}/accept-database");
    let (status, _, body) = ask(&world, Method::POST, &accept(id), Some(KEY), "").await;
    assert_eq!(status, StatusCode::OK, "{body:?}");
    let shown: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(shown["state"], "down");
    let placement = world.store.read(async |tx| placements::get(tx, world.tenant, id).await);
    assert_eq!(placement.await.unwrap().unwrap().database_id, None);
    let (status, ..) = ask(&world, Method::POST, &accept(DeploymentId::new()), Some(KEY), "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_deployment_is_asked_as_often_as_its_limit_allows() {
    let own = PerMinuteLimits {
        deployment: 2,
        ..PerMinuteLimits::default()
    };
    let world = World::limited(|clock| Limits::new(None, own, Windows::local(clock.clone()), clock)).await;
    let upstream = Upstream::start().await;
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        let id = deployment(&world, world.tenant, name).await;
        place(&world, world.tenant, id, &upstream.address.to_string()).await;
        ids.push(id);
    }
    // Strangers do not use up what callers with a key may.
    for _ in 0..3 {
        let open = ask(&world, Method::GET, &format!("/d/{}/ok", ids[0]), None, "").await;
        assert_eq!(open.0, StatusCode::OK);
    }
    for path in ["/d/one/threads", "/d/one/runs"] {
        assert_eq!(ask(&world, Method::POST, path, Some(KEY), "{}").await.0, StatusCode::OK);
    }
    let (status, headers, body) = ask(&world, Method::POST, "/d/one/threads", Some(KEY), "{}").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(detail(&body), "Rate limit exceeded");
    assert_eq!(headers["retry-after"], "60");
    assert_eq!(headers["ratelimit-policy"], "\"own-deployment\";q=2;w=60");
    assert_eq!(upstream.asked().len(), 3 + 2, "the third with a key did not arrive");
    // Another deployment is another matter.
    let other = ask(&world, Method::POST, "/d/two/threads", Some(KEY), "{}").await;
    assert_eq!(other.0, StatusCode::OK);
    world.clock.advance(Duration::from_secs(60));
    let again = ask(&world, Method::POST, "/d/one/threads", Some(KEY), "{}").await;
    assert_eq!(again.0, StatusCode::OK);
}
