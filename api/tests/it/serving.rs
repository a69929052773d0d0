//! Serving on a real listener, and stopping.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use towpath_api::serve;
use towpath_api::serve::{Limits, serve_with_limits};

/// A route that answers when it is let, and says when somebody is inside.
struct BlockingRoute {
    entered: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

impl BlockingRoute {
    fn new() -> (Self, Router) {
        let gate = Self {
            entered: Arc::new(Semaphore::new(0)),
            release: Arc::new(Semaphore::new(0)),
        };
        let (inside, let_go) = (Arc::clone(&gate.entered), Arc::clone(&gate.release));
        let handler = move || {
            let (inside, let_go) = (Arc::clone(&inside), Arc::clone(&let_go));
            async move {
                inside.add_permits(1);
                let _ = let_go.acquire().await.unwrap();
                "done"
            }
        };
        (gate, Router::new().route("/", get(handler)))
    }
}

async fn connect(address: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn a_request_in_flight_is_finished() {
    let (gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(listener, router, shutdown.clone(), Duration::from_secs(30)));

    let mut idle = connect(address).await;
    let mut busy = connect(address).await;
    busy.write_all(REQUEST).await.unwrap();
    let _ = gate.entered.acquire().await.unwrap();
    shutdown.cancel();

    // An idle connection ends at once, and nobody new gets in.
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(address).await.is_err());

    gate.release.add_permits(1);
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"),
        "{answer}"
    );
    assert!(answer.contains("connection: close"), "{answer}");
    assert_eq!(server.await.unwrap().unwrap(), 0);
}

/// A server that refuses whatever is sent to `/`, before it has read any of it.
async fn refusing() -> (TcpStream, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let router = Router::new().route("/", post(async || StatusCode::FORBIDDEN));
    tokio::spawn(serve(listener, router, shutdown.clone(), Duration::from_secs(30)));
    (connect(address).await, shutdown)
}

/// Reads to the end of a head without a body.
async fn head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read_buf(&mut read).await.unwrap().min(1), 1, "{read:?}");
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_connection_outlives_a_refusal_that_came_before_the_body() {
    let (mut stream, _shutdown) = refusing().await;
    for _ in 0..100 {
        stream
            .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
            .await
            .unwrap();
        // In a segment of its own, as many clients send it.
        tokio::task::yield_now().await;
        stream.write_all(b"{}").await.unwrap();
        let answer = head(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(!answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_with_its_answer_says_so() {
    for (length, sent) in [
        ("content-length: 2", &b""[..]),
        ("content-length: 1000000000", &[b'x'; 1000]),
    ] {
        let (mut stream, _shutdown) = refusing().await;
        let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let answer = head(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn what_outlasts_the_grace_is_cut() {
    let (gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(listener, router, shutdown.clone(), Duration::from_millis(50)));

    let mut busy = connect(address).await;
    busy.write_all(REQUEST).await.unwrap();
    let _ = gate.entered.acquire().await.unwrap();
    shutdown.cancel();
    assert_eq!(server.await.unwrap().unwrap(), 1);
    let mut answer = Vec::new();
    let _ = busy.read_to_end(&mut answer).await;
    assert_eq!(answer, b"");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_ends_its_head_is_let_go() {
    let (_gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let _server = tokio::spawn(serve(listener, router, shutdown, Duration::ZERO));
    let mut slow = connect(address).await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    // The stopped clock runs ahead as soon as everybody waits: the connection ends although no byte more was sent.
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"),
        "{}",
        String::from_utf8_lossy(&rest)
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_asks_nothing_is_let_go() {
    let (gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    let mut silent = connect(address).await;
    let mut answered = connect(address).await;
    gate.release.add_permits(1);
    answered.write_all(REQUEST).await.unwrap();
    // Both end by themselves, the second after its answer.
    let (mut nothing, mut answer) = (Vec::new(), Vec::new());
    let _ = silent.read_to_end(&mut nothing).await;
    let _ = answered.read_to_end(&mut answer).await;
    assert!(nothing.is_empty() || nothing.starts_with(b"HTTP/1.1 408"));
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    // A reader without any patience of its own.
    let router = Router::new().route("/", post(async |body: Bytes| body));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    let mut client = connect(address).await;
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        .await
        .unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
}

#[tokio::test(start_paused = true)]
async fn a_body_of_a_byte_now_and_then_is_not_waited_for() {
    let router = Router::new().route("/", post(async |body: Bytes| body));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    let mut client = connect(address).await;
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 12];
    for _ in 0..10 {
        match tokio::time::timeout(Duration::from_secs(40), client.read_exact(&mut answer)).await {
            Ok(read) => {
                read.unwrap();
                break;
            }
            Err(_) => client.write_all(b"x").await.unwrap(),
        }
    }
    assert_eq!(&answer, b"HTTP/1.1 400", "it is let go");
}

#[tokio::test(start_paused = true)]
async fn a_head_of_a_byte_now_and_then_is_not_waited_for() {
    let (_gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    let mut client = connect(address).await;
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ")
        .await
        .unwrap();
    let mut rest = [0; 64];
    for _ in 0..10 {
        let read = tokio::time::timeout(Duration::from_secs(10), client.read(&mut rest)).await;
        // An end, a reset, or a refusal.
        if read.is_ok() || client.write_all(b"x").await.is_err() {
            return;
        }
    }
    panic!("the head is waited for longer than 100 seconds");
}

/// Asks, and reads the first bytes of the answer; `None` where the connection was closed.
async fn asked(client: &mut TcpStream) -> Option<[u8; 12]> {
    client.write_all(REQUEST).await.ok()?;
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_no_more() {
    let (gate, router) = BlockingRoute::new();
    gate.release.add_permits(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        per_local_peer: 2,
        ..Limits::default()
    };
    let shutdown = CancellationToken::new();
    let _server = tokio::spawn(serve_with_limits(limits, listener, router, shutdown, Duration::ZERO));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = connect(address).await;
        assert_eq!(asked(&mut client).await.as_ref(), Some(b"HTTP/1.1 200"));
        held.push(client);
    }
    assert_eq!(asked(&mut connect(address).await).await, None, "a third connection");
    held.pop();
    // The server learns of the end in its own time.
    let again = async {
        while asked(&mut connect(address).await).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await;
    again.expect("one that ended makes room for another");
}

#[tokio::test]
async fn a_head_too_large_is_refused() {
    let (_gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    let mut client = connect(address).await;
    let line = "x".repeat(200 * 1024);
    // The server may hang up before it has taken all of it.
    let _ = client
        .write_all(format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {line}\r\n\r\n").as_bytes())
        .await;
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[tokio::test]
async fn too_many_header_lines_are_refused() {
    let (_gate, router) = BlockingRoute::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _server = tokio::spawn(serve(listener, router, CancellationToken::new(), Duration::ZERO));
    let mut client = connect(address).await;
    let lines: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    client
        .write_all(format!("GET / HTTP/1.1\r\nhost: x\r\n{lines}\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}
