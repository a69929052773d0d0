//! Serving a router on a listener until asked to stop, and stopping well.

mod connection_counts;
mod h2;
mod idle_timer;
mod tls;
mod unread_body;
mod write_timeout;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use connection_counts::{ConnectionCounts, ConnectionGuard};
pub use tls::Tls;
use unread_body::BODY_TIMEOUT;
use write_timeout::{WRITE_TIMEOUT, WriteTimeout};

use crate::client::Proxies;
use crate::metric;

/// A client gets this long to send the head of a request, and a kept connection to begin the next one. It bounds what
/// a client that sends a byte now and then can hold.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The same when more than half of the connections are taken: who only holds one open makes room sooner.
const CROWDED_HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// A client gets this long for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes the head of a request may have; more is 431.
const HEAD_BYTES: usize = 128 * 1024;
/// The most header lines; more is 431.
const HEADERS: usize = 100;
/// How many connections there may be, and whose word counts about who stands behind one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open at once; further ones wait in the listener's backlog.
    pub connections: usize,
    /// Of one address, or of one network of IPv6; further ones are closed as they come.
    pub per_peer: usize,
    /// The same for addresses of this machine: a proxy on it, and the platform's gateway, have those of all their clients.
    pub per_local_peer: usize,
    /// Proxies, which have the connections of all their clients, and say whose a request is.
    pub proxies: Proxies,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            per_peer: 1024,
            per_local_peer: 7168,
            proxies: Proxies::default(),
        }
    }
}

/// As [`serve_within`], within the usual limits.
///
/// # Errors
/// As [`serve_within`].
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    grace: Duration,
) -> io::Result<usize> {
    serve_with_limits(Limits::default(), listener, router, shutdown, grace).await
}

/// Serves `router` until `shutdown` is cancelled, then accepts nothing more, lets requests in flight finish for at
/// most `grace`, and closes what is left. Returns how many connections had to be cut.
///
/// The listener is closed at once when `shutdown` comes, so that another process can take the port over.
///
/// # Errors
/// Only when the listener itself is broken.
pub async fn serve_with_limits(
    limits: Limits,
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    grace: Duration,
) -> io::Result<usize> {
    serve_with_tls(None, limits, listener, router, shutdown, grace).await
}

/// As [`serve_within`], over TLS where it is given: HTTP/1.1 and HTTP/2 as the client asks.
///
/// # Errors
/// As [`serve_within`].
pub async fn serve_with_tls(
    tls: Option<Tls>,
    limits: Limits,
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    grace: Duration,
) -> io::Result<usize> {
    let cut = CancellationToken::new();
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    let peers = ConnectionCounts::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &places) => accepted?,
        };
        let (stream, peer, place) = accepted;
        let Some(counted) = count(&peers, peer, &limits) else {
            continue;
        };
        let crowded = places.available_permits() < limits.connections / 2;
        let head_timeout = if crowded { CROWDED_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
        let (router, draining, cut) = (router.clone(), shutdown.clone(), cut.clone());
        let from = (peer, limits.proxies.clone());
        let tls = tls.clone();
        connections.spawn(async move {
            // Answers are small and somebody waits for them.
            let _ = stream.set_nodelay(true);
            match tls {
                None => connection(stream, from, false, router, head_timeout, (draining, cut)).await,
                Some(tls) => secure_connection(stream, from, &tls, router, head_timeout, (draining, cut)).await,
            }
            drop((place, counted));
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

/// Counts a connection with those of its address. `None` where that has as many as it may: the connection ends then, so
/// that whoever opens them keeps nobody else out.
fn count(peers: &ConnectionCounts, peer: SocketAddr, limits: &Limits) -> Option<ConnectionGuard> {
    let address = peer.ip().to_canonical();
    let most = if address.is_loopback() || limits.proxies.contains(address) {
        limits.per_local_peer
    } else {
        limits.per_peer
    };
    let counted = peers.count(address, most);
    if counted.is_none() {
        metrics::counter!(metric::SHED, "reason" => "connections").increment(1);
        tracing::debug!(client.address = %peer, "an address has as many connections as it may");
    }
    counted
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

/// Speaks TLS on one connection, and in it what its client asks for.
async fn secure_connection(
    stream: TcpStream,
    from: (SocketAddr, Proxies),
    tls: &Tls,
    router: Router,
    head_timeout: Duration,
    (draining, cut): (CancellationToken, CancellationToken),
) {
    let limit = HANDSHAKE_TIMEOUT.min(head_timeout);
    let accepted = tokio::select! {
        accepted = tls.accept(stream, limit) => accepted,
        // Nothing has been asked for yet.
        () = draining.cancelled() => return,
        () = cut.cancelled() => return,
    };
    match accepted {
        Ok(stream) if tls::speaks_h2(&stream) => {
            h2::connection(stream, from, router, head_timeout, draining, cut).await;
        }
        Ok(stream) => connection(stream, from, true, router, head_timeout, (draining, cut)).await,
        Err(error) => tracing::debug!(%error, client.address = %from.0, "a TLS handshake failed"),
    }
}

/// Speaks HTTP/1.1 on one connection until it ends, or until drained or cut. `secure` says whether it is one of TLS.
async fn connection<S>(
    stream: S,
    (peer, proxies): (SocketAddr, Proxies),
    secure: bool,
    router: Router,
    head_timeout: Duration,
    (draining, cut): (CancellationToken, CancellationToken),
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        let client = proxies.client(peer, secure, request.headers());
        request.extensions_mut().insert(client);
        let router = router.clone();
        async move {
            let (request, unread) = unread_body::share_body(request, BODY_TIMEOUT);
            let mut answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            unread.discard_rest(&mut answer).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT)), service)
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
