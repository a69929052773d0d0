//! Too much at once: who is refused, before what, and what is told.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_api::{Settings, serve};
use towpath_domain::{ProjectId, SegmentId, TenantId};
use towpath_store::segments::{self, Part};
use uuid::Uuid;

use crate::world::{Answer, Call, KEY, World};

async fn served(settings: Settings) -> (World, std::net::SocketAddr) {
    let world = World::with(settings).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = world.router.clone();
    tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    (world, address)
}

/// The head of a request whose body is announced and not sent.
fn head(world: &World, path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\nx-tenant-id: {}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nexpect: 100-continue\r\n\r\n",
        world.tenant
    )
}

async fn send(address: std::net::SocketAddr, text: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    client
}

/// What comes first.
async fn first(client: &mut TcpStream) -> String {
    let mut answer = vec![0; 4096];
    let length = client.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Keeps every write of the database waiting until it is told or dropped: who writes then is worked on, and stays so.
async fn stall(world: &World) -> oneshot::Sender<()> {
    let (tell, begun) = oneshot::channel();
    let (let_go, told) = oneshot::channel::<()>();
    let store = world.store.clone();
    tokio::spawn(async move {
        let written = store.write(async |_| {
            let _ = tell.send(());
            let _ = told.await;
            Ok(())
        });
        written.await
    });
    begun.await.expect("the writer is taken");
    let_go
}

/// Waits until a request without a key finds no place.
async fn until_crowded(world: &World, method: Method, path: &str) {
    let crowded = async {
        while world.open(method.clone(), path).await.status != StatusCode::SERVICE_UNAVAILABLE {
            tokio::task::yield_now().await;
        }
    };
    let crowded = tokio::time::timeout(Duration::from_secs(60), crowded).await;
    crowded.expect("every place is taken");
}

/// A request that is worked on while writes stall.
fn begin(world: &World, call: Call) -> JoinHandle<Answer> {
    let router = world.router.clone();
    tokio::spawn(async move { crate::world::call(&router, call).await })
}

/// As [`begin`]; a request that is refused, because another one had a place at that moment, is sent again.
fn begin_until_admitted(world: &World, call: Call) -> JoinHandle<Answer> {
    let router = world.router.clone();
    tokio::spawn(async move {
        loop {
            let answer = crate::world::call(&router, call.clone()).await;
            if answer.status != StatusCode::TOO_MANY_REQUESTS {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
}

fn new_project(world: &World, name: &str) -> Call {
    let call = Call::new(Method::POST, "/sessions").in_workspace(world.tenant);
    call.json(&json!({ "name": name }))
}

#[tokio::test]
async fn who_finds_no_place_is_refused_before_its_body() {
    let settings = Settings {
        max_requests: 1,
        ..Settings::default()
    };
    let (world, address) = served(settings).await;
    // Takes the one place.
    let let_go = stall(&world).await;
    let holder = begin(&world, new_project(&world, "held"));
    until_crowded(&world, Method::GET, "/sessions").await;

    let mut refused = send(address, &head(&world, "/runs/batch", 10_000_000)).await;
    let answer = first(&mut refused).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let wait: u64 = answer
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "))
        .expect("a refusal says when to come back")
        .trim()
        .parse()
        .unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    assert!(answer.contains("too many requests at once"), "{answer}");
    // Even without a key: nothing is looked up for who is refused.
    let stranger = world.open(Method::GET, "/sessions").await;
    assert_eq!(stranger.status, StatusCode::SERVICE_UNAVAILABLE);
    // Who asks how the process is, is answered all the same.
    assert_eq!(world.open(Method::GET, "/livez").await.status, StatusCode::OK);

    drop(let_go);
    assert_eq!(holder.await.unwrap().status, StatusCode::OK);
    assert_eq!(world.get("/sessions").await.status, StatusCode::OK);
}

#[tokio::test]
async fn who_is_refused_keeps_the_connection() {
    let settings = Settings {
        max_requests: 1,
        ..Settings::default()
    };
    let (world, address) = served(settings).await;
    let _let_go = stall(&world).await;
    let _holder = begin(&world, new_project(&world, "held"));
    until_crowded(&world, Method::GET, "/sessions").await;

    // More than the buffers of a connection hold, sent before the answer is looked at, as clients do.
    let body = vec![b'x'; 600_000];
    let head = head(&world, "/runs/batch", body.len()).replace("expect: 100-continue\r\n", "");
    let mut refused = send(address, &head).await;
    for _ in 0..2 {
        refused.write_all(&body).await.unwrap();
        let answer = first(&mut refused).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(!answer.contains("connection: close"), "{answer}");
        refused.write_all(head.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn traces_leave_room_for_who_wants_to_look() {
    let settings = Settings {
        max_requests: 4,
        ..Settings::default()
    };
    let (world, _) = served(settings).await;
    let let_go = stall(&world).await;
    let id = Uuid::now_v7();
    let run = json!({"id": id, "trace_id": id, "name": "a", "run_type": "chain", "session_name": "a",
                     "start_time": "2026-03-01T12:00:00Z", "dotted_order": format!("20260301T120000000000Z{id}")});
    let call = Call::new(Method::POST, "/runs").in_workspace(world.tenant).json(&run);
    let holders: Vec<_> = (0..3).map(|_| begin(&world, call.clone())).collect();
    until_crowded(&world, Method::POST, "/runs/batch").await;
    let more = world.post("/api/v1/runs/batch", &json!({"post": []})).await;
    more.expect(503);
    assert!(more.headers.contains_key("retry-after"));
    assert_eq!(world.get("/sessions").await.status, StatusCode::OK);
    assert_eq!(world.get("/api/v1/bulk-exports").await.status, StatusCode::OK);
    drop(let_go);
    for holder in holders {
        assert_eq!(holder.await.unwrap().status, StatusCode::ACCEPTED);
    }
}

#[tokio::test]
async fn one_workspace_leaves_room_for_another() {
    let settings = Settings {
        max_requests: 8,
        ..Settings::default()
    };
    let world = World::with(settings).await;
    let other = world.second_workspace().await;
    let let_go = stall(&world).await;
    let holders: Vec<_> = (0..7)
        .map(|number| begin_until_admitted(&world, new_project(&world, &format!("held {number}"))))
        .collect();
    let refused = async {
        loop {
            let answer = world.get("/sessions").await;
            if answer.status == StatusCode::TOO_MANY_REQUESTS {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(60), refused).await;
    let refused = refused.expect("the workspace has its share of the places");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    let call = Call::new(Method::GET, "/sessions").in_workspace(other);
    assert_eq!(world.call(call).await.status, StatusCode::OK, "another workspace");
    drop(let_go);
    for holder in holders {
        assert_eq!(holder.await.unwrap().status, StatusCode::OK);
    }
    assert_eq!(world.get("/sessions").await.status, StatusCode::OK);
}

/// As many half-sent bodies as there are places, and more.
#[tokio::test]
async fn bodies_that_do_not_come_take_no_places() {
    let settings = Settings {
        max_requests: 4,
        ..Settings::default()
    };
    let (world, address) = served(settings).await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        // A page, which asks for no key before it reads; and a route that knows whose the body is.
        let form = "POST /ui/sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: http://127.0.0.1\r\n\
                    content-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n";
        for head in [
            form.to_owned(),
            head(&world, "/runs/batch", 10),
            head(&world, "/sessions", 10),
        ] {
            let mut client = send(address, &head).await;
            // It is being read.
            let answer = first(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
            client.write_all(b"k").await.unwrap();
            silent.push(client);
        }
        assert_eq!(world.get("/sessions").await.status, StatusCode::OK);
        assert_eq!(world.open(Method::GET, "/ui/sign-in").await.status, StatusCode::OK);
        let more = world.post("/runs/batch", &json!({"post": []})).await;
        assert_ne!(more.status, StatusCode::SERVICE_UNAVAILABLE, "{}", more.text);
    }
}

#[tokio::test]
async fn a_body_without_room_in_memory_is_not_read() {
    let settings = Settings {
        ingest_memory_bytes: 64 * 1024,
        ..Settings::default()
    };
    let (world, address) = served(settings).await;
    let mut holder = send(address, &head(&world, "/runs/batch", 60_000)).await;
    assert!(first(&mut holder).await.starts_with("HTTP/1.1 100"));
    let mut refused = send(address, &head(&world, "/runs/batch", 60_000)).await;
    let answer = first(&mut refused).await;
    assert!(
        answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: "),
        "{answer}"
    );
    drop(holder);
}

#[tokio::test]
async fn bodies_are_bounded() {
    let settings = Settings {
        ingest_body_bytes: 100_000,
        ..Settings::default()
    };
    let (world, address) = served(settings).await;
    // By what is announced: nothing of it is read.
    let mut large = send(address, &head(&world, "/runs/batch", 100_001)).await;
    assert!(first(&mut large).await.starts_with("HTTP/1.1 413"));
    // And by what comes.
    let body = vec![b' '; 1024 * 1024 + 1];
    let call = Call::new(Method::POST, "/sessions").in_workspace(world.tenant);
    world
        .call(call.header("content-type", "application/json").body(body))
        .await
        .expect(413);

    let deep = format!(
        "{{\"name\": \"a\", \"extra\": {{\"a\": {}1{}}}}}",
        "[".repeat(200),
        "]".repeat(200)
    );
    let call = Call::new(Method::POST, "/sessions").in_workspace(world.tenant);
    let answer = world
        .call(call.header("content-type", "application/json").body(deep))
        .await;
    answer.expect(422);
    assert!(answer.text.contains("nested too deeply"), "{}", answer.text);
}

#[tokio::test]
async fn text_that_is_no_text_is_refused_with_its_place() {
    let world = World::new().await;
    let path = world.get("/sessions/%FF%FE").await;
    assert!(path.text.contains("path"), "{}", path.text);
    path.expect(422);
    let call = Call::new(Method::POST, "/sessions").in_workspace(world.tenant);
    let call = call.header("content-type", "application/json");
    world
        .call(call.clone().body(&b"{\"name\": \"\xff\"}"[..]))
        .await
        .expect(422);
    world
        .call(call.clone().body("{\"name\": \"a\\u0000b\"}"))
        .await
        .expect(422);
    world
        .call(call.clone().body("{\"name\": \"a\", \"description\": \"\\u0000\"}"))
        .await
        .expect(422);
    world.call(call.body("[\"a\"]")).await.expect(422);
    for query in [
        "limit=99999999999999999999",
        "limit=0",
        "offset=-1",
        "offset=9223372036854775807",
        "nothing=1",
    ] {
        world.get(&format!("/sessions?{query}")).await.expect(422);
        world.get(&format!("/api/v1/bulk-exports?{query}")).await.expect(422);
    }
}

#[tokio::test]
async fn what_would_be_kept_is_refused_where_there_is_no_room() {
    let world = World::new().await;
    let kept = [
        (Method::POST, "/runs/batch"),
        (Method::POST, "/api/v1/runs/multipart"),
        (Method::PATCH, "/runs/019c0000-0000-7000-8000-000000000000"),
        (Method::POST, "/otel/v1/traces"),
        (Method::POST, "/otel/v1/logs"),
        (Method::POST, "/feedback"),
        (Method::POST, "/repos/"),
        (Method::POST, "/api/v1/commits/-/greeting"),
        (Method::PUT, "/v2/uploads/019c0000-0000-7000-8000-000000000000"),
        (Method::PUT, "/api-host/v2/uploads/019c0000-0000-7000-8000-000000000000"),
        (
            Method::POST,
            "/v2/images/019c0000-0000-7000-8000-000000000000/blobs/uploads/",
        ),
    ];
    let send = async |method: &Method, path: &str| {
        let call = Call::new(method.clone(), path).in_workspace(world.tenant);
        world.call(call.json(&json!({}))).await
    };
    world.disk.set_low(true);
    for (method, path) in &kept {
        let answer = send(method, path).await;
        assert_eq!(answer.status, StatusCode::INSUFFICIENT_STORAGE, "{method} {path}");
        assert!(answer.headers.contains_key("retry-after"), "{method} {path}");
        assert!(answer.text.contains("the disk is nearly full"), "{}", answer.text);
    }
    // What is there can be looked at.
    for path in ["/sessions", "/api/v1/bulk-exports", "/v2/deployments"] {
        assert_eq!(world.get(path).await.status, StatusCode::OK, "{path}");
    }
    world.disk.set_low(false);
    for (method, path) in &kept {
        let answer = send(method, path).await;
        assert_ne!(answer.status, StatusCode::INSUFFICIENT_STORAGE, "{method} {path}");
    }
}

#[tokio::test]
async fn a_workspace_keeps_as_much_as_it_may() {
    let settings = Settings {
        stored_bytes_per_workspace: 1000,
        ..Settings::default()
    };
    let world = World::with(settings).await;
    let other = world.second_workspace().await;
    let send = async |tenant: TenantId| {
        let call = Call::new(Method::POST, "/runs/batch").in_workspace(tenant);
        world.call(call.json(&json!({"post": []}))).await
    };
    let before = send(world.tenant).await;
    assert_ne!(before.status, StatusCode::INSUFFICIENT_STORAGE, "{}", before.text);

    let now = world.clock.now();
    let segment = SegmentId::new();
    let part = Part {
        segment_id: segment,
        tenant_id: world.tenant,
        project_id: ProjectId::new(),
        day: now.day(),
        row_group: 0,
        rows: 1,
        min_sort_time: now,
        max_sort_time: now,
        min_seq: 1,
        max_seq: 1,
    };
    let published = world.store.write(async |tx| {
        segments::intend(tx, world.tenant, segment, "segments/a", None).await?;
        segments::publish(tx, world.tenant, segment, 1, 1000, std::slice::from_ref(&part)).await
    });
    published.await.unwrap();
    world.clock.advance(Duration::from_secs(60));
    let full = send(world.tenant).await;
    assert_eq!(full.status, StatusCode::INSUFFICIENT_STORAGE, "{}", full.text);
    assert!(full.text.contains("1000 bytes"), "{}", full.text);
    assert!(full.headers.contains_key("retry-after"));
    let spans = Call::new(Method::POST, "/otel/v1/traces").in_workspace(world.tenant);
    world.call(spans.json(&json!({}))).await.expect(507);
    world
        .post("/repos", &json!({"repo_handle": "greeting"}))
        .await
        .expect(507);
    assert_eq!(world.get("/sessions").await.status, StatusCode::OK);
    let another = send(other).await;
    assert_ne!(another.status, StatusCode::INSUFFICIENT_STORAGE, "{}", another.text);
}
