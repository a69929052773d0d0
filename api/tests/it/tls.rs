//! Serving over TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, Version, header};
use axum::routing::get;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use towpath_api::client::Client;
use towpath_api::serve::{Limits, Tls, serve_with_tls};

const FIRST: [&str; 2] = [
    include_str!("../../../crates/testing/certificates/first.pem"),
    include_str!("../../../crates/testing/certificates/first.key.pem"),
];
const SECOND: [&str; 2] = [
    include_str!("../../../crates/testing/certificates/second.pem"),
    include_str!("../../../crates/testing/certificates/second.key.pem"),
];
/// What anything here may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn identity([certificate, key]: [&str; 2]) -> CertifiedKey {
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()).unwrap()
}

struct Server {
    address: SocketAddr,
    tls: Tls,
    shutdown: CancellationToken,
    served: JoinHandle<std::io::Result<usize>>,
}

/// A server that says what it sees of its client.
async fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = |client: Client, version: Version, headers: HeaderMap| async move {
        let text = |name: HeaderName| headers.get(name).map_or("-", |value| value.to_str().unwrap());
        let [host, cookie] = [header::HOST, header::COOKIE].map(text);
        format!("{} {version:?} {host} {cookie}", client.secure)
    };
    let router = Router::new().route("/seen", get(seen));
    let tls = Tls::new(identity(FIRST)).unwrap();
    let shutdown = CancellationToken::new();
    let served = tokio::spawn(serve_with_tls(
        Some(tls.clone()),
        Limits::default(),
        listener,
        router,
        shutdown.clone(),
        LIMIT,
    ));
    Server {
        address,
        tls,
        shutdown,
        served,
    }
}

/// Connects as a client that trusts one certificate and speaks this protocol.
async fn connect(
    address: SocketAddr,
    [trusted, _]: [&str; 2],
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap();
    roots.add(trusted).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn text(answer: hyper::Response<hyper::body::Incoming>) -> String {
    assert_eq!(answer.status(), 200);
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A request of HTTP/1.1.
fn request() -> Request<Empty<Bytes>> {
    Request::get("/seen")
        .header("host", "localhost")
        .body(Empty::new())
        .unwrap()
}

type Http1 = hyper::client::conn::http1::SendRequest<Empty<Bytes>>;

async fn http1(stream: TlsStream<TcpStream>) -> Http1 {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn both_versions_of_http_are_spoken_and_the_client_is_secure() {
    let server = server().await;
    let mut client = http1(connect(server.address, FIRST, "http/1.1").await.unwrap()).await;
    let answer = client.send_request(request()).await.unwrap();
    assert_eq!(text(answer).await, "true HTTP/1.1 localhost -");

    let stream = connect(server.address, FIRST, "h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/seen")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = client.send_request(request).await.unwrap();
    // As handlers know it from HTTP/1.1.
    assert_eq!(text(answer).await, "true HTTP/1.1 localhost a=1; b=2");

    server.shutdown.cancel();
    let ended = tokio::time::timeout(LIMIT, server.served).await;
    let cut = ended
        .expect("idle connections end when the server is to stop")
        .unwrap()
        .unwrap();
    assert_eq!(cut, 0, "no connection had to be cut");
}

#[tokio::test]
async fn another_certificate_is_shown_to_new_connections_and_old_ones_go_on() {
    let server = server().await;
    let mut before = http1(connect(server.address, FIRST, "http/1.1").await.unwrap()).await;
    let answer = before.send_request(request()).await.unwrap();
    assert_eq!(text(answer).await, "true HTTP/1.1 localhost -");

    server.tls.replace(identity(SECOND));
    assert!(
        connect(server.address, FIRST, "http/1.1").await.is_err(),
        "the first certificate is no longer shown"
    );
    let mut after = http1(connect(server.address, SECOND, "http/1.1").await.unwrap()).await;
    for client in [&mut before, &mut after] {
        client.ready().await.unwrap();
        let answer = client.send_request(request()).await.unwrap();
        assert_eq!(text(answer).await, "true HTTP/1.1 localhost -");
    }
}

#[tokio::test]
async fn who_does_not_finish_the_handshake_keeps_nobody_out_and_is_let_go() {
    let server = server().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut client = http1(connect(server.address, FIRST, "http/1.1").await.unwrap()).await;
    let answer = client.send_request(request()).await.unwrap();
    assert_eq!(text(answer).await, "true HTTP/1.1 localhost -");
    let ended = tokio::time::timeout(LIMIT, silent.read(&mut [0; 16])).await;
    let read = ended.expect("a handshake that does not begin has a time limit");
    assert_eq!(read.unwrap_or(0), 0);
}
