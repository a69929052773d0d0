//! Serving a router on a listener until asked to stop, and stopping well.

mod patient;
mod unread;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use patient::Patient;

/// A client gets this long to send the head of a request, and a kept connection to begin the next one. It bounds what
/// a client that sends a byte now and then can hold.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The same when more than half of the connections are taken: who only holds one open makes room sooner.
const CROWDED_HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// A client that does not take a byte of its answer for so long is let go.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes the head of a request may have; more is 431.
const HEAD_BYTES: usize = 128 * 1024;
/// The most header lines; more is 431.
const HEADERS: usize = 100;
/// Connections open at once; further ones wait in the listener's backlog.
const CONNECTIONS: usize = 8192;

/// Serves `router` until `shutdown` is cancelled, then accepts nothing more, lets requests in flight finish for at
/// most `grace`, and closes what is left. Returns how many connections had to be cut.
///
/// The listener is closed at once when `shutdown` comes, so that another process can take the port over.
///
/// # Errors
/// Only when the listener itself is broken.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    grace: Duration,
) -> io::Result<usize> {
    let cut = CancellationToken::new();
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &places) => accepted?,
        };
        let (stream, peer, place) = accepted;
        let crowded = places.available_permits() < CONNECTIONS / 2;
        let head_timeout = if crowded { CROWDED_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
        let (router, draining, cut) = (router.clone(), shutdown.clone(), cut.clone());
        connections.spawn(async move {
            connection(stream, peer, router, head_timeout, draining, cut).await;
            drop(place);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(grace, connections.wait()).await.is_ok() {
        return Ok(0);
    }
    let left = connections.len();
    tracing::warn!(
        http.connections = left,
        grace_ms = grace.as_millis(),
        "cutting connections after the grace time"
    );
    cut.cancel();
    connections.wait().await;
    Ok(left)
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return Ok((stream, peer, place)),
            // The client went away between its SYN and us; says nothing about the listener.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionRefused
                ) => {}
            // Out of file descriptors or memory: connections that end give some back. Without the pause this would spin.
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        }
    }
}

/// Speaks HTTP/1.1 on one connection until it ends, or until drained or cut.
async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    head_timeout: Duration,
    draining: CancellationToken,
    cut: CancellationToken,
) {
    // Answers are small and somebody waits for them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let router = router.clone();
        async move {
            let (request, unread) = unread::lend(request);
            let mut answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            unread.settle(&mut answer).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream, READ_PATIENCE)), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut told = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, client.address = %peer, "a connection broke off");
                }
                return;
            }
            // The request in flight is answered with `Connection: close`; an idle connection ends at once.
            () = draining.cancelled(), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut.cancelled() => return,
        }
    }
}
